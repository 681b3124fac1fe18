"""The connected producers and consumers, from their heartbeats, and their groups.

Slot: none; essential.
Hooks: config_section, configure, register_processors, register_tasks, collect_metrics, connections_changed.
Config ``[plugin.clients]``: expire_after, scan_every, notify, max_groups, max_heartbeat_bytes, max_subscriptions,
max_kept_bytes.
Files: none.
Provides: ConsumerGroups, ProducerGroups.
Replaces RocketMQ's ClientManageProcessor, ConsumerManager, ProducerManager, DefaultConsumerIdsChangeListener, code
38 of ConsumerManageProcessor and the connections of AdminBrokerProcessor: codes 34, 35, 38, 203, 204, 328, 345, and 40
towards clients; 47005 is GantryMQ's own. Calls the hook ``groups_changed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.changes import GroupsBatch
from gantrymq.kernel.observers import Observers, observe
from gantrymq.kernel.processors import Processor
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.clients.clients import Clients
from gantrymq.plugins.clients.config import ClientsConfig
from gantrymq.plugins.clients.connections import Connections
from gantrymq.plugins.clients.heartbeat import Heartbeats
from gantrymq.plugins.clients.metrics import report
from gantrymq.plugins.interfaces import ConsumerGroups, GroupTable, LiveSettings, ProducerGroups, QueueLocks, TopicTable

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import ConnectionsBatch


class ClientsPlugin:
    """Processes heartbeats, notifies members of changes, drops lost clients."""

    name = "clients"
    essential = True
    _clients: Clients  # from configure on

    def __init__(self) -> None:
        self._config = ClientsConfig()
        self._changed = trio.Event()
        self._observers: Observers | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.clients]``."""
        return "clients", ClientsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Provide the groups to other plugins."""
        self._config = config.section(ClientsConfig)
        self._clients = Clients(broker.env, self._config)
        broker.registry.provide(ConsumerGroups, self._clients)
        broker.registry.provide(ProducerGroups, self._clients)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 34, 35 and 38 from clients, the others from administrators."""
        groups = broker.registry.get(GroupTable)
        topics = broker.registry.get(TopicTable)
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.clients", self._config, ("notify", "expire_after"), self._clients.reconfigure)
        self._observers = observe(broker.manager, "groups_changed")
        if self._observers is not None:
            self._clients.updated = {}
        locks = broker.registry.find(QueueLocks)
        handlers = Heartbeats(self._clients, groups, topics, self._config, self._wake, broker.env.monotonic, locks)
        return dict(handlers.processors() | Connections(self._clients, self._wake).processors())

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return two tasks: one notifies members and plugins of changes, one drops silent clients."""
        return [BackgroundTask("clients.notify", self._notify), BackgroundTask("clients.expire", self._expire)]

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """Remove closed connections from their groups."""
        if batch.closed:
            self._clients.drop(batch.closed)
            self._wake()

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the connected clients."""
        report(metrics, self._clients)

    def _wake(self) -> None:
        self._changed.set()

    async def _notify(self) -> None:
        # a separate task, so that all changes of one turn cause one notification per group
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._clients.notify_changes()
            updated = self._clients.take_updated()
            if updated and self._observers is not None:
                self._observers(GroupsBatch(updated))

    async def _expire(self) -> None:
        while True:
            await trio.sleep(self._config.scan_every)
            self._clients.expire()
            self._wake()

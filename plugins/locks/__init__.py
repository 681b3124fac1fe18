"""Locks of queues, so that only one member of an orderly consumer group consumes from a queue at a time.

Slot: none.
Hooks: config_section, configure, connections_changed, register_processors.
Config ``[plugin.locks]``: ``expire_after`` (a lock that is not renewed for this time expires),
``free_after_disconnect`` (so does a lock whose owner has been disconnected for this time), ``max_locks``, ``max_bytes``
(their memory).
Files: none; a restart releases all locks.
Provides: QueueLocks.
Replaces RocketMQ's ``RebalanceLockManager``: codes 41 and 42. In RocketMQ, a member that leaves keeps its locks
until they expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.plugins.interfaces import ConsumerGroups, QueueLocks
from gantrymq.plugins.locks.config import LocksConfig
from gantrymq.plugins.locks.requests import LockRequests
from gantrymq.plugins.locks.table import LockTable

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.network.connection import ConnectionsBatch
    from gantrymq.kernel.processors import Processor


class LocksPlugin:
    """Keeps the lock table and answers its requests."""

    name = "locks"
    _table: LockTable  # from configure on

    def __init__(self) -> None:
        self._groups: ConsumerGroups | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.locks]``."""
        return "locks", LocksConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Provide the table as ``QueueLocks``; the plugin ``clients`` reports members that leave."""
        self._table = LockTable(broker.env.monotonic, config.section(LocksConfig), self._is_member)
        broker.registry.provide(QueueLocks, self._table)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 41 and 42."""
        self._groups = broker.registry.find(ConsumerGroups)
        return dict(LockRequests(self._table).processors())

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """Let the locks of clients whose connections were closed expire after ``free_after_disconnect``."""
        for connection in batch.closed:
            self._table.connection_lost(connection.id)

    def _is_member(self, group: str, client_id: str) -> bool:
        return self._groups is not None and client_id in self._groups.client_ids(group)

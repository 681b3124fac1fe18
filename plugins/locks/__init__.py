"""Locks of queues, so that of a group with orderly consumers only one member at a time takes from a queue.

Slot: none.
Hooks: config_section, configure, connections_changed, register_processors.
Config ``[plugin.locks]``: ``expire_after`` (a lock that was not taken again for so long is free),
``free_after_disconnect`` (so is one whose owner's connection ended so long ago), ``max_locks``,
``max_bytes`` (what they take in memory).
Files: none; after a restart everything is free. Provides: QueueLocks. Answers for RocketMQ's ``RebalanceLockManager``:
codes 41 and 42. There a member that leaves with its queues locked keeps them until they expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.plugins.interfaces import ConsumerGroups, QueueLocks
from gantrymq.plugins.locks.config import LocksConfig
from gantrymq.plugins.locks.requests import LockRequests
from gantrymq.plugins.locks.table import LockTable

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.network.connection import ConnectionsBatch
    from gantrymq.kernel.processors import Processor


class LocksPlugin:
    """Keeps the table and answers for it."""

    name = "locks"
    _table: LockTable  # from configure on

    def __init__(self) -> None:
        self._groups: ConsumerGroups | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.locks]``."""
        return "locks", LocksConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Offer the table to whoever knows when a member leaves."""
        self._table = LockTable(broker.env.monotonic, config.section(LocksConfig), self._is_member)
        broker.registry.provide(QueueLocks, self._table)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """41 and 42."""
        self._groups = broker.registry.find(ConsumerGroups)
        return dict(LockRequests(self._table).processors())

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        """The queues of clients whose connections ended become free in a while."""
        for connection in batch.closed:
            self._table.connection_lost(connection.id)

    def _is_member(self, group: str, client_id: str) -> bool:
        return self._groups is not None and client_id in self._groups.client_ids(group)

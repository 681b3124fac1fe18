"""Locks of queues, so that of a group with orderly consumers only one member at a time takes from a queue.

Slot: none.
Hooks: config_section, register_processors.
Config ``[plugin.locks]``: ``expire_after`` (a lock that was not taken again for so long is free), ``max_locks``.
Files: none; after a restart everything is free. Answers for RocketMQ's ``RebalanceLockManager``: codes 41 and 42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.plugins.locks.config import LocksConfig
from gantrymq.plugins.locks.requests import LockRequests
from gantrymq.plugins.locks.table import LockTable

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.processors import Processor


class LocksPlugin:
    """Keeps the table and answers for it."""

    name = "locks"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.locks]``."""
        return "locks", LocksConfig

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """41 and 42."""
        config = broker.config.section(LocksConfig)
        table = LockTable(broker.env.monotonic, config.expire_after, config.max_locks)
        return dict(LockRequests(table).processors())

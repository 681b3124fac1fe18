"""The broker that a consumer is redirected to.

Source: RocketMQ 4.9.7 ``PullMessageProcessor`` and ``DefaultMessageStore.getMessage`` (``suggestPullingFromSlave``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.consume.plain import Suggest

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig

MASTER_ID: Final = 0


class Suggestions:
    """The broker from the group's configuration if slaves may be read; otherwise the master.

    A consumer counts as slow if it lags by more than ``memory_percent`` of the machine's memory: its messages are no
    longer in memory, and another broker may have less load.
    """

    def __init__(self, broker: Broker, enabled: bool, memory_percent: int) -> None:
        self._broker = broker
        self._memory = broker.env.memory_bytes()
        self.configure(enabled, memory_percent)

    def configure(self, enabled: bool, memory_percent: int) -> None:
        """Apply other settings from now on."""
        self.enabled = enabled
        self.memory_bytes = self._memory * memory_percent // 100
        """The number of bytes before the log's end that count as in memory."""

    def disk_end(self) -> int:
        """Return the log offset where memory begins: the log before it counts as being only on the disk."""
        return self._broker.log.end - self.memory_bytes

    def of(self, group: SubscriptionGroupConfig) -> Suggest | None:
        """Return the broker for a consumer of this group, by the log offset of its progress; None: always the
        master."""
        if not self.enabled:
            return None
        return partial(self._choose, group.broker_id, group.which_broker_when_consume_slowly)

    def nothing_read(self, group: SubscriptionGroupConfig | None) -> int:
        """Return the broker for a consumer whose pull examined no entry."""
        return group.broker_id if self.enabled and group is not None else MASTER_ID

    def _choose(self, near: int, far: int, offset: int) -> int:
        return far if offset < self.disk_end() else near

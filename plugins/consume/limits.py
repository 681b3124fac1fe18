"""Limits of one response to a pull.

Source: RocketMQ 4.9.7 ``DefaultMessageStore.isTheBatchFull`` and ``checkInDiskByCommitOffset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.consume.plain import PullLimits

if TYPE_CHECKING:
    from gantrymq.plugins.consume.config import ConsumeConfig
    from gantrymq.plugins.consume.suggest import Suggestions


class TransferLimits:
    """RocketMQ's limits from memory and from the disk, and the limits of clients that accept more.

    ``transfer`` and ``memory_bytes``: see :class:`gantrymq.plugins.consume.plain.Transfer`.
    """

    def __init__(self, config: ConsumeConfig, suggestions: Suggestions) -> None:
        self._suggestions = suggestions
        self.configure(config)

    def configure(self, config: ConsumeConfig) -> None:
        """Apply other settings from now on."""
        self._config = config
        self.transfer = config.memory_messages, config.memory_bytes, config.disk_messages, config.disk_bytes
        self.memory_bytes = self._suggestions.memory_bytes

    def of(self, messages: int, size: int) -> PullLimits:
        """Return the limits of a pull of up to ``messages``; ``size`` above 0: the client accepts this many bytes."""
        messages = max(1, messages)
        if size > 0:
            messages, size = min(messages, self._config.max_messages), min(size, self._config.max_bytes)
            return PullLimits(messages, size, messages, size, 0)
        most, room, disk_most, disk_room = self.transfer
        return PullLimits(min(messages, most), room, min(messages, disk_most), disk_room, self._suggestions.disk_end())

"""How much one answer to a pull may carry.

Source: RocketMQ 4.9.7 ``DefaultMessageStore.isTheBatchFull`` and ``checkInDiskByCommitOffset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel.fast import PullLimits

if TYPE_CHECKING:
    from gantrymq.plugins.consume.config import ConsumeConfig
    from gantrymq.plugins.consume.suggest import Suggestions


class TransferLimits:
    """RocketMQ's limits from memory and from the disk, and the limits of clients that accept more."""

    def __init__(self, config: ConsumeConfig, suggestions: Suggestions) -> None:
        self._suggestions = suggestions
        self.configure(config)

    def configure(self, config: ConsumeConfig) -> None:
        """Apply other settings from now on."""
        self._config = config

    def now(self) -> PullLimits:
        """RocketMQ's limits at the log's present end."""
        config = self._config
        return PullLimits(
            config.memory_messages,
            config.memory_bytes,
            config.disk_messages,
            config.disk_bytes,
            self._suggestions.disk_end(),
        )

    def of(self, messages: int, size: int) -> PullLimits:
        """The limits of a pull that asks for ``messages``; ``size`` above 0: the client accepts so many bytes."""
        messages = max(1, messages)
        if size > 0:
            messages, size = min(messages, self._config.max_messages), min(size, self._config.max_bytes)
            return PullLimits(messages, size, messages, size, 0)
        limits = self.now()
        return limits._replace(
            messages=min(messages, limits.messages), disk_messages=min(messages, limits.disk_messages)
        )

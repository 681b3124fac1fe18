"""What the ``flush`` slot must offer: a strategy that decides when appended bytes become durable."""

from __future__ import annotations

from typing import Protocol


class FlushStrategy(Protocol):
    """Owns the cadence of fsync. It never retries one: a failed flush poisons the log and ends ``run`` by raising."""

    def appended(self, end: int) -> None:
        """The log now ends at ``end``; called in the sweep once a batch, must not block."""

    async def run(self) -> None:
        """Flush until cancelled; on cancellation everything appended is flushed before it returns."""

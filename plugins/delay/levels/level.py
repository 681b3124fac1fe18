"""How far one level is: what is read, on its way, to be tried again, and certainly delivered. Queue offsets all."""

from __future__ import annotations

from collections import deque

import attrs

SETTLED_MAX = 256
"""Positions that wait for the disk; further ones take the last one's place."""


@attrs.define(eq=False)
class Level:
    """The level of the queue ``queue_id``. ``cursor`` is the next message that was never tried."""

    queue_id: int
    cursor: int
    retry: list[int] = attrs.field(factory=list)
    """What could not be put, in order: tried again from ``retry_at`` (ms) on, before anything else."""
    retry_at: int = 0
    flights: deque[tuple[int, int]] = attrs.field(factory=deque)
    """Batches that are written and not yet committed: first queue offset, and the end in the log."""
    _settled: deque[tuple[int, int]] = attrs.field(factory=deque)
    _safe: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._safe = self.cursor

    @property
    def position(self) -> int:
        """Everything before this is delivered and readable."""
        waiting = [first for first, _ in self.flights]
        return min([self.cursor, *self.retry[:1], *waiting])

    def correct(self, low: int, high: int) -> bool:
        """Go on within the queue, which reaches from ``low`` to ``high``. Returns whether it was outside."""
        outside = not low <= self.cursor <= high
        self.retry = [unit for unit in self.retry if low <= unit < high]
        self.cursor = min(max(self.cursor, low), high)
        return outside

    def taken(self, unit: int) -> None:
        """``unit`` is dealt with, but for what :meth:`failed` says."""
        if self.retry and self.retry[0] == unit:
            del self.retry[0]
        else:
            self.cursor = unit + 1

    def failed(self, units: list[int], until: int) -> None:
        """Try ``units`` again, at ``until`` at the earliest.

        A level's stored position is one number: after a restart in between, what was put behind them comes twice.
        """
        self.retry = sorted({*self.retry, *units})
        self.retry_at = until

    def took_off(self, first: int, end: int) -> None:
        """Messages from ``first`` on are written up to the log offset ``end``."""
        self.flights.append((first, end))

    def settle(self, dispatched: int) -> None:
        """The log is dispatched so far: what ends there has arrived."""
        while self.flights and self.flights[0][1] <= dispatched:
            _, end = self.flights.popleft()
            if len(self._settled) >= SETTLED_MAX:
                self._settled.pop()
            self._settled.append((end, self.position))

    def safe(self, durable: int) -> int:
        """Everything before this is delivered, and the disk has it; ``durable`` is how far it has the log."""
        while self._settled and self._settled[0][0] <= durable:
            self._safe = self._settled.popleft()[1]
        if not self._settled:
            self._safe = self.position
        return self._safe

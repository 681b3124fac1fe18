"""The progress of one level: messages that are read, in flight, to be retried, and durably delivered, as queue
offsets."""

from __future__ import annotations

from collections import deque

import attrs

SETTLED_MAX = 256
"""The most positions that wait for the disk; further ones replace the last one."""


@attrs.define(eq=False)
class Level:
    """The level of the queue ``queue_id``. ``cursor`` is the next message that was not tried yet."""

    queue_id: int
    cursor: int
    retry: list[int] = attrs.field(factory=list)
    """Messages that could not be stored, in order; they are retried from ``retry_at`` (ms) on, before any other."""
    retry_at: int = 0
    waits_for_older: bool = False
    """Whether it was reported that the level has messages from before it was made shorter."""
    in_flight: deque[tuple[int, int]] = attrs.field(factory=deque)
    """Batches that are written and not yet committed: first queue offset, and end in the log."""
    _settled: deque[tuple[int, int]] = attrs.field(factory=deque)
    _safe: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._safe = self.cursor

    @property
    def position(self) -> int:
        """Everything before this is delivered and readable."""
        waiting = [first for first, _ in self.in_flight]
        return min([self.cursor, *self.retry[:1], *waiting])

    def correct(self, low: int, high: int) -> bool:
        """Move the cursor into the queue's range from ``low`` to ``high``. Returns whether it was outside."""
        outside = not low <= self.cursor <= high
        self.retry = [unit for unit in self.retry if low <= unit < high]
        self.cursor = min(max(self.cursor, low), high)
        return outside

    def taken(self, unit: int) -> None:
        """``unit`` is processed, except for units passed to :meth:`failed`."""
        if self.retry and self.retry[0] == unit:
            del self.retry[0]
        else:
            self.cursor = unit + 1

    def failed(self, units: list[int], until: int) -> None:
        """Retry ``units``, not before ``until``.

        The stored position of a level is one number: after a restart meanwhile, messages that were delivered behind
        them are delivered again.
        """
        self.retry = sorted({*self.retry, *units})
        self.retry_at = until

    def written(self, first: int, end: int) -> None:
        """Messages from ``first`` on are written up to the log offset ``end``."""
        self.in_flight.append((first, end))

    def settle(self, dispatched: int) -> None:
        """The log is dispatched up to this offset: batches that end before it are delivered."""
        while self.in_flight and self.in_flight[0][1] <= dispatched:
            _, end = self.in_flight.popleft()
            if len(self._settled) >= SETTLED_MAX:
                self._settled.pop()
            self._settled.append((end, self.position))

    def safe(self, durable: int) -> int:
        """Everything before this is delivered and flushed; ``durable`` is the flushed end of the log."""
        while self._settled and self._settled[0][0] <= durable:
            self._safe = self._settled.popleft()[1]
        if not self._settled:
            self._safe = self.position
        return self._safe

"""Search in the entries of a consume queue: the first valid entry, and entries by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

Entry = tuple[int, int, int]
"""Log offset, record size, tag code."""

TimeBound = Literal["nearest", "first_since", "last_until"]
"""Which message of a time: the nearest; the first one stored then or later, the end of the queue if there is none; or
the last one stored until then, the first of the queue if there is none."""


class Entries(Protocol):
    """Gives entries by queue offset."""

    def entry(self, offset: int) -> Entry:
        """Return the entry there; a filler if it was deleted meanwhile."""

    def next_real(self, unit: int, end: int, *, any_place: bool = False) -> int:
        """Return the first entry from ``unit`` on that is not a filler; ``end`` if there is none before it.

        An entry with an invalid log offset is damaged and counts only with ``any_place``.
        """


def first(low: int, high: int, predicate: Callable[[int], bool]) -> int:
    """Return the first number from ``low`` on for which ``predicate`` holds, ``high`` if for none; it must be
    monotone."""
    while low < high:
        middle = (low + high) // 2
        if predicate(middle):
            high = middle
        else:
            low = middle + 1
    return low


def first_kept(queue: Entries, low: int, high: int, log_min: int) -> int:
    """Return the first entry of a record at or behind ``log_min``, ``high`` if there is none."""

    def is_kept(unit: int) -> bool:
        # A single entry may be damaged: two of three entries that are not fillers decide.
        votes: list[bool] = []
        while len(votes) < 3 and (unit := queue.next_real(unit, high)) < high:
            votes.append(queue.entry(unit)[0] >= log_min)
            unit += 1
        return 2 * sum(votes) >= len(votes)

    unit = first(low, high, is_kept)
    for _ in range(2):
        # The votes may point one entry too early. An entry with a lower log offset than its predecessor is damaged.
        unit = queue.next_real(unit, high, any_place=True)
        if unit == high or not 0 <= queue.entry(unit)[0] < log_min or queue.entry(unit)[1] <= 0:
            break
        if unit > low and queue.entry(unit)[0] < queue.entry(unit - 1)[0]:
            break
        unit += 1
    return queue.next_real(unit, high, any_place=True)


def find_by_time(
    queue: Entries, low: int, high: int, timestamp: int, stored_at: Callable[[int], int | None], bound: TimeBound
) -> int:
    """See ``ConsumeQueues.offset_by_time``; among the entries from ``low`` to ``high``."""
    if low >= high:
        return high if bound == "first_since" else 0

    def time_of(unit: int) -> int | None:
        while (unit := queue.next_real(unit, high)) < high:
            stored = stored_at(queue.entry(unit)[0])
            if stored is not None:
                return stored
            unit += 1
        return None

    def is_late(unit: int) -> bool:
        stored = time_of(unit)
        return stored is None or stored >= timestamp + (bound == "last_until")

    unit = first(low, high, is_late)
    if bound == "first_since":
        return unit
    if bound == "last_until":
        return max(unit - 1, low)
    after = time_of(unit) if unit < high else None
    if after is None:
        return max(unit - 1, low)
    before = time_of(unit - 1) if unit > low else None
    if before is not None and timestamp - before <= after - timestamp and after != timestamp:
        return unit - 1
    return unit

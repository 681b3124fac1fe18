"""Counters with values for the last minute, hour and day.

Source: RocketMQ 4.9.7 ``StatsItem``: a snapshot every 10 s, 10 min and hour; the value of a period follows from its
oldest and newest snapshot, and begins with a snapshot of zero.
"""

from __future__ import annotations

from array import array

import attrs

from gantrymq.remoting.bodies.stats import StatsData, StatsItem


@attrs.define
class Period:
    """``every``: milliseconds between two snapshots; ``kept``: how many are compared."""

    every: int
    kept: int


MINUTE = Period(10_000, 7)
HOUR = Period(600_000, 7)
DAY = Period(3_600_000, 25)
PERIODS = (MINUTE, HOUR, DAY)

FIELDS = 3
"""The numbers of a snapshot: its time (ms), the events and the value up to then."""
_LARGEST = 2**63 - 1


class Item:
    """One counter: ``value`` from ``times`` events. At most a kibibyte, because there may be many."""

    __slots__ = ("_snapshots", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._snapshots: list[array[int] | None] = [None] * len(PERIODS)

    def add(self, value: int, times: int) -> None:
        """Add an event with its value."""
        self.value = min(self.value + value, _LARGEST)
        self.times = min(self.times + times, _LARGEST)

    def sample(self, now: int, period: int) -> None:
        """Take a snapshot for the period of this number in :data:`PERIODS`, at ``now`` (ms)."""
        snapshots = self._snapshots[period]
        if snapshots is None:
            snapshots = self._snapshots[period] = array("q", (now - PERIODS[period].every, 0, 0))
        elif len(snapshots) >= PERIODS[period].kept * FIELDS:
            del snapshots[:FIELDS]
        snapshots.extend((now, self.times, self.value))

    def is_new(self, period: int) -> bool:
        """Return whether the period has no snapshot yet."""
        return self._snapshots[period] is None

    @property
    def is_idle(self) -> bool:
        """Whether there was no event in the last day."""
        day = self._snapshots[2]
        if day is None or len(day) < DAY.kept * FIELDS:
            return False
        return (day[1], day[2]) == (self.times, self.value)

    @property
    def tps(self) -> float:
        """The value a second over the last minute."""
        return _stats_of(self._snapshots[0]).tps

    def data(self) -> StatsData:
        """Minute, hour and day."""
        return StatsData(*map(_stats_of, self._snapshots))


def _stats_of(snapshots: array[int] | None) -> StatsItem:
    if snapshots is None:
        return StatsItem()
    passed, events, value = (snapshots[field - FIELDS] - snapshots[field] for field in range(FIELDS))
    return StatsItem(value, value * 1000 / passed if passed > 0 else 0.0, value / events if events else 0.0)

"""Counters with a memory: how much came in the last minute, hour and day.

Source: RocketMQ 4.9.7 ``StatsItem``: a snapshot each 10 s, 10 min and hour; a period is told by its oldest and newest
snapshot, and begins with one of zero.
"""

from __future__ import annotations

from collections import deque

import attrs

from gantrymq.remoting.admin_bodies import StatsData, StatsItem


@attrs.define
class Period:
    """``every``: milliseconds between two snapshots; ``kept``: how many are compared."""

    every: int
    kept: int


MINUTE = Period(10_000, 7)
HOUR = Period(600_000, 7)
DAY = Period(3_600_000, 25)
PERIODS = (MINUTE, HOUR, DAY)

Snapshot = tuple[int, int, int]
"""When (ms), events so far, value so far."""


class Item:
    """One counter: ``value`` that came in ``times`` events."""

    __slots__ = ("_snapshots", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._snapshots: tuple[deque[Snapshot], ...] = tuple(deque(maxlen=period.kept) for period in PERIODS)

    def add(self, value: int, times: int) -> None:
        """Count."""
        self.value += value
        self.times += times

    def sample(self, now: int, period: int) -> None:
        """Take a snapshot for the period of this number in :data:`PERIODS`, at ``now`` (ms)."""
        snapshots = self._snapshots[period]
        if not snapshots:
            snapshots.append((now - PERIODS[period].every, 0, 0))
        snapshots.append((now, self.times, self.value))

    def is_new(self, period: int) -> bool:
        """Whether the period has no snapshot yet."""
        return not self._snapshots[period]

    @property
    def is_idle(self) -> bool:
        """Whether nothing came in the last day."""
        day = self._snapshots[2]
        return len(day) == DAY.kept and day[0][1:] == (self.times, self.value)

    @property
    def tps(self) -> float:
        """The value a second over the last minute."""
        return _told(self._snapshots[0]).tps

    def data(self) -> StatsData:
        """Minute, hour and day."""
        return StatsData(*map(_told, self._snapshots))


def _told(snapshots: deque[Snapshot]) -> StatsItem:
    if not snapshots:
        return StatsItem()
    first, last = snapshots[0], snapshots[-1]
    value, events, passed = last[2] - first[2], last[1] - first[1], last[0] - first[0]
    return StatsItem(value, value * 1000 / passed if passed > 0 else 0.0, value / events if events else 0.0)

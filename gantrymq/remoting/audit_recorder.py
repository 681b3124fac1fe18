"""Keeps events until they are written, counts them, and merges equal ones so that no peer floods the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
import trio

from gantrymq.remoting.audit_events import Event

PENDING_MAX: Final = 10_000
"""Events that wait to be written; beyond it they are counted as lost."""
MERGED_MAX: Final = 1_000
"""Different refusals within an interval; the others are one event."""
IDENTITIES_MAX: Final = 1_000
"""Identities with counts of their own; the others are counted together."""
OTHERS: Final = "(others)"
NOBODY: Final = "(none)"


class Recorder:
    """``totals``: events by kind, identity and result since the start. ``lost``: those that were not written."""

    def __init__(self, clock: Callable[[], float], interval_s: float) -> None:
        """``clock``: monotonic seconds. ``interval_s``: for how long equal events are merged."""
        self._clock = clock
        self._interval_s = interval_s
        self._pending: list[Event] = []
        self._merged: dict[tuple[object, ...], Event | None] = {}
        """By :attr:`Event.same`: the last of the equal events behind the first one, with their number; None: none."""
        self._merged_until = clock() + interval_s
        self._wakeup = trio.Event()
        self._identities: set[str] = set()
        self.totals: Counter[tuple[str, str, str]] = Counter()
        self.lost: int = 0

    def add(self, event: Event) -> None:
        """Record an event of its own."""
        self._count(event)
        self._put(event)

    def repeated(self, event: Event) -> None:
        """Record an event that may come often: equal ones of an interval are merged, after the first one."""
        self._count(event)
        if self._clock() >= self._merged_until:
            self.flush_counts()
        same = event.same
        if same not in self._merged and len(self._merged) >= MERGED_MAX:
            event = attrs.evolve(
                event, identity=None, access_key=None, address=OTHERS, code=0, request="", about={}, remark=None
            )
            same = event.same
            self._merged.setdefault(same, None)
        if same not in self._merged:
            self._merged[same] = None
            self._put(event)
            return
        before = self._merged[same]
        self._merged[same] = attrs.evolve(event, count=1 if before is None else before.count + 1)

    def flush_counts(self) -> None:
        """End the interval: the merged events are events now."""
        for event in self._merged.values():
            if event is not None:
                self._put(event)
        self._merged = {}
        self._merged_until = self._clock() + self._interval_s

    async def wait(self) -> None:
        """Wait until events can be taken."""
        while not self._pending:
            if self._clock() >= self._merged_until:
                self.flush_counts()
                continue
            with trio.move_on_after(self._interval_s):
                await self._wakeup.wait()

    def take(self, *, all_counts: bool = False) -> list[Event]:
        """The events that wait, in order, which then wait no longer.

        ``all_counts``: the merged ones too, before their interval is over.
        """
        if all_counts or self._clock() >= self._merged_until:
            self.flush_counts()
        taken, self._pending = self._pending, []
        self._wakeup = trio.Event()
        return taken

    def _put(self, event: Event) -> None:
        if len(self._pending) >= PENDING_MAX:
            self.lost += event.count
            return
        self._pending.append(event)
        self._wakeup.set()

    def _count(self, event: Event) -> None:
        identity = event.identity or NOBODY
        if identity not in self._identities:
            if len(self._identities) >= IDENTITIES_MAX:
                identity = OTHERS
            else:
                self._identities.add(identity)
        self.totals[event.kind, identity, str(event.result)] += 1

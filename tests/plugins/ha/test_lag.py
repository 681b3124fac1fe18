"""A slave that falls behind, or catches up again, is logged once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog.testing

from gantrymq.plugins.ha.copies import Copies, Copy
from gantrymq.plugins.ha.lag import BEHIND_S, LagWatch


def test_lagging_and_recovery_of_a_slave_are_each_reported_once() -> None:
    now = [100.0]
    log = SimpleNamespace(end=1000)
    broker: Any = SimpleNamespace(env=SimpleNamespace(monotonic=lambda: now[0]), log=log)
    copies = Copies(lambda: None)
    slow, level = Copy("slow:1", "slow", 100.0, start=0), Copy("level:1", "level", 100.0, start=0)
    for copy in (slow, level):
        copies.add(copy)
        copies.acknowledge(copy, 1000, now[0])
        copy.level_at = now[0]
    watch = LagWatch(broker, copies)

    def looked() -> list[tuple[Any, ...]]:
        with structlog.testing.capture_logs() as logs:
            watch.check()
        return [(entry["event"], entry["peer"], entry.get("lag_bytes"), entry.get("lag_seconds")) for entry in logs]

    assert looked() == []
    log.end = 1500
    copies.acknowledge(level, 1500, now[0])
    now[0] += BEHIND_S
    assert looked() == [], "not yet for long enough"
    now[0] += 0.5
    assert looked() == [("slave_behind", "slow:1", 500, BEHIND_S + 0.5)]
    now[0] += 60
    assert looked() == [], "logged once"
    copies.acknowledge(slow, 1500, now[0])
    assert looked() == [("slave_caught_up", "slow:1", None, None)]

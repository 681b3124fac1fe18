"""What is measured: the rows of the budget, one scenario each."""

from __future__ import annotations

import attrs


@attrs.frozen
class Scenario:
    """One load. ``goal`` is the ratio to the Java broker that the compiled build must reach, None where it is told
    only; ``plain_goal`` the plain one's. ``kind`` as in :class:`gantrymq.bench.plan.Load`."""

    name: str
    flush: str
    connections: int
    in_flight: int
    goal: float | None = None
    plain_goal: float | None = None
    size: int = 100
    batch: int = 1
    kind: str = "send"

    @property
    def topic(self) -> str:
        """Messages of one sort have a topic, so that a pull meets no others."""
        return f"bench-{self.kind}-{self.size}-{self.batch}"

    @property
    def is_alone(self) -> bool:
        """Whether it is one message at a time: then its times matter more than its rate."""
        return self.connections * self.in_flight == 1


SCENARIOS = (
    Scenario("pull 8 queues, 32 a pull", "async", 4, 2, goal=2.0, batch=32, kind="pull"),
    Scenario("send 8x16 async", "async", 8, 16, goal=3.0, plain_goal=0.8),
    Scenario("send 64x1 async", "async", 64, 1, goal=2.0),
    Scenario("send 1x1 async", "async", 1, 1, goal=1.6),
    Scenario("send 64x16 async", "async", 64, 16),
    Scenario("send 16x32 1 KiB async", "async", 16, 32, goal=1.8, size=1024),
    Scenario("batch 32, 4x4 async", "async", 4, 4, goal=2.5, batch=32),
    Scenario("send 8x16 sync", "sync", 8, 16, goal=7.0),
    Scenario("send 64x1 sync", "sync", 64, 1, goal=4.5),
    Scenario("send 64x16 sync", "sync", 64, 16, goal=5.0),
    Scenario("send 1x1 sync", "sync", 1, 1, goal=3.5),
)
"""Source: the budget table of the architecture. The pull is first, while everything it reads is new."""


def chosen(only: str) -> list[Scenario]:
    """The scenarios whose names hold one of the comma-separated texts; all of them for an empty one."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    return [scenario for scenario in SCENARIOS if not words or any(word in scenario.name for word in words)]

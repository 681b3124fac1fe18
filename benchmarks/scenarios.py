"""What is measured: the rows of the budget and the wider groups, one scenario each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

GROUPS = {
    "budget": "The budget",
    "payloads": "Payloads and batches",
    "connections": "Connections",
    "queues": "Queues",
    "mixed": "Producers and consumers at once",
    "idle": "Idle connections",
    "recovery": "Recovery after kill -9",
    "growth": "Growth",
    "indexing": "The index",
    "nameserver": "The nameserver",
    "replication": "Replication",
    "floods": "A sender beside heavy requests",
    "client": "The Python client",
    "hooks": "Plugins that look on",
    "processes": "More than one process",
    "security": "Signatures and TLS",
    "spark": "Spark",
}
"""By name, with the title of its section. The budget is run in several rounds, the others in one."""
RARE_GROUPS = ("indexing", "nameserver", "replication", "floods", "client", "hooks", "processes", "security", "spark")
USUAL_GROUPS = tuple(name for name in GROUPS if name not in RARE_GROUPS)
"""The groups that run by default; the others take minutes more."""
QUEUES = 8
QUEUES_OF_A_TOPIC_MAX = 1000
"""More queues than this are spread over several topics: a topic of ours has at most 1,024."""


@attrs.frozen
class Scenario:
    """One load. ``goal`` is the ratio to the Java broker that the compiled build must reach; None: it is only
    reported. ``plain_goal``: the same of the plain build. ``kind`` as in :class:`gantrymq.bench.plan.Load`. ``groups``:
    the sections that show it; the first one runs it. ``followed``: consumers read at the same time what is sent."""

    name: str
    flush: str
    connections: int
    in_flight: int
    goal: float | None = None
    plain_goal: float | None = None
    size: int = 100
    batch: int = 1
    kind: str = "send"
    groups: Sequence[str] = ("budget",)
    queues: int = QUEUES
    followed: bool = False
    goals_of_others: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def topic(self) -> str:
        """The topic of the load: each size has its own, so that a pull reads messages of one size."""
        return f"bench-{self.kind}-{self.size}-{self.batch}" + ("-followed" if self.followed else "")

    @property
    def topics(self) -> list[str]:
        """The topics of a load over more queues than one topic has; else none."""
        if self.queues <= QUEUES_OF_A_TOPIC_MAX:
            return []
        return [f"{self.topic}-many-{number}" for number in range(-(-self.queues // QUEUES_OF_A_TOPIC_MAX))]

    @property
    def is_alone(self) -> bool:
        """Whether one message is in flight at a time: then its latency matters more than its rate."""
        return self.connections * self.in_flight == 1

    @property
    def is_plain_send(self) -> bool:
        """Whether another system, which has no such queues and consumers, can run the scenario."""
        return self.kind == "send" and self.batch == 1 and self.queues == QUEUES and not self.followed


SCENARIOS = (
    Scenario("pull 8 queues, 32 a pull", "async", 4, 2, 2.0, batch=32, kind="pull", goals_of_others={"kafka": 1.0}),
    Scenario("pull 8x1, 32 a pull", "async", 8, 1, 2.0, batch=32, kind="pull", goals_of_others={"kafka": 1.0}),
    Scenario("send 8x16 async", "async", 8, 16, 3.0, 0.8, groups=("budget", "payloads", "queues"),
             goals_of_others={"redis": 1.0}),
    Scenario("send 64x1 async", "async", 64, 1, 2.0, groups=("budget", "connections"), goals_of_others={"redis": 1.0}),
    Scenario("send 1x1 async", "async", 1, 1, 2.0, groups=("budget", "connections")),
    Scenario("send 64x16 async", "async", 64, 16, 2.0),
    Scenario("send 16x32 1 KiB async", "async", 16, 32, 2.0, size=1024),
    Scenario("batch 32, 4x4 async", "async", 4, 4, 2.5, batch=32, groups=("budget", "payloads")),
    Scenario("transactions 8x16 async", "async", 8, 16, 2.0, kind="transact"),
    Scenario("send 8x16 sync", "sync", 8, 16, 7.0),
    Scenario("send 64x1 sync", "sync", 64, 1, 4.5, goals_of_others={"redis": 1.2}),
    Scenario("send 64x16 sync", "sync", 64, 16, 5.0, goals_of_others={"redis": 1.2}),
    Scenario("send 1x1 sync", "sync", 1, 1, 3.5, goals_of_others={"redis": 1.0}),
    Scenario("transactions 8x16 sync", "sync", 8, 16, 2.0, kind="transact"),
    Scenario("send 8x16 16 B", "async", 8, 16, 2.0, size=16, groups=("payloads",)),
    Scenario("send 8x16 1 KiB", "async", 8, 16, 2.0, size=1024, groups=("payloads",)),
    Scenario("send 8x16 64 KiB", "async", 8, 16, 1.5, size=65_536, groups=("payloads",)),
    Scenario("batch 8, 4x4", "async", 4, 4, 2.0, batch=8, groups=("payloads",)),
    Scenario("batch 128, 4x4", "async", 4, 4, 2.0, batch=128, groups=("payloads",)),
    Scenario("batch 32 of 1 KiB, 4x4", "async", 4, 4, 2.0, size=1024, batch=32, groups=("payloads",)),
    Scenario("send 8x1", "async", 8, 1, 2.0, groups=("connections",)),
    Scenario("send 1,000x1", "async", 1000, 1, 2.0, groups=("connections",)),
    Scenario("send 8x16 with consumers", "async", 8, 16, 2.0, groups=("mixed",), followed=True),
    Scenario("send 8x16 to 10,000 queues", "async", 8, 16, 2.0, groups=("queues",), queues=10_000),
)  # fmt: skip
"""Sources: the budget table of the architecture, and twice the Java broker in each row. The pulls are first, while
everything they read is new; the many queues are last, since their files stay open."""


def chosen(only: str, groups: Sequence[str] = tuple(GROUPS)) -> list[Scenario]:
    """Return the scenarios of these groups whose names hold one of the comma-separated texts; all for an empty one."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    return [
        scenario
        for scenario in SCENARIOS
        if set(scenario.groups) & set(groups) and (not words or any(word in scenario.name for word in words))
    ]

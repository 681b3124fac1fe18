"""After any sequence of commits, removals, writes and crashes, the table has the last or the last written offsets."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gantrymq.plugins.offsets.table import Offsets
from gantrymq.testing.memory_env import MemoryEnv
from support.machines import machine_settings

PATH = "config/consumerOffset.json"
ENDS = {("T", 0): 100, ("T", 1): 7, ("U", 0): 1 << 40}

GROUPS = st.sampled_from(["g", "h", "%DLQ%g"])
QUEUES = st.sampled_from([*ENDS, ("V", 3)])
Model = dict[tuple[str, str, int], int]


class OffsetsMachine(RuleBasedStateMachine):
    """The table beside a dictionary, on a disk that can lose what was not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.env = MemoryEnv()
        self.now: Model = {}
        self.written: Model = {}

    @initialize()
    def start(self) -> None:
        self.env.mkdirs("config")
        self._open()

    def _open(self) -> None:
        self.table = Offsets(self.env, PATH, 100, lambda topic, queue_id: ENDS.get((topic, queue_id), 0))

    @rule(group=GROUPS, queue=QUEUES, offset=st.integers(-2, 1 << 41))
    def commit(self, group: str, queue: tuple[str, int], offset: int) -> None:
        self.table.commit(group, *queue, offset)
        if offset >= 0:
            self.now[group, *queue] = min(offset, ENDS.get(queue, 0))

    @rule(group=GROUPS)
    def forget_group(self, group: str) -> None:
        self.table.forget_group(group)
        self.now = {key: offset for key, offset in self.now.items() if key[0] != group}

    @rule(group=GROUPS, topic=st.sampled_from("TUV"))
    def forget(self, group: str, topic: str) -> None:
        self.table.forget(group, topic)
        self.now = {key: offset for key, offset in self.now.items() if key[:2] != (group, topic)}

    @rule(topic=st.sampled_from("TUV"))
    def forget_topic(self, topic: str) -> None:
        self.table.forget_topic(topic)
        self.now = {key: offset for key, offset in self.now.items() if key[1] != topic}

    @rule()
    def write(self) -> None:
        for path, data in (self.table.changes() or {}).items():
            self.env.replace(path, data)
        self.written = dict(self.now)

    @rule(lost=st.none() | st.integers(0, 1000) | st.just("kill"))
    def end(self, lost: int | str | None) -> None:
        self.env = self.env.kill() if isinstance(lost, str) else self.env.power_cut(lost)
        self._open()
        self.now = dict(self.written)

    @invariant()
    def says_what_was_said(self) -> None:
        for group in ("g", "h", "%DLQ%g"):
            for topic, queue_id in [*ENDS, ("V", 3)]:
                assert self.table.query(group, topic, queue_id) == self.now.get((group, topic, queue_id))


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = machine_settings(30, 80, are_checked=True)

"""A state machine drives a store with tiny files through crashes: it loses nothing flushed and invents nothing."""

from __future__ import annotations

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gantrymq.kernel.batch import AppendBatch
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import open_store, read_all
from support.machines import machine_settings

pytestmark = pytest.mark.slow

TOPICS = ("T", "%RETRY%g")


@attrs.frozen
class Sent:
    """A message that the log took."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    end: int
    prepared: bool


class StoreMachine(RuleBasedStateMachine):
    """The model is the list of what was appended; a crash may only cut off its end, and only what was not flushed."""

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.env = MemoryEnv(seed)
        self.sent: list[Sent] = []
        self.acked = 0
        self.number = 0
        self.store, _, _ = open_store(self.env)

    @rule(
        rows=st.lists(
            st.tuples(
                st.sampled_from(TOPICS), st.integers(0, 1), st.integers(0, 300), st.sampled_from([0, 0, 0, 4, 8])
            ),
            min_size=1,
            max_size=30,
        )
    )
    def append(self, rows: list[tuple[str, int, int, int]]) -> None:
        batch = AppendBatch()
        for topic, queue_id, size, sys_flag in rows:
            self.number += 1
            batch.add(topic, queue_id, b"%d:" % self.number + b"x" * size, b"TAGS\x01a", sys_flag=sys_flag)
        self.store.append(batch)
        assert not batch.refused
        self.note(batch)

    @rule(size=st.integers(1500, 2040))
    def roll(self, size: int) -> None:
        batch = AppendBatch()
        self.number += 1
        batch.add("T", 0, b"%d:" % self.number + b"y" * size, b"")
        self.store.append(batch)
        self.note(batch)

    def note(self, batch: AppendBatch) -> None:
        for row in batch.live:
            end = batch.offsets[row] + batch.sizes[row]
            prepared = bool(batch.sys_flags[row] & 4)
            self.sent.append(
                Sent(
                    batch.topics[row], batch.queue_ids[row], batch.queue_offsets[row], batch.bodies[row], end, prepared
                )
            )

    @rule()
    def flush(self) -> None:
        self.acked = self.store.flush()
        assert self.acked == self.store.log.end

    @rule()
    def dispatch(self) -> None:
        for batch in self.store.dispatch(self.store.log.durable):
            assert len(batch.offsets) == len(batch.tag_codes) == len(batch.store_timestamps)

    @rule()
    def flush_queues(self) -> None:
        self.store.flush_queues()

    @rule()
    def prepare_next(self) -> None:
        assert self.store.prepare_next()

    @rule(milliseconds=st.integers(0, 5000))
    def let_time_pass(self, milliseconds: int) -> None:
        self.env.advance(milliseconds)

    @rule()
    def kill(self) -> None:
        self.restart(self.env.kill())
        assert self.store.log.end == (self.sent[-1].end if self.sent else 0) or self.is_boundary()

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 20)))
    def power_cut(self, seed: int | None) -> None:
        self.restart(self.env.power_cut(seed))

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 20)))
    def power_cut_in_recovery(self, seed: int | None) -> None:
        env = self.env.kill()
        open_store(env)
        self.restart(env.power_cut(seed))

    @precondition(lambda self: self.sent)
    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.acked = self.store.log.durable
        self.store, report, replayed = open_store(self.env)
        assert report.clean
        assert not replayed
        assert report.end == self.acked

    def restart(self, env: MemoryEnv) -> None:
        self.env = env
        self.store, report, _ = open_store(env)
        assert report.end >= self.acked
        assert not report.corrupt
        self.sent = [sent for sent in self.sent if sent.end <= report.end]
        assert self.is_boundary()
        self.acked = report.end
        assert self.store.dispatched == self.store.log.durable == report.end

    def is_boundary(self) -> bool:
        """The log ends behind a record, or at the start of the file that follows it."""
        last = self.sent[-1].end if self.sent else 0
        return self.store.log.end in (last, -(-last // 4096) * 4096)

    @invariant()
    def queues_are_the_dispatched_prefix(self) -> None:
        expected: dict[tuple[str, int], dict[int, bytes]] = {}
        for sent in self.sent:
            if not sent.prepared and sent.end <= self.store.dispatched:
                queue = expected.setdefault((sent.topic, sent.queue_id), {})
                assert sent.queue_offset == len(queue)
                queue[sent.queue_offset] = sent.body
        assert read_all(self.store) == expected
        assert self.store.dispatched <= self.acked or not self.sent


StoreMachine.TestCase.settings = machine_settings(25)
TestStoreMachine = StoreMachine.TestCase

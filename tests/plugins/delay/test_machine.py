"""A state machine sends, waits, crashes and sets the clock back: no message is lost or early, few are repeated."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.delay.levels.delivery import RETRY_MS
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from support.delays import DelayedStore
from support.machines import machine_settings

pytestmark = pytest.mark.slow

DELAYS_MS = (1000, 3000, 7000)
LEVELS = "1s 3s 7s"
HOUR_MS = 3_600_000


class DelayMachine(RuleBasedStateMachine):
    """The model knows when each message was sent by a clock that nobody sets, and which ones a crash may repeat."""

    @initialize(seed=st.integers(0, 1000), pipelined=st.booleans())
    def start(self, seed: int, pipelined: bool) -> None:
        self.pipelined = pipelined
        self.world = DelayedStore(MemoryEnv(seed), LEVELS, pipelined=pipelined)
        self.truth = 0
        self.due: dict[bytes, int] = {}
        self.safe: set[bytes] = set()
        self.claimed: set[bytes] = set()
        self.has_holes = False
        self.repeatable: Counter[bytes] = Counter()
        self.number = 0

    def pass_time(self, milliseconds: int) -> None:
        self.truth += milliseconds
        self.world.env.advance(milliseconds)

    def waiting(self) -> set[bytes]:
        """The messages in the queues of the levels, delivered or not."""
        return {body for queue_id in range(3) for body in self.world.bodies(SCHEDULE_TOPIC, queue_id)}

    def done(self) -> Counter[bytes]:
        return Counter(self.world.bodies())

    @rule(levels=st.lists(st.integers(1, 5), min_size=1, max_size=8), size=st.integers(0, 200))
    def send(self, levels: list[int], size: int) -> None:
        for level in levels:
            self.number += 1
            body = b"%d:" % self.number + b"x" * size
            self.world.send(body, level)
            self.due[body] = self.truth + DELAYS_MS[min(level, 3) - 1]

    @rule(milliseconds=st.sampled_from([1, 10, 499, 999, 1000, 2500, 8000]))
    def wait(self, milliseconds: int) -> None:
        self.pass_time(milliseconds)

    @rule()
    def turn(self) -> None:
        self.world.delivery.turn()

    @rule()
    def commit(self) -> None:
        self.world.commit()
        self.safe = self.waiting()

    @rule()
    def settle(self) -> None:
        self.world.settle()
        self.safe = self.waiting()

    @rule()
    def persist(self) -> None:
        self.world.persist()
        self.note_claims()

    def note_claims(self) -> None:
        """Every message before the stored progress is delivered; without a failed put, these are all delivered ones."""
        self.claimed = {
            body
            for level, position in self.world.delivery.safe().items()
            for body in self.world.bodies(SCHEDULE_TOPIC, level - 1)[:position]
        }
        done = set(self.done())
        assert self.claimed <= done
        if (
            not self.has_holes
            and self.world.store.dispatched == self.world.store.log.durable == self.world.store.log.end
        ):
            assert self.claimed == done

    @rule(refused=st.sets(st.integers(0, 7)))
    def refuse(self, refused: set[int]) -> None:
        def refuse(batch: AppendBatch) -> None:
            for row, topic in enumerate(batch.topics):
                if topic == "T" and row in refused:
                    batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")
                    self.has_holes = True

        self.world.refuse = refuse

    @rule(back=st.sampled_from([0, 0, 1, 5000, HOUR_MS]), cut=st.none() | st.integers(0, 100))
    def crash(self, back: int, cut: int | None) -> None:
        # Only messages delivered since the last write of the file may be repeated.
        self.repeatable.update(set(self.due) - self.claimed)
        env = self.world.env.kill() if cut is None else self.world.env.power_cut(cut)
        env.advance(-back)
        self.world = DelayedStore(env, LEVELS, pipelined=self.pipelined)
        left = self.waiting()
        assert self.safe <= left, "what was durable is gone"
        self.due = {body: due for body, due in self.due.items() if body in left}
        self.safe = left
        self.claimed &= left
        self.has_holes = True

    @rule(back=st.sampled_from([0, 0, 5000, HOUR_MS]))
    def restart(self, back: int) -> None:
        self.world.commit()
        self.persist()
        # A level has one number: what overtook a put that failed comes again.
        self.repeatable.update(set(self.done()) - self.claimed)
        self.world.close()
        self.safe = set(self.due)
        self.world.env.advance(-back)
        self.world = DelayedStore(self.world.env, LEVELS, pipelined=self.pipelined)
        assert self.waiting() == set(self.due)
        self.has_holes = bool(set(self.done()) - self.claimed)

    @invariant()
    def nothing_is_early_nothing_is_invented_and_nothing_comes_twice_without_a_crash(self) -> None:
        for body, count in self.done().items():
            assert self.due[body] <= self.truth, f"{body[:20]!r} came {self.due[body] - self.truth} ms early"
            assert count <= 1 + self.repeatable[body]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.refuse = lambda batch: None
        self.world.commit()
        # the store's clock may lose a tenth, and a put that failed waits a moment
        self.pass_time((max(DELAYS_MS) + RETRY_MS) * 10 // 9 + 10)
        self.world.settle()
        self.nothing_is_early_nothing_is_invented_and_nothing_comes_twice_without_a_crash()
        assert set(self.done()) == set(self.due), "a message never came"


TestDelay = DelayMachine.TestCase
TestDelay.settings = machine_settings(30)

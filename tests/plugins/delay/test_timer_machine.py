"""A state machine sends, waits, recalls, crashes and sets the clock back: no message is lost or early."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.delay.levels.delivery import RETRY_MS
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.properties import find_property
from gantrymq.testing.memory_env import MemoryEnv
from support.machines import machine_settings
from support.timers import TimedStore

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


class TimerMachine(RuleBasedStateMachine):
    """The model knows when each message is due by a clock that nobody sets, and which ones a crash may repeat."""

    @initialize(seed=st.integers(0, 1000), start=st.integers(0, 999))
    def start(self, seed: int, start: int) -> None:
        self.world = TimedStore(MemoryEnv(seed, 1_700_000_000_000 + start))
        self.truth = 0
        self.due: dict[bytes, int] = {}
        self.stored_due: dict[bytes, int] = {}
        self.recalled: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.safe: set[bytes] = set()
        self.claimed: set[bytes] = set()
        self.repeatable: Counter[bytes] = Counter()
        self.number = 0

    def pass_time(self, milliseconds: int) -> None:
        self.truth += milliseconds
        self.world.env.advance(milliseconds)

    def done(self) -> Counter[bytes]:
        return Counter(self.world.bodies())

    def waiting(self) -> set[bytes]:
        return set(self.world.waiting()) - {b"0"}

    @rule(
        delays=st.lists(
            st.sampled_from([1, 300, 999, 1000, 1001, 1700, 5000, 30_000, 61_000, 100_000]), min_size=1, max_size=6
        ),
        size=st.integers(0, 100),
    )
    def send(self, delays: list[int], size: int) -> None:
        for delay in delays:
            self.number += 1
            body = b"%d:" % self.number + b"x" * size
            self.stored_due[body] = self.world.now + delay
            self.world.send_in(body, delay)
            self.due[body] = self.truth + delay

    @rule(choice=st.integers(0, 1000))
    def recall(self, choice: int) -> None:
        """Recall a message of which it is not too late to do so."""
        open_ = [body for body in self.due if (self.stored_due[body] - 1) // 1000 * 1000 >= self.world.now]
        if not open_:
            return
        body = open_[choice % len(open_)]
        assert self.world.recall(body, self.stored_due[body]).statuses == [0]
        self.recalled.add(body)
        self.unsure.add(body)

    @rule(milliseconds=st.sampled_from([1, 10, 300, 499, 1000, 2500, 8000, 40_000]))
    def wait(self, milliseconds: int) -> None:
        self.pass_time(milliseconds)

    @rule()
    def turn(self) -> None:
        self.world.timer.turn()

    @rule()
    def commit(self) -> None:
        self.world.commit()
        self.safe = self.waiting()
        self.unsure.clear()

    @rule()
    def settle(self) -> None:
        self.world.settle()
        self.safe = self.waiting()
        self.unsure.clear()

    @rule()
    def save(self) -> None:
        self.world.save()
        self.claim()

    def claim(self) -> None:
        """Record messages delivered before the slot of the checkpoint, which are never repeated.

        A message that was repeated after a crash may be repeated once more if its last copy is later than that.
        """
        read = self.world.timer.files.check.read_ms
        last = {record.body: record.store_timestamp for record in self.world.delivered()}
        self.claimed |= {body for body, stored in last.items() if stored < read}

    @rule(refused=st.sets(st.integers(0, 5)))
    def refuse(self, refused: set[int]) -> None:
        def refuse(batch: AppendBatch) -> None:
            for row, topic in enumerate(batch.topics):
                if find_property(batch.properties[row], b"TIMER_DEQUEUE_MS") is not None and row in refused:
                    batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, f"not now: {topic}")

        self.world.refuse = refuse

    @rule(back=st.sampled_from([0, 0, 1, 5000, HOUR_MS]), cut=st.none() | st.integers(0, 100))
    def crash(self, back: int, cut: int | None) -> None:
        self.repeatable.update(set(self.due) - self.claimed)
        env = self.world.env.kill() if cut is None else self.world.env.power_cut(cut)
        self.begin(env, back)

    @rule(back=st.sampled_from([0, 0, 5000, HOUR_MS]))
    def restart(self, back: int) -> None:
        self.world.refuse = lambda batch: None
        self.world.close()
        self.safe = set(self.due)
        self.unsure.clear()
        self.begin(self.world.env, back)
        assert self.waiting() >= set(self.due)

    @rule()
    def restart_when_a_message_is_due(self) -> None:
        """Stop in the middle of a second, in which others may wait or be recalled."""
        waits = [due - self.truth for body, due in self.due.items() if due > self.truth and body not in self.recalled]
        if waits:
            self.pass_time(min(waits))
            self.settle()
            self.restart(0)

    def begin(self, env: MemoryEnv, back: int) -> None:
        env.advance(-back)
        self.world = TimedStore(env)
        left = self.waiting()
        assert self.safe <= left, "what was durable is gone"
        self.due = {body: due for body, due in self.due.items() if body in left}
        # A recall that was not on the disk is gone as well.
        self.recalled -= self.unsure
        self.maybe |= self.unsure
        self.unsure.clear()
        self.safe = left
        self.claimed &= left

    @invariant()
    def nothing_is_early_nothing_is_invented_and_nothing_comes_twice_without_a_crash(self) -> None:
        if not hasattr(self, "world"):
            return
        for body, count in self.done().items():
            assert self.due[body] <= self.truth, f"{body[:20]!r} came {self.due[body] - self.truth} ms early"
            assert count <= 1 + self.repeatable[body], f"{body[:20]!r} came {count} times"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.refuse = lambda batch: None
        self.world.commit()
        for _ in range(130):  # long waits are put back on the way; the store's clock may lose a tenth
            self.pass_time(RETRY_MS)
            self.world.settle()
        self.nothing_is_early_nothing_is_invented_and_nothing_comes_twice_without_a_crash()
        assert not self.recalled.intersection(self.done()) - self.maybe, "a recalled message came"
        missing = set(self.due) - set(self.done()) - self.recalled
        assert not missing - self.maybe, "a message never came"


TestTimer = TimerMachine.TestCase
TestTimer.settings = machine_settings(30)

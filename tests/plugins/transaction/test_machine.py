"""A state machine sends, ends and checks half messages, with power cuts: each is delivered as its producer decided."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.transaction.strategies import STRATEGIES
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.transacted import COMMIT, ROLLBACK, CheckBackRequest, Half, TransactedStore
from support.machines import machine_settings


class TransactionMachine(RuleBasedStateMachine):
    """The model knows which word on a message was the first, and which of them a crash may have taken back."""

    strategy = "half"

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.world = self.open(MemoryEnv(seed))
        self.number = 0
        self.halves: dict[bytes, list[Half]] = {}
        self.said: dict[bytes, int] = {}
        self.safe_halves: set[bytes] = set()
        self.safe_words: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.committed_once: set[bytes] = set()
        self.rolled_back_once: set[bytes] = set()
        self.crashes = 0

    def open(self, env: MemoryEnv) -> TransactedStore:
        world = TransactedStore(env, self.strategy, check_max=1_000_000, checks_per_second=100)
        world.producers.join()
        return world

    @property
    def machine(self) -> MemoryEnv:
        assert isinstance(self.world.env, MemoryEnv)
        return self.world.env

    def seen(self) -> Counter[bytes]:
        return Counter(self.world.bodies())

    def check_backs(self) -> list[CheckBackRequest]:
        [producer] = self.world.producers.groups["orders"]
        return producer.take_check_backs()

    @rule(count=st.integers(1, 4), size=st.integers(0, 200))
    def send(self, count: int, size: int) -> None:
        bodies = [b"%d:" % (self.number + row) + b"x" * size for row in range(count)]
        self.number += count
        batch = self.world.halves(bodies)
        for row, body in enumerate(bodies):
            self.halves[body] = [Half(body, batch.offsets[row], batch.queue_offsets[row])]

    @precondition(lambda self: self.halves)
    @rule(data=st.data(), state=st.sampled_from([COMMIT, ROLLBACK]), oneway=st.booleans(), refused=st.booleans())
    def end(self, data: st.DataObject, state: int, oneway: bool, refused: bool) -> None:
        body = data.draw(st.sampled_from(sorted(self.halves)))
        half = data.draw(st.sampled_from(self.halves[body]))

        hit = []

        def refuse(batch: AppendBatch) -> None:
            for row, topic in enumerate(batch.topics):
                if refused and topic == "T":
                    hit.append(row)
                    batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")

        if state == COMMIT:
            self.world.refuse = refuse
        self.world.end(half, state, oneway=oneway)
        self.world.refuse = lambda batch: None
        if not hit:
            self.said.setdefault(body, state)
            (self.committed_once if state == COMMIT else self.rolled_back_once).add(body)

    @rule(seconds=st.sampled_from([1, 10, 70, 4000]))
    def wait(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule()
    def commit(self) -> None:
        self.world.commit()
        self.note_safe()

    def note_safe(self) -> None:
        self.safe_halves = set(self.halves)
        self.safe_words = set(self.said)

    @rule(slices=st.integers(0, 5))
    def scan(self, slices: int) -> None:
        """The first slices of a walk, or all of it."""
        for number, _ in enumerate(self.world.plugin.strategy.scan()):
            if number == slices:
                break

    @rule()
    def hear(self) -> None:
        """The producer takes the check_backs; from now on it may answer by the names in them."""
        for check_back in self.check_backs():
            self.halves.setdefault(check_back.record.body, []).append(check_back.half)

    @rule()
    def persist(self) -> None:
        self.world.persist()

    @rule(cut=st.none() | st.integers(0, 100))
    def crash(self, cut: int | None) -> None:
        self.world = self.open(self.machine.kill() if cut is None else self.machine.power_cut(cut))
        self.crashes += 1
        # These were not acknowledged: the message, or its end, may be there or not.
        self.unsure |= (set(self.halves) - self.safe_halves) | (set(self.said) - self.safe_words)
        # Nor does their producer know their offsets.
        self.halves = {body: names for body, names in self.halves.items() if body in self.safe_halves}
        self.note_safe()

    @rule()
    def restart(self) -> None:
        self.world.close()
        self.note_safe()
        self.world = self.open(self.machine)

    @invariant()
    def nobody_sees_what_was_not_committed_and_nothing_twice_without_a_crash(self) -> None:
        for body, count in self.seen().items():
            if body in self.unsure:
                assert body in self.committed_once, f"{body[:10]!r} was never committed"
                assert count <= 1 + self.crashes, f"{body[:10]!r} is there {count} times"
            else:
                assert self.said.get(body) == COMMIT, f"{body[:10]!r} was said {self.said.get(body)}"
                assert count == 1, f"{body[:10]!r} is there {count} times"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.commit()
        seen = self.seen()
        self.nobody_sees_what_was_not_committed_and_nothing_twice_without_a_crash()
        for body in set(self.said) - self.unsure:
            assert self.said[body] != COMMIT or seen[body] == 1, f"{body[:10]!r} was committed and is gone"
        is_open = set(self.halves) - set(self.said) - self.unsure
        self.check_backs()
        self.world.pass_time(4000)
        self.world.scan()
        asked = [check_back.record.body for check_back in self.check_backs()]
        assert is_open <= set(asked), "nobody is asked about an open transaction"
        assert set(asked) <= is_open | self.unsure, "somebody is asked about one that has ended"
        assert len(asked) == len(set(asked)), "somebody is asked twice"
        for body in self.unsure & set(self.halves) & self.committed_once - self.rolled_back_once:
            assert seen[body] or body in asked, f"{body[:10]!r} is neither there nor open"
        assert self.world.plugin.strategy.open_count == len(asked)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.slow
def test_any_order_of_events_and_any_end(name: str) -> None:
    class Machine(TransactionMachine):
        strategy = name

    run_state_machine_as_test(Machine, settings=machine_settings(40))

"""The contract of acknowledgment gates (hook ``register_ack_gates``), as rules that a test can call.

Each of :data:`RULES` is a function of a :class:`Gate`, and raises ``AssertionError`` if the gate violates the rule. The
disk is in memory, and the clock of a rule is a number, so no rule waits.

    @pytest.mark.parametrize("rule", gatekit.RULES, ids=lambda rule: rule.__name__)
    def test_my_gate_keeps_the_contract(rule):
        backup = Backup()
        rule(gatekit.Gate(lambda log: BackupGate(log, backup), lambda log, end: backup.confirm(end)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from gantrymq.kernel.acks import AckGate, Acks, DegradableGate
from gantrymq.kernel.batch import STORED, AppendBatch
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.flushkit import expect
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, open_store

_BATCHES: Final = 3


@attrs.frozen
class Gate:
    """A gate under test."""

    make: Callable[[CommitLog], AckGate]
    """Creates the gate for an open log. Each rule calls it once, so it may also reset what the gate asks."""
    grant: Callable[[CommitLog, int], None]
    """Makes the guarantee hold up to this log offset, where a batch ends; what the gate waits for has happened. It may
    then hold beyond that offset too."""


class _Bench:
    """A store, the gate for its log, and batches of one message each that wait for it."""

    def __init__(self, case: Gate) -> None:
        self.case = case
        self.store: Store = open_store(MemoryEnv())[0]
        self.log = self.store.log
        self.gate = case.make(self.log)
        self.acks = Acks([self.gate])
        self.batches: list[AppendBatch] = []
        self.answered: list[AppendBatch] = []

    def append(self, now: float = 0.0, *, wait: bool = True) -> AppendBatch:
        batch = batch_of([b"%d" % len(self.batches)])
        batch.waits[0] = wait
        batch.done = self.answered.append
        self.store.append(batch)
        self.batches.append(batch)
        self.acks.add(batch, now)
        return batch

    def grant(self, end: int) -> None:
        self.case.grant(self.log, end)
        self.acks.release(self.acks.committed(self.log.end))


def nothing_passes_before_its_guarantee_holds(case: Gate) -> None:
    """An appended message is neither acknowledged nor readable; the watermark does not follow the log's end."""
    bench = _Bench(case)
    batch = bench.append()
    expect(bench.gate.watermark < batch.end, "the watermark has passed a message for which the guarantee does not hold")
    bench.acks.release(bench.acks.committed(bench.log.end))
    expect(not bench.answered, "a message was acknowledged before its guarantee held")
    bench.grant(batch.end)
    later = bench.append()
    expect(bench.gate.watermark < later.end, "after one guarantee the watermark follows the log's end")
    bench.acks.release(bench.acks.committed(bench.log.end))
    expect(later not in bench.answered, "a later message was acknowledged before its guarantee held")


def what_is_guaranteed_passes_in_order(case: Gate) -> None:
    """As soon as the guarantee holds for the end of a batch, it is acknowledged, after those before it."""
    bench = _Bench(case)
    for _ in range(_BATCHES):
        bench.append()
    for number, batch in enumerate(bench.batches, start=1):
        bench.grant(batch.end)
        passed = len(bench.answered)
        expect(passed >= number, f"{passed} batches are acknowledged where the guarantee holds for {number}")
    expect(bench.answered == bench.batches, "batches were acknowledged in another order")
    expect(all(batch.statuses == [ResponseCode.SUCCESS] for batch in bench.batches), "not with SUCCESS")


def the_watermark_never_falls(case: Gate) -> None:
    """It never decreases: while messages arrive, while the guarantee advances, and after a time-out of this
    or another gate."""
    bench = _Bench(case)
    seen = [bench.gate.watermark]
    for number in range(_BATCHES):
        batch = bench.append(float(number))
        seen.append(bench.gate.watermark)
        bench.grant(batch.end)
        seen.append(bench.gate.watermark)
    bench.append()
    bench.acks.expire(bench.gate.timeout_s + 1.0)
    seen.append(bench.gate.watermark)
    bench.grant(bench.batches[0].end)
    seen.append(bench.gate.watermark)
    if isinstance(bench.gate, DegradableGate):  # a batch that this gate has passed may expire for another one
        bench.gate.on_timeout(bench.batches[0].end)
        seen.append(bench.gate.watermark)
    expect(seen == sorted(seen), f"it was {seen}")


def it_lies_within_the_log(case: Gate) -> None:
    """The watermark is at least 0, and at most the log's end when no batch waits."""
    bench = _Bench(case)
    expect(0 <= bench.gate.watermark <= bench.log.end, f"it is {bench.gate.watermark} in an empty log")
    batch = bench.append()
    bench.grant(batch.end)
    expect(bench.gate.watermark <= bench.log.end, f"it is {bench.gate.watermark}, and the log ends at {bench.log.end}")
    committed = bench.acks.committed(bench.log.end)
    expect(committed == bench.log.end, f"everything is guaranteed up to {bench.log.end}, and {committed} is committed")


def a_late_sender_learns_that_the_message_is_stored(case: Gate) -> None:
    """The code is one of a stored message, but not success; the remark is not empty."""
    bench = _Bench(case)
    late = bench.append(10.0)
    timeout = bench.gate.timeout_s
    expect(timeout >= 0, f"timeout_s is {timeout}")
    if timeout > 0:
        bench.acks.expire(10.0 + timeout / 2)
        expect(not bench.answered, "it was late before its time-out")
    bench.acks.expire(10.0 + timeout)
    expect(bench.answered == [late], "it was not answered at the time-out")
    [code] = late.statuses
    expect(code in STORED and code != ResponseCode.SUCCESS, f"the code {code} does not say that the message is stored")
    expect(bool(late.remarks.get(0)), "there is no remark")


def a_late_message_is_readable_only_with_its_guarantee(case: Gate) -> None:
    """Unless the gate has ``on_timeout``: then everything up to the late batch is readable, and later messages wait for
    the guarantee as before."""
    bench = _Bench(case)
    late = bench.append(10.0)
    bench.acks.expire(10.0 + bench.gate.timeout_s)
    committed = bench.acks.committed(bench.log.end)
    if isinstance(bench.gate, DegradableGate):
        expect(committed >= late.end, f"the gate gave way, and only {committed} of {late.end} is readable")
    else:
        expect(committed < late.end, "a message without its guarantee can be read")
        bench.grant(late.end)
        expect(bench.acks.committed(bench.log.end) >= late.end, "it cannot be read with its guarantee either")
    later = bench.append(20.0)
    expect(bench.gate.watermark < later.end, "a later message passes without its guarantee")
    bench.grant(later.end)
    expect(bench.answered[-1] is later, "a later message is not acknowledged any more")
    expect(later.statuses == [ResponseCode.SUCCESS], "a later message is not acknowledged with SUCCESS")


Rule = Callable[[Gate], None]
"""A rule of the contract; it raises ``AssertionError`` if the gate violates it."""

RULES: Final[tuple[Rule, ...]] = (
    nothing_passes_before_its_guarantee_holds,
    what_is_guaranteed_passes_in_order,
    the_watermark_never_falls,
    it_lies_within_the_log,
    a_late_sender_learns_that_the_message_is_stored,
    a_late_message_is_readable_only_with_its_guarantee,
)
"""All rules."""

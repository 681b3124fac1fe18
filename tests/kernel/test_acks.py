"""Responses wait for the slowest gate in log order, and a gate that times out sets the code."""

from __future__ import annotations

import attrs
import pytest

from gantrymq.kernel.acks import Acks
from gantrymq.kernel.batch import AppendBatch, Source, finish_settled
from gantrymq.remoting.codes import ResponseCode


@attrs.define
class Gate:
    watermark: int = 0
    timeout_s: float = 5.0
    late_code: int = ResponseCode.FLUSH_DISK_TIMEOUT
    late_remark: str = "late"


def batch(end: int, done: list[int], *, waits: tuple[bool, ...] = (True,)) -> AppendBatch:
    made = AppendBatch(done=lambda finished: done.append(finished.end))
    for wait in waits:
        made.add("T", 0, b"x", b"", wait=wait)
    made.end = end
    return made


def test_a_batch_is_acknowledged_when_every_gate_has_passed_its_end() -> None:
    first, second, done = Gate(), Gate(), []
    acks = Acks([first, second])
    acks.add(batch(100, done), 0.0)
    acks.add(batch(200, done), 0.0)
    first.watermark = 200
    acks.release(acks.committed(200))
    assert done == []
    second.watermark = 150
    assert acks.committed(200) == 150
    acks.release(150)
    assert done == [100]
    second.watermark = 200
    acks.release(acks.committed(200))
    assert done == [100, 200]
    assert len(acks) == 0


def settled_batch(end: int, done: list[int], *, wait: bool = True) -> AppendBatch:
    """A batch whose only row is settled with a message of the log, which ends at ``end``."""
    made = batch(end, done, waits=(wait,))
    made.source, made.start = Source.CLIENT, end
    made.settle(0, offset=end - 1, queue_id=0, queue_offset=0)
    finish_settled(made)
    return made


def test_a_settled_row_waits_for_the_gates_up_to_its_message() -> None:
    gate, done = Gate(watermark=50), list[int]()
    acks = Acks([gate])
    acks.add(settled_batch(100, done), 0.0)
    acks.release(acks.committed(100))
    assert done == []
    gate.watermark = 100
    acks.release(acks.committed(100))
    assert done == [100]


def test_a_settled_row_gets_the_late_code_of_a_late_gate() -> None:
    done: list[int] = []
    acks = Acks([Gate()])
    late = settled_batch(100, done)
    acks.add(late, 0.0)
    acks.expire(5.0)
    assert (done, late.statuses, late.remarks) == ([100], [ResponseCode.FLUSH_DISK_TIMEOUT], {0: "late"})


def test_a_settled_row_with_wait_false_is_answered_at_once() -> None:
    done: list[int] = []
    acks = Acks([Gate()])
    acks.add(settled_batch(100, done, wait=False), 0.0)
    assert (done, len(acks)) == ([100], 0)


def test_rows_are_acknowledged_and_committed_at_once_without_gates() -> None:
    done: list[int] = []
    acks = Acks([])
    acks.add(batch(100, done), 0.0)
    assert done == [100]
    assert acks.committed(100) == 100


def test_a_batch_without_waiting_rows_is_answered_at_once() -> None:
    done: list[int] = []
    acks = Acks([Gate()])
    acks.add(batch(100, done, waits=(False, False)), 0.0)
    assert done == [100]


def test_a_batch_of_refused_rows_is_answered_at_once() -> None:
    done: list[int] = []
    acks = Acks([Gate()])
    refused = batch(0, done)
    refused.refuse(0, ResponseCode.MESSAGE_ILLEGAL, "no")
    acks.add(refused, 0.0)
    assert done == [0]


def test_waiting_rows_of_a_late_batch_get_the_code_of_the_late_gate() -> None:
    quick, slow, done = Gate(watermark=1000), Gate(late_code=ResponseCode.FLUSH_SLAVE_TIMEOUT), []
    acks = Acks([quick, slow])
    late = batch(100, done, waits=(True, False, True))
    late.refuse(2, ResponseCode.MESSAGE_ILLEGAL, "no")
    acks.add(late, 10.0)
    acks.expire(14.9)
    assert done == []
    acks.expire(15.0)
    assert done == [100]
    assert late.statuses == [ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL]
    slow.watermark = 1000
    acks.release(1000)
    assert done == [100], "done is called once"


@pytest.mark.parametrize("row", [0, 1])
def test_the_first_refusal_of_a_row_is_final(row: int) -> None:
    rows = AppendBatch()
    rows.add("T", 0, b"", b"")
    rows.add("T", 0, b"", b"")
    rows.refuse(row, ResponseCode.NO_PERMISSION, "first")
    rows.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "second")
    assert rows.statuses[row] == ResponseCode.NO_PERMISSION
    assert rows.remarks == {row: "first"}
    assert list(rows.live) == [1 - row]


@attrs.define
class Copies(Gate):
    """A gate that lets go."""

    timeout_s: float = 3.0
    late_code: int = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def on_timeout(self, end: int) -> None:
        self.watermark = max(self.watermark, end)


def test_records_that_time_out_at_a_degradable_gate_become_readable() -> None:
    gate, done = Copies(), []
    acks = Acks([gate])
    late = batch(100, done)
    acks.add(late, 0.0)
    acks.expire(2.9)
    assert done == []
    acks.expire(3.0)
    assert done == [100]
    assert late.statuses == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert acks.committed(100) == 100


def test_a_degradable_gate_times_out_records_without_waiting_senders() -> None:
    gate, done = Copies(), []
    acks = Acks([gate])
    acks.add(batch(100, done, waits=(False,)), 0.0)
    assert done == [100]
    assert acks.committed(100) == 0
    acks.expire(3.0)
    assert acks.committed(100) == 100
    assert done == [100]


def test_a_response_waits_for_the_disk_when_the_replica_gate_expires_at_once() -> None:
    disk, copies, done = Gate(), Copies(timeout_s=0.0), []
    acks = Acks([disk, copies])
    waiting = batch(100, done)
    acks.add(waiting, 0.0)
    assert acks.expires_now
    acks.expire(0.1)
    assert done == []
    disk.watermark = 100
    acks.expire(0.2)
    assert done == [100]
    assert waiting.statuses == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert not acks.expires_now


def test_a_late_disk_is_reported_before_the_replica_gate_times_out() -> None:
    disk, copies, done = Gate(timeout_s=1.0), Copies(), []
    acks = Acks([disk, copies])
    acks.add(batch(100, done), 0.0)
    acks.expire(1.0)
    assert done == [100]
    assert acks.committed(100) == 0


def test_each_batch_is_observed_once_after_its_response_was_sent() -> None:
    disk, copies = Gate(), Copies()
    seen: list[tuple[int, float]] = []
    done: list[int] = []
    acks = Acks([disk, copies], lambda batch: seen.append((len(done), batch.seconds)))
    acks.add(batch(100, done, waits=(False,)), 1.0, 0.5)
    assert (done, seen) == ([100], [])
    acks.report(1.25)
    assert seen == [(1, 0.75)]
    acks.add(batch(200, done), 2.0, 1.5)
    acks.add(batch(300, done), 3.0, 2.5)
    assert len(seen) == 1
    disk.watermark = 300
    copies.watermark = 200
    acks.release(acks.committed(300))
    acks.report(3.5)
    assert seen == [(1, 0.75), (2, 2.0)], "the one that was answered at once is not observed again"
    acks.expire(9.0)
    acks.report(9.0)
    assert seen[2:] == [(3, 6.5)]
    refused = batch(300, done)
    refused.refuse(0, ResponseCode.MESSAGE_ILLEGAL, "no")
    acks.add(refused, 10.0, 9.5)
    acks.report(10.0)
    assert seen[3:] == [(4, 0.5)]
    acks.add(batch(400, done, waits=(False,)), 11.0, 10.5)
    disk.watermark = 400
    acks.expire(20.0)
    acks.report(20.0)
    assert (copies.watermark, len(seen), len(done)) == (400, 5, 5), "a late gate gives way, and batches are seen once"

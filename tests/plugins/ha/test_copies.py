"""A copy counts as a replica if it is confirmed, on another machine, and not too far behind."""

from __future__ import annotations

import pytest

from gantrymq.plugins.ha.copies import CopiedGate, Copies, Copy
from gantrymq.remoting.codes import ResponseCode


class Log:
    """A log that has an end."""

    end = 1000


def copy(host: str, start: int, acknowledged: int, port: int = 1) -> Copy:
    return Copy(f"{host}:{port}", host, 0.0, start=start, sent=1000, acknowledged=acknowledged)


def make(*there: Copy, count: int = 1, fall_behind_max: int = 500) -> CopiedGate:
    copies = Copies(lambda: None)
    for each in there:
        copies.add(each)
    log = Log()
    log.end = 100
    gate = CopiedGate(log, copies, count, 3.0, fall_behind_max)  # type: ignore[arg-type]
    log.end = 1000
    return gate


def test_the_lag_in_time_is_that_of_the_confirmed_offset_under_load() -> None:
    copy = Copy("slave:1", "slave", 0.0, start=0)
    for second in range(100):  # 100 bytes a second, and what is confirmed is three seconds old
        copy.acknowledged = max(100 * (second - 3), 0)
        copy.update_level(100 * second, float(second))
    assert 3 <= 99 - copy.level_at <= 7
    copy.acknowledged = 9900
    copy.update_level(9900, 120.0)
    assert copy.level_at == 120.0


def test_a_confirmation_wakes_the_sweep_only_for_waiting_senders() -> None:
    woken: list[int] = []
    copies = Copies(lambda: woken.append(1))
    one = copy("a", 0, 0)
    copies.add(one)
    copies.acknowledge(one, 10, 0.0)
    assert not woken
    CopiedGate(Log(), copies, 1, 3.0, 500)  # type: ignore[arg-type]
    copies.acknowledge(one, 20, 0.0)
    assert woken == [1]


def test_a_slave_counts_as_a_replica_up_to_what_was_sent_and_confirmed() -> None:
    assert make(copy("a", 100, 700)).watermark == 700


def test_the_first_offset_of_a_slave_is_unverified() -> None:
    assert make(copy("a", 700, 700)).watermark == 100


def test_two_connections_of_one_machine_count_as_one_replica() -> None:
    gate = make(copy("a", 100, 900), copy("a", 100, 800, port=2), copy("b", 100, 300), count=2)
    assert gate.watermark == 300


def test_the_watermark_stays_when_slaves_disconnect() -> None:
    there = copy("a", 100, 700)
    gate = make(there)
    assert gate.watermark == 700
    gate._copies.remove(there)
    assert gate.watermark == 700


@pytest.mark.parametrize(
    ("there", "timeout", "code"),
    [
        ([copy("a", 0, 600)], 3.0, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        ([], 0.0, ResponseCode.SLAVE_NOT_AVAILABLE),
        ([copy("a", 0, 500)], 0.0, ResponseCode.SLAVE_NOT_AVAILABLE),
        ([copy("a", -1, 0)], 0.0, ResponseCode.SLAVE_NOT_AVAILABLE),
    ],
    ids=["near", "none", "too far behind", "has said nothing yet"],
)
def test_disconnected_slaves_are_not_waited_for(there: list[Copy], timeout: float, code: int) -> None:
    gate = make(*there)
    assert (gate.timeout_s, gate.late_code) == (timeout, code)
    assert gate.late_remark


def test_records_that_timed_out_are_readable() -> None:
    gate = make()
    gate.on_timeout(950)
    assert gate.watermark == 950

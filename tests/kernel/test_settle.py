"""Settled rows get the response of an earlier message and are not stored, with both twins of the batch."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.kernel.batch import AppendBatch, Earlier, Source, finish_settled
from gantrymq.kernel.fast import new_batch
from gantrymq.plugins.ha.fencing import refuse_all as refuse_when_fenced
from gantrymq.plugins.produce.validate import refuse_all as refuse_as_slave
from gantrymq.remoting.codes import ResponseCode

LOG_END = 500
PLACE = {"offset": 100, "queue_id": 2, "queue_offset": 7}


@pytest.fixture(params=["plain", "fast"])
def batch(request: pytest.FixtureRequest) -> Any:
    """Four rows of clients; the log ends at ``LOG_END``."""
    made: Any = AppendBatch(source=Source.CLIENT) if request.param == "plain" else new_batch(None, Source.CLIENT)
    for number in range(4):
        made.add("T", number, b"body", b"")
    made.start = made.end = LOG_END
    return made


def append(batch: Any) -> None:
    """Place the batch as the log does."""
    batch.place(LOG_END, 1)
    for at, row in enumerate(batch.live):
        batch.offsets[row], batch.sizes[row], batch.queue_offsets[row] = LOG_END + 10 * at, 10, 30 + at
    finish_settled(batch)


def test_a_settled_row_is_not_stored_and_refers_to_the_earlier_message(batch: Any) -> None:
    batch.settle(1, **PLACE)
    assert list(batch.live) == [0, 2, 3]
    assert batch.refused == 1
    append(batch)
    assert batch.statuses == [ResponseCode.SUCCESS] * 4
    assert batch.settled == {1: Earlier(100, 2, 7)}
    assert batch.place_of(1) == (-1, -1)
    assert batch.remarks == {}


def test_a_settled_row_takes_offset_or_refusal_from_a_row_of_the_same_batch(batch: Any) -> None:
    batch.settle_as(1, 0)
    batch.settle_as(2, 1)
    batch.settle_as(3, 0)
    append(batch)
    assert {row: (one.offset, one.queue_id, one.queue_offset) for row, one in batch.settled.items()} == dict.fromkeys(
        (1, 2, 3), (LOG_END, 0, 30)
    )


def test_a_row_settled_with_a_refused_row_is_refused(batch: Any) -> None:
    batch.settle_as(2, 0)
    batch.refuse(0, ResponseCode.MESSAGE_ILLEGAL, "too large")
    append(batch)
    illegal, success = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SUCCESS
    assert batch.statuses == [illegal, success, illegal, success]
    assert batch.remarks == {0: "too large", 2: "too large"}
    assert (batch.settled, batch.refused) == ({}, 2)


def test_a_batch_without_stored_rows_has_empty_log_columns(batch: Any) -> None:
    for row in range(4):
        batch.settle(row, **PLACE)
    assert not list(batch.live)
    finish_settled(batch)
    assert batch.statuses == [ResponseCode.SUCCESS] * 4
    assert (batch.offsets, batch.place_of(3)) == ([], (-1, -1))


@pytest.mark.parametrize("offset", [LOG_END, LOG_END + 1, -1])
def test_settling_with_an_offset_beyond_the_log_is_an_error(batch: Any, offset: int) -> None:
    with pytest.raises(ValueError, match=rf"row 0 cannot be settled with the message at offset {offset}: .* at 500"):
        batch.settle(0, offset=offset, queue_id=0, queue_offset=0)
    assert list(batch.live) == [0, 1, 2, 3]


@pytest.mark.parametrize("place", [{"queue_id": -1}, {"queue_offset": -1}])
def test_settling_without_a_queue_is_an_error(batch: Any, place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="row 0 cannot be settled with queue"):
        batch.settle(0, **{**PLACE, **place})


@pytest.mark.parametrize("source", sorted(set(Source.ALL) - set(Source.FROM_SENDERS)))
def test_rows_of_internal_sources_cannot_be_settled(batch: Any, source: str) -> None:
    batch.source = source
    with pytest.raises(ValueError, match=f"'{source}' cannot be settled: .* those of client and resend can"):
        batch.settle(0, **PLACE)
    with pytest.raises(ValueError, match=f"'{source}' cannot be settled"):
        batch.settle_as(1, 0)


def test_rows_of_a_resend_can_be_settled(batch: Any) -> None:
    batch.source = Source.RESEND
    batch.settle(0, **PLACE)
    assert list(batch.live) == [1, 2, 3]


def test_a_row_is_settled_or_refused_once(batch: Any) -> None:
    batch.refuse(0, ResponseCode.MESSAGE_ILLEGAL, "no")
    with pytest.raises(ValueError, match=r"row 0 is refused already; batch\.live has the rows to look at"):
        batch.settle(0, **PLACE)
    batch.settle(1, **PLACE)
    with pytest.raises(ValueError, match=r"row 1 is settled and cannot be refused"):
        batch.refuse(1, ResponseCode.MESSAGE_ILLEGAL, "no")
    with pytest.raises(ValueError, match=r"row 1 is settled already"):
        batch.settle(1, **PLACE)


@pytest.mark.parametrize(("row", "earlier"), [(1, 1), (1, 2), (1, -1)])
def test_only_an_earlier_row_can_be_settled_with(batch: Any, row: int, earlier: int) -> None:
    with pytest.raises(ValueError, match=f"with row {earlier}, which is not before it"):
        batch.settle_as(row, earlier)


def test_a_row_cannot_be_settled_with_a_refused_row(batch: Any) -> None:
    batch.refuse(0, ResponseCode.MESSAGE_ILLEGAL, "no")
    with pytest.raises(ValueError, match="with row 0, which is refused"):
        batch.settle_as(1, 0)


@pytest.mark.parametrize(
    "refuse", [lambda batch: refuse_as_slave(batch, 1), lambda batch: refuse_when_fenced(batch, "x")]
)
def test_a_slave_and_a_fenced_master_acknowledge_nothing(batch: Any, refuse: Any) -> None:
    batch.settle(1, **PLACE)
    batch.settle_as(2, 0)
    refuse(batch)
    finish_settled(batch)
    assert batch.statuses == [ResponseCode.SERVICE_NOT_AVAILABLE] * 4
    assert (batch.settled, batch.refused, sorted(batch.remarks)) == ({}, 4, [0, 1, 2, 3])

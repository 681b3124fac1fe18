"""Rows with a delay level go to the level's queue in RocketMQ's format; others stay unchanged."""

from __future__ import annotations

import pytest

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.plugins.delay.levels.levels import Levels
from gantrymq.plugins.delay.rewrite import move_delayed
from gantrymq.remoting.codes import ResponseCode
from support.delays import NO_TIMER

LEVELS = Levels.parse("1s 5s 10s")


def moved(properties: bytes, *, sys_flag: int = 0) -> AppendBatch:
    batch = AppendBatch(traits=Trait.DELAY | Trait.BATCH)
    batch.add("T", 7, b"body", properties, sys_flag=sys_flag)
    move_delayed(batch, LEVELS, NO_TIMER)
    assert batch.traits == Trait.BATCH, "the trait is served"
    return batch


@pytest.mark.parametrize(
    ("given", "queue_id", "stored"),
    [
        (b"DELAY\x012\x02K\x01v", 1, b"DELAY\x012\x02K\x01v\x02REAL_TOPIC\x01T\x02REAL_QID\x017"),
        (b"K\x01v\x02DELAY\x0199", 2, b"K\x01v\x02REAL_TOPIC\x01T\x02REAL_QID\x017\x02DELAY\x013"),
        (b"REAL_TOPIC\x01X\x02REAL_QID\x019\x02DELAY\x011", 0, b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x017"),
    ],
)
def test_a_level_becomes_a_queue_and_the_real_place_a_property(given: bytes, queue_id: int, stored: bytes) -> None:
    batch = moved(given)
    assert (batch.topics, batch.queue_ids, batch.properties) == (["SCHEDULE_TOPIC_XXXX"], [queue_id], [stored])
    assert batch.bodies == [b"body"]


@pytest.mark.parametrize(
    ("given", "sys_flag"),
    [(b"K\x01v", 0), (b"DELAY\x010", 0), (b"DELAY\x01-1", 0), (b"DELAY\x011", 4), (b"DELAY\x011", 12)],
)
def test_messages_without_a_level_or_queue_entry_are_unchanged(given: bytes, sys_flag: int) -> None:
    batch = moved(given, sys_flag=sys_flag)
    assert (batch.topics, batch.queue_ids, batch.properties) == (["T"], [7], [given])


def test_a_committed_half_message_waits_like_any_other() -> None:
    assert moved(b"DELAY\x011", sys_flag=8).topics == ["SCHEDULE_TOPIC_XXXX"]


def test_a_level_that_is_no_number_is_refused() -> None:
    batch = moved(b"DELAY\x01soon")
    assert batch.statuses == [ResponseCode.MESSAGE_ILLEGAL]


def test_a_refused_row_is_left_alone() -> None:
    batch = AppendBatch(traits=Trait.DELAY)
    batch.add("T", 0, b"", b"DELAY\x011")
    batch.refuse(0, ResponseCode.NO_PERMISSION, "no")
    move_delayed(batch, LEVELS, NO_TIMER)
    assert batch.topics == ["T"]

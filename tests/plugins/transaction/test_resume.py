"""RESUME_CHECK_HALF_MESSAGE checks back a discarded half message again, with either strategy, and nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.transaction.resume import NOT_FOUND, NOT_PUT
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.properties import find_property
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY
from gantrymq.testing.transacted import COMMIT, ROLLBACK, Producer, TransactedStore, in_order, killed

INTERVAL_S = 61
BOTH = pytest.mark.parametrize("strategy", ["half", "state_table"])


def put_aside(strategy: str, body: bytes = b"x", **settings: Any) -> tuple[TransactedStore, Producer, str]:
    """A store whose only transaction was put aside after its check_back, a producer, and the message's id."""
    world = TransactedStore(MemoryEnv(), strategy, check_max=1, **settings)
    producer = world.producers.join()
    world.half(body, topic="Orders", queue_id=3)
    world.commit()
    for _ in range(2):
        world.pass_time(INTERVAL_S)
        world.scan()
    assert len(producer.take_check_backs()) == 1
    [aside] = world.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    return world, producer, aside.message_id


def responses_to(peer: Producer) -> list[tuple[int, str | None]]:
    return [(answer.code, answer.remark) for answer in peer.sent]


@BOTH
@pytest.mark.parametrize("again", [in_order, killed, None])
def test_the_producer_is_asked_again_and_its_commit_makes_the_message_visible(strategy: str, again: Any) -> None:
    world, producer, message_id = put_aside(strategy)
    peer = world.resume(message_id)
    assert not peer.sent, "the answer waits for the disk"
    world.commit()
    assert responses_to(peer) == [(ResponseCode.SUCCESS, None)]
    assert world.plugin.strategy.open_count == 1
    if again is not None:
        world = again(world, strategy)
        producer = world.producers.join()
    assert world.bodies("Orders", 3) == []
    world.pass_time(INTERVAL_S)
    world.scan()
    [check_back] = producer.take_check_backs()
    assert (check_back.record.topic, check_back.record.queue_id, check_back.record.flag) == ("Orders", 3, 7)
    assert world.end_now(check_back.half, COMMIT, checked=True) == ResponseCode.SUCCESS
    [message] = world.messages("Orders", 3)
    assert (message.body, message.born_host, find_property(message.properties, b"UNIQ_KEY")) == (
        b"x", b"\x0a\1\2\3\0\0\0\x09", b"x",
    )  # fmt: skip
    assert world.plugin.strategy.open_count == 0


@BOTH
def test_a_resumed_message_can_be_rolled_back_or_discarded_again(strategy: str) -> None:
    world, producer, message_id = put_aside(strategy)
    for _ in range(2):
        world.resume(message_id)
        world.commit()
        world.pass_time(INTERVAL_S)
        world.scan()
    [first, second] = producer.take_check_backs()[-2:]
    assert world.end_now(second.half, ROLLBACK) == ResponseCode.SUCCESS
    world.pass_time(INTERVAL_S)
    world.scan()
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"x", b"x"], "the other one, which nobody ended"
    assert world.bodies("Orders", 3) == []
    assert world.plugin.strategy.open_count == 0
    assert first.half != second.half


@BOTH
def test_a_message_that_was_not_discarded_is_not_resumed(strategy: str) -> None:
    world, _, message_id = put_aside(strategy)
    half = world.half(b"open")
    world.commit()
    world.end_now(half, COMMIT)
    [visible] = world.messages()
    log_end = world.log.end
    host = message_id[:16]
    for wrong in (None, "", "nonsense", "AB" * 5, f"{host}{half.offset:016X}", visible.message_id,
                  f"{host}{visible.offset + 1:016X}", f"{host}{log_end:016X}", f"{host}{2**64 - 1:016X}"):  # fmt: skip
        assert responses_to(world.resume(wrong)) == [(ResponseCode.SYSTEM_ERROR, NOT_FOUND)]
    assert world.log.end == log_end


@BOTH
def test_a_broker_that_accepts_no_half_messages_refuses_to_resume_them(strategy: str) -> None:
    world, _, message_id = put_aside(strategy)

    def refuse(batch: AppendBatch) -> None:
        for row in batch.live:
            batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "no room")

    world.refuse = refuse
    assert responses_to(world.resume(message_id)) == [(ResponseCode.SYSTEM_ERROR, NOT_PUT)]
    assert world.plugin.strategy.open_count == 0


def test_messages_without_a_topic_are_not_resumed() -> None:
    world = TransactedStore(MemoryEnv())
    batch = AppendBatch()
    batch.add(TRANS_CHECK_MAX_TIME_TOPIC, 0, b"stray", b"TRAN_MSG\x01true\x02PGROUP\x01g")
    world.append(batch)
    world.commit()
    [stray] = world.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    [(code, remark)] = responses_to(world.resume(stray.message_id))
    assert (code, remark and "nowhere" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert world.messages(TRANS_HALF_TOPIC) == []


def test_a_slave_puts_nothing_back() -> None:
    world, _, message_id = put_aside("half")
    slave = TransactedStore(MemoryEnv(), broker_id=1)
    slave.copy_from(world)
    assert responses_to(slave.resume(message_id)) == [(ResponseCode.SYSTEM_ERROR, NOT_PUT)]


@BOTH
def test_a_discarded_message_larger_than_a_later_limit_is_resumed(strategy: str) -> None:
    world, _, message_id = put_aside(strategy, b"x" * 1500)
    world.close()
    world = TransactedStore(world.env, strategy, config=attrs.evolve(TINY, max_message_bytes=1000))
    peer = world.resume(message_id)
    world.commit()
    assert responses_to(peer) == [(ResponseCode.SUCCESS, None)]
    assert world.plugin.strategy.open_count == 1

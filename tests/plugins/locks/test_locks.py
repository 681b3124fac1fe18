"""One member of a group has a queue at a time, for as long as it says so every minute."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.plugins.locks.table import LockTable
from gantrymq.remoting.bodies import MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", number) for number in range(3))


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_queue_has_one_owner_in_each_group() -> None:
    table = LockTable(Clock(), 60, 100)
    assert table.lock("G", {Q0, Q1}, "one") == {Q0, Q1}
    assert table.lock("G", {Q1, Q2}, "two") == {Q2}
    assert table.lock("H", {Q0, Q1}, "two") == {Q0, Q1}


def test_the_owner_may_take_it_again_which_makes_it_live_longer() -> None:
    clock = Clock()
    table = LockTable(clock, 60, 100)
    table.lock("G", {Q0}, "one")
    clock.now += 60
    assert table.lock("G", {Q0}, "two") == set(), "sixty seconds old, not older"
    assert table.lock("G", {Q0}, "one") == {Q0}
    clock.now += 60
    assert table.lock("G", {Q0}, "two") == set()
    clock.now += 0.1
    assert table.lock("G", {Q0}, "two") == {Q0}
    assert table.lock("G", {Q0}, "one") == set()


def test_only_the_owner_gives_it_back() -> None:
    table = LockTable(Clock(), 60, 100)
    table.lock("G", {Q0}, "one")
    table.unlock("G", {Q0, Q1}, "two")
    table.unlock("H", {Q0}, "one")
    assert table.lock("G", {Q0}, "two") == set()
    table.unlock("G", {Q0}, "one")
    assert len(table) == 0
    assert table.lock("G", {Q0}, "two") == {Q0}


def test_the_table_is_bounded_and_expired_locks_make_room() -> None:
    clock = Clock()
    table = LockTable(clock, 60, 2)
    assert table.lock("G", [Q0, Q1], "one") == {Q0, Q1}
    assert table.lock("G", [Q2, Q0], "one") == {Q0}
    clock.now += 61
    assert table.lock("G", [Q2], "two") == {Q2}
    assert len(table) == 1


@pytest.fixture
def ask(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker("locks")

    def call(code: RequestCode, body: bytes) -> Any:
        answer = broker.ask(code, None, body)
        assert answer is not None
        return answer

    return call


def body_of(client: str, *queues: MessageQueue) -> bytes:
    rows = [{"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]
    return json.dumps({"clientId": client, "consumerGroup": "G", "mqSet": rows}).encode()


def test_the_requests_speak_as_rocketmqs_clients_do(ask: Any) -> None:
    answer = ask(RequestCode.LOCK_BATCH_MQ, body_of("one", Q0))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
    assert ask(RequestCode.LOCK_BATCH_MQ, body_of("two", Q0)).body == b'{"lockOKMQSet":[]}'
    assert ask(RequestCode.UNLOCK_BATCH_MQ, body_of("one", Q0, Q1)).code == ResponseCode.SUCCESS
    assert ask(RequestCode.LOCK_BATCH_MQ, body_of("two", Q0)).body != b'{"lockOKMQSet":[]}'


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", b'{"consumerGroup":"G"}', b'{"clientId":"c"}', b'{"mqSet":7}',
        body_of("one", *(MessageQueue("T", "b", number) for number in range(10_001))),
    ],
    ids=len,
)  # fmt: skip
def test_what_is_no_request_is_refused(ask: Any, code: RequestCode, body: bytes) -> None:
    assert ask(code, body).code == ResponseCode.SYSTEM_ERROR

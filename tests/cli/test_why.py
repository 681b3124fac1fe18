"""``gantrymq message why``: each reason that keeps a message from a group, on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message, Sql
from gantrymq.operations.why import sent_ms
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.sync import Client
from support.foreign import ask
from support.processes import wait_for

pytestmark = pytest.mark.timeout(120)

Why = Callable[..., list[str]]


@pytest.fixture
def group(gantry_topic: str) -> str:
    return f"g-{gantry_topic[-8:]}"


@pytest.fixture
def reasons(
    cli: Callable[..., Any], gantry_broker: Any, gantry_topic: str, group: str
) -> Callable[..., dict[str, str]]:
    """The findings about a message: code to text, in their order."""

    def call(message_id: str, of: str = group) -> dict[str, str]:
        outcome = cli("message", "why", message_id, "--topic", gantry_topic, "--group", of, "--json",
                      "--nameserver", gantry_broker.nameserver)  # fmt: skip
        assert outcome.code == 0, outcome.err
        return {each["code"]: each["text"] for each in json.loads(outcome.out)}

    return call


Reasons = Callable[..., dict[str, str]]


@pytest.fixture
def send(gantry_client: Client, gantry_topic: str) -> Iterator[Callable[..., str]]:
    """Send a message; returns its id."""
    with gantry_client.producer() as producer:
        yield lambda body, **fields: producer.send(Message(gantry_topic, body, **fields)).message_id


def test_tags_retries_and_dead_letters(
    reasons: Reasons, send: Callable[..., str], gantry_client: Client, gantry_broker: Any, gantry_topic: str,
    group: str, cli: Callable[..., Any],
) -> None:  # fmt: skip
    blue, red = send(b"blue", tags="blue"), send(b"red", tags="red")
    wait_for(lambda: list(reasons(red)) == ["no_members", "waiting"])
    with gantry_client.consumer(gantry_topic, group, tags="red", start="first", max_retries=1) as consumer:
        message = next(iter(consumer))
        assert message.body == b"red"
        wait_for(lambda: "filtered" in reasons(blue))
        wait_for(lambda: "in_progress" in reasons(red))
        message.retry(10)
        wait_for(lambda: list(reasons(red)) == ["retrying"])
        assert "attempt 2 waits: delay level 10 since" in reasons(red)["retrying"]
    other = f"{group}-2"
    with gantry_client.consumer(gantry_topic, other, tags="red", start="first", max_retries=0) as consumer:
        next(iter(consumer)).retry()
        wait_for(lambda: list(reasons(red, other)) == ["dead_letter"])
    assert cli("dlq", "replay", other, "--nameserver", gantry_broker.nameserver).out == "replayed 1 message\n"
    wait_for(lambda: list(reasons(red, other)) == ["retrying", "no_members"])
    with gantry_client.consumer(gantry_topic, other, tags="red", start="first", max_retries=0) as consumer:
        next(iter(consumer)).ack()
    wait_for(lambda: "passed" in reasons(red, other))


def test_a_message_of_which_the_last_attempt_was_acknowledged_has_passed(
    reasons: Reasons, send: Callable[..., str], gantry_broker: Any, gantry_topic: str, group: str
) -> None:
    sent = send(b"1")
    with (
        gantrymq.sync.connect(gantry_broker.nameserver, trace=True) as client,
        client.consumer(gantry_topic, group, start="first") as consumer,
    ):
        next(iter(consumer)).retry(1)
        next(iter(consumer)).ack()
        second = send(b"2")
        next(iter(consumer)).ack()
    wait_for(lambda: "passed" in reasons(sent))
    assert "has acknowledged the last attempt" in reasons(sent)["passed"]
    wait_for(lambda: "consumed" in reasons(second))
    assert reasons(second)["consumed"].startswith("trace: 127.0.0.1 at ")


def test_a_sql92_expression_is_evaluated_by_the_broker(
    reasons: Reasons, send: Callable[..., str], gantry_client: Client, gantry_topic: str, group: str
) -> None:
    small, large = send(b"1", properties={"size": "1"}), send(b"9", properties={"size": "9"})
    with gantry_client.consumer(gantry_topic, group, tags=Sql("size > 5"), start="first") as consumer:
        assert next(iter(consumer)).body == b"9"
        wait_for(lambda: "filtered" in reasons(small))
        text = "the SQL92 expression 'size > 5' excludes the message; its properties: {'size': '1'}"
        assert reasons(small)["filtered"] == text
        assert "filtered" not in reasons(large)


@contextmanager
def holding_all(client: Client, topic: str, group: str) -> Iterator[None]:
    """A member that consumes in order and acknowledges nothing."""
    with client.consumer(topic, group, start="first", ordered=True) as consumer:
        next(iter(consumer))
        yield


def test_an_ordered_queue_names_its_member_and_a_member_without_the_lock(
    reasons: Reasons, send: Callable[..., str], gantry_client: Client, gantry_broker: Any, gantry_topic: str, group: str
) -> None:
    for number in range(2):
        last = send(b"%d" % number, order_key="k")
    with holding_all(gantry_client, gantry_topic, group):
        wait_for(lambda: "in_progress" in reasons(last))
        assert "it consumes in order, so a message that fails stops the queue" in reasons(last)["in_progress"]
        assert "not_locked" not in reasons(last)
    # someone that RocketMQ's broker and ours cannot know to be dead holds the locks of the next member
    queues = [{"topic": gantry_topic, "brokerName": "broker-a", "queueId": number} for number in range(4)]
    body = json.dumps({"consumerGroup": f"{group}-2", "clientId": "gone", "mqSet": queues}).encode()
    assert ask(gantry_broker.address, Command(RequestCode.LOCK_BATCH_MQ, body=body)).code == 0
    with gantry_client.consumer(gantry_topic, f"{group}-2", start="first", ordered=True):
        wait_for(lambda: {"not_locked", "unassigned"} & set(reasons(last, f"{group}-2")))


def test_a_delayed_message_says_when_it_is_due(reasons: Reasons, send: Callable[..., str]) -> None:
    level, timed = send(b"later", delay_level=10), send(b"later", delay=600)
    wait_for(lambda: list(reasons(level)) == ["delayed"])
    assert "delay level 10 since" in reasons(level)["delayed"]
    wait_for(lambda: list(reasons(timed)) == ["delayed"])
    assert "the message is timed: it is delivered at" in reasons(timed)["delayed"]


def test_a_recalled_message_waits_no_more_and_no_search_reads_all_timed_messages(
    reasons: Reasons, send: Callable[..., str], gantry_broker: Any, gantry_topic: str, cli: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    at = ("--nameserver", gantry_broker.nameserver)
    timed = send(b"later", delay=600)

    def handles() -> list[str]:
        rows = json.loads(cli("delayed", "list", "--topic", gantry_topic, "--json", *at).out)
        return [row["recall_handle"] for row in rows if row["message_id"] == timed]

    wait_for(lambda: len(handles()) == 1)
    (handle,) = handles()
    with monkeypatch.context() as patch:
        patch.delattr("gantrymq.operations.delayed._timer_records")
        wait_for(lambda: list(reasons(timed)) == ["delayed"])
        assert cli("delayed", "recall", handle, "--topic", gantry_topic, *at).code == 0
        wait_for(lambda: "delayed" not in reasons(timed))


def test_a_group_that_may_not_consume(
    reasons: Reasons, send: Callable[..., str], gantry_broker: Any, group: str
) -> None:
    sent = send(b"1")
    body = SubscriptionGroupConfig(group_name=group, consume_enable=False).to_bytes()
    assert ask(gantry_broker.address, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    assert list(reasons(sent)) == ["consumption_disabled", "no_members", "waiting"]


def test_a_message_that_is_not_there_may_have_expired(reasons: Reasons, send: Callable[..., str]) -> None:
    sent = send(b"1")
    wait_for(lambda: "waiting" in reasons(sent))
    assert list(reasons("0" * 32)) == ["expired"], "of the first millisecond of a month"
    assert list(reasons(sent[:-4] + "FFFF")) == ["not_found"]
    assert list(reasons("nonsense")) == ["not_found"]


def test_the_time_in_a_producers_id_is_read(gantry_client: Client, gantry_topic: str) -> None:
    with gantry_client.producer() as producer:
        sent = producer.send(gantry_topic, b"1").message_id
    read = sent_ms(sent, time.time())
    assert read is not None
    assert abs(read - time.time() * 1000) < 60_000
    late = f"{'0' * 20}{31 * 86_400_000 - 1:08X}0000"  # the end of a month of 31 days
    november = time.mktime((2025, 11, 10, 0, 0, 0, 0, 0, -1))
    assert sent_ms(late, november) == int(time.mktime((2025, 11, 1, 0, 0, 0, 0, 0, -1)) * 1000) - 1
    assert sent_ms("00", november) is None

"""RocketMQ's Java clients, 4.9.7 and 5.3.3, against the system under test."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SendMessageHeader
from support.clients import (
    Consumer,
    ForeignClient,
    Producer,
    check_complete,
    check_unaltered,
    wait_until,
)
from support.content import content
from support.foreign import ask
from support.processes import ChildFailed

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.twins]

Names = Callable[[str], str]
EACH = 2500
"""Messages of each of the four kinds of producer: 10,000 in all."""


def test_each_kind_of_producer_delivers_every_message_unaltered(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    modes = ("sync", "async", "oneway", "batch")
    sent = java_client.produce(system.nameserver, topic, EACH, seed=3, modes=",".join(modes))
    assert {answer.status for answer in sent} == {"SEND_OK"}
    assert sum(answer.count for answer in sent) == EACH * 3  # oneway is not answered
    assert {answer.region for answer in sent} == {"DefaultRegion"}

    messages = java_client.consume_all(system.nameserver, topic, names("g"), EACH * len(modes), timeout=120)
    check_complete(messages, 3, range(EACH * len(modes)))
    places = {message.index: message.place for message in messages}
    for answer in sent:
        first = places[answer.index]
        assert first == (answer.broker, answer.queue_id, answer.queue_offset)
        for following in range(1, answer.count):
            assert places[answer.index + following] == (*first[:2], first[2] + following)


def test_offsets_of_a_queue_are_dense_and_in_order(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 200, seed=4, modes="async")
    messages = java_client.consume_all(system.nameserver, topic, names("g"), 200)
    queues: dict[int, list[int]] = {}
    for message in messages:
        queues.setdefault(message.queue_id, []).append(message.queue_offset)
    assert sorted(queues) == [0, 1, 2, 3]
    for offsets in queues.values():
        assert sorted(offsets) == list(range(len(offsets)))


def test_every_member_of_a_broadcasting_group_gets_every_message(java_client: ForeignClient, system, names: Names):
    topic, group = names("t"), names("g")
    java_client.produce(system.nameserver, topic, 400, seed=5)
    with (
        java_client.alone.consumer(system.nameserver, topic, group, model="BROADCASTING") as one,
        java_client.alone.consumer(system.nameserver, topic, group, model="BROADCASTING") as other,
    ):
        wait_until(lambda: min(len(one.messages), len(other.messages)) >= 400, [one, other])
        check_complete(one.close(), 5, range(400))
        check_complete(other.close(), 5, range(400))


def test_remaining_members_take_over_the_queues_of_a_killed_member(java_client: ForeignClient, system, names: Names):
    topic, group = names("t"), names("g")
    java_client.produce(system.nameserver, topic, 4, seed=6)  # creates the topic with four queues
    arguments = (f"namesrv={system.nameserver}", f"topic={topic}", "count=0", "first=4", "seed=6", "orders=true")
    with (
        java_client.run("produce", *arguments) as maker,
        java_client.alone.consumer(system.nameserver, topic, group) as victim,
        ExitStack() as stack,
    ):
        # a consumer looks for itself 20 s after its start, and 20 s after each notification of the broker
        looks_at = time.monotonic() + 20
        heir = stack.enter_context(java_client.consumer(system.nameserver, topic, group))
        producer = Producer(maker)
        total = 4 + _send_until_both_work(producer, victim, heir)
        victim.child.kill()
        known = len(heir.messages)
        producer.send(40)
        total += 40
        in_time = max(looks_at - time.monotonic(), 10)
        wait_until(lambda: {m.index for m in heir.messages[known:]} >= set(range(total - 40, total)), [heir], in_time)
        assert {message.queue_id for message in heir.messages[known:]} == {0, 1, 2, 3}
        victim.poll(0)
        messages = victim.messages + heir.close()
        check_unaltered(messages, 6)
        assert {message.index for message in messages} == set(range(total))


def _send_until_both_work(producer: Producer, one: Consumer, other: Consumer) -> int:
    """Sends rounds of messages until one falls to each consumer; the number sent."""
    deadline = time.monotonic() + 60
    total = 0
    while True:
        assert time.monotonic() < deadline, "the group never shared its queues"
        ones, others = len(one.messages), len(other.messages)
        last = max(answer.index for answer in producer.send(8))
        total += 8
        wait_until(lambda last=last: last in {m.index for m in one.messages + other.messages}, [one, other])
        if len(one.messages) > ones and len(other.messages) > others:
            return total


@pytest.mark.parametrize("assign", ["false", "true"])
def test_the_lite_pull_consumer_gets_every_message(
    request: pytest.FixtureRequest, java_client: ForeignClient, system, names: Names, assign: str
):
    if (system.kind, java_client.name) == ("java", "java-5.3.3"):  # whose code 361 no 4.9.7 broker knows
        system = request.getfixturevalue("java5_system")
    topic = names("t")
    java_client.produce(system.nameserver, topic, 500, seed=7, modes="async")
    messages = java_client.consume_all(system.nameserver, topic, names("g"), 500, kind="lite-pull", assign=assign)
    check_complete(messages, 7, range(500))


def test_a_tag_expression_selects_messages(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 200, seed=8, modes="batch")
    wanted = [index for index in range(200) if content(8, index).tags in ("TagB", "标签")]
    messages = java_client.consume_all(system.nameserver, topic, names("g"), len(wanted), tags="TagB || 标签")
    check_complete(messages, 8, wanted)


def test_a_tag_expression_of_ten_thousand_characters_selects(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 100, seed=13, modes="batch")
    wanted = [index for index in range(100) if content(13, index).tags == "TagB"]
    tags = " || ".join([*(f"nobody-{number:04}" for number in range(700)), "TagB"])
    assert len(tags) > 10_000
    messages = java_client.consume_all(system.nameserver, topic, names("g"), len(wanted), tags=tags)
    check_complete(messages, 13, wanted)


def test_an_sql92_expression_selects_messages(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 200, seed=10)
    wanted = [index for index in range(200) if 50 <= index < 100 and content(10, index).tags == "TagB"]
    sql = "index BETWEEN 50 AND 99 AND NOT (TAGS <> 'TagB' OR TAGS IS NULL)"
    messages = java_client.consume_all(system.nameserver, topic, names("g"), len(wanted), sql=sql)
    check_complete(messages, 10, wanted)


def test_an_invalid_sql92_expression_stops_the_consumer_at_its_start(java_client: ForeignClient, system, names: Names):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 1, seed=11)
    with pytest.raises(ChildFailed, match="CODE: 23"):
        java_client.consume_all(system.nameserver, topic, names("g"), 1, sql="a =")


def test_a_group_resumes_at_its_committed_offset(java_client: ForeignClient, system, names: Names):
    topic, group = names("t"), names("g")
    java_client.produce(system.nameserver, topic, 50, seed=9)
    check_complete(java_client.consume_all(system.nameserver, topic, group, 50), 9, range(50))
    java_client.produce(system.nameserver, topic, 30, seed=9, first=50)
    check_complete(java_client.consume_all(system.nameserver, topic, group, 30), 9, range(50, 80))


@pytest.mark.parametrize(("asked", "size", "found"), [(50, 1, 32), (20, 1, 20), (50, 60 * 1024, 4)])
def test_a_pull_gets_at_most_32_messages_and_256_kib(
    java_client: ForeignClient, system, names: Names, asked: int, size: int, found: int
):
    topic = names("t")
    java_client.produce(system.nameserver, topic, 4, seed=12)  # creates the topic
    header = SendMessageHeader(
        producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    for _ in range(60):
        assert ask(system.broker, Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), bytes(size))).code == 0
    arguments = (f"namesrv={system.nameserver}", f"topic={topic}", f"group={names('g')}", f"limit={asked}")
    with java_client.run("pull", *arguments) as child:
        pulled = child.wait_event("pulled")
    if size == 1:
        assert (pulled["status"], pulled["found"], pulled["next"]) == ("FOUND", found, found)
    else:
        # a small message of the producer may be the first
        assert (pulled["status"], pulled["next"]) == ("FOUND", pulled["found"])
        assert found <= pulled["found"] <= found + 4

"""Delays, retries, dead letters, SQL92, orderly and broadcasting consumers of RocketMQ's client, on both brokers.

Each test runs against GantryMQ and against RocketMQ's own broker 4.9.7, both with the same short delay levels.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.clients import ADDED_PROPERTIES, Consumer, ForeignClient, Producer, Received, wait_until
from support.content import content
from support.foreign import Java, is_routed, start_broker, start_nameserver
from support.processes import LATE_DISK, free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

Names = Callable[[str], str]
Homes = Callable[[str], Path]

LEVELS = "1s 2s 3s " + " ".join(["1s"] * 15)
"""The first return of a message waits three seconds (level 3), each further one a second."""
DELAYS_MS = {1: 1000, 2: 2000, 3: 3000}
"""The delays of the levels that differ."""
PROMPT_MS = 2_500
"""The longest delay of the earliest message."""
LATE_MS = 20_000
"""The longest delay of any message on a busy machine."""


@attrs.frozen
class System:
    """A nameserver with one broker."""

    kind: str
    nameserver: str


@contextmanager
def ours(homes: Homes, store: Path, levels: str) -> Iterator[System]:
    """GantryMQ on a store, with a clean stop at the end."""
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ["serve", "--data", str(store), "--listen", broker, "--nameserver-listen", nameserver, *LATE_DISK]
    with gantrymq_child([*serve, "--set", f"plugin.delay.levels={levels}"], homes("ours") / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield System("gantrymq", nameserver)
        child.terminate()


@contextmanager
def theirs(java: Java, homes: Homes, store: Path, levels: str) -> Iterator[System]:
    """RocketMQ on a store, with a clean stop at the end."""
    nameserver = start_nameserver(java, homes("java-nameserver"))
    try:
        server = start_broker(
            java, homes("java-broker"), nameserver.address, store=store, messageDelayLevel=levels,
            flushDelayOffsetInterval="1000", enablePropertyFilter="true",
        )  # fmt: skip
        with server.child as child:
            yield System("java", nameserver.address)
            child.terminate(timeout=40)
    finally:
        nameserver.discard()


ORACLE = pytest.param("java", marks=pytest.mark.soak(2, among="RocketMQ's broker"))
"""RocketMQ's broker, as the reference that shows that the tests are right."""


@pytest.fixture(scope="module", params=["gantrymq", ORACLE])
def pair(request: pytest.FixtureRequest, java: Java, homes: Homes) -> Iterator[System]:
    """The two brokers, one after the other."""
    store = homes("store")
    running = ours(homes, store, LEVELS) if request.param == "gantrymq" else theirs(java, homes, store, LEVELS)
    with running as system:
        yield system


def added(message: Received, *, without: Sequence[str] = ()) -> dict[str, str]:
    """The properties that neither the producer nor the ordinary road put there."""
    given = content(1, message.index).all_properties
    assert {name: message.properties[name] for name in given} == given
    names = set(message.properties) - set(given) - ADDED_PROPERTIES - set(without)
    return {name: message.properties[name] for name in names}


@contextmanager
def retrying(client: ForeignClient, system: System, topic: str, group: str, **options: object) -> Iterator[Consumer]:
    """A consumer that fails as the options say."""
    with client.consumer(system.nameserver, topic, group, "retry-push", **options) as consumer:
        yield consumer


def make_retry_topic(client: ForeignClient, system: System, topic: str, group: str) -> None:
    """Let the group have had a member: its retry topic comes with the first heartbeat.

    A client that starts before asks for that topic's route only 20 s later, whoever the broker is.
    """
    client.produce(system.nameserver, topic, 1, first=100)
    client.consume_all(system.nameserver, topic, group, 1, kind="retry-push")


def check_on_time(late_ms: Sequence[int], prompt_ms: int) -> None:
    """AssertionError if a message came early, if all came late, or if one came far too late."""
    assert 0 <= min(late_ms) <= prompt_ms, late_ms
    assert max(late_ms) <= LATE_MS, late_ms


def attempts_of(messages: Sequence[Received], pair: System) -> list[Received]:
    """The attempts in order; at RocketMQ's broker each once, as RocketMQ's client may take its queues there twice."""
    if pair.kind != "java":
        return list(messages)
    return list({(message.index, message.reconsume_times): message for message in reversed(messages)}.values())[::-1]


def gaps(messages: Sequence[Received]) -> list[int]:
    """Milliseconds between the moments when they were received."""
    return [later.received - earlier.received for earlier, later in pairwise(messages)]


def test_delayed_messages_arrive_on_time_and_never_early(java4_client: ForeignClient, pair: System, names: Names):
    topic = names("t")
    java4_client.produce(pair.nameserver, topic, 4)
    with retrying(java4_client, pair, topic, names("g")) as consumer:
        consumer.wait(4)
        for level in DELAYS_MS:
            sent = java4_client.produce(pair.nameserver, topic, 3, first=level * 10, delay=level)
            assert {answer.queue_id for answer in sent} <= {0, 1, 2, 3}, "the queue that was asked for"
        consumer.wait(4 + 3 * len(DELAYS_MS))
        delayed = consumer.messages[4:]
        due = {message.index: message.born + DELAYS_MS[message.index // 10] for message in delayed}
        check_on_time([message.stored - due[message.index] for message in delayed], PROMPT_MS)
        check_on_time([message.received - due[message.index] for message in delayed], 2 * PROMPT_MS)
        for message in delayed:
            level = message.index // 10
            assert message.topic == topic
            assert message.properties.pop("REAL_QID") == str(message.queue_id)
            assert added(message) == {"DELAY": str(level), "REAL_TOPIC": topic}
        expected = [*range(4), *(level * 10 + number for level in DELAYS_MS for number in range(3))]
        assert sorted(message.index for message in consumer.close()) == expected, "each once"


def test_failed_messages_are_redelivered_until_consumption_succeeds(
    java_client: ForeignClient, pair: System, names: Names
):
    topic, group = names("t"), names("g")
    make_retry_topic(java_client, pair, topic, group)
    (sent,) = java_client.produce(pair.nameserver, topic, 1)
    with retrying(java_client, pair, topic, group, fail=3) as consumer:
        wait_until(lambda: any(message.reconsume_times == 3 for message in consumer.messages), [consumer])
        consumer.poll(2)
        messages = attempts_of(consumer.close(), pair)
    assert [message.reconsume_times for message in messages] == [0, 1, 2, 3]
    assert {message.topic for message in messages} == {topic}, "the client shows the topic where it began"
    late = [gap - delay_ms for gap, delay_ms in zip(gaps(messages), (3000, 1000, 1000), strict=True)]
    check_on_time(late, 2 * PROMPT_MS)
    for message in messages[1:]:
        assert added(message) == {
            "DELAY": str(2 + message.reconsume_times), "REAL_TOPIC": f"%RETRY%{group}", "REAL_QID": "0",
            "RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": sent.offset_msg_id,
        }  # fmt: skip


@pytest.mark.parametrize(("options", "attempts"), [({"max": 2}, 3), ({"level": -1}, 1)])
def test_a_message_that_fails_all_attempts_becomes_a_readable_dead_letter(
    java_client: ForeignClient, pair: System, names: Names, options: dict[str, Any], attempts: int
):
    topic, group = names("t"), names("g")
    make_retry_topic(java_client, pair, topic, group)
    sent = {answer.index: answer for answer in java_client.produce(pair.nameserver, topic, 3)}
    with retrying(java_client, pair, topic, group, fail=99, **options) as consumer:
        wanted = {(index, times) for index in range(3) for times in range(attempts)}
        wait_until(lambda: {(m.index, m.reconsume_times) for m in consumer.messages} >= wanted, [consumer])
        wait_for(lambda: is_routed(pair.nameserver, f"%DLQ%{group}"))  # a client would look again after 30 s only
        with retrying(java_client, pair, f"%DLQ%{group}", names("dead")) as reader:
            wait_until(lambda: {message.index for message in reader.messages} >= {0, 1, 2}, [reader])
            dead = attempts_of(reader.close(), pair)
        messages = attempts_of(consumer.close(), pair)
    assert Counter(message.reconsume_times for message in messages) == dict.fromkeys(range(attempts), 3)
    assert sorted(message.index for message in dead) == [0, 1, 2]
    delayed = {"REAL_TOPIC": f"%RETRY%{group}", "REAL_QID": "0"} if attempts > 1 else {}
    for message in dead:
        assert (message.topic, message.queue_id) == (f"%DLQ%{group}", 0)
        assert message.reconsume_times == attempts
        assert message.sha256 == content(1, message.index).sha256
        assert added(message) == {
            "DELAY": "0", "RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": sent[message.index].offset_msg_id, **delayed,
        }  # fmt: skip


def test_an_orderly_group_keeps_queue_order_through_rebalances(java_client: ForeignClient, pair: System, names: Names):
    topic, group = names("t"), names("g")
    java_client.produce(pair.nameserver, topic, 4)
    arguments = (f"namesrv={pair.nameserver}", f"topic={topic}", "count=0", "first=4", "orders=true")
    orderly: dict[str, Any] = {"orderly": "true", "pause": 20}
    with (
        java_client.run("produce", *arguments) as maker,
        retrying(java_client, pair, topic, group, **orderly) as one,
    ):
        producer = Producer(maker)
        one.wait(4)
        total = 4
        with retrying(java_client, pair, topic, group, **orderly) as other:
            # the locks change hands within a rebalance or two, and 4.9.7 may have 20 s between them
            deadline = time.monotonic() + 90
            while len(one.messages) <= 20 or len(other.messages) <= 20:
                assert time.monotonic() < deadline, "both members get queues"
                producer.send(20)
                total += 20
                count = total
                wait_until(lambda count=count: len(one.messages) + len(other.messages) >= count, [one, other])
            left = other.close()
        producer.send(40)
        total += 40
        wait_until(lambda: len({m.place for m in one.messages + left}) >= total, [one], 60)
        stayed = one.close()
    queues: dict[int, list[Received]] = defaultdict(list)
    for message in sorted(stayed + left, key=lambda message: message.received):
        queues[message.queue_id].append(message)
    assert sorted(queues) == [0, 1, 2, 3]
    for messages in queues.values():
        offsets = [message.queue_offset for message in messages]
        assert offsets == sorted(offsets), "in order over all members"
        assert sorted(set(offsets)) == list(range(len(set(offsets))))
    assert len({message.place for message in stayed + left}) == total


def test_a_failed_message_blocks_its_queue_in_an_orderly_consumer(
    java4_client: ForeignClient, pair: System, names: Names
):
    topic, group = names("t"), names("g")
    sent = java4_client.produce(pair.nameserver, topic, 8)
    with retrying(java4_client, pair, topic, group, orderly="true", fail=2) as consumer:
        consumer.wait(24)
        messages = consumer.close()
    # the producer begins with a random queue once more when it learns the route of the new topic
    for queue_id, count in Counter(answer.queue_id for answer in sent).items():
        seen = [(m.queue_offset, m.reconsume_times) for m in messages if m.queue_id == queue_id]
        assert seen == [(offset, times) for offset in range(count) for times in (0, 1, 2)]


def test_a_push_consumer_gets_the_messages_that_its_sql92_expression_selects(
    java_client: ForeignClient, pair: System, names: Names
):
    topic = names("t")
    java_client.produce(pair.nameserver, topic, 120)
    sql = "index BETWEEN 20 AND 79 AND (TAGS IS NULL OR TAGS IN ('TagB', '标签'))"
    wanted = [index for index in range(20, 80) if content(1, index).tags in (None, "", "TagB", "标签")]
    messages = java_client.consume_all(pair.nameserver, topic, names("g"), len(wanted), sql=sql)
    assert sorted(message.index for message in messages) == wanted
    assert 0 < len(wanted) < 60


def test_a_broadcasting_consumer_gets_each_message_once(java4_client: ForeignClient, pair: System, names: Names):
    topic, group = names("t"), names("g")
    java4_client.produce(pair.nameserver, topic, 4)
    with (
        retrying(java4_client.alone, pair, topic, group, model="BROADCASTING", fail=99) as one,
        retrying(java4_client.alone, pair, topic, group, model="BROADCASTING", fail=99) as other,
    ):
        java4_client.produce(pair.nameserver, topic, 20, first=4)
        wait_until(lambda: min(len(one.messages), len(other.messages)) >= 24, [one, other])
        one.poll(4.5)
        for consumer in (one, other):
            assert Counter(message.index for message in consumer.close()) == dict.fromkeys(range(24), 1)


@pytest.mark.soak(1)  # test_transactions_crossing.py has both directions
@pytest.mark.parametrize("first", ["gantrymq", "java"])
def test_waiting_delayed_messages_are_delivered_once_and_on_time_by_the_other_broker(
    java: Java, java4_client: ForeignClient, homes: Homes, names: Names, first: str
):
    topic, store = names("t"), homes("crossing")
    levels, delay_ms = "1s 25s", 25_000

    def running(kind: str):
        return ours(homes, store, levels) if kind == "gantrymq" else theirs(java, homes, store, levels)

    with running(first) as system:
        java4_client.produce(system.nameserver, topic, 5, delay=1)
        early = java4_client.consume_all(system.nameserver, topic, names("early"), 5, kind="retry-push")
        java4_client.produce(system.nameserver, topic, 20, first=5, delay=2)
    assert sorted(message.index for message in early) == list(range(5))
    with running("java" if first == "gantrymq" else "gantrymq") as system:
        ready = time.time() * 1000
        messages: list[Received] = []
        with retrying(java4_client, system, topic, names("late")) as consumer:
            consumer.wait(25, timeout=90)
            consumer.poll(2)
            messages = consumer.close()
        assert Counter(message.index for message in messages) == dict.fromkeys(range(25), 1)
        for message in messages:
            if message.index >= 5:
                due = message.born + delay_ms
                assert due <= message.stored <= max(due, ready) + LATE_MS, "on a busy machine a start takes longer"
        wait_for(lambda: (store / "config" / "delayOffset.json").exists())

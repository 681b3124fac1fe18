"""Consumers: start positions, commits, the allocation of queues among members, and failing brokers."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog.testing

import gantrymq
import gantrymq.client.connections
from gantrymq import MessageQueue
from gantrymq.client.errors import ConnectFailed
from gantrymq.client.puller import IDLE_INTERVAL_SECONDS
from gantrymq.client.routes import RENEW_SECONDS
from gantrymq.remoting.bodies.clients import HeartbeatData
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.command import Command
from gantrymq.remoting.properties import decode_properties

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]
Q0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


async def take(messages: gantrymq.Consumer[gantrymq.ReceivedMessage], count: int) -> list[gantrymq.ReceivedMessage]:
    with anyio.fail_after(20):
        return [await anext(messages) for _ in range(count)]


async def test_messages_are_received_in_order_with_all_fields(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(100):
            cluster.broker.store(
                "T", 0, b"%d" % number, f"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U{number}\x02c\x01d"
            )
        async with client.consumer("T", "g", start="first") as messages:
            got = await take(messages, 100)
    assert [message.body for message in got] == [b"%d" % number for number in range(100)]
    assert [message.queue_offset for message in got] == list(range(100))
    first = got[0]
    assert (first.tags, first.keys, first.message_id, first.properties["c"]) == ("a", ("k1", "k2"), "U0", "d")
    assert (first.queue, first.broker_name, first.topic) == (Q0, "broker-a", "T")


async def test_acknowledged_messages_are_committed_at_the_end_and_not_redelivered(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(10):
            cluster.broker.store("T", number % 2, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 10):
                await message.ack()
                await message.ack()
        assert cluster.broker.offsets == {("g", "T", 0): 5, ("g", "T", 1): 5}
        cluster.broker.store("T", 0, b"new")
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"new"


async def test_unacknowledged_messages_are_redelivered_from_the_oldest_on(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(5):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            got = await take(messages, 5)
            for number in (0, 1, 4, 3):
                await got[number].ack()
        assert cluster.broker.offsets == {("g", "T", 0): 2}
        async with client.consumer("T", "g") as messages:
            assert [message.body for message in await take(messages, 3)] == [b"2", b"3", b"4"]


async def test_offsets_are_committed_periodically_without_waiting_for_responses(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            await cluster.broker.wait_for(11, 2)
            assert not [request for request in cluster.broker.seen(15) if request.ext["commitOffset"] != "0"]
            await message.ack()
            while cluster.broker.offsets.get(("g", "T", 0)) != 1:
                await cluster.broker.changed.wait()
            assert cluster.broker.seen(15)[-1].is_oneway


async def test_a_commit_can_be_requested(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            await (await take(messages, 1))[0].ack()
            await messages.commit()
            assert cluster.broker.offsets == {("g", "T", 0): 1}


async def test_a_commit_that_a_broker_refuses_raises_and_is_tried_again(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        full, healthy = cluster.brokers
        for broker in cluster.brokers:
            broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 2):
                await message.ack()
            full.answers[15] = lambda request: request.answer(1, "the table of offsets is full")
            with pytest.raises(gantrymq.BrokerError, match=rf"{full.address} answered 1 .*offsets is full"):
                await messages.commit()
            assert healthy.offsets == {("g", "T", 0): 1}, "the refusal concerns one broker"
            del full.answers[15]
            await messages.commit()
            assert full.offsets == {("g", "T", 0): 1}


async def test_a_commit_asks_for_confirmation_of_what_was_committed_without_an_answer(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.answers[15] = lambda request: request.answer(1, "the table of offsets is full")
        async with client.consumer("T", "g", start="first") as messages:
            await (await take(messages, 1))[0].ack()
            with anyio.fail_after(20):
                while not any(request.ext["commitOffset"] == "1" for request in cluster.broker.seen(15)):
                    await cluster.broker.changed.wait()
            for _ in range(2):
                with pytest.raises(gantrymq.BrokerError, match="the table of offsets is full"):
                    await messages.commit()


async def test_a_commit_refused_at_the_end_of_the_block_is_logged(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            await (await take(messages, 1))[0].ack()
            cluster.broker.answers[15] = lambda request: request.answer(17, "no topic T")
        assert "commit_failed" in caplog.text
        assert cluster.broker.groups["g"] == []


@pytest.mark.parametrize(
    ("start", "expected", "asked"),
    [
        ("first", b"0", 31),
        (1_700_000_000_010, b"1", 29),
        (1_700_000_000_001, b"1", 29),
        (1_700_000_000_011, b"2", 29),  # the broker names the message before it, which is nearer
        (1_700_000_000_000, b"0", 29),
        (datetime(2023, 11, 14, 22, 13, 20, 5_000, tzinfo=UTC), b"1", 29),
    ],
)
async def test_a_new_group_starts_at_the_given_position(
    fake_cluster: Cluster, start: Any, expected: bytes, asked: int
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start=start) as messages:
            assert (await take(messages, 1))[0].body == expected
        (question,) = cluster.broker.seen(asked)
        if asked == 29:
            assert question.ext["timestamp"].startswith("17000000000")


async def test_a_new_group_that_starts_last_gets_what_is_sent_from_then_on(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"old")
        async with client.consumer("T", "g") as messages:
            cluster.broker.store("T", 0, b"new")
            assert (await take(messages, 1))[0].body == b"new"


async def test_a_zero_offset_of_a_4x_broker_for_a_new_group_is_ignored(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"old")
        cluster.broker.answers[14] = lambda request: request.answer(0, ext={"offset": "0"})
        async with client.consumer("T", "g") as messages:
            cluster.broker.store("T", 0, b"new")
            assert (await take(messages, 1))[0].body == b"new"
        cluster.broker.offsets["g2", "T", 0] = 0
        async with client.consumer("T", "g2") as messages:
            assert (await take(messages, 1))[0].body == b"old"
        cluster.broker.answers[43] = lambda request: request.answer(16, "administrators only")
        async with client.consumer("T", "g3") as messages:  # rather what is not wanted than a loss
            assert (await take(messages, 1))[0].body == b"old"


async def test_a_group_with_an_offset_resumes_there_whatever_its_start_option(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        cluster.broker.offsets["g", "T", 0] = 2
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"2"


async def test_tags_are_compared_as_text_and_other_messages_are_skipped(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        # Aa and BB have one hash, by which a broker may let both pass
        for tag in ("Aa", "BB", "c", "Aa", "d"):
            cluster.broker.store("T", 0, tag.encode(), f"TAGS\x01{tag}")
        cluster.broker.store("T", 0, b"untagged")
        async with client.consumer("T", "g", tags=" Aa || c ", start="first") as messages:
            got = await take(messages, 3)
            assert [message.tags for message in got] == ["Aa", "c", "Aa"]
            for message in got:
                await message.ack()
        assert cluster.broker.offsets == {("g", "T", 0): 6}


async def test_a_member_sends_its_subscription_in_heartbeats_and_unregisters(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", tags="a||b", start="first"):
            (consumer,) = HeartbeatData.from_bytes(cluster.broker.seen(34)[0].body).consumer_data_set
            await cluster.broker.wait_for(11)
        (farewell,) = cluster.broker.seen(35)
    assert (consumer.group_name, consumer.consume_type, consumer.message_model, consumer.consume_from_where) == (
        "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    subscription, retries = consumer.subscription_data_set
    assert (retries.topic, retries.sub_string, retries.tags_set) == ("%RETRY%g", "*", set())
    assert (subscription.topic, subscription.tags_set, subscription.code_set) == ("T", {"a", "b"}, {97, 98})
    pull = cluster.broker.seen(11)[0].ext
    assert (pull["subVersion"], pull["sysFlag"], pull["suspendTimeoutMillis"], pull["maxMsgNums"]) == (
        str(subscription.sub_version), "2", "15000", "512",
    )  # fmt: skip
    assert pull["gantrymqMaxBytes"] == "1048576", "so that our brokers give 32 messages from the disk, too"
    assert farewell.ext == {"clientID": client.client_id, "consumerGroup": "g"}


async def test_a_consumer_of_the_retry_topic_subscribes_to_it_once(fake_cluster: Cluster) -> None:
    async with fake_cluster(**{"%RETRY%g": 1}) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("%RETRY%g", "g", start="first") as messages:
            (consumer,) = HeartbeatData.from_bytes(cluster.broker.seen(34)[0].body).consumer_data_set
            assert len(messages.queues) == 1
    (subscription,) = consumer.subscription_data_set
    assert subscription.topic == "%RETRY%g"


async def test_a_retried_message_has_its_original_topic_and_id(fake_cluster: Cluster) -> None:
    async with fake_cluster(**{"T": 1, "%RETRY%g": 1}) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01T\x02TAGS\x01other")
        async with client.consumer("T", "g", tags="a", start="last") as messages:
            (message,) = await take(messages, 1)
            assert (message.topic, message.queue.topic) == ("T", "%RETRY%g")
            assert messages.queues == [Q0], "those of the topic that it asked for"
            await message.ack()
        assert cluster.broker.offsets["g", "%RETRY%g", 0] == 1


async def test_a_retried_message_comes_soon_though_its_topic_is_registered_late(
    fake_cluster: Cluster, no_pause: None
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.answers[36] = lambda request: request.answer(0)
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            await message.retry()
            asked = len(cluster.nameserver.seen(105))
            await cluster.nameserver.wait_for(105, asked + 3)  # the rebalance after the retry has found no topic
            cluster.broker.store("%RETRY%g", 0, b"x", "RETRY_TOPIC\x01T")
            cluster.nameserver.topics["%RETRY%g"] = 1
            with anyio.fail_after(10):  # a rebalance is 20 s later
                (again,) = await take(messages, 1)
            assert again.queue.topic == "%RETRY%g"


async def test_offsets_of_revoked_queues_are_committed_when_the_consumer_closes_meanwhile(
    fake_cluster: Cluster,
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.consumer("T", "g", start="first") as messages,
    ):
        broker = cluster.broker
        broker.store("T", 0, b"x")
        (message,) = await take(messages, 1)
        await message.ack()

        async def lose_the_first(request: Command) -> Command:
            if len(broker.seen(15)) == 1:
                await anyio.sleep_forever()
            return broker.on_update_consumer_offset(request)

        broker.answers[15] = lose_the_first
        broker.groups["g"].append("0.0.0.0@another")  # the first in order, so the only queue is this member's now
        await broker.notify("g")
        await broker.wait_for(15)
        assert not messages.queues
        await messages.close()
        assert broker.offsets == {("g", "T", 0): 1}


async def test_a_retry_starts_no_rebalance_where_other_members_have_the_queues_of_the_retry_topic(
    fake_cluster: Cluster,
) -> None:
    async with (
        fake_cluster(**{"T": 2, "%RETRY%g": 1}) as cluster,
        gantrymq.connect(cluster.address) as client,
    ):
        broker = cluster.broker
        broker.answers[36] = lambda request: request.answer(0)
        broker.groups["g"] = ["0-another-member"]  # sorts first, so it gets the queue of the retry topic
        for number in range(10):
            broker.store("T", 1, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            got = await take(messages, 10)
            rebalances = len(broker.seen(38))
            for message in got:
                await message.retry()
            await messages.commit()
            assert len(broker.seen(36)) == 10
            assert len(broker.seen(38)) <= rebalances + 1


GONE = "look message by offset failed, 0"


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        (14, "the disk is full", gantrymq.BrokerError),
        (1, "AclException: No acl config for this access key", gantrymq.AccessDenied),
        (1, GONE, gantrymq.BrokerError),
    ],
)
async def test_a_message_whose_send_back_fails_stays_unsettled(
    fake_cluster: Cluster, code: int, remark: str, error: type[Exception]
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.answers[36] = lambda request: request.answer(code, remark)
        cluster.broker.answers[310] = lambda request: request.answer(14, "the disk is full")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            with pytest.raises(error):
                await message.retry(2)
        (request,) = cluster.broker.seen(36)
        assert (request.ext["group"], request.ext["delayLevel"], request.ext["originTopic"]) == ("g", "2", "T")
        assert request.ext["offset"] == str(message.commit_log_offset)
        assert len(cluster.broker.seen(310)) == (remark == GONE)
        assert not cluster.broker.offsets.get(("g", "T", 0))
        with pytest.raises(gantrymq.ClientClosed):
            await message.retry()


@pytest.mark.parametrize(
    ("namespace", "max_retries", "level", "expected"),
    [
        (None, None, 0, ("%RETRY%g", "T", "3", None)),
        (None, 5, 7, ("%RETRY%g", "T", "7", "2147483647")),
        (None, 5, -1, ("%RETRY%g", "T", None, "0")),
        ("eu", None, 0, ("%RETRY%eu%g", "eu%T", "3", None)),
    ],
)
async def test_a_message_that_its_broker_no_longer_has_is_sent_to_the_retry_topic(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture, namespace: Any, max_retries: Any, level: int, expected: Any
) -> None:
    topic = "T" if namespace is None else "eu%T"
    async with fake_cluster(**{topic: 1}) as cluster, gantrymq.connect(cluster.address, namespace=namespace) as client:
        cluster.broker.store(
            topic, 0, zlib.compress(b"x"), "TAGS\x01a\x02UNIQ_KEY\x01U\x02TRAN_MSG\x01true", sys_flag=0x309
        )
        cluster.broker.answers[36] = lambda request: request.answer(1, GONE)
        async with client.consumer("T", "g", start="first", max_retries=max_retries) as messages:
            (message,) = await take(messages, 1)
            await message.retry(level)
            assert messages.statistics().returned == 1
        (sent,) = cluster.broker.seen(310)
        assert sent.ext["a"] == expected[0].removeprefix("%RETRY%"), "access control takes it for the consumer group"
        properties = decode_properties(sent.ext["i"])
        assert (sent.ext["b"], properties["RETRY_TOPIC"], properties.get("DELAY"), sent.ext.get("l")) == expected
        assert (properties["ORIGIN_MESSAGE_ID"], properties["UNIQ_KEY"], properties["TAGS"]) == ("U", "U", "a")
        assert "TRAN_MSG" not in properties
        assert (sent.body, sent.ext["f"]) == (zlib.compress(b"x"), str(0x301))
        assert (sent.ext["e"], sent.ext["g"], sent.ext["j"]) == ("0", str(message.born_timestamp), "1")
        assert cluster.broker.offsets[expected[0].removeprefix("%RETRY%"), topic, 0] == 1
    assert "message_copy_sent_back" in caplog.text


@pytest.mark.parametrize(
    ("redelivered", "level", "is_dead"), [(0, 0, False), (1, 0, False), (2, 0, True), (1, 7, False), (2, 7, True)]
)
async def test_a_message_that_is_sent_to_the_retry_topic_is_redelivered_max_retries_times(
    fake_cluster: Cluster, redelivered: int, level: int, is_dead: bool
) -> None:
    """RocketMQ 4.9 makes a copy with as many reconsume times as its limit a dead letter, 5.x only one with more."""
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        cluster.broker.answers[36] = lambda request: request.answer(1, GONE)
        async with client.consumer("T", "g", start="first", max_retries=2) as messages:
            (message,) = await take(messages, 1)
            message.reconsume_times = redelivered
            await message.retry(level)
        (sent,) = cluster.broker.seen(310)
        times, limit = int(sent.ext["j"]), int(sent.ext["l"])
        assert times == redelivered + 1
        assert (times >= limit, times > limit) == (is_dead, is_dead)
        assert ("DELAY" in decode_properties(sent.ext["i"])) is not is_dead


async def test_members_share_queues_and_take_over_those_of_a_leaving_member(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as one,
        gantrymq.connect(cluster.address) as two,
    ):
        async with one.consumer("T", "g", start="first") as first:
            assert len(first.queues) == 4
            for number in range(20):
                cluster.broker.store("T", number % 4, b"%d" % number)
            early = await take(first, 20)
            for message in early:
                await message.ack()
            await first.commit()
            async with two.consumer("T", "g", start="first") as second:
                await cluster.broker.notify("g")
                with anyio.fail_after(20):
                    while len(first.queues) != 2 or len(second.queues) != 2:
                        await cluster.broker.changed.wait()
                assert sorted(first.queues + second.queues) == [
                    MessageQueue(topic="T", broker_name="broker-a", queue_id=number) for number in range(4)
                ]
                for number in range(20, 40):
                    cluster.broker.store("T", number % 4, b"%d" % number)
                late = await take(first, 10) + await take(second, 10)
                assert {message.body for message in late} == {b"%d" % number for number in range(20, 40)}
                unacknowledged = [message for message in late if message.queue in second.queues]
                for message in late:
                    if message not in unacknowledged:
                        await message.ack()
            await cluster.broker.notify("g")
            again = await take(first, 10)
            assert {message.body for message in again} == {message.body for message in unacknowledged}
            assert len(first.queues) == 4


async def test_queues_of_a_silent_broker_are_committed_at_once_when_they_are_given_up(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gantrymq.client.connections.call, "__defaults__", (60.0,))
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 60.0)
    async with fake_cluster(brokers=2, T=3) as cluster, gantrymq.connect(cluster.address) as client:
        a, b = cluster.brokers
        for number in range(3):
            b.store("T", number, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 3):
                await message.ack()
            b.answers[15] = lambda request: anyio.sleep_forever()
            cluster.nameserver.brokers = [a]
            committed = len(b.seen(15))
            await client._cluster.routes.renew("T")
            await b.wait_for(15, committed + 3)
            del b.answers[15]


async def test_a_commit_waits_once_for_a_broker_that_does_not_answer(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gantrymq.client.connections.call, "__defaults__", (60.0,))
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 60.0)
    async with fake_cluster(T=3) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", number, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 3):
                await message.ack()
            cluster.broker.answers[15] = lambda request: anyio.sleep_forever()
            committed = len(cluster.broker.seen(15))
            async with anyio.create_task_group() as committing:
                committing.start_soon(messages.commit)
                await cluster.broker.wait_for(15, committed + 3)
                committing.cancel_scope.cancel()
            del cluster.broker.answers[15]


async def test_periodic_commits_do_not_wait_for_a_broker_that_cannot_be_reached(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.COMMIT_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(brokers=2, T=2) as cluster, gantrymq.connect(cluster.address) as client:
        a, b = cluster.brokers
        connect = client._cluster.broker

        async def broker(address: str) -> Channel:
            if address == a.address:
                await anyio.sleep_forever()
            return await connect(address)

        for number in range(4):
            cluster.brokers[number % 2].store("T", number // 2, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            got = await take(messages, 4)
            with monkeypatch.context() as hanging:
                hanging.setattr(client._cluster, "broker", broker)
                for message in got:
                    await message.ack()
                with anyio.fail_after(10):
                    while b.offsets != {("g", "T", 0): 1, ("g", "T", 1): 1}:
                        await b.changed.wait()


async def test_an_acknowledgment_after_the_queue_was_revoked_has_no_effect(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
            cluster.broker.groups["g"] = ["0-another-member"]
            await cluster.broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues:
                    await cluster.broker.changed.wait()
            await message.ack()
        assert cluster.broker.offsets.get(("g", "T", 0), 0) == 0


async def test_messages_of_a_queue_that_was_revoked_or_reset_are_let_go(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        for number in range(20):
            broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", pull_batch=4) as messages:
            assert len(await messages.next_batch(2)) == 2
            await broker.wait_for(11, 6)  # all are fetched
            messages.reset_offsets({Q0: 18})
            with anyio.fail_after(20):
                while broker.offsets.get(("g", "T", 0)) != 18:
                    await broker.changed.wait()
            await broker.wait_for(11, 8)  # from 18 on, and at the end
            kept = [message for part in (*messages._ready, messages._current) for message in part]
            assert [message.queue_offset for message in kept] == [18, 19]
            assert len(await messages.next_batch(1)) == 1
            broker.groups["g"] = ["0-another-member"]
            await broker.notify("g")
            with anyio.fail_after(20):
                while messages.queues:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert not messages._ready
            assert not messages._current


async def test_an_offset_corrected_by_the_broker_is_used(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        cluster.broker.offsets["g", "T", 0] = 50
        async with client.consumer("T", "g") as messages:
            await cluster.broker.wait_for(11, 2)
            cluster.broker.store("T", 0, b"next")
            (message,) = await take(messages, 1)
            assert message.body == b"next"
            await message.ack()
        assert cluster.broker.offsets["g", "T", 0] == 4


@pytest.mark.parametrize("code", [19, 20])
async def test_an_empty_response_advances_to_its_next_offset(fake_cluster: Cluster, code: int) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)

        def nothing_for_you(request: Command) -> Command:
            del cluster.broker.answers[11]
            return cluster.broker.pulled(request, code, b"", 2)

        cluster.broker.answers[11] = nothing_for_you
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"2"


@pytest.mark.parametrize("code", [0, 19, 20, 21])
async def test_a_broker_without_held_pulls_is_not_polled_in_a_busy_loop(fake_cluster: Cluster, code: int) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[11] = lambda request: cluster.broker.pulled(request, code, b"", 0)
        began = anyio.current_time()
        async with client.consumer("T", "g", start="first"):
            await cluster.broker.wait_for(11, 4)
        # a busy machine makes it later, never earlier
        assert anyio.current_time() - began >= 3 * IDLE_INTERVAL_SECONDS


async def test_a_held_pull_without_messages_is_repeated_at_once(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.puller.IDLE_INTERVAL_SECONDS", 0)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[11] = lambda request: cluster.broker.pulled(request, 19, b"", 0)
        async with client.consumer("T", "g", start="first"):
            await cluster.broker.wait_for(11, 20)


@pytest.mark.parametrize("code", [0, 20, 21])
async def test_a_response_with_a_lower_next_offset_is_followed(fake_cluster: Cluster, code: int) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(3):
            cluster.broker.store("T", 0, b"%d" % number)
        cluster.broker.offsets["g", "T", 0] = 2

        def back(request: Command) -> Command:
            del cluster.broker.answers[11]
            return cluster.broker.pulled(request, code, b"", 1)

        cluster.broker.answers[11] = back
        async with client.consumer("T", "g") as messages:
            (message,) = await take(messages, 1)
            assert message.body == b"1"
            await message.ack()
        assert cluster.broker.offsets["g", "T", 0] == 2


@pytest.mark.parametrize("code", [1, 2, 16, 24, 25, 26])
async def test_a_refused_pull_is_retried(fake_cluster: Cluster, no_pause: None, code: int) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        def refuse(request: Command) -> Command:
            del cluster.broker.answers[11]
            return request.answer(code, "not now")

        cluster.broker.answers[11] = refuse
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"x"
            # a broker that does not know the subscription gets it again before the next pull
            assert len(cluster.broker.seen(34)) == (2 if code in (24, 25) else 1)


async def test_a_pull_with_an_unreadable_response_is_retried(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")

        def torn(request: Command) -> Command:
            del cluster.broker.answers[11]
            return cluster.broker.pulled(request, 0, cluster.broker.queues["T", 0][0][:-3], 1)

        cluster.broker.answers[11] = torn
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"x"


async def test_a_lost_connection_is_reopened_and_the_heartbeat_sent_again(
    fake_cluster: Cluster, no_pause: None
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            await cluster.broker.wait_for(11)
            await cluster.broker.connections[0].stream.aclose()
            cluster.broker.store("T", 0, b"x")
            assert (await take(messages, 1))[0].body == b"x"
            assert len(cluster.broker.connections) == 2
            assert len(cluster.broker.seen(34)) == 2


async def test_queues_share_the_heartbeat_for_a_broker_that_forgot_their_subscription(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=8) as cluster, gantrymq.connect(cluster.address) as client:
        broker, known = cluster.broker, 1

        def forgetful(request: Command) -> Any:
            return broker.on_pull_message(request) if len(broker.seen(34)) > known else request.answer(24, "unknown")

        broker.answers[11] = forgetful
        async with client.consumer("T", "g", start="first") as messages:
            known = len(broker.seen(34))
            for number in range(8):
                broker.store("T", number, b"x")
            await take(messages, 8)
            assert len(broker.seen(34)) == known + 1


async def test_queues_of_a_lost_broker_share_the_requests_for_the_route(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.puller.PAUSE_AFTER_ERROR_SECONDS", 0.05)

    async def hang_up(request: Command) -> None:
        for connection in list(cluster.broker.connections):
            await connection.stream.aclose()

    async with fake_cluster(T=8) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[11] = hang_up
        async with client.consumer("T", "g", start="first"):
            began, asked = anyio.current_time(), len(cluster.nameserver.seen(105))
            await cluster.broker.wait_for(11, 60)
            periods = int((anyio.current_time() - began) / RENEW_SECONDS)
            assert len(cluster.nameserver.seen(105)) - asked <= 2 * periods + 4, "of each topic, also of the retries"


async def test_no_pull_is_sent_while_too_many_messages_are_outstanding(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.progress.OUTSTANDING_MAX_MESSAGES", 64)
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(200):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first", pull_batch=32) as messages:
            got = await take(messages, 64)
            with anyio.move_on_after(0.05) as scope:
                await anext(messages)
            assert scope.cancelled_caught
            assert len(cluster.broker.seen(11)) == 2
            for message in got:
                await message.ack()
            assert (await take(messages, 1))[0].body == b"64"


async def test_a_cancelled_wait_loses_no_message(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            for number in range(50):
                with anyio.move_on_after(0):
                    pytest.fail(f"nothing was sent, but {await anext(messages)} came")
                cluster.broker.store("T", 0, b"%d" % number)
                assert (await take(messages, 1))[0].body == b"%d" % number


@pytest.mark.parametrize("size", [0, -1])
async def test_batches_of_less_than_one_message_are_refused(fake_cluster: Cluster, size: int) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            with pytest.raises(ValueError, match=f"max {size}: ask for at least one message"):
                messages.batches(size)
            with pytest.raises(ValueError, match=f"max {size}: ask for at least one message"):
                await messages.next_batch(size)
            assert len(await messages.next_batch(1)) == 1


@pytest.mark.parametrize("interceptors", [(), (gantrymq.Interceptor(),)], ids=["plain", "intercepted"])
@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_a_batch_with_a_timeout_is_empty_without_messages_and_loses_none(
    fake_cluster: Cluster, interceptors: tuple[gantrymq.Interceptor, ...], ordered: Any
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address, interceptors=interceptors) as client,
        client.consumer("T", "g", start="first", ordered=ordered) as messages,
    ):
        began = anyio.current_time()
        empty = await messages.next_batch(timeout=0.05)
        assert empty == []
        await empty.ack()
        assert anyio.current_time() - began >= 0.05
        for number in range(5):
            cluster.broker.store("T", 0, b"%d" % number)
        got: list[bytes] = []
        with anyio.fail_after(20):
            while len(got) < 5:
                batch = await messages.next_batch(2, timeout=0)  # there may be a message, and no time to wait for it
                got += [message.body for message in batch]
                await batch.ack()
                await anyio.sleep(0.001)
        assert got == [b"%d" % number for number in range(5)]
        assert messages.statistics().outstanding == 0


async def test_batches_contain_available_messages_up_to_their_size(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(70):
            cluster.broker.store("T", 0, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            got: list[bytes] = []
            sizes: list[int] = []
            async for batch in messages.batches(max=20):
                got += [message.body for message in batch]
                sizes.append(len(batch))
                if len(got) == 70:
                    break
    assert got == [b"%d" % number for number in range(70)]
    assert min(sizes) >= 1
    assert max(sizes) == 20


async def test_a_batch_is_acknowledged_whole_after_single_acknowledgments(
    fake_cluster: Cluster,
) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(40):
            cluster.broker.store("T", number % 2, b"%d" % number)
        async with client.consumer("T", "g", start="first", pull_batch=7) as messages:
            got = await take(messages, 1)
            while len(got) < 40:
                batch = await messages.next_batch(max=9)
                got += batch
                if len(got) < 30:
                    await batch[-1].ack()
                    del batch[1:]
                await batch.ack()
                await batch.ack()
                assert messages.statistics().outstanding >= 1
            assert messages.statistics().acknowledged == 39
            first = got[0].queue
            assert messages.statistics().queues[first].committable == 0
            await got[0].ack()
            await messages.commit()
            assert messages.statistics().outstanding == 0
            assert messages.statistics().queues[first].outstanding_bytes == 0
        assert cluster.broker.offsets == {("g", "T", 0): 20, ("g", "T", 1): 20}
        with pytest.raises(gantrymq.ClientClosed, match="acknowledge inside its block"):
            await batch.ack()


async def test_waiting_tasks_share_the_messages_of_one_response(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages, anyio.create_task_group() as tasks:
            busy: list[bytes] = []
            all_busy = anyio.Event()

            async def work() -> None:
                busy.append((await anext(messages)).body)
                if len(busy) == 4:
                    all_busy.set()
                await anyio.sleep_forever()

            for _ in range(4):
                tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            for body in (b"a", b"b", b"c", b"d"):
                cluster.broker.store("T", 0, body)
            with anyio.fail_after(10):
                await all_busy.wait()
            tasks.cancel_scope.cancel()
    assert sorted(busy) == [b"a", b"b", b"c", b"d"]


async def test_a_body_that_cannot_be_decompressed_is_an_error_of_its_message_only(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"no zlib stream", sys_flag=1)
        cluster.broker.store("T", 0, b"good")
        async with client.consumer("T", "g", start="first") as messages:
            bad, good = await take(messages, 2)
            with pytest.raises(gantrymq.BodyError):
                _ = bad.body
            await bad.ack()
            assert good.body == b"good"
        assert cluster.broker.offsets == {("g", "T", 0): 1}


async def test_pulls_go_to_the_suggested_broker_and_commits_to_the_master(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        master, slave = cluster.brokers
        cluster.nameserver.brokers = [master]
        plain = cluster.nameserver.broker_datas
        monkeypatch.setattr(
            cluster.nameserver,
            "broker_datas",
            lambda: [data for data in plain() if data.broker_addrs.update({1: slave.address}) is None],
        )
        for broker in (master, slave):
            for number in range(40):
                broker.store("T", 0, b"%d" % number)

        def suggest(request: Command) -> Command:
            del master.answers[11]  # the slave's answer suggests the master again
            answer = master.pulled(request, 0, b"".join(master.queues["T", 0][:32]), 32)
            answer.ext["suggestWhichBrokerId"] = "1"
            return answer

        master.answers[11] = suggest
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 40):
                await message.ack()
            assert len(master.seen(11)) == 1
            assert slave.seen(11)[0].ext["queueOffset"] == "32"
            assert slave.seen(11)[0].ext["sysFlag"] == "2"
        assert master.offsets == {("g", "T", 0): 40}
        assert not slave.seen(15)


async def test_a_topic_created_later_is_consumed(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(Other=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            assert messages.queues == []
            cluster.broker.store("T", 0, b"x")
            cluster.nameserver.topics["T"] = 1
            assert (await take(messages, 1))[0].body == b"x"


async def test_a_group_at_the_end_gets_all_messages_of_a_topic_created_later(
    fake_cluster: Cluster, no_pause: None
) -> None:
    async with fake_cluster(Other=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[29] = lambda request: request.answer(0, ext={"offset": "0"})
        async with client.consumer("T", "g", start="last") as messages:
            cluster.broker.stored_at = int(time.time() * 1000)
            for body in (b"a", b"b"):
                cluster.broker.store("T", 0, body)
            cluster.nameserver.topics["T"] = 1
            assert [message.body for message in await take(messages, 2)] == [b"a", b"b"]


async def test_a_group_at_the_end_begins_at_its_join_though_the_broker_cannot_be_queried_yet(
    fake_cluster: Cluster, no_pause: None
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[29] = lambda request: request.answer(0, ext={"offset": "0"})
        cluster.broker.answers[38] = lambda request: request.answer(1, "no consumer for this group")
        cluster.broker.store("T", 0, b"old")
        async with client.consumer("T", "g", start="last") as messages:
            cluster.broker.stored_at = int(time.time() * 1000)
            cluster.broker.store("T", 0, b"new")
            del cluster.broker.answers[38]
            assert (await take(messages, 1))[0].body == b"new"


async def test_a_topic_registered_a_moment_later_causes_no_warning(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.consumer.REBALANCE_RETRY_SECONDS", 0.3)
    async with fake_cluster(Other=1) as cluster, gantrymq.connect(cluster.address) as client:
        with structlog.testing.capture_logs() as logs:
            async with client.consumer("T", "g", start="first") as messages:
                cluster.broker.store("T", 0, b"x")
                cluster.nameserver.topics["T"] = 1
                assert (await take(messages, 1))[0].body == b"x"
            assert "rebalance_failed" not in [event["event"] for event in logs]
            async with client.consumer("Unknown", "g"):
                with anyio.fail_after(10):
                    while "rebalance_failed" not in [event["event"] for event in logs]:  # noqa: ASYNC110
                        await anyio.sleep(0.01)


async def test_a_member_that_cannot_query_the_group_keeps_its_queues(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g", start="first") as messages:
            asked = len(cluster.broker.seen(38))
            cluster.broker.answers[38] = lambda request: request.answer(1, "no consumer for this group")
            await cluster.broker.notify("g")
            await cluster.broker.wait_for(38, asked + 3)
            assert len(messages.queues) == 2


async def test_a_closed_consumer_raises_and_never_hangs(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            (message,) = await take(messages, 1)
        with pytest.raises(gantrymq.ClientClosed, match="consumer of group g is closed"):
            await anext(messages)
        with pytest.raises(gantrymq.ClientClosed):
            await messages.next_batch()
        with pytest.raises(gantrymq.ClientClosed):
            await messages.commit()
        with pytest.raises(gantrymq.ClientClosed, match="acknowledge inside its block"):
            await message.ack()


async def test_a_waiting_task_gets_an_error_when_the_consumer_closes(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        raised: list[gantrymq.ClientClosed] = []

        async def wait() -> None:
            try:
                await anext(messages)
            except gantrymq.ClientClosed as error:
                raised.append(error)

        async with anyio.create_task_group() as tasks:
            async with client.consumer("T", "g") as messages:
                tasks.start_soon(wait)
                await cluster.broker.wait_for(11)
        assert len(raised) == 1


async def test_a_second_consumer_of_a_group_in_one_client_is_rejected(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer("T", "g"):
            with pytest.raises(gantrymq.GantryError, match="already consumes as group g"):
                async with client.consumer("T", "g"):
                    pytest.fail("two of one group")
        async with client.consumer("T", "g"):
            pass


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"topics": "../x", "group": "g"}, "topic '../x' has characters"),
        ({"topics": "T", "group": ""}, "group's name is blank"),
        ({"topics": "T", "group": "g", "tags": " || "}, "no tag in the subscription"),
        ({"topics": "T", "group": "g", "start": "middle"}, "neither first, last"),
        ({"topics": "T", "group": "g", "start": -1}, "neither first, last"),
        ({"topics": "T", "group": "g", "start": True}, "neither first, last"),
    ],
)
async def test_invalid_names_and_options_are_rejected_before_any_request(
    fake_cluster: Cluster, arguments: dict[str, Any], match: str
) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.InvalidName, match=match):
            async with client.consumer(**arguments):
                pytest.fail("refused")
        assert not cluster.nameserver.requests


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
async def test_errors_of_the_block_propagate_and_settled_messages_are_committed(
    fake_cluster: Cluster, stop: type[BaseException]
) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.store("T", 0, b"x")

        async def fail() -> None:
            async with (
                gantrymq.connect(cluster.address) as client,
                client.consumer("T", "g", start="first") as messages,
            ):
                await (await take(messages, 1))[0].ack()
                raise stop

        with pytest.raises(stop):
            await fail()
        assert cluster.broker.offsets == {("g", "T", 0): 1}


async def test_a_cancelled_block_still_commits_and_leaves_the_group(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.store("T", 0, b"x")
        with anyio.CancelScope() as scope:
            async with (
                gantrymq.connect(cluster.address) as client,
                client.consumer("T", "g", start="first") as messages,
            ):
                async for message in messages:
                    await message.ack()
                    scope.cancel()
        assert cluster.broker.offsets == {("g", "T", 0): 1}
        assert cluster.broker.groups["g"] == []


async def test_a_consumer_leaves_its_group_although_a_broker_answers_no_commit(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("gantrymq.client.consumer.LEAVE_SECONDS", 0.3)
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        hangs, healthy = cluster.brokers
        for broker in cluster.brokers:
            broker.store("T", 0, b"x")
        async with client.consumer("T", "g", start="first") as messages:
            for message in await take(messages, 2):
                await message.ack()
            hangs.answers[15] = silent
        assert healthy.offsets == {("g", "T", 0): 1}
        assert hangs.offsets == {}
        assert "no answer within 0.3 s" in caplog.text
        for broker in cluster.brokers:
            await broker.wait_for(35)
            assert broker.groups["g"] == []
        async with client.consumer("T", "g", start="first") as messages:
            assert (await take(messages, 1))[0].broker_name == hangs.name


async def test_a_departure_reaches_all_brokers_although_they_do_not_answer(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("gantrymq.client.consumer.LEAVE_SECONDS", 0.3)
    async with fake_cluster(brokers=2, T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for broker in cluster.brokers:
            broker.answers[35] = silent
        async with client.consumer("T", "g", start="first"):
            pass
        for broker in cluster.brokers:
            await broker.wait_for(35)
        async with client.consumer("T", "g", start="first"):
            pass


async def test_a_message_of_no_consumer_cannot_be_acknowledged() -> None:
    message = gantrymq.ReceivedMessage("T", 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"x", b"", 100)
    with pytest.raises(gantrymq.GantryError, match="did not come from a consumer"):
        await message.ack()


async def test_a_missing_acknowledgment_is_logged_once_for_each_queue(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gantrymq.client.puller.STALL_SECONDS", 0.2)
    monkeypatch.setattr("gantrymq.client.progress.OUTSTANDING_MAX_MESSAGES", 10)

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if "consumer_stalled" in record.getMessage()]

    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        for number in range(40):
            cluster.broker.store("T", number % 2, b"%d" % number)
        async with client.consumer("T", "g", start="first") as messages:
            taken = await take(messages, 40)
            with anyio.fail_after(20):
                while len(logged()) < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            first = next(message for message in taken if message.queue.queue_id == 0)
            for message in taken:
                if message.queue.queue_id == 0 and message is not first:
                    await message.ack()  # wakes the puller; the oldest is still missing
            await anyio.sleep(0.5)
            assert len(logged()) == 2
            assert all("offset=0" in line and "age_s=" in line and "group='g'" in line for line in logged())
            now = messages.statistics()
            assert [(each.outstanding, each.stalled) for each in now.queues.values()] == [(1, False), (20, True)]
            assert now.outstanding == 21
            assert now.lag == 40
            assert (now.fetched, now.acknowledged) == (40, 19)
            assert all(each.oldest_age is not None and each.oldest_age > 0.2 for each in now.queues.values())
            for message in taken:
                await message.ack()
            now = messages.statistics()
            assert [(each.outstanding, each.oldest_age, each.stalled) for each in now.queues.values()] == [
                (0, None, False)
            ] * 2
            assert now.lag == 0


async def test_a_broker_that_is_down_is_reported_twice_a_minute(
    fake_cluster: Cluster, no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=8) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        failed = 0

        def refuse(request: Any) -> Any:
            nonlocal failed
            failed += 1
            return request.answer(1, f"failure {failed}")

        async with client.consumer("T", "g", start="first") as messages:
            broker.answers[11] = refuse
            broker.store("T", 0, b"wakes the pulls that wait")
            with anyio.fail_after(20):
                while failed < 100:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            # The pull that got the message may be answered behind the first refusal: then the outage ends for a moment.
            failures = [line for line in lines if "outage_ended" not in line]
            assert len(failures) == 1, lines
            assert len(lines) <= 2, lines
            error = messages.statistics().last_error
            assert error is not None
            assert "failure" in error


async def test_a_broker_that_cannot_be_reached_is_reported_once_for_all_topics(
    fake_cluster: Cluster, no_pause: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: set[str] = set()

    async def fail(puller: Any, progress: Any) -> None:
        failed.add(puller.queue.topic)
        raise ConnectFailed("127.0.0.1:10911", "refused")

    monkeypatch.setattr("gantrymq.client.puller.Puller._pull", fail)
    async with fake_cluster(T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.consumer(["T", "U"], "g", start="first"):
            with anyio.fail_after(20):
                while not {"T", "U"} <= failed:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
    lines = [record.getMessage() for record in caplog.records if "pull_failed" in record.getMessage()]
    assert len(lines) == 1, lines


async def test_a_topic_that_fails_beside_another_one_is_reported_once(
    fake_cluster: Cluster, no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1, Gone=2) as cluster, gantrymq.connect(cluster.address) as client:
        broker = cluster.broker
        refused = 0

        def pull(request: Any) -> Any:
            nonlocal refused
            if request.ext["topic"] != "Gone":
                return broker.on_pull_message(request)
            refused += 1
            return request.answer(17, "no such topic")

        broker.answers[11] = pull
        async with client.consumer(["T", "Gone"], "g", start="first") as messages:
            with anyio.fail_after(20):
                while refused < 100:
                    broker.store("T", 0, b"x")
                    await (await anext(messages)).ack()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1, lines
    assert "pull_failed" in lines[0]
    assert "Gone" in lines[0]


@pytest.mark.parametrize("topics", [["T", "U"], ("U", "T"), {"T": "a", "U": "*"}])
async def test_one_consumer_subscribes_to_several_topics(fake_cluster: Cluster, topics: Any) -> None:
    async with fake_cluster(T=2, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        for topic, queue_id, body, tag in (("T", 0, b"1", "a"), ("T", 1, b"2", "b"), ("U", 0, b"3", "b")):
            cluster.broker.store(topic, queue_id, body, f"TAGS\x01{tag}\x02")
        async with client.consumer(topics, "g", start="first") as messages:
            got = await take(messages, 2 if isinstance(topics, dict) else 3)
            assert sorted(message.body for message in got) == (
                [b"1", b"3"] if isinstance(topics, dict) else [b"1", b"2", b"3"]
            )
            assert sorted((queue.topic, queue.queue_id) for queue in messages.queues) == [("T", 0), ("T", 1), ("U", 0)]
            for message in got:
                await message.ack()
        assert cluster.broker.offsets["g", "U", 0] == 1
        (heartbeat, *_) = cluster.broker.seen(34)
        assert b'"topic":"T"' in heartbeat.body
        assert b'"topic":"U"' in heartbeat.body


async def test_a_missing_topic_does_not_delay_the_other_topics(fake_cluster: Cluster, no_pause: None) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.store("T", 0, b"x")
        async with client.consumer(["Later", "T"], "g", start="first") as messages:
            assert (await take(messages, 1))[0].body == b"x"
            cluster.broker.store("Later", 0, b"y")
            cluster.nameserver.topics["Later"] = 1
            assert (await take(messages, 1))[0].body == b"y"


@pytest.mark.parametrize("broadcast", [False, True])
async def test_a_topic_whose_route_cannot_be_had_does_not_delay_the_other_topics(
    fake_cluster: Cluster, no_pause: None, tmp_path: Path, broadcast: bool
) -> None:
    async with fake_cluster(T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        nameserver = cluster.nameserver

        def only_t(request: Command) -> Command:
            is_t = request.ext["topic"] == "T"
            return nameserver.on_get_routeinfo_by_topic(request) if is_t else request.answer(1, "not now")

        nameserver.answers[105] = only_t
        cluster.broker.store("T", 0, b"x")
        cluster.broker.store("U", 0, b"y")
        options: dict[str, Any] = {"broadcast": True, "offsets_file": tmp_path / "offsets.json"} if broadcast else {}
        async with client.consumer(["U", "T"], "g", start="first", **options) as messages:
            assert (await take(messages, 1))[0].body == b"x"
            del nameserver.answers[105]
            assert (await take(messages, 1))[0].body == b"y"


@pytest.mark.parametrize("topics", [["T", "U"], ["U", "T"]])
async def test_a_topic_whose_members_are_unknown_does_not_delay_the_other_topics(
    fake_cluster: Cluster, no_pause: None, topics: list[str]
) -> None:
    async with fake_cluster(brokers=2, T=2, U=1) as cluster, gantrymq.connect(cluster.address) as one:
        a, b = cluster.brokers
        cluster.nameserver.places = {"T": [a], "U": [b]}
        b.answers[38] = no_members = lambda request: request.answer(1, "no consumer for this group")
        a.store("T", 0, b"x")
        b.store("U", 0, b"y")
        async with one.consumer(topics, "g", start="first") as first:
            assert (await take(first, 1))[0].body == b"x"
            del b.answers[38]
            assert (await take(first, 1))[0].body == b"y"
            b.answers[38] = no_members
            async with gantrymq.connect(cluster.address) as two, two.consumer(topics, "g", start="first") as second:
                await a.notify("g")
                with anyio.fail_after(10):
                    while len(first.queues) != 2 or len(second.queues) != 1:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                assert [queue.topic for queue in first.queues] == ["T", "U"], "it keeps what it cannot share out"
                assert [queue.topic for queue in second.queues] == ["T"]
            await a.notify("g")
            with anyio.fail_after(10):
                while len(first.queues) != 3:  # noqa: ASYNC110
                    await anyio.sleep(0.01)


@pytest.mark.parametrize(("kind", "code"), [("broker", 38), ("nameserver", 105)])
async def test_servers_that_do_not_answer_are_waited_for_once_for_all_topics(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    monkeypatch.setattr(gantrymq.client.connections.call, "__defaults__", (60.0,))
    monkeypatch.setattr(Channel.call, "__defaults__", (60.0,))
    async with fake_cluster(T=1, U=1, V=1) as cluster, gantrymq.connect(cluster.address) as client:
        server = getattr(cluster, kind)
        server.answers[code] = lambda request: anyio.sleep_forever()

        async def consume() -> None:
            async with client.consumer(["T", "U", "V"], "g"):
                pytest.fail("nothing answers")

        async with anyio.create_task_group() as consuming:
            consuming.start_soon(consume)
            await server.wait_for(code, 3)
            consuming.cancel_scope.cancel()


async def test_another_brokers_refusal_does_not_hide_that_a_master_cannot_be_reached(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client then requests the routes again, because they may have a slave by now."""
    async with fake_cluster(brokers=2, T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        a, b = cluster.brokers
        cluster.nameserver.places = {"T": [a], "U": [b]}
        connect = client._cluster.broker

        async def broker(address: str) -> Channel:
            if address == a.address:
                raise gantrymq.ConnectError(address, "refused")
            return await connect(address)

        async with client.consumer(["T", "U"], "g"):
            b.answers[38] = lambda request: request.answer(1, "no consumer for this group")
            asked = len(cluster.nameserver.seen(105))
            with monkeypatch.context() as unreachable:
                unreachable.setattr(client._cluster, "broker", broker)
                await b.notify("g")
                await cluster.nameserver.wait_for(105, asked + 2)


async def test_access_that_one_topic_is_denied_ends_the_consumer(fake_cluster: Cluster) -> None:
    async with fake_cluster(brokers=2, T=1, U=1) as cluster, gantrymq.connect(cluster.address) as client:
        a, b = cluster.brokers
        cluster.nameserver.places = {"T": [a], "U": [b]}

        def denied(request: Command) -> Command:
            return request.answer(1, "AclException: No acl config for this access key")

        a.answers[38] = lambda request: request.answer(1, "no consumer for this group")
        b.answers[38] = denied
        with pytest.raises(gantrymq.AccessDenied):
            async with client.consumer(["T", "U"], "g"):
                pytest.fail("it is denied")
        del a.answers[38], b.answers[38]
        async with client.consumer(["T", "U"], "g") as messages:
            b.answers[38] = denied
            await b.notify("g")
            with pytest.raises(gantrymq.AccessDenied):
                await take(messages, 1)


@pytest.mark.parametrize("topics", [[], {}, [1], 5, None, {"T": None}])
async def test_a_consumer_without_topics_is_rejected(fake_cluster: Cluster, topics: Any) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.InvalidName):
            async with client.consumer(topics, "g"):
                pytest.fail("no topic")

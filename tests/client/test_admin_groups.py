"""Client functions for consumer groups (names, lag, reset of offsets) and for the deletion of topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import MessageQueue
from gantrymq.remoting.bodies.offsets import ConsumeStats, OffsetWrapper
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command

pytestmark = [pytest.mark.anyio, pytest.mark.twins]

PATIENCE_SECONDS = 60


@pytest.fixture
def topic() -> str:
    return f"T-{uuid.uuid4().hex}"


async def consume(client: gantrymq.Client, topic: str, group: str, count: int) -> None:
    """Let ``group`` consume the first ``count`` messages of ``topic``, which has them in one queue."""
    async with client.consumer(topic, group, start="first") as messages:
        with anyio.fail_after(PATIENCE_SECONDS):
            for _ in range(count):
                await (await anext(messages)).ack()
            await messages.commit()


async def send(client: gantrymq.Client, topic: str, count: int) -> MessageQueue:
    """Send ``count`` messages to queue 0 of ``topic``, which is created; returns when they can be read."""
    await client.admin.create_topic(topic, 1)
    (queue,) = await client.admin.queues(topic)
    async with client.producer() as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, queue=queue)
    with anyio.fail_after(PATIENCE_SECONDS):
        while await client.admin.max_offset(queue) < count:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(0.01)
    return queue


async def test_the_lag_of_a_group_is_that_of_each_queue_and_the_total(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    async with gantrymq.connect(cluster) as client:
        queue = await send(client, topic, 5)
        assert (await client.admin.lag("nobody")).lag == 0
        await consume(client, topic, group, 2)
        lag = await client.admin.lag(group)
        (of_queue,) = [each for each in lag.queues if each.queue == queue]
        assert (of_queue.committed, of_queue.end, of_queue.lag, of_queue.behind_ms) == (2, 5, 3, None)
        assert lag.lag == 3
        timed = [each for each in (await client.admin.lag(group, times=True)).queues if each.queue == queue]
        assert timed[0].behind_ms is not None
        names = await client.admin.groups()
        assert group in names
        assert "TOOLS_CONSUMER" not in names
        assert set(names) < set(await client.admin.groups(system=True))


async def test_a_reset_of_no_topics_is_refused(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client:
        queue = await send(client, topic, 3)
        await consume(client, topic, f"g-{topic}", 2)
        with pytest.raises(ValueError, match="topics has no topic"):
            await client.admin.reset_offsets(f"g-{topic}", "first", topics=[])
        assert await client.admin.consumer_offset(f"g-{topic}", queue) == 2


async def test_a_topic_that_got_more_queues_is_reset_in_all_of_them(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, gantrymq.connect(cluster) as other:
        await send(client, topic, 1)
        for queues, admin in ((2, client.admin), (3, other.admin)):
            await admin.create_topic(topic, queues)
            plan = await client.admin.reset_offsets("any", "last", topics=topic, dry_run=True)
            assert len(plan) == queues
            if admin is client.admin:
                assert len(await admin.queues(topic)) == queues


async def test_offsets_of_a_group_are_reset_to_either_end_and_to_a_time(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    async with gantrymq.connect(cluster) as client:
        admin = client.admin
        queue = await send(client, topic, 5)
        third = await admin.message_at(queue, 2)
        assert third is not None
        await consume(client, topic, group, 4)
        (planned,) = await admin.reset_offsets(group, "first", dry_run=True)
        assert (planned.queue, planned.before, planned.after) == (queue, 4, 0)
        assert await admin.consumer_offset(group, queue) == 4
        for to, offset in (
            ("first", 0),
            ("last", 5),
            (third.store_timestamp, await admin.search_offset(queue, third.store_timestamp)),
            (datetime(2100, 1, 1, tzinfo=UTC), 5),
            (datetime(1960, 1, 1, tzinfo=UTC), 0),
        ):
            (done,) = await admin.reset_offsets(group, to, topics=topic)
            assert (done.queue, done.after) == (queue, offset)
            assert await admin.consumer_offset(group, queue) == offset
        assert (await admin.reset_offsets(group, "last", topics=[topic]))[0].before == 0


async def test_a_running_member_continues_at_the_offset_of_a_reset(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    async with gantrymq.connect(cluster) as client:
        await send(client, topic, 3)
        async with client.consumer(topic, group, start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                for _ in range(3):
                    await (await anext(messages)).ack()
                await messages.commit()
                await client.admin.reset_offsets(group, "first")
                assert [(await anext(messages)).body for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_deleted_topic_is_gone_at_once_and_may_be_deleted_again(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client:
        await send(client, topic, 1)
        for _ in range(2):
            await client.admin.delete_topic(topic)
            assert topic not in await client.admin.topics()
            with pytest.raises(gantrymq.NoRoute):
                await client.admin.queues(topic)


async def test_groups_and_topics_of_a_namespace_have_their_own_names(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster, namespace="NS") as client:
        queue = await send(client, topic, 2)
        assert queue.topic == topic
        await consume(client, topic, "g", 1)
        lag = await client.admin.lag("g", times=True)
        assert [each.lag for each in lag.queues if each.queue == queue] == [1]
        for topics in (topic, f"NS%{topic}"):
            (done,) = await client.admin.reset_offsets("g", "first", topics=topics)
            assert (done.queue, done.after) == (queue, 0)
        assert queue in [each.queue for each in await client.admin.reset_offsets("g", "last")]
        assert await client.admin.consumer_offset("g", queue) == 2
        assert "NS%g" in await client.admin.groups()
        await client.admin.delete_topic(topic)
        assert f"NS%{topic}" not in await client.admin.topics()


async def test_invalid_names_and_places_are_rejected_before_any_request(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        admin = client.admin
        for call in (
            admin.lag("../g"),
            admin.lag(7),  # type: ignore[arg-type]
            admin.reset_offsets("../g", "first"),
            admin.reset_offsets("g", "frist"),  # type: ignore[arg-type]
            admin.reset_offsets("g", -1),
            admin.delete_topic("../T"),
        ):
            with pytest.raises(gantrymq.InvalidName):
                await call
        with pytest.raises(gantrymq.InvalidName, match="to 'frist' is neither first, last, a datetime nor"):
            await admin.reset_offsets("g", "frist", topics="T")  # type: ignore[arg-type]
        assert not cluster.broker.requests


async def test_a_reset_changes_nothing_if_the_group_has_no_offsets(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[RequestCode.GET_CONSUME_STATS] = absent
        with pytest.raises(gantrymq.NoRoute, match="group g has committed no offsets; name a topic"):
            await client.admin.reset_offsets("g", "first")
        assert (await client.admin.lag("g")).queues == []


async def test_an_unreadable_answer_about_a_group_is_a_bad_response(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        for code in (RequestCode.GET_CONSUME_STATS, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            cluster.broker.answers[code] = lambda request: request.answer(0, body=b"[")
        for call in (client.admin.lag("g"), client.admin.groups()):
            with pytest.raises(gantrymq.BadResponse, match=cluster.broker.address):
                await call


async def test_the_lag_of_a_group_is_never_negative(fake_cluster: Callable[..., Any]) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        name = cluster.broker.name
        table = {MessageQueue("T", name, 0): OffsetWrapper(4, 9), MessageQueue("T", name, 1): OffsetWrapper(9, 4)}
        body = ConsumeStats(table).to_bytes()
        cluster.broker.answers[RequestCode.GET_CONSUME_STATS] = lambda request: request.answer(0, body=body)
        lag = await client.admin.lag("g")
        assert [each.lag for each in lag.queues] == [0, 5]
        assert lag.lag == 5


def absent(request: Command) -> Command:
    return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, "no such group")


def test_the_blocking_client_administers_groups(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    with gantrymq.sync.connect(cluster) as client:
        admin = client.admin
        admin.create_topic(topic, 1)
        with client.producer() as producer:
            producer.send(topic, b"x")
        with client.consumer(topic, group, start="first") as messages:
            next(messages).ack()
            messages.commit()
        assert group in admin.groups()
        assert admin.lag(group).lag == 0
        (done,) = admin.reset_offsets(group, "first", topics=[topic])
        assert (done.before, done.after) == (1, 0)
        admin.delete_topic(topic)
        assert topic not in admin.topics()

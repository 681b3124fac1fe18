"""The client against real clusters: the same tests on GantryMQ and on RocketMQ's own servers.

Each test uses topics and groups of its own, since a cluster serves the whole file.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, MessageQueue, Outcome, SendStatus
from gantrymq.client.options import Ordered, Start
from gantrymq.message import DeliveredRecord
from support.routes import wait_routed

pytestmark = [pytest.mark.anyio, pytest.mark.twins]

PATIENCE_SECONDS = 60

Seen = dict[str, tuple[bytes, str | None, tuple[str, ...], str, int, MessageQueue, int]]


@pytest.fixture
def topic() -> str:
    return f"T-{uuid.uuid4().hex}"


def looks(message: gantrymq.ReceivedMessage) -> tuple[bytes, str | None, tuple[str, ...], str, int, MessageQueue, int]:
    properties = message.properties
    return (
        message.body, message.tags, message.keys, properties["own"], message.flag, message.queue, message.queue_offset,
    )  # fmt: skip


async def offsets_left(client: gantrymq.Client, topic: str, group: str) -> dict[int, int]:
    """How many messages of each queue the group has not committed."""
    admin = client.admin
    return {
        queue.queue_id: await admin.max_offset(queue) - (await admin.consumer_offset(group, queue) or 0)
        for queue in await admin.queues(topic)
    }


async def wait_dispatched(client: gantrymq.Client, queue: MessageQueue, end: int) -> None:
    """Wait until a message that was acknowledged can be read: RocketMQ's broker needs a moment in between."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while await client.admin.max_offset(queue) < end:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(0.01)


async def make_group(client: gantrymq.Client, topic: str, group: str) -> None:
    """Brokers of 5.x take no offset of a group that they have never seen."""
    async with client.consumer(topic, group):
        pass


async def test_a_message_sent_back_is_redelivered_and_becomes_a_dead_letter(cluster: str, topic: str) -> None:
    group = f"{topic}-g"
    async with gantrymq.connect(cluster) as client:
        await client.admin.create_topic(topic, queues=1)
        async with client.producer() as producer:
            await producer.send(topic, b"poison", tags="a", keys=["k"])
        with anyio.fail_after(PATIENCE_SECONDS):
            async with client.consumer(topic, group, tags="a", start="first") as messages:
                first = await anext(messages)
                await first.retry(1)
                again = await anext(messages)
                assert (again.body, again.topic, again.queue.topic) == (b"poison", topic, f"%RETRY%{group}")
                assert (first.reconsume_times, again.reconsume_times) == (0, 1)
                assert again.store_timestamp >= first.store_timestamp + 1000
                assert again.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
                await again.retry(-1)
            async with client.consumer(f"%DLQ%{group}", f"{group}-dead", start="first") as letters:
                dead = await anext(letters)
                await dead.ack()
        assert (dead.body, dead.tags, dead.keys, dead.reconsume_times) == (b"poison", "a", ("k",), 2)
        assert dead.properties["RETRY_TOPIC"] == topic
        assert await offsets_left(client, topic, group) == {0: 0}


async def test_a_message_that_the_log_no_longer_has_is_redelivered_and_becomes_a_dead_letter(
    cluster: str, topic: str
) -> None:
    group, gone = f"{topic}-g", 10**15
    async with gantrymq.connect(cluster) as client:
        await client.admin.create_topic(topic, queues=1)
        async with client.producer() as producer:
            sent = await producer.send(topic, b"poison", tags="a", keys=["k"])
        with anyio.fail_after(PATIENCE_SECONDS):
            async with client.consumer(topic, group, tags="a", start="first") as messages:
                first = await anext(messages)
                first.commit_log_offset = gone
                await first.retry(1)
                again = await anext(messages)
                assert (again.body, again.topic, again.queue.topic) == (b"poison", topic, f"%RETRY%{group}")
                assert (again.message_id, again.reconsume_times) == (sent.message_id, 1)
                assert again.store_timestamp >= first.store_timestamp + 1000
                again.commit_log_offset = gone
                await again.retry(-1)
            async with client.consumer(f"%DLQ%{group}", f"{group}-dead", start="first") as letters:
                dead = await anext(letters)
                await dead.ack()
        assert (dead.body, dead.tags, dead.keys, dead.reconsume_times) == (b"poison", "a", ("k",), 2)
        assert (dead.properties["RETRY_TOPIC"], dead.properties["ORIGIN_MESSAGE_ID"]) == (topic, sent.message_id)
        assert await offsets_left(client, topic, group) == {0: 0}


async def test_messages_of_new_groups_return_after_the_delay_that_was_asked_for(
    cluster: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages return before the next rebalance, which can be 20 s later, although the broker has only just
    created the retry topics of these new groups."""
    late: list[float] = []

    async def retry(client: gantrymq.Client, number: int) -> None:
        async with client.consumer(topic, f"{topic}-g{number}", start="first") as messages:
            first = await anext(messages)
            asked = anyio.current_time()
            await first.retry(1)
            again = await anext(messages)
            late.append(anyio.current_time() - asked - 1.0)
            assert again.reconsume_times == 1
            await again.ack()

    async with gantrymq.connect(cluster) as client:
        async with client.producer() as producer:
            await producer.send(topic, b"again")
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(retry, client, number)
    assert len(late) == 5
    assert max(late) < 15
    assert "rebalance_failed" not in caplog.text, "a group that is new is no failure"


def test_the_blocking_consumer_sends_messages_back(cluster: str, topic: str) -> None:
    group = f"{topic}-g"
    with gantrymq.sync.connect(cluster) as client:
        client.admin.create_topic(topic, queues=1)
        with client.producer() as producer:
            producer.send(topic, b"poison")
        with client.consumer(topic, group, start="first") as messages:
            next(messages).retry(-1)
        with client.consumer(f"%DLQ%{group}", f"{group}-dead", start="first") as letters:
            assert next(letters).body == b"poison"


@pytest.mark.slow
async def test_ten_thousand_messages_arrive_once_and_unaltered(cluster: str, topic: str) -> None:
    chance = random.Random(7)
    bodies = [chance.randbytes(chance.choice((1, 50, 100, 1000))) for _ in range(9_990)]
    bodies += [b"compressible " * 1000] * 9 + [chance.randbytes(4 * 1024 * 1024)]
    sent: Seen = {}
    got: Seen = {}
    async with gantrymq.connect(cluster) as client, client.producer("senders") as producer:
        await client.admin.create_topic(topic, 8)

        async def send(first: int) -> None:
            for number in range(first, len(bodies), 50):
                message = Message(
                    topic,
                    bodies[number],
                    f"tag{number % 3}",
                    (f"k{number}", "all"),
                    {"own": f"grüße 世界 {number}"},
                    number,
                )
                result = await producer.send(message, timeout=PATIENCE_SECONDS)
                assert result.status is SendStatus.OK
                sent[result.message_id] = (
                    message.body, message.tags, message.keys, message.properties["own"], number, result.queue,
                    result.queue_offset,
                )  # fmt: skip

        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            async with anyio.create_task_group() as tasks:
                for first in range(50):
                    tasks.start_soon(send, first)
            with anyio.fail_after(PATIENCE_SECONDS):
                async for message in messages:
                    assert message.message_id not in got
                    got[message.message_id] = looks(message)
                    await message.ack()
                    if len(got) == len(bodies):
                        break
        assert got == sent
        assert len(sent) == 10_000
        assert set((await offsets_left(client, topic, f"g-{topic}")).values()) == {0}


async def test_a_batch_is_stored_in_one_queue_in_order(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 4)
        batch = [Message(topic, b"%d" % number, "t", (f"k{number}",), {"own": "x"}, number) for number in range(32)]
        results = await producer.send_batch(batch)
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(32))
        assert len({result.offset_message_id for result in results}) == 32
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                got = [await anext(messages) for _ in batch]
        assert [message.message_id for message in got] == [result.message_id for result in results]
        assert [message.offset_message_id for message in got] == [result.offset_message_id for result in results]
        assert [(message.body, message.keys, message.flag, message.tags) for message in got] == [
            (message.body, message.keys, message.flag, "t") for message in batch
        ]


async def test_a_oneway_message_arrives(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            await producer.send_oneway(topic, b"no answer wanted", tags="x")
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"no answer wanted"


async def test_a_topic_is_created_by_the_first_send(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        result = await producer.send(topic, b"first")
        assert result.queue_offset == 0
        assert result.queue.queue_id in range(4)


async def test_a_waiting_consumer_gets_later_messages(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 2)
        await producer.send(topic, b"before")
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"before"
                for number in range(5):
                    await producer.send(topic, b"%d" % number)
                    assert (await anext(messages)).body == b"%d" % number


async def test_unacknowledged_messages_are_redelivered_to_the_next_member(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        for number in range(10):
            await producer.send(topic, b"%d" % number)
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                got = [await anext(messages) for _ in range(10)]
            for number in (0, 1, 2, 5, 9):
                await got[number].ack()
        assert await offsets_left(client, topic, f"g-{topic}") == {0: 7}
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                again = [await anext(messages) for _ in range(7)]
        assert [message.body for message in again] == [b"%d" % number for number in range(3, 10)]


async def test_members_share_the_queues_and_take_over_from_one_that_leaves(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    done: list[bytes] = []

    async def work(messages: gantrymq.Consumer[gantrymq.ReceivedMessage]) -> None:
        try:
            async for message in messages:
                done.append(message.body)
                await message.ack()
        except gantrymq.ClientClosed:
            pass  # this member has left

    async def until(condition: object) -> None:
        assert callable(condition)
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - the brokers decide when, and tell nobody here
                await anyio.sleep(0.01)

    async with (
        gantrymq.connect(cluster) as one,
        gantrymq.connect(cluster) as two,
        one.producer() as producer,
        anyio.create_task_group() as tasks,
    ):
        await one.admin.create_topic(topic, 8)
        async with one.consumer(topic, group, start="first") as first:
            tasks.start_soon(work, first)
            async with two.consumer(topic, group, start="first") as second:
                tasks.start_soon(work, second)
                await until(lambda: len(first.queues) == len(second.queues) == 4)
                assert not set(first.queues) & set(second.queues)
                for number in range(200):
                    await producer.send(topic, b"%d" % number)
                await until(lambda: len(done) >= 200)
            await until(lambda: len(first.queues) == 8)
            for number in range(200, 400):
                await producer.send(topic, b"%d" % number)
            await until(lambda: len(done) >= 400)
    assert sorted(done, key=int) == [b"%d" % number for number in range(400)]


async def test_one_consumer_subscribes_to_several_topics(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        for name in (topic, f"{topic}-2"):
            await client.admin.create_topic(name, 1)
            for tag in ("a", "b"):
                await producer.send(name, f"{name} {tag}".encode(), tags=tag)
        wanted = {topic: "*", f"{topic}-2": "b"}
        async with client.consumer(wanted, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                got = {(await anext(messages)).body.decode() for _ in range(3)}
        assert got == {f"{topic} a", f"{topic} b", f"{topic}-2 b"}


async def test_a_group_gets_only_its_tags(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        # the first two have the same hash, by which the broker tells tags apart
        for tag in ("Aa", "BB", "c", "d", None, "Aa"):
            await producer.send(topic, str(tag).encode(), tags=tag)
        async with client.consumer(topic, f"g-{topic}", tags="Aa || d", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                got = [await anext(messages) for _ in range(3)]
            for message in got:
                await message.ack()
        assert [message.body for message in got] == [b"Aa", b"d", b"Aa"]
        assert await offsets_left(client, topic, f"g-{topic}") == {0: 0}


async def test_offsets_of_queues_can_be_queried(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        admin = client.admin
        await admin.create_topic(topic, 2)
        assert topic in await admin.topics()
        queues = await admin.queues(topic)
        assert [queue.queue_id for queue in queues] == [0, 1]
        assert [await admin.max_offset(queue) for queue in queues] == [0, 0]
        for _ in range(3):
            await producer.send(topic, b"x", queue=queues[1])
        await wait_dispatched(client, queues[1], 3)
        assert [await admin.min_offset(queue) for queue in queues] == [0, 0]
        assert [await admin.max_offset(queue) for queue in queues] == [0, 3]
        assert await admin.search_offset(queues[1], 0) == 0
        assert await admin.search_offset(queues[1], 4102444800000) == 3  # in 2100
        await make_group(client, topic, f"g-{topic}")
        await admin.set_consumer_offset(f"g-{topic}", queues[1], 2)
        assert await admin.consumer_offset(f"g-{topic}", queues[1]) == 2
        async with client.consumer(topic, f"g-{topic}") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).queue_offset == 2


async def test_a_new_group_may_start_at_the_end(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        (queue,) = await client.admin.queues(topic)
        await producer.send(topic, b"old")
        await wait_dispatched(client, queue, 1)
        async with client.consumer(topic, f"g-{topic}", start="last") as messages:
            await producer.send(topic, b"new")
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"new"


async def test_a_group_at_the_end_gets_the_first_messages_of_a_topic_that_a_send_creates(
    cluster: str, topic: str
) -> None:
    async with gantrymq.connect(cluster) as client, client.consumer(topic, f"g-{topic}", start="last") as messages:
        async with gantrymq.connect(cluster, unit_name="sender") as other, other.producer() as producer:
            for number in range(5):
                await producer.send(topic, b"%d" % number)
        with anyio.fail_after(PATIENCE_SECONDS):
            assert {(await anext(messages)).body for _ in range(5)} == {b"%d" % number for number in range(5)}


START_OLD, START_NEW = 60, 12


async def fill_around_a_start(client: gantrymq.Client, topic: str) -> datetime:
    """Store old messages in two queues and note the time; the last old ones are stored in the same millisecond."""
    await client.admin.create_topic(topic, 2)
    queues = await client.admin.queues(topic)
    async with client.producer() as producer:
        for queue in queues:
            for _ in range(3):
                await producer.send_batch([Message(topic, b"old")] * (START_OLD // 6), queue=queue)
    for queue in queues:
        await wait_dispatched(client, queue, START_OLD // 2)
    await anyio.sleep(0.02)
    moment = datetime.now(UTC)
    await anyio.sleep(0.02)
    return moment


async def send_new(client: gantrymq.Client, topic: str) -> None:
    async with client.producer() as producer:
        for queue in await client.admin.queues(topic):
            await producer.send_batch([Message(topic, b"new")] * (START_NEW // 2), queue=queue)


@pytest.mark.parametrize("start", ["last", "time", "earlier"])
async def test_a_new_group_starts_at_its_option_while_all_messages_are_in_memory(
    cluster: str, topic: str, start: str
) -> None:
    async with gantrymq.connect(cluster) as client:
        before = datetime.now(UTC)
        moment = await fill_around_a_start(client, topic)
        if start != "last":
            await send_new(client, topic)
            await wait_dispatched(client, (await client.admin.queues(topic))[1], (START_OLD + START_NEW) // 2)
        begin: Start = {"last": "last", "time": moment, "earlier": before}[start]
        async with client.consumer(topic, f"g-{topic}", start=begin) as messages:
            if start == "last":
                await send_new(client, topic)
            wanted = {b"new": START_NEW} if start != "earlier" else {b"old": START_OLD, b"new": START_NEW}
            got = Counter[bytes]()
            with anyio.fail_after(PATIENCE_SECONDS):
                while sum(got.values()) < sum(wanted.values()):
                    got.update(message.body for message in await messages.next_batch())
            with anyio.move_on_after(0.3):
                got.update(message.body for message in await messages.next_batch())
            assert got == wanted


async def test_the_start_option_applies_from_the_first_member_on(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        (queue,) = await client.admin.queues(topic)
        await producer.send(topic, b"old")
        await wait_dispatched(client, queue, 1)
        async with client.consumer(topic, f"g-{topic}"):
            assert await client.admin.consumer_offset(f"g-{topic}", queue) == 1  # at once, not after five seconds
        await producer.send(topic, b"new")
        await wait_dispatched(client, queue, 2)
        async with client.consumer(topic, f"g-{topic}") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"new"


async def test_a_stored_offset_of_zero_takes_precedence_over_the_start_option(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        (queue,) = await client.admin.queues(topic)
        assert await client.admin.consumer_offset(f"g-{topic}", queue) is None
        async with client.consumer(topic, f"g-{topic}"):
            assert await client.admin.consumer_offset(f"g-{topic}", queue) == 0
        await producer.send(topic, b"while nobody was here")
        await wait_dispatched(client, queue, 1)
        async with client.consumer(topic, f"g-{topic}", start="last") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"while nobody was here"


async def test_queues_added_to_a_topic_are_read_from_their_beginning(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        async with client.consumer(topic, f"g-{topic}", start="last") as messages:
            await anyio.sleep(0.01)
            await client.admin.create_topic(topic, 2)
            (queue,) = (queue for queue in await other_queues(cluster, topic) if queue.queue_id == 1)
            await producer.send(topic, b"before the consumer knew of the queue", queue=queue)
            await wait_dispatched(client, queue, 1)
            await client._cluster.routes.refresh()
            with anyio.fail_after(PATIENCE_SECONDS):
                assert (await anext(messages)).body == b"before the consumer knew of the queue"


async def other_queues(cluster: str, topic: str) -> list[MessageQueue]:
    """The queues as a client sees them that has just connected."""
    async with gantrymq.connect(cluster) as client:
        return await client.admin.queues(topic)


async def test_a_refusal_of_the_broker_is_an_error_with_code_and_address(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 2)
        (queue, _) = await client.admin.queues(topic)
        beyond = MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=99)
        with pytest.raises(gantrymq.BrokerError, match=r"127.0.0.1:\d+ answered") as caught:
            await producer.send(topic, b"x", queue=beyond)
        assert caught.value.code in (1, 29)
        with pytest.raises(gantrymq.NoRoute):
            await client.admin.route(f"{topic}-missing")


async def test_an_offset_beyond_the_end_is_corrected(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 1)
        (queue,) = await client.admin.queues(topic)
        await producer.send(topic, b"0")
        await make_group(client, topic, f"g-{topic}")
        await client.admin.set_consumer_offset(f"g-{topic}", queue, 1000)
        async with client.consumer(topic, f"g-{topic}") as messages:
            seen = False
            with anyio.fail_after(PATIENCE_SECONDS):
                while not seen:
                    await producer.send(topic, b"later")
                    with anyio.move_on_after(0.2):
                        seen = (await anext(messages)).body == b"later"
        assert seen


def test_the_blocking_client_behaves_like_the_async_client(cluster: str, topic: str) -> None:
    with gantrymq.sync.connect(cluster) as client, client.producer() as producer:
        client.admin.create_topic(topic, 4)
        with client.consumer(topic, f"g-{topic}", start="first") as messages:
            sent = [producer.send(topic, b"%d" % number, keys=f"k{number}").message_id for number in range(100)]
            sent += [result.message_id for result in producer.send_batch([Message(topic, b"x"), Message(topic, b"y")])]
            producer.send_oneway(topic, b"z")
            got = []
            for message in messages:
                got.append(message.message_id)
                message.ack()
                if len(got) == 103:
                    break
            assert messages.next_batch(timeout=0.01) == []
        assert set(sent) < set(got)
        assert len(set(got)) == 103
        queues = client.admin.queues(topic)
        assert sum(client.admin.consumer_offset(f"g-{topic}", queue) or 0 for queue in queues) == 103


async def test_enqueued_messages_keep_their_order_and_fields(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer(batch_bytes=4096) as producer:
        await client.admin.create_topic(topic, queues=4)
        deliveries = [
            await producer.enqueue(topic, b"%d" % number, order_key=f"k{number % 7}", tags="a", keys=[f"n{number}"])
            for number in range(700)
        ]
        alone = await producer.enqueue(topic, b"x" * 100_000, order_key="k0")  # travels alone, compressed
        await producer.flush()
        results = [await delivery for delivery in deliveries]
        assert {result.status for result in results} == {SendStatus.OK}
        assert (await alone).status is SendStatus.OK
        placed = {(result.queue, result.queue_offset): number for number, result in enumerate(results)}
        assert len(placed) == 700
        for key in range(7):
            assert len({result.queue for result in results[key::7]}) == 1
            offsets = [result.queue_offset for result in results[key::7]]
            assert offsets == sorted(offsets)
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            left = dict(placed)
            with anyio.fail_after(PATIENCE_SECONDS):
                while left:
                    for message in await messages.next_batch():
                        if len(message.body) == 100_000:
                            continue
                        number = left.pop((message.queue, message.queue_offset))
                        assert message.body == b"%d" % number
                        assert (message.tags, message.keys) == ("a", (f"n{number}",))
                        assert message.message_id == results[number].message_id


@pytest.mark.slow
async def test_a_timed_message_arrives_at_its_time_or_is_refused(
    cluster: str, topic: str, request: pytest.FixtureRequest
) -> None:
    """RocketMQ 4.9 would deliver it at once: the client does not send it there."""
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, queues=1)
        if "4.9" in request.node.name:
            with pytest.raises(gantrymq.UnsupportedByBroker, match=r"4\.9\.7"):
                await producer.send(topic, b"later", delay=3)
            await producer.send(topic, b"level", delay_level=1)
            return
        now = datetime.now(UTC)
        await producer.send(topic, b"by delay", delay=timedelta(seconds=3))
        await (await producer.enqueue(topic, b"by time", deliver_at=now + timedelta(seconds=4)))
        recalled = await producer.send(topic, b"never", delay=timedelta(seconds=5))
        assert await producer.recall(recalled) == recalled.message_id
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            with anyio.fail_after(PATIENCE_SECONDS):
                first, second = await anext(messages), await anext(messages)
            with anyio.move_on_after(3):
                stray = await anext(messages)
                pytest.fail(f"it was recalled: {stray}")
        assert [first.body, second.body] == [b"by delay", b"by time"]
        assert first.store_timestamp >= now.timestamp() * 1000 + 2900
        assert second.store_timestamp >= now.timestamp() * 1000 + 3900


async def test_requests_get_replies_and_a_disconnected_requester_is_reported(cluster: str, topic: str) -> None:
    gone = anyio.Event()
    async with gantrymq.connect(cluster) as client, gantrymq.connect(cluster) as other:
        await client.admin.create_topic(topic, queues=2)

        async def serve() -> None:
            async with other.consumer(topic, f"g-{topic}", start="first") as requests:
                async for request in requests:
                    await request.ack()
                    if request.body == b"late":
                        await gone.wait()
                        with pytest.raises(gantrymq.BrokerError, match="push reply"):
                            await request.reply(b"too late")
                        break
                    if request.body == b"sent":
                        with pytest.raises(gantrymq.InvalidMessage, match="asks for no reply"):
                            await request.reply(b"x")
                        continue
                    await request.reply(request.body[::-1] * 1000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            async with client.producer(f"p-{topic}") as producer:
                await producer.send(topic, b"sent")
                replies: dict[int, bytes] = {}

                async def ask(number: int) -> None:
                    reply = await producer.request(topic, b"n%d" % number, tags="a", timeout=PATIENCE_SECONDS)
                    replies[number] = reply.body

                async with anyio.create_task_group() as asking:
                    for number in range(20):
                        asking.start_soon(ask, number)
                assert replies == {number: (b"n%d" % number)[::-1] * 1000 for number in range(20)}
                with pytest.raises(gantrymq.ReplyTimeout, match="within 1 s"):
                    await producer.request(topic, b"late", timeout=1)
            await client._cluster.aclose()
            gone.set()


def test_threads_can_share_one_blocking_producer(cluster: str, topic: str) -> None:
    with gantrymq.sync.connect(cluster) as client, client.producer() as producer:
        client.admin.create_topic(topic, 4)

        def send() -> None:
            for _ in range(20):
                producer.send(topic, b"x")

        threads = [threading.Thread(target=send) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with client.consumer(topic, f"g-{topic}", start="first") as messages:
            assert len({next(messages).message_id for _ in range(100)}) == 100


async def test_transactions_are_committed_at_once_or_at_a_check_back(cluster: str, topic: str) -> None:
    outcomes = {"now": Outcome.COMMIT, "never": Outcome.ROLLBACK, "asked": Outcome.UNKNOWN, "denied": Outcome.UNKNOWN}
    # a broker on a busy machine may ask for the settled ones as well, before it has stored their outcome
    answers = {**outcomes, "asked": Outcome.COMMIT, "denied": Outcome.ROLLBACK}
    asked: dict[str, str] = {}
    denied = anyio.Event()
    results: dict[str, gantrymq.TransactionResult] = {}

    async def check(half: DeliveredRecord) -> Outcome:
        asked[half.keys[0]] = half.message_id
        if half.keys[0] == "denied":
            denied.set()
        return answers[half.keys[0]]

    async with (
        gantrymq.connect(cluster) as client,
        client.transactional_producer(f"p-{topic}", check=check) as producer,
    ):
        await client.admin.create_topic(topic, queues=2)
        for key, outcome in outcomes.items():
            results[key] = await producer.send(
                topic, key.encode(), keys=key, properties={"own": "1"}, local=lambda *_, outcome=outcome: outcome
            )
        async with client.consumer(topic, f"g-{topic}", start="first") as messages:
            got = {}
            with anyio.fail_after(PATIENCE_SECONDS):
                while len(got) < 2:
                    for message in await messages.next_batch():
                        got[message.keys[0]] = message
                        await message.ack()
                await denied.wait()
            with anyio.move_on_after(1):
                stray = await messages.next_batch()
                pytest.fail(f"came as well: {stray}")
    assert set(got) == {"now", "asked"}
    for key, message in got.items():
        assert (message.body, message.topic) == (key.encode(), topic)
        assert message.message_id == results[key].transaction_id
    assert {"asked", "denied"} <= asked.keys()
    assert asked == {key: results[key].transaction_id for key in asked}


async def test_an_sql_expression_selects_by_properties(cluster: str, topic: str) -> None:
    wanted = {topic: gantrymq.Sql("price > 3 AND region = 'eu'"), f"{topic}-2": "b"}
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        for name in wanted:
            await client.admin.create_topic(name, 1)
        async with client.consumer(wanted, f"g-{topic}", start="first") as messages:
            for price in (1, 5, 7):
                for region in ("eu", "us"):
                    own = {"price": str(price), "region": region}
                    await producer.send(topic, f"{price} {region}".encode(), properties=own)
            await producer.send(f"{topic}-2", b"tagged", tags="b")
            with anyio.fail_after(PATIENCE_SECONDS):
                got = {(await anext(messages)).body for _ in range(3)}
        assert got == {b"5 eu", b"7 eu", b"tagged"}
        with pytest.raises(gantrymq.InvalidName, match="Sql expression"):
            async with client.consumer(topic, f"g2-{topic}", tags=gantrymq.Sql("price >")):
                pytest.fail("no expression")


@pytest.mark.slow
async def test_an_ordered_group_keeps_order_when_queues_move(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    done: dict[int, list[int]] = {number: [] for number in range(4)}

    async def work(messages: gantrymq.Consumer[gantrymq.ReceivedMessage]) -> None:
        try:
            async for message in messages:
                if message.body == b"5" and not message.reconsume_times:
                    await message.retry()
                    continue
                done[message.queue.queue_id].append(int(message.body))
                await message.ack()
        except gantrymq.ClientClosed:
            pass  # this member has left

    async def until(condition: object) -> None:
        assert callable(condition)
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - the brokers decide when, and tell nobody here
                await anyio.sleep(0.01)

    async with (
        gantrymq.connect(cluster) as one,
        gantrymq.connect(cluster) as two,
        one.producer() as producer,
        anyio.create_task_group() as tasks,
    ):
        await one.admin.create_topic(topic, 4)
        queues = await one.admin.queues(topic)

        async def send(numbers: range) -> None:
            for number in numbers:
                for queue in queues:
                    await producer.send(topic, b"%d" % number, queue=lambda _, queue=queue: queue)

        async with one.consumer(topic, group, start="first", ordered=True) as first:
            for _ in range(2):
                tasks.start_soon(work, first)
            await send(range(10))
            async with two.consumer(topic, group, start="first", ordered=True) as second:
                for _ in range(2):
                    tasks.start_soon(work, second)
                await until(lambda: len(first.queues) == len(second.queues) == 2)
                await send(range(10, 20))
                await until(lambda: sum(map(len, done.values())) >= 80)
            await until(lambda: len(first.queues) == 4)
            await send(range(20, 30))
            await until(lambda: sum(map(len, done.values())) >= 120)
    assert done == {number: list(range(30)) for number in range(4)}


async def test_every_member_of_a_broadcast_group_gets_all_messages(cluster: str, topic: str, tmp_path: Path) -> None:
    async with gantrymq.connect(cluster) as one, gantrymq.connect(cluster) as two, one.producer() as producer:
        await one.admin.create_topic(topic, 2)
        for number in range(10):
            await producer.send(topic, b"%d" % number)
        for client, name in ((one, "one"), (two, "two"), (one, "one")):
            opened = client.consumer(
                topic, f"g-{topic}", start="first", broadcast=True, offsets_file=tmp_path / f"{name}.json"
            )
            async with opened as messages:
                with anyio.fail_after(PATIENCE_SECONDS):
                    for _ in range(5):
                        await (await anext(messages)).ack()
        with anyio.fail_after(PATIENCE_SECONDS):
            async with two.consumer(topic, f"g-{topic}", broadcast=True, offsets_file=tmp_path / "two.json") as rest:
                assert len({(await anext(rest)).body for _ in range(5)}) == 5


async def test_a_reader_reads_from_any_place_to_the_end(cluster: str, topic: str) -> None:
    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, 2)
        queues = await client.admin.queues(topic)
        for queue in queues:
            await producer.send_batch(
                [Message(topic, b"%d" % number, tags="ab"[number % 2]) for number in range(50)],
                queue=lambda _, queue=queue: queue,
            )
        for queue in queues:
            await wait_dispatched(client, queue, 50)
        await make_group(client, topic, f"g-{topic}")
        with anyio.fail_after(PATIENCE_SECONDS):
            async with client.reader(topic, until="end", tags="a") as reader:
                assert len([message async for message in reader]) == 50
            wanted = gantrymq.Sql("TAGS = 'b'")
            async with client.reader(topic, until="end", tags=wanted, group=f"g-{topic}", start="first") as reader:
                await reader.seek_to_beginning()
                assert {message.tags async for message in reader} == {"b"}
                assert [await reader.position(queue) for queue in queues] == [50, 50]
                await reader.commit({queues[0]: 40, queues[1]: 50})
            async with client.reader(topic, until="end", group=f"g-{topic}") as reader:
                assert [message.queue_offset async for message in reader] == list(range(40, 50))
                assert await reader.committed(queues[1]) == 50
                assert await reader.end_offsets() == dict.fromkeys(queues, 50)


@pytest.mark.slow
async def test_a_worker_keeps_key_order_retries_and_commits_finished_messages(cluster: str, topic: str) -> None:
    group = f"g-{topic}"
    seen: dict[str, list[int]] = {}
    failed: list[bytes] = []
    without_order: set[bytes] = set()

    async with gantrymq.connect(cluster) as client, client.producer() as producer:
        await client.admin.create_topic(topic, queues=2)
        for number in range(40):
            await producer.send(topic, b"%d" % number, order_key=f"k{number % 5}")

        async def by_key(message: gantrymq.ReceivedMessage) -> None:
            await anyio.lowlevel.checkpoint()
            if message.body == b"7" and not message.reconsume_times:
                raise ZeroDivisionError
            if message.body == b"9":
                raise gantrymq.DeadLetter("poison")
            seen.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))

        async def unordered(message: gantrymq.ReceivedMessage) -> None:
            without_order.add(message.body)
            if message.body == b"7":
                failed.append(message.body)
                if not message.reconsume_times:
                    raise gantrymq.RetryLater(delay_level=1)

        async def run(worker: object, name: str, ordered: Ordered) -> None:
            await client.run(worker, topic, name, start="first", ordered=ordered, signals=False)  # type: ignore[arg-type]

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, by_key, group, "key")
                tasks.start_soon(run, unordered, f"{group}-2", False)
                while sum(map(len, seen.values())) < 39 or len(failed) < 2 or len(without_order) < 40:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                for worker in list(client._workers):
                    await worker.close()
            expected = {f"k{key}": list(range(key, 40, 5)) for key in range(5)}
            expected["k4"].remove(9)
            assert seen == expected
            for name in (group, f"{group}-2"):
                assert await offsets_left(client, topic, name) == {0: 0, 1: 0}
            await wait_routed(client, f"%DLQ%{group}")
            async with client.reader(f"%DLQ%{group}") as letters:
                assert [letter.body for letter in await letters.poll()] == [b"9"]

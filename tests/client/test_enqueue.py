"""Enqueueing: batches, order within each queue, bounded memory, failures of single messages, closing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message, SendStatus
from gantrymq.client import accumulator
from gantrymq.client.sender import Sender
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from support.batches import rows_of

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


def refuse(code: int) -> Callable[[Command], Command]:
    return lambda request: request.answer(code, "not now")


async def silent(request: Command) -> None:
    await anyio.sleep_forever()


def bodies(broker: Any, topic: str, queue_id: int) -> list[bytes]:
    return [decode_records(record)[0].body for record in broker.queues[topic, queue_id]]


def in_batch(request: Command) -> list[bytes]:
    """The bodies that a request carries."""
    return [body for body, _ in rows_of(request)]


async def test_messages_are_batched_and_each_has_its_own_result(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("senders") as producer,
    ):
        deliveries = [await producer.enqueue("T", b"%d" % number) for number in range(500)]
        await producer.flush()
        assert all(delivery.done for delivery in deliveries)
        results = [await delivery for delivery in deliveries]
        assert bodies(cluster.broker, "T", 0) == [b"%d" % number for number in range(500)]
        assert [result.queue_offset for result in results] == list(range(500))
        assert [result.offset_message_id for result in results] == [f"ID{number}" for number in range(500)]
        assert [result.message_id for result in results] == [delivery.message_id for delivery in deliveries]
        assert len({result.message_id for result in results}) == 500
        assert {result.status for result in results} == {SendStatus.OK}
        assert len(cluster.broker.seen(320)) < 5
        assert (await deliveries[7]).queue_offset == 7  # as often as one likes


async def test_an_enqueued_message_keeps_all_its_fields(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer("senders") as producer,
    ):
        await producer.enqueue(Message("T", b"whole", tags="a", keys=("k",), properties={"p": "1"}, flag=7))
        await producer.enqueue("T", b"parts", tags="b", keys=["k1", "k2"], properties={"color": "grün"})
        await producer.enqueue("T", memoryview(b"view"))
        await producer.flush()
        (request,) = cluster.broker.seen(320)
        assert (request.ext["a"], request.ext["m"]) == ("senders", "true")
        whole, parts, view = [decode_records(record)[0] for record in cluster.broker.queues["T", 0]]
        assert (whole.body, whole.tags, whole.keys, whole.properties["p"]) == (b"whole", "a", ("k",), "1")
        assert (parts.body, parts.tags, parts.keys, parts.properties["color"]) == (b"parts", "b", ("k1", "k2"), "grün")
        assert view.body == b"view"


async def test_a_single_message_is_not_sent_as_a_batch(fake_cluster: Cluster) -> None:
    """A batch of one would not be compressed, and some brokers let batches into fewer topics."""
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        result = await (await producer.enqueue(Message("T", b"x" * 5000, tags="a", flag=7)))
        (request,) = cluster.broker.seen(310)
        assert len(request.body) < 100
        assert (request.ext["f"], request.ext["h"]) == ("1", "7")
        assert result.message_id in request.ext["i"]
        assert "TAGS\x01a" in request.ext["i"]


async def test_a_delayed_message_is_sent_alone_and_in_order(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for body in (b"1", b"2"):
            await producer.enqueue("T", body)
        await producer.enqueue(Message("T", b"3", delay_level=2))
        for body in (b"4", b"5"):
            await producer.enqueue("T", body)
        await producer.flush()
        assert [in_batch(request) for request in cluster.broker.requests if request.code in (310, 320)] == [
            [b"1", b"2"], [b"3"], [b"4", b"5"],
        ]  # fmt: skip


async def test_batches_of_a_topic_rotate_over_its_queues(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(batch_bytes=2000) as producer,
    ):
        for _ in range(400):
            await producer.enqueue("T", b"x")
        await producer.flush()
        for broker in cluster.brokers:
            assert len(broker.seen(320)) > 3
            for queue_id in (0, 1):
                assert len(broker.queues["T", queue_id]) > 40
            assert max(len(request.body) for request in broker.seen(320)) <= 2000
        # without a pause in between, batches are as full as they may be
        assert sum(len(broker.seen(320)) for broker in cluster.brokers) < 20


async def test_a_queue_has_one_batch_in_flight_and_keeps_its_order_through_retries(fake_cluster: Cluster) -> None:
    """Attempts fail at random, and answers get lost: what is stored again comes behind what is there already."""
    flying: list[int] = []
    rng = random.Random(5)
    async with (
        fake_cluster(T=3) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(batch_bytes=3000, retries=1000, timeout=60) as producer,
    ):

        async def sometimes(request: Command) -> Command:
            assert request.ext["e"] not in flying, "two requests of one queue at once"
            flying.append(request.ext["e"])
            for _ in range(rng.randrange(5)):
                await anyio.lowlevel.checkpoint()
            flying.remove(request.ext["e"])
            if rng.random() < 0.3:
                return request.answer(1, "not now")
            broker = cluster.broker
            return (broker.on_send_batch_message if request.code == 320 else broker.on_send_message_v2)(request)

        cluster.broker.answers.update({310: sometimes, 320: sometimes})
        with anyio.fail_after(60):
            for number in range(600):
                key = number % 3
                await producer.enqueue("T", b"%d" % number, queue=lambda queues, key=key: queues[key])
            await producer.flush()
    for key in range(3):
        assert bodies(cluster.broker, "T", key) == [b"%d" % number for number in range(key, 600, 3)]


async def test_only_the_message_at_fault_fails(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):

        def check(request: Command) -> Command:
            if any(body.startswith(b"bad") for body in in_batch(request)):
                return request.answer(13, "illegal")
            broker = cluster.broker
            return (broker.on_send_batch_message if request.code == 320 else broker.on_send_message_v2)(request)

        cluster.broker.answers.update({310: check, 320: check})
        names = [b"bad" if number in (0, 17, 18, 99) else b"%d" % number for number in range(100)]
        deliveries = [await producer.enqueue("T", name) for name in names]
        await producer.flush()
        stored = bodies(cluster.broker, "T", 0)
        assert stored == [name for name in names if name != b"bad"]
        for name, delivery in zip(names, deliveries, strict=True):
            if name == b"bad":
                with pytest.raises(gantrymq.BrokerError, match="13 MESSAGE_ILLEGAL"):
                    await delivery
            else:
                assert stored[(await delivery).queue_offset] == name


async def test_a_failed_batch_is_sent_to_another_broker_unless_its_queue_was_given(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(brokers=2, T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=3) as producer,
    ):
        cluster.brokers[0].answers.update({310: refuse(1), 320: refuse(1)})
        free = [await producer.enqueue("T", b"free%d" % number) for number in range(10)]
        for delivery in free:
            assert (await delivery).queue.broker_name == "broker-b"
        there = (await producer.queues("T"))[0]
        chosen = [await producer.enqueue("T", b"chosen%d" % number, queue=there) for number in range(10)]
        for delivery in chosen:
            with pytest.raises(gantrymq.BrokerError):
                await delivery
        assert not any(body.startswith(b"chosen") for body in bodies(cluster.brokers[1], "T", 0))


@pytest.mark.parametrize(
    ("answer", "errors"),
    [(silent, gantrymq.SendTimeout), (refuse(2), (gantrymq.BrokerError, gantrymq.SendTimeout))],
    ids=["silent", "busy"],
)
async def test_messages_waiting_for_a_broker_that_takes_nothing_do_not_add_up_timeouts(
    fake_cluster: Cluster, answer: Callable[[Command], Any], errors: Any
) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=1.0, batch_bytes=1000) as producer,
    ):
        await producer.send("T", b"x")
        cluster.broker.answers.update({310: answer, 320: answer})
        deliveries = [await producer.enqueue("T", b"x" * 100) for _ in range(200)]
        with anyio.fail_after(20):  # 40 batches
            await producer.flush()
        for delivery in deliveries:
            with pytest.raises(errors):
                await delivery
        cluster.broker.answers.clear()
        assert (await (await producer.enqueue("T", b"again"))).status is SendStatus.OK


async def test_a_full_buffer_makes_enqueue_wait(fake_cluster: Cluster) -> None:
    go = anyio.Event()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(buffer_bytes=10_000) as producer,
    ):

        async def later(request: Command) -> Command:
            await go.wait()
            broker = cluster.broker
            return (broker.on_send_batch_message if request.code == 320 else broker.on_send_message_v2)(request)

        cluster.broker.answers.update({310: later, 320: later})
        enqueued = 0

        async def fill() -> None:
            nonlocal enqueued
            while True:
                await producer.enqueue("T", b"x" * 500)
                enqueued += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            with anyio.fail_after(20):
                while enqueued <= 10:  # noqa: ASYNC110 - a number has no event
                    await anyio.sleep(0.01)
            await anyio.sleep(0.3)  # in which it would enqueue thousands
            tasks.cancel_scope.cancel()
        assert enqueued < 15
        go.set()
        await (await producer.enqueue("T", b"x" * 500))
        # one message alone may be larger than the buffer
        assert (await (await producer.enqueue("T", random.randbytes(20_000)))).status is SendStatus.OK
        assert len(cluster.broker.queues["T", 0]) == enqueued + 2


async def test_linger_waits_for_more_messages_and_full_batches_and_flush_do_not(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(linger=300, batch_bytes=1000) as producer,
    ):
        with anyio.fail_after(20):
            for number in range(4):
                await producer.enqueue("T", b"%d" % number)
                await anyio.wait_all_tasks_blocked()
            assert not cluster.broker.seen(310) + cluster.broker.seen(320)
            await producer.flush()
            assert in_batch(cluster.broker.seen(320)[0]) == [b"0", b"1", b"2", b"3"]
            delivery = await producer.enqueue("T", b"x" * 100)
            for _ in range(10):
                await producer.enqueue("T", b"x" * 100)
            await delivery
            await producer.flush()
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(linger=0.02) as producer,
    ):
        with anyio.fail_after(20):
            await (await producer.enqueue("T", b"nobody follows"))


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
async def test_the_end_of_the_block_sends_what_is_enqueued(
    fake_cluster: Cluster, error: type[Exception] | None
) -> None:
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        deliveries = []
        try:
            async with client.producer(linger=100) as producer:
                deliveries = [await producer.enqueue("T", b"%d" % number) for number in range(100)]
                if error:
                    raise error
        except ZeroDivisionError:
            assert error
        assert sum(len(queue) for queue in cluster.broker.queues.values()) == 100
        assert [(await delivery).status for delivery in deliveries] == [SendStatus.OK] * 100
        with pytest.raises(gantrymq.ClientClosed):
            await producer.enqueue("T", b"late")
        with pytest.raises(gantrymq.ClientClosed):
            await producer.flush()


async def test_cancellation_sends_for_a_grace_period_and_fails_the_rest(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.producer.LEAVE_SECONDS", 0.2)
    async with fake_cluster(T=2) as cluster, gantrymq.connect(cluster.address) as client:
        with anyio.move_on_after(20) as scope:
            async with client.producer() as producer:
                stored = await producer.enqueue("T", b"goes out")
                scope.cancel()
        assert (await stored).status is SendStatus.OK
        cluster.broker.answers[310] = silent
        with anyio.move_on_after(20) as scope:
            async with client.producer(timeout=60) as producer:
                left = await producer.enqueue("T", b"no answer")
                scope.cancel()
        with pytest.raises(gantrymq.ClientClosed, match="may be stored all the same"):
            await left


async def test_messages_that_wait_when_the_client_fails_do_not_hold_up_the_end(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        cluster.broker.answers[310] = silent
        producer = await client.producer(timeout=100).start()
        flying = await producer.enqueue("T", b"no answer", queue=0)
        await cluster.broker.wait_for(310)
        behind = await producer.enqueue("T", b"waits", queue=0)
        client._cluster.start_soon(fail)
        with anyio.fail_after(20):
            await producer.close()
        assert "enqueued_messages_failed" in caplog.text
        for delivery in (flying, behind):
            with pytest.raises(gantrymq.ClientClosed, match="may be stored all the same"):
                await delivery


def test_messages_that_wait_when_all_tasks_are_cancelled_do_not_hold_up_the_end(fake_in_thread: Any) -> None:
    async def main() -> None:
        async with gantrymq.connect(fake_in_thread.address) as client:
            producer = await client.producer(linger=100).start()
            waiting = await producer.enqueue("T", b"waits for others", queue=0)
            await anyio.lowlevel.checkpoint()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()  # as the end of asyncio.run does
            with anyio.fail_after(20):
                await producer.close()
            with pytest.raises(gantrymq.ClientClosed):
                await waiting

    asyncio.run(main())


async def test_messages_are_checked_when_they_are_enqueued(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for body in (b"", "text", None, b"x" * (4 * 1024 * 1024 + 1)):
            with pytest.raises(gantrymq.InvalidMessage):
                await producer.enqueue("T", body)  # type: ignore[arg-type]
        with pytest.raises(gantrymq.InvalidName):
            await producer.enqueue("no such topic", b"x")
        with pytest.raises(gantrymq.InvalidMessage, match="reserved"):
            await producer.enqueue("T", b"x", properties={"UNIQ_KEY": "1"})
        with pytest.raises(gantrymq.NoRoute):
            await producer.enqueue("unknown", b"x")
        await producer.flush()
        assert not cluster.broker.queues


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("linger", -1.0), ("batch_bytes", 0), ("batch_bytes", 4 * 1024 * 1024 + 1), ("buffer_bytes", 0),
        ("timeout", timedelta(seconds=5)), ("timeout", None),
    ],
)  # fmt: skip
async def test_invalid_options_are_rejected(fake_cluster: Cluster, option: str, value: Any) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(ValueError, match=option):
            async with client.producer(**{option: value}):
                pytest.fail("an option without sense")


async def test_idle_queues_are_dropped_without_losing_messages(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "LANES_KEPT", 4)
    async with (
        fake_cluster(T=32) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for number in range(200):
            await producer.enqueue("T", b"%d" % number, queue=lambda queues, number=number: queues[number % 32])
            if number % 7 == 0:
                await producer.flush()
            await producer.enqueue("T", b"free")
        await producer.flush()
        assert sum(len(queue) for queue in cluster.broker.queues.values()) == 400
        assert len(producer._accumulator._lanes) <= 40


async def test_flush_waits_for_a_batch_in_a_lane_that_was_idle_when_others_were_dropped(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "LANES_KEPT", 2)
    monkeypatch.setattr(Sender, "is_usable", lambda *_: False)
    released = anyio.Event()
    async with (
        fake_cluster(T=3) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(timeout=100) as producer,
        anyio.create_task_group() as tasks,
    ):

        async def answer(request: Command) -> Any:
            await released.wait()
            return cluster.broker.on_send_message_v2(request)

        async def release() -> None:
            await cluster.broker.wait_for(310, 3)
            released.set()

        for queue in (0, 1):
            await producer.enqueue("T", b"keeps a lane", queue=queue)
        await producer.flush()
        cluster.broker.answers[310] = answer
        producer._accumulator._turns["T"] = 1  # an idle lane, and then a queue that has none
        waiting = await producer.enqueue("T", b"waits")
        tasks.start_soon(release)
        with anyio.fail_after(20):
            await producer.flush()
        assert waiting.done


def test_the_blocking_producer_enqueues(fake_in_thread: Any) -> None:
    with gantrymq.sync.connect(fake_in_thread.address) as client:
        with client.producer(linger=100, batch_bytes=1000, buffer_bytes=5000) as producer:
            deliveries = [producer.enqueue("T", b"%d" % number, tags="a") for number in range(50)]
            with pytest.raises(TimeoutError):
                deliveries[-1].result(timeout=0)
            producer.flush()
            assert all(delivery.done for delivery in deliveries)
            assert deliveries[3].result().message_id == deliveries[3].message_id
            waiting = producer.enqueue("T", b"last")
        assert waiting.result().status is SendStatus.OK
    assert sum(len(queue) for queue in fake_in_thread.broker.queues.values()) == 51

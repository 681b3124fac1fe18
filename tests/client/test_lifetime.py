"""``start`` and ``close`` without blocks: from any task, in any order, at most once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import Outcome
from gantrymq.remoting.codes import RequestCode

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


async def test_clients_producers_and_consumers_have_start_and_close(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = gantrymq.connect(cluster.address)
        assert await client.start() is client
        producer = client.producer()
        consumer = client.consumer("T", "g", start="first")
        transactional = client.transactional_producer("tx", check=lambda half: Outcome.UNKNOWN)
        reader = client.reader("T")
        for one in (producer, consumer, transactional, reader):
            await one.start()
        await producer.send("T", b"x")
        assert [each.body for each in await reader.poll()] == [b"x"]
        message = await anext(consumer)
        await message.ack()
        for one in (reader, transactional, consumer, producer, client):
            await one.close()
        assert cluster.broker.offsets["g", "T", 0] == 1
        assert len(cluster.broker.seen(RequestCode.UNREGISTER_CLIENT)) == 3
        for use in (lambda: producer.send("T", b"x"), lambda: anext(consumer), reader.poll, client.admin.topics):
            with pytest.raises(gantrymq.ClientClosed, match="is closed"):
                await use()


async def test_close_may_be_called_in_another_task(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        consumer = await client.consumer("T", "g").start()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def iterate() -> None:
                    with pytest.raises(gantrymq.ClientClosed):
                        await anext(consumer)

                tasks.start_soon(iterate)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(consumer.close)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.close)
                tasks.start_soon(client.close)
        assert client._cluster.closed


async def test_closing_the_client_closes_what_was_started_from_it(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        producer = await client.producer(linger=60).start()
        consumer = await client.consumer("T", "g", start="first").start()
        delivery = await producer.enqueue("T", b"x")
        with anyio.fail_after(20):
            await client.close()
            assert (await delivery).status is gantrymq.SendStatus.OK
        assert len(cluster.broker.seen(RequestCode.UNREGISTER_CLIENT)) == 2
        with pytest.raises(gantrymq.ClientClosed):
            await anext(consumer)


async def test_a_cancelled_client_closes_all_that_was_started_from_it(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.producer.LEAVE_SECONDS", 0.2)

    async def silent(request: Any) -> None:
        await anyio.sleep_forever()

    async with fake_cluster(T=1) as cluster:
        broker = cluster.broker
        broker.store("T", 0, b"x")
        broker.answers.update({RequestCode.SEND_MESSAGE_V2: silent, RequestCode.SEND_BATCH_MESSAGE: silent})
        with anyio.move_on_after(20) as scope:
            async with gantrymq.connect(cluster.address) as client:
                producers = [await client.producer(group, timeout=60).start() for group in ("p1", "p2")]
                consumer = await client.consumer("T", "g", start="first").start()
                pending = [await producer.enqueue("T", b"y") for producer in producers]
                await (await anext(consumer)).ack()
                scope.cancel()
        assert scope.cancelled_caught
        assert all(each.done for each in pending)
        assert broker.offsets["g", "T", 0] == 1
        assert len(await broker.wait_for(RequestCode.UNREGISTER_CLIENT, 3)) == 3


def hold_sends(cluster: Any) -> anyio.Event:
    """The broker answers sends when the event is set."""
    store, may_answer = cluster.broker.on_send_message_v2, anyio.Event()

    async def answer_later(request: Any) -> Any:
        await may_answer.wait()
        return store(request)

    cluster.broker.answers[RequestCode.SEND_MESSAGE_V2] = answer_later
    return may_answer


async def test_closing_the_client_waits_for_a_producer_that_is_closing(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        producer = await client.producer(timeout=60).start()
        may_answer = hold_sends(cluster)
        delivery = await producer.enqueue("T", b"x")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.close)
                await cluster.broker.wait_for(RequestCode.SEND_MESSAGE_V2)
                tasks.start_soon(client.close)
                await anyio.wait_all_tasks_blocked()
                may_answer.set()
            assert (await delivery).status is gantrymq.SendStatus.OK


async def test_a_consumer_that_starts_while_the_client_closes_raises(
    fake_cluster: Cluster, no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(request: Any) -> None:
        await anyio.sleep_forever()

    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        cluster.broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = silent
        consumer = client.consumer("T", "g")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def start() -> None:
                    with pytest.raises(gantrymq.ClientClosed):
                        await consumer.start()

                tasks.start_soon(start)
                await cluster.broker.wait_for(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
                await client.close()
        caplog.clear()
        await anyio.sleep(0.1)
        assert not caplog.records


async def test_a_consumer_that_starts_while_others_close_ends_with_the_client(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        producer = await client.producer(timeout=60).start()
        may_answer = hold_sends(cluster)
        await producer.enqueue("T", b"x")
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.close)
                await cluster.broker.wait_for(RequestCode.SEND_MESSAGE_V2)
                await client.consumer("T", "g").start()
                may_answer.set()
        assert not cluster.broker.groups["g"], "it has left its group"


@pytest.mark.timeout(30)
async def test_a_callback_may_close_the_client_while_its_consumer_closes(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster:
        client = await gantrymq.connect(cluster.address).start()
        other = await client.producer("p").start()
        async with client.consumer("T", "g", on_revoked=lambda _: client.close()):
            await cluster.broker.wait_for(RequestCode.PULL_MESSAGE)
        assert "rebalance_callback_failed" in caplog.text
        with pytest.raises(gantrymq.ClientClosed):
            await other.send("T", b"x")


async def test_use_before_start_raises(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        client = gantrymq.connect(cluster.address)
        with pytest.raises(gantrymq.ClientClosed, match="the client is not started: use `async with`, or await"):
            client.producer()
        with pytest.raises(gantrymq.ClientClosed, match="the client is not started"):
            _ = client.admin
        await client.close()
        async with client:
            producer = client.producer("p")
            with pytest.raises(gantrymq.ClientClosed, match="the producer of group p is not started"):
                await producer.send("T", b"x")
            consumer = client.consumer("T", "g")
            with pytest.raises(gantrymq.ClientClosed, match="the consumer of group g is not started"):
                await anext(consumer)
            assert not cluster.broker.connections


async def test_starting_twice_raises(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        with pytest.raises(gantrymq.ClientClosed, match="the client was started before: make a new one"):
            await client.start()
        producer = await client.producer("p").start()
        await producer.close()
        await producer.close()
        with pytest.raises(gantrymq.ClientClosed, match="the producer of group p was started before"):
            async with producer:
                pass


async def test_a_failed_start_releases_everything_in_the_client(fake_cluster: Cluster) -> None:
    client = gantrymq.connect("127.0.0.1:1")
    with pytest.raises(gantrymq.ConnectFailed):
        await client.start()
    await client.close()
    with pytest.raises(gantrymq.ClientClosed):
        client.producer()
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        await client.consumer("T", "g").start()
        second = client.consumer("T", "g")
        with pytest.raises(gantrymq.GantryError, match="already consumes as group g"):
            await second.start()
        await second.close()

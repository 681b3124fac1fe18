"""Sends of several tasks share requests, and each has its own result, error and timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import gantrymq
from gantrymq import Message
from gantrymq.client import gathering
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from support.batches import rows_of

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


async def send_all(
    producer: gantrymq.Producer, messages: Sequence[Message], **options: Any
) -> list[gantrymq.SendResult | Exception]:
    """The results of messages that tasks sent at the same time, in order."""
    outcomes: dict[int, gantrymq.SendResult | Exception] = {}

    async def send(place: int, message: Message) -> None:
        try:
            outcomes[place] = await producer.send(message, **options)
        except gantrymq.GantryError as error:
            outcomes[place] = error

    async with anyio.create_task_group() as tasks:
        for place, message in enumerate(messages):
            tasks.start_soon(send, place, message)
    return [outcomes[place] for place in range(len(messages))]


def numbered(count: int) -> list[Message]:
    return [Message("T", b"%d" % number) for number in range(count)]


async def test_concurrent_sends_share_requests_and_each_has_its_own_result(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=4) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for _ in range(3):
            results = await send_all(producer, numbered(200))
        stored = {
            (queue_id, offset): record
            for (_, queue_id), queue in cluster.broker.queues.items()
            for offset, record in enumerate(queue)
        }
        for number, result in enumerate(results):
            assert isinstance(result, gantrymq.SendResult)
            (record,) = decode_records(stored[result.queue.queue_id, result.queue_offset])
            assert record.body == b"%d" % number
            assert record.message_id == result.message_id
            assert result.offset_message_id == f"ID{result.queue_offset}"
            assert result.status is gantrymq.SendStatus.OK
        assert len(stored) == 600
        batches = cluster.broker.seen(320)
        assert len(cluster.broker.seen(310)) + len(batches) < 60
        assert max(len(rows_of(batch)) for batch in batches) == gathering.GROUP_MAX_MESSAGES
        assert all(len(queue) > 10 for queue in cluster.broker.queues.values()), "queues take turns"


async def test_a_lone_send_is_not_a_batch(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        for number in range(3):
            await producer.send("T", b"%d" % number)
        assert not cluster.broker.seen(320)


async def test_messages_keep_their_fields_and_what_fits_no_batch_goes_alone(fake_cluster: Cluster) -> None:
    tagged = Message("T", b"tagged", tags="eu", keys="k1 k2", properties={"n": "9"}, flag=7)
    messages = [
        *numbered(2),
        tagged,
        tagged,
        Message("T", b"delayed", delay_level=2),
        Message("T", b"timed", delay=5),
        Message("T", b"z" * 100_000),
        Message("T", b"keyed", order_key="a"),
    ]
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await send_all(producer, messages)
        batched = {body for batch in cluster.broker.seen(320) for body, _ in rows_of(batch)}
        assert b"tagged" in batched <= {b"0", b"1", b"tagged"}
        records = [decode_records(record)[0] for record in cluster.broker.queues["T", 0]]
        found = [record for record in records if record.body == b"tagged"]
        assert len(found) == 2
        for record in found:
            assert (record.tags, record.keys, record.properties["n"]) == ("eu", ("k1", "k2"), "9")
        assert len({record.message_id for record in records}) == len(messages)


@pytest.mark.parametrize("code", [13, 3])
async def test_a_refused_message_does_not_fail_the_others(fake_cluster: Cluster, code: int) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        broker = cluster.broker

        def judge(request: Command) -> Command:
            if any(body == b"7" for body, _ in rows_of(request)):
                return request.answer(code, "no sevens")
            return broker.on_send_message_v2(request)  # type: ignore[no-any-return]

        broker.answers = {310: judge, 320: lambda request: request.answer(code, "no batches")}
        outcomes = await send_all(producer, numbered(20))
        failed = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, gantrymq.BrokerError)]
        assert failed == [7]
        assert sum(map(len, broker.queues.values())) == 19


async def test_an_error_of_the_broker_reaches_every_sender(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer(retries=0) as producer,
    ):
        cluster.broker.answers = dict.fromkeys((310, 320), lambda request: request.answer(1, "disk full"))
        outcomes = await send_all(producer, numbered(20))
        assert {type(outcome) for outcome in outcomes} == {gantrymq.BrokerError}
        assert len(cluster.broker.seen(320)) == 1


async def test_each_timeout_is_kept(fake_cluster: Cluster) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    async with (
        fake_cluster(T=2) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        await producer.queues("T")
        cluster.broker.answers = {310: silent, 320: silent}
        took: dict[float, list[float]] = {0.3: [], 30: []}

        async def send(timeout: float) -> None:
            began = anyio.current_time()
            with pytest.raises(gantrymq.SendTimeout, match=f"within {timeout:g} s"):
                await producer.send("T", b"x", timeout=timeout)
            took[timeout].append(anyio.current_time() - began)

        async with anyio.create_task_group() as tasks:
            for timeout in (0.3, 30) * 5:
                tasks.start_soon(send, timeout)
            with anyio.fail_after(20):
                while len(took[0.3]) < 5:  # noqa: ASYNC110 - a list has no event
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        assert min(took[0.3]) >= 0.25
        assert took[30] == []


async def test_a_cancelled_send_cancels_no_other_one(fake_cluster: Cluster) -> None:
    release = anyio.Event()

    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        broker = cluster.broker

        async def later(request: Command) -> Command:
            await release.wait()
            return broker.on_send_batch_message(request)  # type: ignore[no-any-return]

        broker.answers = {320: later}
        results: list[gantrymq.SendResult] = []

        async def send(number: int, scope: anyio.CancelScope) -> None:
            with scope:
                results.append(await producer.send("T", b"%d" % number))

        async with anyio.create_task_group() as tasks:
            scopes = [anyio.CancelScope() for _ in range(10)]
            for number, scope in enumerate(scopes):
                tasks.start_soon(send, number, scope)
            await broker.wait_sent(10)
            scopes[4].cancel()
            await anyio.lowlevel.checkpoint()
            release.set()
        assert len(results) == 9
        assert (await producer.send("T", b"after")).queue_offset == 10, "what was on its way is stored all the same"


async def test_the_end_of_the_client_fails_what_is_under_way(fake_cluster: Cluster) -> None:
    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    async with fake_cluster(T=1) as cluster:
        client = gantrymq.connect(cluster.address)
        await client.start()
        producer = client.producer(timeout=30.0)
        await producer.start()
        await producer.queues("T")
        cluster.broker.answers = {310: silent, 320: silent}
        failures: list[gantrymq.GantryError] = []

        async def send() -> None:
            with pytest.raises((gantrymq.ClientClosed, gantrymq.ConnectError)) as caught:
                await producer.send("T", b"x")
            failures.append(caught.value)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(send)
                await cluster.broker.wait_sent(10)
                await client.close()
        assert len(failures) == 10


async def test_sends_that_wait_for_their_turn_fail_when_the_client_closes(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.sender.IN_FLIGHT_MAX_MESSAGES", 4)

    async def silent(request: Command) -> None:
        await anyio.sleep_forever()

    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers.update({310: silent, 320: silent})
        client = await gantrymq.connect(cluster.address).start()
        producer = await client.producer().start()
        outcomes: list[gantrymq.SendResult | Exception] = []
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    outcomes.extend(await send_all(producer, numbered(200)))

                tasks.start_soon(send)
                await cluster.broker.wait_sent(4)
                await client.close()
        assert {type(outcome) for outcome in outcomes} <= {gantrymq.ClientClosed, gantrymq.ConnectError}

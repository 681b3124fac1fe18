"""Encoded messages pass the producer's buffer, many in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import gantrymq
from gantrymq import SendStatus
from gantrymq.client.errors import GantryError
from gantrymq.client.outgoing import encode_plain_row
from gantrymq.client.row_sender import Batch, RowSender
from gantrymq.client.window import Window
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from support.batches import rows_of

pytestmark = pytest.mark.anyio
Cluster = Callable[..., Any]


async def send(rows: RowSender, bodies: list[bytes], topic: str = "T") -> Batch:
    keys = rows.new_keys(len(bodies))
    encoded = b"".join(encode_plain_row(body, key) for body, key in zip(bodies, keys, strict=True))
    return await rows.send(topic, encoded, keys)


def stored(broker: Any) -> list[bytes]:
    return [decode_records(record)[0].body for record in broker.queues["T", 0]]


async def test_rows_are_stored_in_order_with_messages_that_were_enqueued(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):
        rows = RowSender(producer)
        await producer.enqueue("T", b"first")
        batches = [await send(rows, [b"a", b"b"])]
        await producer.enqueue("T", b"between")
        batches.append(await send(rows, [b"alone"]))
        await producer.flush()
        assert stored(cluster.broker) == [b"first", b"a", b"b", b"between", b"alone"]
        assert all(batch.finished for batch in batches)
        outcomes = [outcome for batch in batches for outcome in batch.outcomes]
        assert [isinstance(each, GantryError) or each.status for each in outcomes] == [SendStatus.OK, SendStatus.OK]


async def test_a_refused_row_fails_without_the_others_of_its_batch(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=1) as cluster,
        gantrymq.connect(cluster.address) as client,
        client.producer() as producer,
    ):

        def check(request: Command) -> Command:
            if any(body.startswith(b"bad") for body, _ in rows_of(request)):
                return request.answer(13, "illegal")
            broker = cluster.broker
            return (broker.on_send_batch_message if request.code == 320 else broker.on_send_message_v2)(request)

        cluster.broker.answers.update({310: check, 320: check})
        names = [b"bad" if number in (3, 40) else b"%d" % number for number in range(50)]
        batch = await send(RowSender(producer), names)
        await producer.flush()
        assert stored(cluster.broker) == [name for name in names if name != b"bad"]
        assert sum(isinstance(outcome, GantryError) for outcome in batch.outcomes) == 2


async def test_a_topic_without_a_legal_name_and_a_closed_producer_are_refused(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster, gantrymq.connect(cluster.address) as client:
        async with client.producer() as producer:
            rows = RowSender(producer)
            with pytest.raises(gantrymq.InvalidName):
                await send(rows, [b"x"], "no topic!")
        with pytest.raises(gantrymq.ClientClosed):
            await send(rows, [b"x"])


async def test_many_messages_wait_for_room_in_their_turn() -> None:
    window = Window(None, 100)
    await window.enter_many(90, 9)
    order: list[str] = []

    async def enter(name: str, size: int, messages: int) -> None:
        await window.enter_many(size, messages)
        order.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter, "larger than all", 200, 20)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(enter, "small", 1, 1)
        await anyio.wait_all_tasks_blocked()
        assert not order
        window.leave(90, 9)
        await anyio.wait_all_tasks_blocked()
        assert order == ["larger than all"]
        window.leave(200, 20)
    assert order == ["larger than all", "small"]
    window.leave(1, 1)
    assert window.empty

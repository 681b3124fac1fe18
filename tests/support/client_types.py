"""Types of the client as type checkers see them: mypy checks this file with the sources, nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import attrs

import gantrymq
import gantrymq.sync
from gantrymq.message import DeliveredRecord


@attrs.frozen
class Order:
    """A value."""

    number: int


def parse(body: bytes) -> Order:
    """Return the value of a body."""
    return Order(int(body))


async def values_of_consumers(client: gantrymq.Client) -> None:
    """Check consumers and batches."""
    async with client.consumer("T", "g", deserializer=Order, ordered=True) as orders:
        assert_type(orders, gantrymq.Consumer[gantrymq.ReceivedMessage[Order]])
        async for message in orders:
            assert_type(message.value, Order)
            assert_type(message.value.number, int)
        for batched in await orders.next_batch():
            assert_type(batched.value, Order)
    assert_type((await anext(client.consumer("T", "g", deserializer=parse))).value, Order)
    assert_type((await anext(client.consumer("T", "g", deserializer=list[Order]))).value, list[Order])
    assert_type((await anext(client.consumer("T", "g", deserializer="str"))).value, str)
    assert_type((await anext(client.consumer("T", "g", deserializer="json"))).value, Any)
    assert_type((await anext(client.consumer("T", "g"))).value, Any)


async def values_of_readers(client: gantrymq.Client) -> None:
    """Check readers."""
    reader = client.reader("T", deserializer=Order, until="end")
    assert_type(reader, gantrymq.Reader[DeliveredRecord[Order]])
    assert_type((await reader.poll())[0].value, Order)
    assert_type((await client.reader("T").poll())[0].value, Any)


def values_without_async(client: gantrymq.sync.Client) -> None:
    """Check the blocking client."""
    consumer = client.consumer("T", "g", deserializer=Order)
    assert_type(next(consumer).value, Order)
    assert_type(consumer.next_batch()[0].value, Order)
    assert_type(next(client.consumer("T", "g", deserializer="str")).value, str)
    assert_type(client.reader("T", deserializer=parse).poll()[0].value, Order)


def handler(message: gantrymq.ReceivedMessage[Order]) -> int:
    """Return a field of the value."""
    return message.value.number


async def handlers(client: gantrymq.Client) -> None:
    """Check handlers of workers."""
    await client.run(handler, "T", "g", deserializer=Order, concurrency=4)

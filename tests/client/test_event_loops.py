"""A client raises an error when it is used in another event loop than its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import attrs
import pytest

import gantrymq

OTHER_LOOP = "started in another event loop: connect in the loop that uses it, or use gantrymq.sync"


@attrs.frozen
class Opened:
    """The objects started in the first event loop, with one message of topic T acknowledged."""

    client: gantrymq.Client
    producer: gantrymq.Producer
    consumer: gantrymq.Consumer[gantrymq.ReceivedMessage]
    reader: gantrymq.Reader[Any]


async def open_all(address: str) -> Opened:
    client = await gantrymq.connect(address).start()
    producer = await client.producer().start()
    consumer = await client.consumer("T", "g", start="first").start()
    reader = await client.reader("T", start="last").start()
    await producer.send("T", b"x", queue=0)
    with anyio.fail_after(20):
        await (await anext(consumer)).ack()
    return Opened(client, producer, consumer, reader)


async def enqueue_and_wait(producer: gantrymq.Producer) -> None:
    await (await producer.enqueue("T", b"y"))


async def never(request: object) -> None:
    await anyio.sleep_forever()


USES: dict[str, Callable[[Opened], Awaitable[object]]] = {
    "send": lambda opened: opened.producer.send("T", b"y"),
    "send to a new topic": lambda opened: opened.producer.send("New", b"y"),
    "enqueue": lambda opened: enqueue_and_wait(opened.producer),
    "iterate": lambda opened: anext(opened.consumer),
    "fetch a batch": lambda opened: opened.consumer.next_batch(),
    "poll": lambda opened: opened.reader.poll(),
    "list topics": lambda opened: opened.client.admin.topics(),
    "start a consumer": lambda opened: opened.client.consumer("T", "other").start(),
    "close": lambda opened: opened.client.close(),
}


async def use_in_time(use: str, opened: Opened) -> None:
    with anyio.fail_after(10):
        await USES[use](opened)


@pytest.fixture
def first_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("use", USES)
def test_a_client_in_a_second_loop_raises_while_its_own_loop_waits(
    fake_in_thread: Any, first_loop: asyncio.AbstractEventLoop, use: str
) -> None:
    opened = first_loop.run_until_complete(open_all(fake_in_thread.address))
    with pytest.raises(gantrymq.ClientClosed, match=OTHER_LOOP):
        asyncio.run(use_in_time(use, opened))
    first_loop.run_until_complete(opened.client.close())
    assert fake_in_thread.broker.sent() == [b"x"]
    assert fake_in_thread.broker.offsets["g", "T", 0] == 1


@pytest.mark.parametrize("use", ["send", "enqueue", "flush"])
def test_a_second_loop_adds_nothing_to_what_the_first_one_sends(
    fake_in_thread: Any, first_loop: asyncio.AbstractEventLoop, use: str
) -> None:
    tasks: list[asyncio.Task[object]] = []

    async def begin() -> tuple[gantrymq.Client, gantrymq.Producer]:
        client = await gantrymq.connect(fake_in_thread.address).start()
        producer = await client.producer(linger=60).start()
        await asyncio.gather(*(producer.send("T", b"gathered") for _ in range(40)))  # by tasks that wait for more
        sent = len(fake_in_thread.broker.seen(310)) + len(fake_in_thread.broker.seen(320))
        await producer.enqueue("T", b"enqueued")  # its batch is open for a minute
        fake_in_thread.broker.answers |= {310: never, 320: never}
        tasks.append(asyncio.create_task(producer.send("T", b"under way", timeout=60)))
        while len(fake_in_thread.broker.seen(310)) + len(fake_in_thread.broker.seen(320)) == sent:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        return client, producer

    client, producer = first_loop.run_until_complete(begin())
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: producer.send("T", b"y"),
        "enqueue": lambda: enqueue_and_wait(producer),
        "flush": producer.flush,
    }

    async def use_it() -> None:
        with anyio.fail_after(10):
            await uses[use]()

    with pytest.raises(gantrymq.ClientClosed, match=OTHER_LOOP):
        asyncio.run(use_it())
    fake_in_thread.broker.answers.clear()
    tasks[0].cancel()
    first_loop.run_until_complete(client.close())
    assert b"y" not in fake_in_thread.broker.sent() or use == "enqueue", "which may be added to a batch before it waits"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("use", USES)
def test_a_client_in_a_second_loop_raises_after_the_end_of_its_own(fake_in_thread: Any, backend: Any, use: str) -> None:
    opened = anyio.run(open_all, fake_in_thread.address, backend=backend)
    with pytest.raises(gantrymq.ClientClosed, match=OTHER_LOOP):
        anyio.run(use_in_time, use, opened, backend=backend)
    assert fake_in_thread.broker.sent() == [b"x"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_ends_although_a_client_was_not_closed(fake_in_thread: Any, backend: Any) -> None:
    async def leave_open() -> gantrymq.Client:
        return await gantrymq.connect(fake_in_thread.address).start()

    client = anyio.run(leave_open, backend=backend)
    assert not client._cluster.usable

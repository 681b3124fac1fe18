"""The group ``client``: the Python client as an application uses it, here the generator of the load.

One process with asyncio, 100-byte bodies, asynchronous flush: what ``enqueue`` reaches, 128 tasks that ``send``, one
that sends and waits, beside the raw round trip of the same request on a plain socket, and a consumer that acknowledges
one by one and in batches. Beside each rate is the client's own processor time per message, which depends less on what
else the machine does. Kafka's Python clients do the same where Kafka is asked for (:mod:`kafka_clients`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import attrs
from figures import Figures
from floods import send_for
from measuring import warm_up
from stores import fill
from systems import Running, Setup, start

from gantrymq.client import Client, Consumer, Producer, connect
from gantrymq.message import ReceivedMessage

if TYPE_CHECKING:
    from measuring import Timing
    from special_groups import Sizes

Progress = Callable[[str], None]
Way = Callable[[Consumer[ReceivedMessage], int], Awaitable[None]]
"""How many messages a consumer reads."""
BODY = b"x" * 100
TASKS = 128
TOPIC = "bench-client"
STORED_TOPIC = "bench-client-stored"
STORED_BATCH = 32
STORED_MESSAGES = 10_000 * STORED_BATCH
"""How many messages there are to consume; each consumer group reads all of them."""
CONSUME_SECONDS_MAX = 120.0
PULL_BATCH, PREFETCH = 1024, 4096
"""The ``pull_batch`` of the consumers: one that reads many small messages asks for more of them at once than the
default."""
BATCH_MESSAGES = 1000
"""The most messages in one batch of a consumer that reads batches."""
PROCESSOR = "processor time of the client for a message: {}"
SEND_AND_WAIT = "send and wait"
GOALS = {
    "enqueue": 160_000.0, f"send, {TASKS} tasks": 60_000.0, "consume one by one": 250_000.0,
    f"consume in batches of {BATCH_MESSAGES}": 1_000_000.0,
}  # fmt: skip
"""Messages a second."""
STEP = 100
"""The clock is read once for this many messages."""


@attrs.define
class Pace:
    """The messages of one load, its duration, and the client's processor time; both in seconds."""

    messages: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def processor_us(self) -> float:
        """Microseconds of the client's processor time for each message."""
        return self.processor / self.messages * 1e6

    def add(self, messages: int, began: tuple[float, float]) -> None:
        """The load of ``messages`` since ``began``, a result of :func:`clocks`."""
        now, used = clocks()
        self.messages += messages
        self.seconds += now - began[0]
        self.processor += used - began[1]


def clocks() -> tuple[float, float]:
    """Return the time, and this process's processor time, in seconds."""
    return time.perf_counter(), time.process_time()


def measure_client(system: str, timing: Timing, sizes: Sizes, figures: Figures, progress: Progress) -> None:
    """Messages a second for each way to send and to consume, and how long one message takes."""
    del sizes
    with start(system, Setup(flush="async")) as running:
        warm_up(running, timing.warm)
        fill(running, STORED_TOPIC, STORED_MESSAGES * len(BODY), len(BODY), STORED_BATCH)
        paces, times = anyio.run(_measure, running, timing)
        raw = sorted(send_for(running.address, timing.seconds))
    times.sort()
    lone, raw_lone = times[len(times) // 2] * 1e6, raw[len(raw) // 2] * 1e6
    text = ", ".join(f"{what} {pace.rate:,.0f}/s ({pace.processor_us:.1f} us)" for what, pace in paces.items())
    progress(f"{system:9} Python client: {text}, {SEND_AND_WAIT} {lone:.0f} us (a plain socket {raw_lone:.0f} us)")
    for what, pace in paces.items():
        figures.add("client", what, "/s", system, pace.rate, more_is_better=True, goal=GOALS[what])
        figures.add("client", PROCESSOR.format(what), "us", system, pace.processor_us)
    figures.add("client", f"p50 of {SEND_AND_WAIT}", "us", system, lone)
    figures.add("client", "p50 of the same on a plain socket", "us", system, raw_lone)


async def _measure(running: Running, timing: Timing) -> tuple[dict[str, Pace], list[float]]:
    paces: dict[str, Pace] = {}
    async with connect(running.nameserver) as client, client.producer() as producer:
        await client.admin.create_topic(TOPIC, queues=8)
        for what, load in {"enqueue": enqueue_for, f"send, {TASKS} tasks": send_from_tasks}.items():
            await load(producer, timing.settle)
            paces[what] = await load(producer, timing.seconds)
        times = await times_of_sends(producer, timing.seconds)
        ways = {"consume one by one": consume_one_by_one, f"consume in batches of {BATCH_MESSAGES}": consume_batches}
        for what, way in ways.items():
            paces[what] = await consume_for(client, way, timing.seconds)
    return paces, times


async def enqueue_for(producer: Producer, seconds: float) -> Pace:
    """How many messages are stored in the given seconds, including the last flush."""
    pace, began, count = Pace(), clocks(), 0
    while time.perf_counter() - began[0] < seconds:
        for _ in range(STEP):
            await producer.enqueue(TOPIC, BODY)
        count += STEP
    await producer.flush()
    pace.add(count, began)
    return pace


async def send_from_tasks(producer: Producer, seconds: float) -> Pace:
    """How many messages many concurrent tasks store."""
    pace, began, count = Pace(), clocks(), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() - began[0] < seconds:
            await producer.send(TOPIC, BODY)
            count += 1

    await _together([work] * TASKS)
    pace.add(count, began)
    return pace


async def times_of_sends(producer: Producer, seconds: float) -> list[float]:
    """Return how long each of some sends took, one after the other, in seconds."""
    until, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < until:
        before = time.perf_counter()
        await producer.send(TOPIC, BODY)
        times.append(time.perf_counter() - before)
    return times


async def consume_for(client: Client, way: Way, seconds: float) -> Pace:
    """How many messages are consumed in at least the given seconds; one group after the other reads all that is
    stored."""
    pace, number = Pace(), 0
    while pace.seconds < seconds:
        number += 1
        group = f"bench-{way.__name__}-{number}"
        async with client.consumer(
            STORED_TOPIC, group=group, start="first", pull_batch=PULL_BATCH, prefetch=PREFETCH
        ) as consumer:
            with anyio.fail_after(CONSUME_SECONDS_MAX):
                message = await anext(consumer)
                await message.ack()
                began = clocks()
                await way(consumer, STORED_MESSAGES - 1)
                pace.add(STORED_MESSAGES - 1, began)
    return pace


async def consume_one_by_one(consumer: Consumer[ReceivedMessage], count: int) -> None:
    """Read the body of each message and acknowledge it."""
    size = 0
    async for message in consumer:
        size += len(message.body)
        await message.ack()
        count -= 1
        if not count:
            break


async def consume_batches(consumer: Consumer[ReceivedMessage], count: int) -> None:
    """As :func:`consume_one_by_one`, but in batches."""
    size = 0
    async for batch in consumer.batches(BATCH_MESSAGES):
        for message in batch:
            size += len(message.body)
        await batch.ack()
        count -= len(batch)
        if not count:
            break


async def _together(works: list[Callable[[], Awaitable[None]]]) -> None:
    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(work)

"""The group ``client``: the Python client as an application uses it, here the generator of the load.

One process with asyncio and one producer, 100-byte bodies, asynchronous flush: what ``enqueue`` reaches, 128 tasks that
``send``, and one that sends and waits, beside the raw round trip of the same request on a plain socket.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from figures import Figures
from floods import send_for
from measuring import warm_up
from systems import Setup, start

from gantrymq.client import Producer, connect

if TYPE_CHECKING:
    from living import Sizes
    from measuring import Timing

Tell = Callable[[str], None]
BODY = b"x" * 100
TASKS = 128
TOPIC = "bench-client"
STEP = 100
"""Messages between two looks at the clock."""


def produce_with_client(system: str, timing: Timing, sizes: Sizes, figures: Figures, tell: Tell) -> None:
    """Messages a second for each way to send, and how long one message takes."""
    del sizes
    with start(system, Setup(flush="async")) as running:
        warm_up(running, timing.warm)

        async def measure() -> tuple[float, float, list[float]]:
            async with connect(running.nameserver) as client, client.producer() as producer:
                await client.admin.create_topic(TOPIC, queues=8)
                rates = []
                for load in (enqueue_for, send_from_tasks):
                    await load(producer, timing.settle)
                    rates.append(await load(producer, timing.seconds))
                return rates[0], rates[1], await times_of_sends(producer, timing.seconds)

        enqueued, sent, times = anyio.run(measure)
        raw = sorted(send_for(running.address, timing.seconds))
        times.sort()
    lone, raw_lone = times[len(times) // 2] * 1e6, raw[len(raw) // 2] * 1e6
    tell(
        f"{system:9} Python client: enqueue {enqueued:,.0f}/s, {TASKS} tasks {sent:,.0f}/s, "
        f"send and wait {lone:.0f} us (a plain socket {raw_lone:.0f} us)"
    )
    figures.add("client", "enqueue", "/s", system, enqueued, more_is_better=True)
    figures.add("client", f"send, {TASKS} tasks", "/s", system, sent, more_is_better=True)
    figures.add("client", "p50 of send and wait", "us", system, lone)
    figures.add("client", "p50 of the same on a plain socket", "us", system, raw_lone)


async def enqueue_for(producer: Producer, seconds: float) -> float:
    """Messages a second that were stored, the last flush included."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(STEP):
            await producer.enqueue(TOPIC, BODY)
        count += STEP
    await producer.flush()
    return count / (time.perf_counter() - began)


async def send_from_tasks(producer: Producer, seconds: float) -> float:
    """Messages a second that many tasks get stored."""
    began, count = time.perf_counter(), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await producer.send(TOPIC, BODY)
            count += 1

    await _together([work] * TASKS)
    return count / (time.perf_counter() - began)


async def times_of_sends(producer: Producer, seconds: float) -> list[float]:
    """How long each of some sends took, one after the other, in seconds."""
    until, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < until:
        before = time.perf_counter()
        await producer.send(TOPIC, BODY)
        times.append(time.perf_counter() - before)
    return times


async def _together(works: list[Callable[[], Awaitable[None]]]) -> None:
    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(work)

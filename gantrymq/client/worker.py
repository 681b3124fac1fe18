"""Run a handler for each message of a group: so many at once, retries by the broker, an orderly end at SIGTERM."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from gantrymq.client.consumer import Consumer
from gantrymq.client.errors import ClientClosed, GantryError
from gantrymq.message import ReceivedMessage
from gantrymq.remoting.logs import LibraryLog

Handler = Callable[[ReceivedMessage], Awaitable[Any] | Any]
"""What is done with a message: a coroutine function, or a plain function, which runs in a thread."""

CONCURRENCY: Final = 16
CONCURRENCY_MAX: Final = 1000
DRAIN_SECONDS: Final = 30.0

log = LibraryLog()


async def work(
    consumer: Consumer[ReceivedMessage], handler: Handler, concurrency: int, drain_timeout: float, *, signals: bool
) -> None:
    """Give the consumer's messages to ``handler``, ``concurrency`` at once, until SIGTERM, SIGINT or cancellation.

    Then no further message is taken, and those in work may take ``drain_timeout`` seconds.
    """
    threads = anyio.CapacityLimiter(concurrency)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)

    async def handle(message: ReceivedMessage) -> None:
        try:
            if is_async:
                await handler(message)
            else:
                await anyio.to_thread.run_sync(handler, message, limiter=threads, abandon_on_cancel=True)
        except Exception:
            log.exception("handler_failed", group=consumer.group, topic=message.topic, message_id=message.message_id)
            await _give_back(consumer, message)
        else:
            await message.ack()

    async def take_turns() -> None:
        while not stopped.is_set():
            message: ReceivedMessage | None = None
            with anyio.CancelScope() as waiting:
                waits.add(waiting)
                message = await anext(consumer)
            waits.discard(waiting)
            if message is None:
                return
            await handle(message)

    waits: set[anyio.CancelScope] = set()
    stopped = anyio.Event()
    async with anyio.create_task_group() as all_tasks:

        def stop() -> None:
            stopped.set()
            for waiting in waits:
                waiting.cancel()
            all_tasks.cancel_scope.deadline = anyio.current_time() + drain_timeout

        async with anyio.create_task_group() as watching:
            if signals and threading.current_thread() is threading.main_thread():
                await watching.start(partial(_watch_signals, stop, consumer.group))
            async with anyio.create_task_group() as workers:
                for _ in range(concurrency):
                    workers.start_soon(take_turns)
            watching.cancel_scope.cancel()


async def _watch_signals(stop: Callable[[], None], group: str, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            log.info("worker_draining", group=group, signal=number.name)
            stop()
            return


async def _give_back(consumer: Consumer[ReceivedMessage], message: ReceivedMessage) -> None:
    try:
        await message.retry()
    except ClientClosed:
        raise
    except GantryError as error:
        # it is not done, so the group gets it again from its offset
        log.warning("send_back_failed", group=consumer.group, topic=message.topic, reason=str(error))

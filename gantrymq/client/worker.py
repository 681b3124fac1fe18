"""Run a handler for each message of a group: so many at once, retries by the broker, an orderly end at SIGTERM."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar, cast

import anyio
import anyio.from_thread
from anyio.abc import TaskGroup

from gantrymq.client.batches import MessageBatch
from gantrymq.client.consumer import Consumer
from gantrymq.client.deliveries import DeliveryToThread
from gantrymq.client.deliveries import ReceivedMessage as BlockingMessage
from gantrymq.client.direct import is_direct
from gantrymq.client.errors import ClientClosed, CompressorMissing, DeadLetter, GantryError, RetryLater
from gantrymq.client.options import WorkerSettings
from gantrymq.client.termination import watch_signals
from gantrymq.message import DeliveredRecord, Delivery, ReceivedMessage, V_co
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.tasks import foreign_cancellation_as_error
from gantrymq.remoting.waiting import running_loop

Handler = Callable[[ReceivedMessage], Any] | Callable[[BlockingMessage], Any]
"""Handles a message: a coroutine function, or a plain function, which runs in a thread and gets a message with blocking
calls."""

SEND_BACK_PAUSE_SECONDS: Final = 1.0
"""The wait before the next attempt to return a message to the broker; it doubles each time."""
LONGEST_SEND_BACK_PAUSE_SECONDS: Final = 30.0

R = TypeVar("R", bound=DeliveredRecord)

log: LibraryLog = LibraryLog()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calls of ``function`` are to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is wanted
    )


class MessageInThread(ReceivedMessage[V_co], BlockingMessage[V_co]):
    """The message of a plain handler: its calls block in the handler's thread.

    In the event loop they are coroutines, for a coroutine function within the plain one, whose result it returns.
    """

    __slots__ = ()

    def ack(self) -> Any:
        """As :meth:`ReceivedMessage.ack`."""
        return _finish(super().ack)

    def retry(self, delay_level: int = 0) -> Any:
        """As :meth:`ReceivedMessage.retry`."""
        return _finish(super().retry, delay_level)

    def reply(self, body: bytes) -> Any:
        """As :meth:`ReceivedMessage.reply`."""
        return _finish(super().reply, body)


def _finish(function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Any:
    return anyio.from_thread.run(function, *arguments) if running_loop() is None else function(*arguments)


def message_class(handler: Callable[..., Any]) -> type[ReceivedMessage]:
    """The class of the messages that ``handler`` of the async client takes."""
    return ReceivedMessage if is_async(handler) else MessageInThread


class Worker(Generic[R]):
    """Gives the messages of ``consumer`` to ``handler`` while :meth:`run` runs."""

    def __init__(self, consumer: Consumer[R], handler: Callable[[R], Any], settings: WorkerSettings) -> None:
        """``consumer`` is not started yet. TypeError for a handler that is not a function."""
        if not callable(handler):
            raise TypeError(f"the handler is a function that takes a message, not {handler!r}"[:200])
        self._consumer = consumer
        self._handler = handler
        self._is_async = is_async(handler)
        self._concurrency = settings.concurrency
        self._drain_timeout = settings.drain_timeout
        self._threads = anyio.CapacityLimiter(settings.concurrency)
        self._waits: set[anyio.CancelScope] = set()
        self._in_work = 0
        self._stopped = anyio.Event()
        self._ended = anyio.Event()
        self._ended.set()
        self._tasks: TaskGroup | None = None
        self._failure: GantryError | None = None
        self.left_threads: bool = False
        """Whether :meth:`run` has ended while a handler in a thread still ran."""
        self._outages = Outages(log)

    async def run(self, *, signals: bool | None = False) -> None:
        """Work until :meth:`stop`, or SIGTERM or SIGINT as ``signals`` says; then drain and commit.

        Raises what makes all further work impossible: :class:`AccessDenied`, :class:`ClientClosed`, and
        :class:`CompressorMissing`.
        """
        self._ended = anyio.Event()
        try:
            async with self._consumer, anyio.create_task_group() as watching:
                await watching.start(watch_signals, self.stop_at_signal, signals)
                async with anyio.create_task_group() as self._tasks:
                    if self._stopped.is_set():
                        self._limit_drain()
                    for _ in range(self._concurrency):
                        self._tasks.start_soon(self._take_turns)
                if self._in_work:
                    self.left_threads = not self._is_async
                    log.warning("worker_drain_timed_out", group=self._consumer.group, in_work=self._in_work)
                watching.cancel_scope.cancel()
        finally:
            self._ended.set()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no further message, and let those in work have ``drain_timeout`` seconds. Only in the event loop."""
        if self._stopped.is_set():
            return
        self._limit_drain()  # first: the end is bounded whatever fails below
        self._stopped.set()
        for waiting in self._waits:
            waiting.cancel()

    def stop_at_signal(self, name: str) -> None:
        """:meth:`stop` because of the signal ``name``."""
        log.info("worker_draining", group=self._consumer.group, signal=name, in_work=self._in_work)
        self.stop()

    async def close(self) -> None:
        """:meth:`stop`, and wait for the end of :meth:`run`."""
        self.stop()
        await self._ended.wait()

    def _limit_drain(self) -> None:
        if self._tasks is not None:
            self._tasks.cancel_scope.deadline = anyio.current_time() + self._drain_timeout

    def _fail(self, error: GantryError) -> None:
        self._failure = self._failure or error
        self.stop()

    async def _take_turns(self) -> None:
        while not self._stopped.is_set():
            message: R | None = None
            with anyio.CancelScope() as waiting:
                self._waits.add(waiting)
                try:
                    message = await anext(self._consumer)
                except GantryError as error:
                    self._fail(error)
                finally:
                    self._waits.discard(waiting)
            if message is None:
                return
            self._in_work += 1
            await self._handle(message)
            self._in_work -= 1  # not in a `finally`: what is cancelled counts as left in work

    async def _handle(self, message: R) -> None:
        # a handler may replace it in the message, and a message that is redelivered is the same object
        attempt, given = message.reconsume_times, message.delivery
        # a handler in a thread that sent it back may not have returned yet
        delivery = cast(DeliveryToThread, given).inner if isinstance(given, DeliveryToThread) else given
        assert delivery is not None  # set by the consumer
        about = {"group": self._consumer.group, "topic": message.topic, "message_id": message.message_id}
        try:
            with foreign_cancellation_as_error():
                await self._call_handler(message)
        except RetryLater as wanted:
            log.info("message_deferred", **about, delay_level=wanted.delay_level, reason=str(wanted))
            await self._send_back(message, delivery, wanted.delay_level)
        except DeadLetter as reason:
            log.error("message_rejected", **about, reason=str(reason))
            await self._send_back(message, delivery, -1)
        except Exception as error:
            if isinstance(error, CompressorMissing) and not is_direct(delivery):
                self._fail(error)  # the message is not done: a member with the compressor can handle it
                message.delivery = delivery
                self._consumer._put_back(MessageBatch([message]))
            else:
                log.exception("handler_failed", **about)
                await self._send_back(message, delivery, 0)
        else:
            if message.reconsume_times == attempt:  # else the handler has sent an ordered message back itself
                self._acknowledge(message, delivery)

    async def _call_handler(self, message: R) -> None:
        if self._is_async:
            await self._handler(message)
        else:
            result = await anyio.to_thread.run_sync(self._call, message, limiter=self._threads, abandon_on_cancel=True)
            if inspect.isawaitable(result[0]):
                await result[0]

    def _call(self, message: R) -> tuple[Any]:
        # a plain function may return a coroutine, as lambdas do, which trio does not take from a thread as it is
        return (self._handler(message),)

    def _acknowledge(self, message: R, delivery: Delivery) -> None:
        try:
            delivery.acknowledge(message.queue_offset)
        except ClientClosed as error:
            self._fail(error)

    async def _send_back(self, message: R, delivery: Delivery, delay_level: int, pause: float | None = None) -> None:
        if delivery.dropped and pause is not None:
            # another member gets the queue, and the message with it: an ordered queue waits for that
            if self._consumer.ordered:
                self._consumer._put_back(MessageBatch([message]))
            return
        try:
            await delivery.send_back(message, delay_level)
        except ClientClosed as error:
            self._fail(error)
        except GantryError as error:
            self._outages.warning(
                "send_back_failed", message.broker_name,
                group=self._consumer.group, topic=message.topic, reason=str(error),
            )  # fmt: skip
            if not self._stopped.is_set() and self._tasks is not None:
                # not in this place: the broker may be away for long, and other brokers' messages must not wait
                self._tasks.start_soon(
                    self._send_back_later, message, delivery, delay_level, pause or SEND_BACK_PAUSE_SECONDS
                )
        else:
            self._outages.over("send_back_failed", message.broker_name)

    async def _send_back_later(self, message: R, delivery: Delivery, delay_level: int, pause: float) -> None:
        with anyio.move_on_after(pause):
            await self._stopped.wait()
        await self._send_back(message, delivery, delay_level, min(pause * 2, LONGEST_SEND_BACK_PAUSE_SECONDS))

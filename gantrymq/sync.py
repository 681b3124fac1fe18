"""The client without async: the same objects behind blocking calls, for scripts, notebooks and threads.

An event loop runs in a thread of its own while :func:`connect`'s block lasts, so heartbeats go on whatever the caller
does. Errors are those of ``gantrymq.client``. Any thread may call; a consumer is iterated by one thread at a time.
"""

from __future__ import annotations

import atexit
import ssl
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Generic, Literal, Unpack, overload

import anyio
import attrs
from anyio.from_thread import start_blocking_portal

from gantrymq.client import accumulator, admin, client, consumer, producer, reader, transactions
from gantrymq.client.accumulator import BATCH_BYTES, BUFFER_BYTES
from gantrymq.client.admin import TOPIC_QUEUES
from gantrymq.client.batches import MessageBatch as _AsyncBatch
from gantrymq.client.blocking_lifetime import BlockingLifetime, BlockingMember, opened_in
from gantrymq.client.consumer import BATCH_MESSAGES
from gantrymq.client.deliveries import DeliveryToThread, ReceivedMessage
from gantrymq.client.errors import ClientClosed
from gantrymq.client.groups import GroupLag, OffsetReset
from gantrymq.client.interceptors import Interceptor
from gantrymq.client.lookup import FOREVER
from gantrymq.client.loop import Loop
from gantrymq.client.options import (
    ConsumeOptions,
    ConsumerSettings,
    QueuesChanged,
    ReadOptions,
    Start,
    Topics,
    WorkerSettings,
    WorkOptions,
    lists_options,
)
from gantrymq.client.producer import REPLY_TIMEOUT_SECONDS, SEND_RETRIES, SEND_TIMEOUT_SECONDS, as_message
from gantrymq.client.reader import POLL_MESSAGES
from gantrymq.client.sender import QueueChoice
from gantrymq.client.serializers import DeserializerChoice, SerializerChoice, TypedDeserializer, V
from gantrymq.client.statistics import ConsumerStatistics
from gantrymq.client.termination import run_in_portal
from gantrymq.client.transactions import CHECKS_AT_ONCE
from gantrymq.client.worker import is_async
from gantrymq.message import (
    DeliveredRecord,
    Delivery,
    Message,
    MessageQueue,
    Outcome,
    SendResult,
    SendStatus,
    TransactionResult,
    V_co,
)
from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from gantrymq.remoting.command import Command
from gantrymq.remoting.logs import LibraryLog

_of_parent: list[object] = []
"""Event loops that a forked process has inherited dead; to collect one would mean to wait for its thread."""

log: LibraryLog = LibraryLog()

__all__ = [
    "Admin",
    "Client",
    "Consumer",
    "MessageBatch",
    "PendingSend",
    "Producer",
    "Reader",
    "ReceivedMessage",
    "TransactionalProducer",
    "connect",
]

Local = Callable[[Message, str], Outcome]
"""The local branch of a transaction: given the message and the transaction's id, returns the outcome of the work."""
Handler = Callable[[ReceivedMessage], Any]
"""Handles a message, in a thread."""
Check = Callable[[DeliveredRecord], Outcome]
"""Returns the outcome of an open transaction at a check-back; ``message_id`` is the transaction's id."""


class _DeliveryAcrossThreads(DeliveryToThread):
    # The event loop's own objects must not be touched from here: what is done is handed over at the next call.
    __slots__ = ("_done", "_inner", "_loop")

    def __init__(self, inner: Delivery, done: deque[Callable[[], None]], loop: Loop) -> None:
        self._inner = inner
        self._done = done
        self._loop = loop

    @property
    def inner(self) -> Delivery:
        return self._inner

    @property
    def dropped(self) -> bool:
        return self._inner.dropped

    def acknowledge(self, queue_offset: int) -> None:
        self._loop.ensure_open()
        self._done.append(partial(self._inner.acknowledge, queue_offset))

    async def send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        await self._inner.send_back(record, delay_level)

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        await self._inner.reply(record, body)

    def reply_and_wait(self, record: DeliveredRecord, body: bytes) -> None:
        self._loop.finish(self.reply, record, body)

    def send_back_and_wait(self, record: DeliveredRecord, delay_level: int) -> None:
        self._loop.finish(self.send_back, record, delay_level)


class _DeliveryToWorker(_DeliveryAcrossThreads):
    # A handler runs for long and fetches nothing: what it acknowledges is handed over at once.
    def acknowledge(self, queue_offset: int) -> None:
        self._loop.finish(_as_coroutine(self._inner.acknowledge), queue_offset)


def _for_worker(handler: Handler, loop: Loop) -> Handler:
    def call(message: ReceivedMessage) -> Any:
        inner = message.delivery
        assert inner is not None  # set by the consumer
        if isinstance(inner, _DeliveryToWorker):  # sent back by a handler that runs still
            inner = inner.inner
        message.delivery = across = _DeliveryToWorker(inner, deque(), loop)
        try:
            return handler(message)
        finally:
            if message.delivery is across:  # else another handler has the message, which this one sent back
                message.delivery = inner

    return call


class MessageBatch(list[ReceivedMessage[V_co]], Generic[V_co]):
    """A list of messages, as :class:`gantrymq.MessageBatch`."""

    def __init__(self, inner: _AsyncBatch[ReceivedMessage[V_co]], done: deque[Callable[[], None]], loop: Loop) -> None:
        super().__init__(inner)
        self._inner = inner
        self._done = done
        self._loop = loop

    def ack(self) -> None:
        """As :meth:`gantrymq.MessageBatch.ack`; it takes effect later, see :class:`Consumer`."""
        self._loop.ensure_open()
        self._done.append(self._inner._acknowledge)


class PendingSend:
    """A message that was enqueued, as :class:`gantrymq.PendingSend`."""

    def __init__(self, loop: Loop, inner: accumulator.PendingSend) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def message_id(self) -> str:
        """The client's id of the message."""
        return self._inner.message_id

    @property
    def done(self) -> bool:
        """Whether the message is stored, or has failed."""
        return self._inner.done

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the result and return it, or raise the error of the message.

        TimeoutError after ``timeout`` seconds (None: no limit), when the result may still come.
        """
        return self._inner.result() if self._inner.done else self._loop.call(self._wait, timeout)

    async def _wait(self, timeout: float | None) -> SendResult:
        with anyio.fail_after(timeout):
            return await self._inner


class Producer(BlockingMember):
    """:class:`gantrymq.Producer` with blocking calls."""

    def __init__(self, loop: Loop, inner: producer.Producer, owner: set[BlockingLifetime]) -> None:
        super().__init__(f"producer of group {inner.group}", loop, inner, owner)
        self._inner = inner

    @property
    def group(self) -> str:
        """The group, as brokers know it."""
        return self._inner.group

    def send(
        self,
        message: Message | str,
        body: Any = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | int | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        queue: QueueChoice | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """As :meth:`gantrymq.Producer.send`."""
        send = partial(
            self._inner.send,
            tags=tags,
            keys=keys,
            properties=properties,
            order_key=order_key,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            queue=queue,
            timeout=timeout,
        )
        return self._loop.call(send, message, body)

    def enqueue(
        self,
        message: Message | str,
        body: Any = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | int | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        queue: QueueChoice | None = None,
    ) -> PendingSend:
        """As :meth:`gantrymq.Producer.enqueue`; :meth:`PendingSend.result` waits for the result."""
        enqueue = partial(
            self._inner.enqueue,
            tags=tags,
            keys=keys,
            properties=properties,
            order_key=order_key,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            queue=queue,
        )
        return PendingSend(self._loop, self._loop.call(enqueue, message, body))

    def flush(self) -> None:
        """As :meth:`gantrymq.Producer.flush`."""
        self._loop.call(self._inner.flush)

    def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        """As :meth:`gantrymq.Producer.send_batch`."""
        return self._loop.call(partial(self._inner.send_batch, queue=queue, timeout=timeout), list(messages))

    def send_oneway(
        self,
        message: Message | str,
        body: Any = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | int | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        delay_level: int = 0,
        queue: QueueChoice | None = None,
    ) -> None:
        """As :meth:`gantrymq.Producer.send_oneway`."""
        send = partial(
            self._inner.send_oneway,
            tags=tags,
            keys=keys,
            properties=properties,
            order_key=order_key,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            queue=queue,
        )
        self._loop.call(send, message, body)

    def request(
        self,
        message: Message | str,
        body: Any = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | int | None = None,
        queue: QueueChoice | None = None,
        timeout: float = REPLY_TIMEOUT_SECONDS,
    ) -> DeliveredRecord:
        """As :meth:`gantrymq.Producer.request`."""
        request = partial(
            self._inner.request, tags=tags, keys=keys, properties=properties, order_key=order_key, queue=queue,
            timeout=timeout,
        )  # fmt: skip
        return self._loop.call(request, message, body)

    def recall(self, sent: SendResult | str) -> str:
        """As :meth:`gantrymq.Producer.recall`."""
        return self._loop.call(self._inner.recall, sent)

    def queues(self, topic: str) -> list[MessageQueue]:
        """As :meth:`gantrymq.Producer.queues`."""
        return self._loop.call(self._inner.queues, topic)


class TransactionalProducer(BlockingMember):
    """:class:`gantrymq.TransactionalProducer` with blocking calls."""

    def __init__(
        self,
        loop: Loop,
        inner: transactions.TransactionalProducer,
        local: Local | None,
        owner: set[BlockingLifetime],
    ) -> None:
        super().__init__(f"producer of group {inner.group}", loop, inner, owner)
        self._inner = inner
        self._local = local

    @property
    def group(self) -> str:
        """The group, as brokers know it."""
        return self._inner.group

    def send(
        self,
        message: Message | str,
        body: Any = None,
        *,
        local: Local | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """As :meth:`gantrymq.TransactionalProducer.send`; the local branch runs in the thread that calls."""
        branch = transactions.choose_branch(local, self._local)
        given = as_message(message, body, tags, keys, properties)
        half = self._loop.call(partial(self._inner.send_half, queue=queue, timeout=timeout), given)
        outcome: Outcome = Outcome.ROLLBACK
        error: Exception | None = None
        if half.status is SendStatus.OK:
            try:
                outcome = transactions.checked_outcome(branch(given, half.message_id))
            except Exception as failure:
                outcome, error = Outcome.UNKNOWN, failure
                log.exception("transaction_branch_failed", group=self._inner.group, transaction=half.message_id)
        try:
            self._loop.finish(self._inner.end, given, half, outcome, error)
        except ClientClosed as closed:  # while the branch ran: the broker asks for the outcome
            log.warning(
                "transaction_end_failed", group=self._inner.group, broker=half.queue.broker_name,
                transaction=half.message_id, reason=str(closed),
            )  # fmt: skip
        return TransactionResult(half, outcome, error)


class Consumer(BlockingMember, Generic[V_co]):
    """:class:`gantrymq.Consumer` as a plain iterator, with blocking calls.

    Acknowledgments take effect when the next messages are fetched, at :meth:`commit`, before the group's other members
    get a queue, before ``consume_timeout`` is checked, and when the block ends.
    """

    def __init__(
        self,
        loop: Loop,
        inner: consumer.Consumer[ReceivedMessage[V_co]],
        group: str,
        owner: set[BlockingLifetime],
    ) -> None:
        super().__init__(f"consumer of group {group}", loop, inner, owner)
        self._inner = inner
        # with `ordered` what follows depends on what becomes of the first; with `consume_timeout` the time of a message
        # counts from when it is fetched
        self._at_once = 1 if inner.ordered or inner._is_timed else BATCH_MESSAGES
        self._current: deque[ReceivedMessage[V_co]] = deque()
        self._done: deque[Callable[[], None]] = deque()
        inner._hand_over = self._hand_over

    def _before_end(self) -> None:
        self._loop.finish(self._settle)

    def __iter__(self) -> Iterator[ReceivedMessage[V_co]]:
        return self

    def __next__(self) -> ReceivedMessage[V_co]:
        """The next message, whenever it comes."""
        self._loop.ensure_open()
        current = self._current
        while True:
            while current:
                message = current[0]
                delivery = message.delivery
                # an ordered queue goes to another member only when this message is settled
                if delivery is not None and (self._inner.ordered or not delivery.dropped):
                    del current[0]  # not popleft(): an interrupt after that call would lose the message
                    return message
                del current[0]
            current.extend(self.next_batch(self._at_once))

    def batches(self, max: int = BATCH_MESSAGES) -> Iterator[MessageBatch[V_co]]:
        """As :meth:`gantrymq.Consumer.batches`."""
        consumer.check_batch_max(max)
        return self._batches(max)

    def _batches(self, max: int) -> Iterator[MessageBatch[V_co]]:
        while True:
            yield self.next_batch(max)

    def next_batch(self, max: int = BATCH_MESSAGES, timeout: float | None = None) -> MessageBatch[V_co]:
        """As :meth:`gantrymq.Consumer.next_batch`."""
        return self._loop.call(self._fetch, max, timeout, reclaim=self._put_back)

    @property
    def queues(self) -> list[MessageQueue]:
        """As :attr:`gantrymq.Consumer.queues`."""
        return self._inner.queues

    @property
    def group(self) -> str:
        """The group, as brokers know it."""
        return self._inner.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are consumed."""
        return self._inner.topics

    @property
    def ordered(self) -> bool:
        """As :attr:`gantrymq.Consumer.ordered`."""
        return self._inner.ordered

    def statistics(self) -> ConsumerStatistics:
        """As :meth:`gantrymq.Consumer.statistics`."""
        return self._loop.call(self._statistics)

    def commit(self) -> None:
        """As :meth:`gantrymq.Consumer.commit`."""
        self._loop.call(self._commit)

    async def _settle(self) -> None:
        self._hand_over()

    async def _statistics(self) -> ConsumerStatistics:
        self._hand_over()
        return self._inner.statistics()

    async def _fetch(self, max: int, timeout: float | None) -> MessageBatch[V_co]:
        self._hand_over()
        if batch := self._take_read_ahead(max):
            return batch
        return self._for_thread(await self._inner.next_batch(max, timeout))

    def _take_read_ahead(self, max: int) -> MessageBatch[V_co]:
        """The first messages that were read ahead for the iteration."""
        batch: _AsyncBatch[ReceivedMessage[V_co]] = _AsyncBatch()
        while self._current and len(batch) < max:
            message = self._current.popleft()
            delivery = message.delivery
            if isinstance(delivery, _DeliveryAcrossThreads) and (self._inner.ordered or not delivery.dropped):
                batch._add(delivery.inner, (message,))
        return MessageBatch(batch, self._done, self._loop)

    def _for_thread(self, batch: _AsyncBatch[ReceivedMessage[V_co]]) -> MessageBatch[V_co]:
        if self._inner.ordered:
            # a message that is redelivered is the same object, with what it had in the thread
            for message in batch:
                if isinstance(message.delivery, _DeliveryAcrossThreads):
                    message.delivery = message.delivery.inner
            batch = _AsyncBatch(batch)
        delivery: Delivery | None = None
        across: Delivery | None = None
        for message in batch:
            if message.delivery is not delivery:
                delivery = message.delivery
                across = None if delivery is None else _DeliveryAcrossThreads(delivery, self._done, self._loop)
            message.delivery = across
        return MessageBatch(batch, self._done, self._loop)

    def _put_back(self, batch: MessageBatch[V_co]) -> None:
        for message in batch:
            if isinstance(message.delivery, _DeliveryAcrossThreads):
                message.delivery = message.delivery.inner
        self._inner._put_back(batch._inner)

    async def _commit(self) -> None:
        self._hand_over()
        await self._inner.commit()

    def _hand_over(self) -> None:
        while self._done:
            self._done.popleft()()


class Reader(BlockingMember, Generic[V_co]):
    """:class:`gantrymq.Reader` as a plain iterator, with blocking calls."""

    def __init__(self, loop: Loop, inner: reader.Reader[DeliveredRecord[V_co]], owner: set[BlockingLifetime]) -> None:
        super().__init__("reader", loop, inner, owner)
        self._inner = inner
        self._current: deque[DeliveredRecord[V_co]] = deque()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        return self._inner.topics

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, in order."""
        return self._inner.queues

    def assign(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As :meth:`gantrymq.Reader.assign`."""
        self._return_unread()
        self._loop.call(self._inner.assign, None if queues is None else list(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at the queue offset ``offset`` of ``queue``. ValueError for a negative one."""
        self._return_unread()
        self._loop.call(self._inner.seek, queue, offset)

    def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of these ``queues``, or of all."""
        self._return_unread()
        self._loop.call(self._inner.seek_to_beginning, *queues)

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue at the next message to come of these ``queues``, or of all."""
        self._return_unread()
        self._loop.call(self._inner.seek_to_end, *queues)

    def seek_to_time(self, when: Start, *queues: MessageQueue) -> None:
        """As :meth:`gantrymq.Reader.seek_to_time`: ``when`` is a datetime, or milliseconds since 1970."""
        self._return_unread()
        self._loop.call(self._inner.seek_to_time, when, *queues)

    def pause(self, *queues: MessageQueue) -> None:
        """Return no messages of these ``queues``, or of all, until :meth:`resume`."""
        self._return_unread()
        self._loop.call(_as_coroutine(self._inner.pause), *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with these ``queues``, or with all."""
        self._loop.call(_as_coroutine(self._inner.resume), *queues)

    def poll(self, timeout: float | None = None, max: int = POLL_MESSAGES) -> list[DeliveredRecord[V_co]]:
        """As :meth:`gantrymq.Reader.poll`."""
        self._return_unread()
        return self._loop.call(self._inner.poll, timeout, max, reclaim=self._inner._put_back)

    def __iter__(self) -> Iterator[DeliveredRecord[V_co]]:
        return self

    def __next__(self) -> DeliveredRecord[V_co]:
        """The next message, whenever it comes; with ``until="end"`` the iteration ends there."""
        self._loop.ensure_open()
        if not self._current:
            self._current.extend(self.poll())
            if not self._current:
                raise StopIteration
        message = self._current[0]
        del self._current[0]  # not popleft(): an interrupt after that call would lose the message
        return message

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message of ``queue`` that :meth:`poll` or the iteration returns."""
        self._return_unread()
        return self._loop.call(self._inner.position, queue)

    def begin_offsets(self) -> dict[MessageQueue, int]:
        """Return the queue offset of the oldest message of each queue that is read."""
        return self._loop.call(self._inner.begin_offsets)

    def end_offsets(self) -> dict[MessageQueue, int]:
        """Return the queue offset of the next message to come of each queue that is read."""
        return self._loop.call(self._inner.end_offsets)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group in ``queue``, None without one. ValueError without a group."""
        return self._loop.call(self._inner.committed, queue)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """As :meth:`gantrymq.Reader.commit`."""
        self._return_unread()
        self._loop.call(self._inner.commit, offsets)

    def _return_unread(self) -> None:
        """What was read ahead for the iteration counts as not read: the positions are those of the iteration."""
        if self._current:
            self._loop.call(_as_coroutine(self._inner._put_back), list(self._current))
            self._current.clear()  # not before: an interrupt would lose the messages


def _as_coroutine(function: Callable[..., None]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def call(*arguments: object) -> None:
        function(*arguments)

    return call


class Admin:
    """:class:`gantrymq.client.admin.Admin` with blocking calls."""

    def __init__(self, loop: Loop, inner: admin.Admin) -> None:
        self._loop = loop
        self._inner = inner

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted; the brokers' own are among them."""
        return self._loop.call(self._inner.topics)

    def cluster(self) -> ClusterInfo:
        """Return all clusters and brokers with their addresses."""
        return self._loop.call(self._inner.cluster)

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the nameservers, ``host:port``."""
        return self._inner.nameservers

    def request(self, address: str, command: Command) -> Command:
        """Return the response of the broker or nameserver at ``address`` (``host:port``) to the request ``command``."""
        return self._loop.call(self._inner.request, address, command)

    def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of ``topic``, as a nameserver knows them now."""
        return self._loop.call(self._inner.route, topic)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be read, in order of broker and id."""
        return self._loop.call(self._inner.queues, topic)

    def create_topic(
        self,
        topic: str,
        queues: int = TOPIC_QUEUES,
        *,
        cluster: str | None = None,
        perm: int | None = None,
    ) -> list[str]:
        """As :meth:`gantrymq.client.admin.Admin.create_topic`."""
        return self._loop.call(partial(self._inner.create_topic, cluster=cluster, perm=perm), topic, queues)

    def delete_topic(self, topic: str) -> None:
        """As :meth:`gantrymq.client.admin.Admin.delete_topic`."""
        self._loop.call(self._inner.delete_topic, topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that ``queue`` still has; 0 for one that never had any."""
        return self._loop.call(self._inner.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of ``queue`` will get."""
        return self._loop.call(self._inner.max_offset, queue)

    def search_offset(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message of ``queue`` stored at or after ``timestamp`` (ms since 1970)."""
        return self._loop.call(self._inner.search_offset, queue, timestamp)

    def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of ``group`` in ``queue``; None when the broker has none."""
        return self._loop.call(self._inner.consumer_offset, group, queue)

    def groups(self, *, system: bool = False) -> list[str]:
        """As :meth:`gantrymq.client.admin.Admin.groups`."""
        return self._loop.call(partial(self._inner.groups, system=system))

    def lag(self, group: str, *, times: bool = False) -> GroupLag:
        """As :meth:`gantrymq.client.admin.Admin.lag`."""
        return self._loop.call(partial(self._inner.lag, times=times), group)

    def reset_offsets(
        self, group: str, to: Start, *, topics: str | Iterable[str] | None = None, dry_run: bool = False
    ) -> list[OffsetReset]:
        """As :meth:`gantrymq.client.admin.Admin.reset_offsets`."""
        return self._loop.call(partial(self._inner.reset_offsets, topics=topics, dry_run=dry_run), group, to)

    def find(
        self, topic: str, key: str, *, limit: int = 32, begin: int = 0, end: int = FOREVER
    ) -> list[DeliveredRecord]:
        """As :meth:`gantrymq.client.admin.Admin.find`: ``begin`` and ``end`` are ms since 1970."""
        return self._loop.call(partial(self._inner.find, limit=limit, begin=begin, end=end), topic, key)

    def find_by_id(self, topic: str, message_id: str) -> list[DeliveredRecord]:
        """Return the messages of ``topic`` with this ``message_id``, the producer's or the broker's."""
        return self._loop.call(self._inner.find_by_id, topic, message_id)

    def message_at(self, queue: MessageQueue, offset: int) -> DeliveredRecord | None:
        """Return the message at ``offset`` of ``queue``; None when there is none, or no longer."""
        return self._loop.call(self._inner.message_at, queue, offset)

    def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` as the offset of ``group`` in ``queue``; its running members may overwrite that."""
        self._loop.call(self._inner.set_consumer_offset, group, queue, offset)


class Client(BlockingLifetime):
    """:class:`gantrymq.Client` with blocking calls. Its end closes what was started and not closed."""

    def __init__(self, inner: client.Client, backend: Literal["asyncio", "trio"]) -> None:
        super().__init__("client")
        self._inner = inner
        self._backend = backend
        self._running: Loop | None = None
        self._ends_first: set[BlockingLifetime] = set()

    @contextmanager
    def _open(self) -> Iterator[None]:
        started = start_blocking_portal(self._backend)
        loop = Loop(started.__enter__(), "client")
        try:
            with opened_in(loop, self._inner):
                self._running = loop
                atexit.register(self.close)  # at the end of the interpreter it would wait for a thread that is gone
                try:
                    yield
                finally:
                    atexit.unregister(self.close)
                    try:
                        if not loop.is_foreign:
                            loop.finish(self._inner._close_workers)  # what handlers use must last while they end
                            # those with a block of their own have ended by now
                            for one in list(self._ends_first):
                                one.close()
                    finally:
                        loop.close()
        finally:
            if loop.is_foreign:
                _of_parent.append(started)
            else:
                started.__exit__(*sys.exc_info())

    @property
    def _loop(self) -> Loop:
        if self._running is None:
            raise ClientClosed("the client is not started: use `with`, or call its start() first")
        return self._running

    @cached_property
    def admin(self) -> Admin:
        """The administrative requests of this client."""
        return Admin(self._loop, self._inner.admin)

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._inner.client_id

    def producer(
        self,
        group: str = client.DEFAULT_PRODUCER_GROUP,
        *,
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: int = SEND_RETRIES,
        retry_when_not_stored: bool = False,
        linger: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        serializer: SerializerChoice | None = None,
    ) -> Producer:
        """As :meth:`gantrymq.Client.producer`."""
        loop = self._loop
        opened = self._inner.producer(
            group,
            timeout=timeout,
            retries=retries,
            retry_when_not_stored=retry_when_not_stored,
            linger=linger,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            serializer=serializer,
        )
        return Producer(loop, opened, self._ends_first)

    def transactional_producer(
        self,
        group: str,
        *,
        check: Check,
        local: Local | None = None,
        topics: Iterable[str] = (),
        timeout: float = SEND_TIMEOUT_SECONDS,
        retries: int = SEND_RETRIES,
        checks_at_once: int = CHECKS_AT_ONCE,
        serializer: SerializerChoice | None = None,
    ) -> TransactionalProducer:
        """As :meth:`gantrymq.Client.transactional_producer`.

        ``local`` runs in the thread that sends, ``check`` in threads of its own: what it uses must allow that.
        """
        loop = self._loop
        opened = self._inner.transactional_producer(
            group, check=transactions.in_thread(check, checks_at_once), topics=topics, timeout=timeout,
            retries=retries, checks_at_once=checks_at_once, serializer=serializer,
        )  # fmt: skip
        return TransactionalProducer(loop, opened, local, self._ends_first)

    @overload
    def consumer(
        self, topics: Topics, group: str, *, deserializer: Literal["str"], **options: Unpack[ConsumeOptions]
    ) -> Consumer[str]: ...
    @overload
    def consumer(
        self, topics: Topics, group: str, *, deserializer: TypedDeserializer[V], **options: Unpack[ConsumeOptions]
    ) -> Consumer[V]: ...
    @overload
    def consumer(
        self,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer: ...
    @lists_options
    def consumer(
        self,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Consumer:
        """As :meth:`gantrymq.Client.consumer`; ``on_assigned`` and ``on_revoked`` are called in threads of their own.

        With ``ordered`` the next message of a queue comes only after the acknowledgment has taken effect, that is when
        the one before was acknowledged and the next messages are asked for.
        """
        loop = self._loop
        settings = _in_threads(ConsumerSettings.checked(options, deserializer))
        opened = self._inner.consumer_of(ReceivedMessage, topics, group, settings)
        return Consumer(loop, opened, group, self._ends_first)

    @lists_options
    def run(
        self,
        handler: Handler,
        topics: Topics,
        group: str,
        *,
        deserializer: DeserializerChoice | None = None,
        signals: bool | None = None,
        **options: Unpack[WorkOptions],
    ) -> None:
        """As :meth:`gantrymq.Client.run`; ``handler`` runs in ``concurrency`` threads.

        Where it takes no signals, it ends when another thread, or the application's handler of a signal, closes the
        client, and Ctrl-C cancels it without waiting for handlers.
        TypeError for a coroutine function: :func:`gantrymq.connect` is for these.
        """
        if is_async(handler):
            raise TypeError("the handler is a coroutine function: give a plain one, or use gantrymq.connect")
        loop = self._loop
        settings = WorkerSettings.checked(options, deserializer)
        settings = attrs.evolve(settings, consumer=_in_threads(settings.consumer))
        if not callable(handler):
            raise TypeError(f"the handler is a function that takes a message, not {handler!r}"[:200])
        worker = self._inner._worker_of(ReceivedMessage, _for_worker(handler, loop), topics, group, settings)
        loop.ensure_open()
        run_in_portal(loop.portal, partial(self._inner._run_worker, worker), worker.stop_at_signal, signals=signals)

    @overload
    def reader(
        self, topics: Topics, *, deserializer: Literal["str"], **options: Unpack[ReadOptions]
    ) -> Reader[str]: ...
    @overload
    def reader(
        self, topics: Topics, *, deserializer: TypedDeserializer[V], **options: Unpack[ReadOptions]
    ) -> Reader[V]: ...
    @overload
    def reader(
        self, topics: Topics, *, deserializer: DeserializerChoice | None = None, **options: Unpack[ReadOptions]
    ) -> Reader: ...
    @lists_options
    def reader(
        self, topics: Topics, *, deserializer: DeserializerChoice | None = None, **options: Unpack[ReadOptions]
    ) -> Reader:
        """As :meth:`gantrymq.Client.reader`."""
        loop = self._loop
        opened: reader.Reader[DeliveredRecord] = self._inner.reader(topics, deserializer=deserializer, **options)
        return Reader(loop, opened, self._ends_first)


def _in_threads(settings: ConsumerSettings) -> ConsumerSettings:
    """The same, with the functions of users in threads."""
    on_assigned, on_revoked = _in_thread(settings.on_assigned), _in_thread(settings.on_revoked)
    return attrs.evolve(settings, on_assigned=on_assigned, on_revoked=on_revoked)


def _in_thread(changed: QueuesChanged | None) -> QueuesChanged | None:
    if changed is None:
        return None

    async def run(queues: Sequence[MessageQueue]) -> None:
        await anyio.to_thread.run_sync(changed, queues)

    return run


def connect(
    nameservers: str | Sequence[str] | None = None,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: bool | ssl.SSLContext | Callable[[], ssl.SSLContext] = False,
    unit_name: str | None = None,
    namespace: str | None = None,
    namespace_v2: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    trace: bool | str = False,
    backend: Literal["asyncio", "trio"] = "asyncio",
) -> Client:
    """As :func:`gantrymq.connect`, for code without async. ``backend`` is the event loop that runs in the thread."""
    inner = client.connect(
        nameservers, access_key=access_key, secret_key=secret_key, security_token=security_token, tls=tls,
        unit_name=unit_name, namespace=namespace, namespace_v2=namespace_v2, interceptors=interceptors, trace=trace,
    )  # fmt: skip
    return Client(inner, backend)

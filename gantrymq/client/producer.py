"""Send messages as a member of a producer group.

Source of the defaults: RocketMQ 4.9.7 ``DefaultMQProducer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict
from uuid import uuid4

import anyio

from gantrymq.client.accumulator import Accumulator, PendingSend
from gantrymq.client.checks import (
    BODY_MAX_BYTES,
    check_body,
    check_group,
    check_message,
    check_sendable_topic,
    encode_message_properties,
)
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.errors import GantryError, InvalidMessage, UnsupportedByBroker
from gantrymq.client.gathering import Gathering
from gantrymq.client.lifetime import Lifetime
from gantrymq.client.outgoing import (
    COMPRESS_FROM_BYTES,
    can_be_gathered,
    compress,
    encode_plain_row,
    encode_row,
    has_times,
    prepare,
    prepare_batches,
    prepare_plain,
)
from gantrymq.client.sender import QueueChoice, Sender, choose_queue
from gantrymq.message import DeliveredRecord, Message, MessageQueue, SendResult
from gantrymq.remoting.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from gantrymq.remoting.recall_handles import decode_handle

SEND_TIMEOUT_SECONDS: Final = 3.0
SEND_RETRIES: Final = 2
REPLY_TIMEOUT_SECONDS: Final = 3.0
"""How long a request waits for its reply unless told otherwise; RocketMQ's producers must always say."""
HEARTBEAT_WAIT_SECONDS: Final = 1.0
"""The longest time that a request waits until all brokers have had a heartbeat. It never waits longer than half of its
remaining time."""


class Producer(Lifetime):
    """Sends messages as a member of a producer group. Many tasks may send at once: their messages share connections."""

    def __init__(self, cluster: Cluster, sender: Sender, accumulator: Accumulator) -> None:
        super().__init__(f"producer of group {sender.group}")
        self.group: str = sender.group
        """The producer group, as brokers know it: with the client's namespace."""
        self._cluster = cluster
        self._sender = sender
        self._accumulator = accumulator
        self._gathering = Gathering(sender)
        self._closed = True
        self._announced: dict[str, anyio.Event] = {}
        """By topics with requests: set when the brokers have had a heartbeat, so that they can pass on replies."""

    async def send(
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
        """Send one message, and wait until a broker has stored it.

        ``message`` is a :class:`Message`, or a topic; then ``body`` is the body and ``tags``, ``keys``, ``properties``,
        ``order_key``, ``delay``, ``deliver_at`` and ``delay_level`` are those of a :class:`Message`.

        Queues take turns over all brokers; a failed attempt is repeated on another broker. With ``queue`` (a queue of
        the same topic, its place among :meth:`queues`, or a function that picks one of them) or ``order_key`` (equal
        keys go to one queue) one attempt reaches a broker. ``timeout`` (seconds) replaces the producer's; it begins
        when the producer has fewer than 1,024 sends, with 8 MiB of bodies, in flight.

        Raises :class:`InvalidMessage` and :class:`InvalidName` before anything is sent, :class:`NoRoute`,
        :class:`SendTimeout`, :class:`UnsupportedByBroker` (for ``delay`` and ``deliver_at``), and after the last
        attempt its :class:`BrokerError` or :class:`ConnectError`.
        """
        self._ensure_open()
        if (
            type(message) is str
            and type(body) is bytes
            and tags is None
            and keys == ()
            and not (properties or order_key is not None or delay or deliver_at or delay_level)
        ):
            check_sendable_topic(message)
            check_body(body)
            key = self._cluster.unique_keys.next()
            if queue is None and len(body) < COMPRESS_FROM_BYTES and not self._sender.window.empty:
                self._cluster.connections.loop.ensure()
                return await self._gathering.send(message, encode_plain_row(body, key), key, timeout)
            outgoing = prepare_plain(message, body, key)
            if len(body) >= COMPRESS_FROM_BYTES:
                await compress(outgoing)
        else:
            given = as_message(message, body, tags, keys, properties, order_key, delay, deliver_at, delay_level)
            outgoing = await prepare(given, self._cluster.unique_keys.next)
            queue = choose_queue(queue, given.order_key)
            if queue is None and can_be_gathered(given, outgoing) and not self._sender.window.empty:
                row = encode_row(outgoing.body, outgoing.properties, outgoing.flag)
                self._cluster.connections.loop.ensure()
                return await self._gathering.send(outgoing.topic, row, outgoing.keys[0], timeout)
        return (await self._sender.deliver(outgoing, queue, timeout)).result(0)

    async def enqueue(
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
        """Put one message into the buffer, from which it is sent in a batch with others; ``await`` what is returned
        for its :class:`SendResult`. The arguments are those of :meth:`send`.

        Waits only while the buffer is full, and for the route of a topic that is new. Each queue gets its messages in
        the order in which they were enqueued, since its next batch leaves when the one before it was answered. A batch
        that fails is sent again until the producer's timeout, which begins with its first attempt: to the same queue
        where a message has a ``queue``, else to another broker if there is one.

        Raises :class:`InvalidMessage`, :class:`InvalidName`, :class:`NoRoute` and :class:`SendTimeout` (no nameserver)
        at once; what else :meth:`send` raises comes from the result.
        """
        cluster = self._cluster
        if self._closed or not cluster.usable:
            self._ensure_open()
        key = cluster.unique_keys.next()
        choice = queue
        if (
            type(message) is str
            and type(body) is bytes
            and tags is None
            and keys == ()
            and not (properties or order_key is not None or delay or deliver_at or delay_level)
        ):
            if 0 < len(body) <= BODY_MAX_BYTES:
                row = encode_plain_row(body, key)
                # a topic that has an open batch was checked with its first message
                if queue is None and (pending := self._accumulator.add_at_once(message, row, key)) is not None:
                    return pending
            else:
                check_body(body)
            check_sendable_topic(message)
            topic, alone = message, False
        else:
            given = as_message(message, body, tags, keys, properties, order_key, delay, deliver_at, delay_level)
            check_message(given)
            choice = choose_queue(queue, given.order_key)
            topic = given.topic
            text = encode_message_properties(given, key)
            alone = bool(given.delay_level) or has_times(text)
            row = encode_row(bytes(given.body), text, given.flag)
        queues = self._cluster.routes.known_publish_queues(topic)
        if queues is None:
            queues = await self._sender.queues_within(topic, self._sender.timeout)
        target = None if choice is None else self._sender.pick(choice, queues)
        if not self._accumulator.take_room(len(row)):
            await self._accumulator.room(len(row))
        return self._accumulator.add(topic, row, key, target, queues, alone=alone)

    async def flush(self) -> None:
        """Return when all messages that were enqueued before are stored or have failed; each result says which."""
        self._ensure_open()
        self._cluster.connections.loop.ensure()
        await self._accumulator.flush()

    async def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, one behind the other in one queue, or none.

        More than 4 MiB take several requests, one after the other to the same queue; where one fails, a note of the
        error says how many messages the ones before it have stored. ``queue`` is that of :meth:`send`, ``timeout``
        (seconds) bounds each request. Results are in the messages' order.

        Raises what :meth:`send` raises; :class:`InvalidMessage` also for no ``messages``, several topics, several order
        keys, and a message with a later time.
        """
        self._ensure_open()
        given = [as_message(message, None) for message in messages]
        requests = prepare_batches(given, self._cluster.unique_keys.next)
        choice = choose_queue(queue, given[0].order_key)
        results: list[SendResult] = []
        for request in requests:
            try:
                results += (await self._sender.deliver(request, choice, timeout)).results()
            except GantryError as error:
                if results:
                    error.add_note(f"the first {len(results)} of {len(given)} messages are stored")
                raise
            choice = results[0].queue
        return results

    async def request(
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
        """Send a message and return the reply of the consumer that handles it: its ``body`` and ``properties``.

        ``timeout`` (seconds) bounds sending and waiting; the other arguments are those of :meth:`send`. The consumer
        replies with :meth:`ReceivedMessage.reply`, or as RocketMQ's clients do. Raises :class:`ReplyTimeout`, and what
        :meth:`send` raises.
        """
        self._ensure_open()
        given = as_message(message, body, tags, keys, properties, order_key)
        return await self._request(given, queue, timeout, lambda _: None)

    async def _request(
        self, given: Message, queue: QueueChoice | None, timeout: float, on_stored: Callable[[SendResult], None]
    ) -> DeliveredRecord:
        """:meth:`request`, which calls ``on_stored`` when a broker has the message."""
        correlation_id = str(uuid4())
        added = {
            CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: self._cluster.client_id,
            TTL: str(max(1, round(timeout * 1000))),
        }  # fmt: skip
        outgoing = await prepare(given, self._cluster.unique_keys.next, added)
        deadline = anyio.current_time() + timeout
        await self._sender.queues_within(given.topic, timeout)
        await self._announce(given.topic, (deadline - anyio.current_time()) / 2)
        pending = self._cluster.replies.expect(correlation_id)
        try:
            choice = choose_queue(queue, given.order_key)
            stored = await self._sender.deliver(outgoing, choice, max(0.0, deadline - anyio.current_time()))
            on_stored(stored.result(0))
            what = f"the request to {given.topic} within {timeout:g} s"
            return await pending.wait(deadline - anyio.current_time(), what)
        finally:
            pending.close()

    async def _announce(self, topic: str, limit: float) -> None:
        """Send all brokers a heartbeat before the first request to ``topic``: the reply may come through any of them.

        A broker that does not answer must not keep a request to another one from being sent, so the wait is short.
        """
        announced = self._announced.get(topic)
        if announced is None:
            announced = self._announced[topic] = anyio.Event()
            self._cluster.start_soon(self._send_heartbeats, announced)
        with anyio.move_on_after(min(HEARTBEAT_WAIT_SECONDS, limit)):
            await announced.wait()

    async def _send_heartbeats(self, sent: anyio.Event) -> None:
        await self._cluster.heartbeat()
        sent.set()

    async def recall(self, sent: SendResult | str) -> str:
        """Recall a message with ``delay`` or ``deliver_at`` that waits for its time.

        ``sent`` is its result or its recall handle. Returns the message's id. The broker does not say whether the
        message was still waiting. Raises :class:`UnsupportedByBroker` where no recall is possible,
        :class:`InvalidMessage` for a text that is not a handle, :class:`NoRoute`, :class:`SendTimeout` (no nameserver),
        :class:`BrokerError`, and :class:`ConnectError`.
        """
        self._ensure_open()
        handle = sent if isinstance(sent, str) else sent.recall_handle
        if handle is None:
            raise UnsupportedByBroker(
                "the broker gave no handle to recall the message by: it has no time of its own (delay, deliver_at), or "
                "the broker is older than RocketMQ 5.3"
            )
        try:
            parts = decode_handle(handle)
        except ValueError as error:
            raise InvalidMessage(f"{handle[:80]!r} is not a recall handle: {error}") from None
        await self._sender.queues_within(parts.topic, self._sender.timeout)
        message_id, region = await self._sender.recall(parts.topic, parts.broker, handle)
        self._recalled(parts.topic, parts.unique_key, region)
        return message_id

    def _recalled(self, topic: str, message_id: str, region: str | None) -> None:
        """A message was recalled. Producers with interceptors have a use for that."""

    async def send_oneway(
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
        """Send one message without waiting for an answer: it may get lost without an error.

        The arguments are those of :meth:`send`. Raises :class:`InvalidMessage`, :class:`InvalidName`,
        :class:`NoRoute`, :class:`UnsupportedByBroker`, and :class:`ConnectError` when there is no connection.
        """
        self._ensure_open()
        given = as_message(message, body, tags, keys, properties, order_key, delay, deliver_at, delay_level)
        outgoing = await prepare(given, self._cluster.unique_keys.next)
        await self._sender.send_oneway(outgoing, choose_queue(queue, given.order_key))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of ``topic`` can go to, in order of broker and id.

        Raises :class:`NoRoute`, :class:`ConnectError`.
        """
        self._ensure_open()
        return list(await self._sender.queues(topic))

    async def _finish(self) -> None:
        """Send what is in the buffer; from now on every use raises :class:`ClientClosed`.

        What cannot be stored fails, after the producer's timeout at the latest; when cancelled, after three seconds.
        """
        self._closed = True
        try:
            await self._accumulator.flush()
        except BaseException:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await self._accumulator.flush()
            raise
        finally:
            self._accumulator.close()
            self._gathering.close()

    def _ensure_open(self) -> None:
        if self._closed or not self._cluster.usable:
            self._cluster.ensure_open()
            raise self._closed_error()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """It is a member of its group, as brokers see it, for the length of the block."""
        self._cluster.ensure_open()
        check_group(self.group)
        self._cluster.join_as_producer(self.group)
        self._closed = False
        try:
            yield
        finally:
            try:
                await self._finish()
            finally:
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._cluster.leave_as_producer(self.group)


class MessageParts(TypedDict, total=False):
    """The parts of a message that a send takes by keyword."""

    tags: str | None
    keys: str | Iterable[str]
    properties: Mapping[str, str] | None
    order_key: str | int | None
    delay: timedelta | float | None
    deliver_at: datetime | None
    delay_level: int


def as_message(
    message: Message | str,
    body: Any,
    tags: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    order_key: str | int | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    delay_level: int = 0,
) -> Message:
    """The message that a send was given, whole or in parts; :class:`InvalidMessage` for neither or both."""
    if not isinstance(message, str | Message):
        raise InvalidMessage(f"a send takes a topic and a body, or a Message, not {type(message).__name__}")
    if isinstance(message, str):
        if body is None:
            raise InvalidMessage(f"a message to {message} needs a body")
        return Message(
            message, body, tags, keys, properties or {}, delay_level=delay_level, order_key=order_key, delay=delay,
            deliver_at=deliver_at,
        )  # fmt: skip
    if (
        keys
        or properties
        or delay_level
        or any(part is not None for part in (body, tags, order_key, delay, deliver_at))
    ):
        raise InvalidMessage("give either a Message, or a topic with body and options of its own, not both")
    return message

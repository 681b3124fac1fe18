"""Send messages as a member of a producer group.

Source of the defaults: RocketMQ 4.9.7 ``DefaultMQProducer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio

from gantrymq.client.accumulator import Accumulator, PendingSend
from gantrymq.client.checks import (
    check_body,
    check_group,
    check_message,
    check_sendable_topic,
    encode_message_properties,
)
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.errors import ClientClosed, InvalidMessage
from gantrymq.client.outgoing import encode_row, prepare, prepare_batch
from gantrymq.client.sender import QueueChoice, Sender, pick
from gantrymq.message import Message, MessageQueue, SendResult
from gantrymq.remoting.properties import NAME_SEPARATOR, UNIQ_KEY

SEND_TIMEOUT_SECONDS: Final = 3.0
SEND_RETRIES: Final = 2
_ONLY_KEY: Final = UNIQ_KEY + NAME_SEPARATOR


class Producer:
    """Sends messages as a member of ``group``. Many tasks may send at once: their messages share the connections."""

    def __init__(self, cluster: Cluster, sender: Sender, accumulator: Accumulator) -> None:
        self.group = sender.group
        self._cluster = cluster
        self._sender = sender
        self._accumulator = accumulator
        self._closed = False

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message, given whole or as topic and body, and wait until a broker has it.

        Queues take turns over all brokers; a failed attempt is repeated on another broker. With ``queue`` there is one
        attempt. Raises :class:`InvalidMessage` and :class:`InvalidName` before anything is sent, :class:`NoRoute`,
        :class:`SendTimeout`, and after the last attempt its :class:`BrokerError` or :class:`ConnectError`.
        """
        self._ensure_open()
        outgoing = await prepare(as_message(message, body, tags, keys, properties), self._cluster.unique_keys.next)
        return (await self._sender.deliver(outgoing, queue, timeout)).result(0)

    async def enqueue(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice | None = None,
    ) -> PendingSend:
        """Put one message into the buffer, from which it is sent in a batch with others; ``await`` what is returned
        for its :class:`SendResult`.

        Waits only while the buffer is full, and for the route of a topic that is new. Each queue gets its messages in
        the order in which they were enqueued, since its next batch leaves when the one before it was answered. A batch
        that fails is sent again until the producer's timeout, which begins with its first attempt: to the same queue
        where a message has a ``queue``, else to another broker if there is one.

        Raises :class:`InvalidMessage`, :class:`InvalidName`, :class:`NoRoute` and :class:`SendTimeout` (no nameserver)
        at once; what else :meth:`send` raises comes from the result.
        """
        self._ensure_open()
        key = self._cluster.unique_keys.next()
        if type(message) is str and type(body) is bytes and not (tags or keys or properties):
            check_sendable_topic(message)
            check_body(body)
            topic, alone = message, False
            row = encode_row(body, _ONLY_KEY + key, 0)
        else:
            given = as_message(message, body, tags, keys, properties)
            check_message(given)
            topic, alone = given.topic, bool(given.delay_level)
            row = encode_row(bytes(given.body), encode_message_properties(given, key), given.flag)
        queues = self._cluster.routes.known_publish_queues(topic)
        if queues is None:
            queues = await self._sender.queues_within(topic, self._sender.timeout)
        target = None if queue is None else pick(queue, queues)
        await self._accumulator.room(len(row))
        return self._accumulator.add(topic, row, key, target, queues, alone=alone)

    async def flush(self) -> None:
        """Return when all messages that were enqueued before are stored, or have failed: their results tell."""
        self._ensure_open()
        await self._accumulator.flush()

    async def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, one behind the other in one queue, or none.

        Together they may have 4 MiB. Results are in the messages' order; errors as in :meth:`send`.
        """
        self._ensure_open()
        outgoing = prepare_batch(list(messages), self._cluster.unique_keys.next)
        return (await self._sender.deliver(outgoing, queue, timeout)).results()

    async def send_oneway(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: QueueChoice | None = None,
    ) -> None:
        """Send one message without waiting for an answer: it may get lost, and nobody will know."""
        self._ensure_open()
        outgoing = await prepare(as_message(message, body, tags, keys, properties), self._cluster.unique_keys.next)
        await self._sender.send_oneway(outgoing, queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of ``topic`` can go to, in order of broker and id."""
        self._ensure_open()
        return list(await self._sender.queues(topic))

    async def aclose(self) -> None:
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

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise ClientClosed(f"the producer of group {self.group} is closed: its `async with` block has ended")


@asynccontextmanager
async def open_producer(cluster: Cluster, sender: Sender, accumulator: Accumulator) -> AsyncIterator[Producer]:
    """A :class:`Producer` that is a member of its group, as brokers see it, for the length of the block."""
    cluster.ensure_open()
    check_group(sender.group)
    producer = Producer(cluster, sender, accumulator)
    cluster.join_as_producer(sender.group)
    try:
        yield producer
    finally:
        try:
            await producer.aclose()
        finally:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await cluster.leave_as_producer(sender.group)


def as_message(
    message: Message | str,
    body: bytes | None,
    tags: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
) -> Message:
    """The message that a send was given, whole or in parts; :class:`InvalidMessage` for neither or both."""
    if not isinstance(message, str | Message):
        raise InvalidMessage(f"a send takes a topic and a body, or a Message, not {type(message).__name__}")
    if isinstance(message, str):
        if body is None:
            raise InvalidMessage(f"a message to {message} needs a body")
        return Message(message, body, tags, keys, properties or {})
    if body is not None or tags is not None or keys or properties:
        raise InvalidMessage("give either a Message, or a topic with body, tags, keys and properties, not both")
    return message

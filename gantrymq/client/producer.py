"""Send messages as a member of a producer group.

Source of the defaults: RocketMQ 4.9.7 ``DefaultMQProducer``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio

from gantrymq.client.checks import check_group
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.errors import ClientClosed, InvalidMessage
from gantrymq.client.outgoing import prepare, prepare_batch
from gantrymq.client.sender import QueueChoice, Sender
from gantrymq.message import Message, MessageQueue, SendResult

SEND_TIMEOUT_SECONDS: Final = 3.0
SEND_RETRIES: Final = 2


class Producer:
    """Sends messages as a member of ``group``. Many tasks may send at once: their messages share the connections."""

    def __init__(self, cluster: Cluster, group: str, timeout: float, retries: int) -> None:
        self.group = group
        self._cluster = cluster
        self._sender = Sender(cluster, group, timeout, retries)
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
        return (await self._sender.deliver(outgoing, queue, timeout))[0]

    async def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, one behind the other in one queue, or none.

        Together they may have 4 MiB. Results are in the messages' order; errors as in :meth:`send`.
        """
        self._ensure_open()
        outgoing = prepare_batch(list(messages), self._cluster.unique_keys.next)
        return await self._sender.deliver(outgoing, queue, timeout)

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

    def close(self) -> None:
        """From now on every use raises :class:`ClientClosed`."""
        self._closed = True

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise ClientClosed(f"the producer of group {self.group} is closed: its `async with` block has ended")


@asynccontextmanager
async def open_producer(cluster: Cluster, group: str, *, timeout: float, retries: int) -> AsyncIterator[Producer]:
    """A :class:`Producer` that is a member of its group, as brokers see it, for the length of the block."""
    cluster.ensure_open()
    check_group(group)
    producer = Producer(cluster, group, timeout, retries)
    cluster.join_as_producer(group)
    try:
        yield producer
    finally:
        producer.close()
        with anyio.move_on_after(LEAVE_SECONDS, shield=True):
            await cluster.leave_as_producer(group)


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

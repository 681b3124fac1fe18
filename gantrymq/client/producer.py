"""Send messages: choose a queue, send, and on some failures send again through another broker.

Source of the rules: RocketMQ 4.9.7 ``DefaultMQProducerImpl.sendDefaultImpl``, ``DefaultMQProducer``.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio

from gantrymq.client.checks import check_group
from gantrymq.client.cluster import LEAVE_SECONDS, Cluster
from gantrymq.client.errors import BrokerError, ClientClosed, ConnectError, InvalidMessage, NoRoute, SendTimeout
from gantrymq.client.outgoing import Outgoing, prepare, prepare_batch
from gantrymq.message import Message, MessageQueue, SendResult
from gantrymq.remoting.channel import Channel
from gantrymq.remoting.logs import LibraryLog

SEND_TIMEOUT_SECONDS: Final = 3.0
SEND_RETRIES: Final = 2

RETRIED_CODES: Final = frozenset({1, 14, 16, 17, 204, 205})
"""Answers after which another broker is asked: SYSTEM_ERROR, SERVICE_NOT_AVAILABLE, NO_PERMISSION, TOPIC_NOT_EXIST,
NO_BUYER_ID, NOT_IN_CURRENT_UNIT (``retryResponseCodes``)."""

QueueChoice = MessageQueue | Callable[[Sequence[MessageQueue]], MessageQueue]
"""A queue, or a function that picks one of a topic's queues, which come in order of broker and queue id."""

log = LibraryLog()


class Producer:
    """Sends messages as a member of ``group``. Many tasks may send at once: their messages share the connections."""

    def __init__(self, cluster: Cluster, group: str, timeout: float, retries: int) -> None:
        self.group = group
        self._cluster = cluster
        self._timeout = timeout
        self._attempts = 1 + retries
        self._turns: dict[str, itertools.count[int]] = {}
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
        outgoing = await prepare(_as_message(message, body, tags, keys, properties), self._cluster.unique_keys.next)
        return (await self._deliver(outgoing, queue, timeout))[0]

    async def send_batch(
        self, messages: Iterable[Message], *, queue: QueueChoice | None = None, timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request: all are stored, one behind the other in one queue, or none.

        Together they may have 4 MiB. Results are in the messages' order; errors as in :meth:`send`.
        """
        self._ensure_open()
        outgoing = prepare_batch(list(messages), self._cluster.unique_keys.next)
        return await self._deliver(outgoing, queue, timeout)

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
        outgoing = await prepare(_as_message(message, body, tags, keys, properties), self._cluster.unique_keys.next)
        queues = await self._queues(outgoing.topic)
        target = self._next_queue(outgoing.topic, queues, None) if queue is None else _pick(queue, queues)
        channel = await self._cluster.broker(self._cluster.routes.master(target))
        await channel.send_oneway(outgoing.command(self.group, target))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of ``topic`` can go to, in order of broker and id."""
        self._ensure_open()
        return list(await self._queues(topic))

    def close(self) -> None:
        """From now on every use raises :class:`ClientClosed`."""
        self._closed = True

    def _ensure_open(self) -> None:
        self._cluster.ensure_open()
        if self._closed:
            raise ClientClosed(f"the producer of group {self.group} is closed: its `async with` block has ended")

    async def _deliver(self, outgoing: Outgoing, choice: QueueChoice | None, timeout: float | None) -> list[SendResult]:
        limit = self._timeout if timeout is None else timeout
        deadline = anyio.current_time() + limit
        queues = self._cluster.routes.known_publish_queues(outgoing.topic)
        if queues is None:
            try:
                with anyio.fail_after(limit):
                    queues = await self._queues(outgoing.topic)
            except TimeoutError:
                raise SendTimeout(f"no nameserver told the route of {outgoing.topic} within {limit:g} s") from None
        failure: Exception | None = None
        target: MessageQueue | None = None
        for _ in range(self._attempts if choice is None else 1):
            target = self._next_queue(outgoing.topic, queues, target) if choice is None else _pick(choice, queues)
            try:
                channel = await self._channel(target, deadline)
                answer = await channel.call(outgoing.command(self.group, target), deadline - anyio.current_time())
                return outgoing.results(target, answer, channel.address)
            except BrokerError as error:
                failure = error
                if error.code not in RETRIED_CODES:
                    raise
            except (ConnectError, NoRoute, TimeoutError) as error:
                failure = error
            if anyio.current_time() >= deadline:
                raise SendTimeout(
                    f"broker {target.broker_name} acknowledged nothing sent to {outgoing.topic} within {limit:g} s: "
                    f"it may be stored all the same ({failure or 'no connection came about'})"
                ) from failure
            log.warning("send_failed", topic=outgoing.topic, broker=target.broker_name, reason=str(failure))
        assert failure is not None  # each turn of the loop returns, raises or fails
        raise failure

    async def _channel(self, queue: MessageQueue, deadline: float) -> Channel:
        address = self._cluster.routes.master(queue)
        channel = self._cluster.connections.open_one(address)
        if channel is None:
            with anyio.fail_after(deadline - anyio.current_time()):
                channel = await self._cluster.broker(address)
        return channel

    async def _queues(self, topic: str) -> Sequence[MessageQueue]:
        queues = await self._cluster.routes.publish_queues(topic)
        if not queues:
            raise NoRoute(f"topic {topic} has no writable queue: no master that has it is up, or it is read-only")
        return queues

    def _next_queue(self, topic: str, queues: Sequence[MessageQueue], last: MessageQueue | None) -> MessageQueue:
        turns = self._turns.get(topic)
        if turns is None:
            # not all producers begin with the same queue
            turns = self._turns[topic] = itertools.count(secrets.randbelow(len(queues)))
        queue = queues[next(turns) % len(queues)]
        if last is not None:
            for _ in queues:
                if queue.broker_name != last.broker_name:
                    break
                queue = queues[next(turns) % len(queues)]
        return queue


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


def _as_message(
    message: Message | str,
    body: bytes | None,
    tags: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
) -> Message:
    if isinstance(message, str):
        if body is None:
            raise InvalidMessage(f"a message to {message} needs a body")
        return Message(message, body, tags, keys, properties or {})
    if body is not None or tags is not None or keys or properties:
        raise InvalidMessage("give either a Message, or a topic with body, tags, keys and properties, not both")
    return message


def _pick(choice: QueueChoice, queues: Sequence[MessageQueue]) -> MessageQueue:
    return choice if isinstance(choice, MessageQueue) else choice(queues)

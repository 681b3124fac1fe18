"""Sends messages that are encoded already, many in one call, as Spark's sink does."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from gantrymq.client.accumulator import BATCH_BYTES, Batch
from gantrymq.client.checks import check_sendable_topic
from gantrymq.client.producer import Producer
from gantrymq.message import MessageQueue

__all__ = ["BATCH_BYTES", "Batch", "RowSender"]


class RowSender:
    """Puts encoded messages into the buffer of a producer, beside those that it enqueues; interceptors do not see
    them."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def new_keys(self, count: int) -> list[str]:
        """Unique keys for ``count`` messages, at most 8,192."""
        return self._producer._cluster.unique_keys.next_many(count)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages of ``topic`` can go to. Raises as :meth:`send`."""
        self._producer._ensure_open()
        check_sendable_topic(topic)
        sender = self._producer._sender
        queues = self._producer._cluster.routes.known_publish_queues(topic)
        return await sender.queues_within(topic, sender.timeout) if queues is None else queues

    async def send(self, topic: str, rows: bytes, keys: list[str], queue: MessageQueue | None = None) -> Batch:
        """Send messages to ``topic`` in one batch, to any queue without a ``queue``: ``rows`` are in the form of
        ``outgoing.encode_row``, one behind another, each with its unique key of ``keys``.

        Waits while the buffer is full. Each queue gets messages in the order in which they were sent to it. The batch
        has the outcome; retries are those of :meth:`Producer.enqueue`, as is the splitting of a batch of which a broker
        refuses one message. Raises :class:`InvalidName`, :class:`InvalidMessage` for a ``queue`` of another topic,
        :class:`NoRoute`, :class:`SendTimeout` and :class:`ClientClosed`.
        """
        queues = await self.queues(topic)
        if queue is not None:
            self._producer._sender.check_topic_of(queue, topic)
        batch = await self._producer._accumulator.add_rows(topic, rows, keys, queue, queues)
        await anyio.lowlevel.checkpoint()  # let it leave before the caller encodes more
        return batch

"""Sends the rows of a Spark task as messages. The columns say what a message has; the options, where it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs
import trio

from gantrymq.client import PendingSend, Producer, connect
from gantrymq.client.errors import GantryError
from gantrymq.client.row_sender import BATCH_BYTES, Batch, RowSender
from gantrymq.client.sender import java_hash_of, queue_of_key
from gantrymq.message import MessageQueue, SendStatus
from gantrymq.spark.errors import SendFailed, SparkError, WrongOption
from gantrymq.spark.options import SinkOptions
from gantrymq.spark.rows import DEDUP_PROPERTY, MessageColumns, make_encoder

if TYPE_CHECKING:
    import pyarrow as pa

SINK_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "delay": ("tinyint", "smallint", "int", "bigint", "float", "double"),
    "deliver_at": ("timestamp",),
    "order_key": ("string", "tinyint", "smallint", "int", "bigint"),
    "dedup_key": ("string",),
}
"""The columns of a frame that is written, each with its types in Spark."""
PART_ROWS = 8192
"""The most rows that are encoded with unique keys of the same millisecond."""
BLOCK_ROWS = 1024
"""The rows of a task that follow each other and go to one queue with ``dedupKeys``: enough for large batches."""


def check_sink_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Raise :class:`WrongOption` unless columns of these ``types`` can be sent with ``options``."""
    for name, kind in types.items():
        allowed = SINK_COLUMNS.get(name)
        if allowed is None:
            raise WrongOption(f"column {name!r} is not a part of a message; there are {', '.join(SINK_COLUMNS)}")
        if kind not in allowed:
            raise WrongOption(f"column {name!r} is of type {kind}; it must be {' or '.join(allowed)}")
    if "body" not in types:
        raise WrongOption('column "body" is missing: select what a message has to contain AS body')
    if "topic" not in types and options.topic is None:
        raise WrongOption('where to send is missing: .option("topic", "orders"), or a column "topic"')
    if options.derive_dedup_keys and "dedup_key" in types:
        raise WrongOption('dedupKeys derives keys, and the frame has a column "dedup_key": take one of them')


def send_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, key_prefix: str) -> int:
    """Send all rows as messages, in batches; their number. Every message is stored when this returns.

    With ``dedupKeys`` the key of row ``n`` is ``key_prefix`` and ``n``. The deduplication key of a row without an order
    key chooses its queue, because each broker knows the keys of its own messages alone. Raises :class:`SendFailed` for
    a row that no message can be made of, and if a message was not stored; others may be stored then.
    """
    try:
        return trio.run(_send_rows, batches, options, key_prefix)
    except SparkError:
        raise
    except (GantryError, ValueError) as error:
        raise SendFailed(f"cannot send: {error}") from None


async def _send_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, key_prefix: str) -> int:
    count = 0
    async with _producer(options) as producer:
        sending = _Sending(producer, options, key_prefix)
        # The next rows are made in a thread, because Spark's iterator blocks.
        while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
            for first in range(0, batch.num_rows, PART_ROWS):
                part = batch.slice(first, PART_ROWS)
                await sending.send(part, count)
                count += part.num_rows
        await producer.flush()
        sending.check()
    return count


@attrs.define
class _Sending:
    """Sends Arrow batches, and keeps the first failure of what was sent."""

    producer: Producer
    options: SinkOptions
    key_prefix: str
    failure: str | None = None
    _queues: dict[str, Sequence[MessageQueue]] = attrs.field(factory=dict)
    """The queues of each topic as the task found them first, for rows with deduplication keys."""

    async def send(self, batch: pa.RecordBatch, first: int) -> None:
        """Send the rows of ``batch``, whose first row has number ``first`` in its task. Raises :class:`SendFailed` if
        a row is not a message, or if an earlier one was not stored."""
        encoder = make_encoder(batch, self.options, self.key_prefix, first)
        columns = MessageColumns(batch, self.options, self.key_prefix, first)
        if encoder is None or self.options.topic is None:
            for at in range(batch.num_rows):
                await self._send_one(columns, at, first)
                self.check()
            return
        rows = RowSender(self.producer)
        unique_keys = rows.new_keys(batch.num_rows)
        for queue, numbers in (await self._share(rows, batch, self.options.topic, first)).items():
            place = 0
            while place < len(numbers):
                self.check()
                encoded, end = encoder.encode(numbers, place, unique_keys, BATCH_BYTES)
                if end == place:
                    await self._send_one(columns, numbers[place], first)
                    end += 1
                else:
                    keys = [unique_keys[number] for number in numbers[place:end]]
                    sent = await rows.send(self.options.topic, encoded, keys, queue)
                    sent.watch(partial(self._finish_rows, sent))
                place = end
        self.check()

    async def _share(
        self, rows: RowSender, batch: pa.RecordBatch, topic: str, first: int
    ) -> Mapping[MessageQueue | None, Sequence[int]]:
        """The numbers of the rows by the queue that they go to; None: to any."""
        names = batch.schema.names
        shares: dict[MessageQueue | None, list[int]] = {}
        if self.options.derive_dedup_keys and "order_key" not in names:
            queues, end = await self._queues_of(topic), 0
            while end < batch.num_rows:
                begin, end = end, min(end + BLOCK_ROWS - (first + end) % BLOCK_ROWS, batch.num_rows)
                shares.setdefault(queue_of_key(self._code_of_row(first + begin), queues), []).extend(range(begin, end))
            return shares
        if "order_key" not in names and "dedup_key" not in names:
            return {None: range(batch.num_rows)}
        by_order = await rows.queues(topic)
        by_dedup = await self._queues_of(topic)
        order_keys, dedup_keys = (_values(batch, name) for name in ("order_key", "dedup_key"))
        for number, (order_key, dedup_key) in enumerate(zip(order_keys, dedup_keys, strict=True)):
            queue = None
            if order_key is not None:
                queue = queue_of_key(java_hash_of(order_key), by_order)
            elif (code := self._code_of(dedup_key, first + number)) is not None:
                queue = queue_of_key(code, by_dedup)
            shares.setdefault(queue, []).append(number)
        return shares

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of ``topic`` that deduplication keys choose from, the same ones until the task has ended."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await RowSender(self.producer).queues(topic)
        return queues

    def _code_of(self, dedup_key: str | None, number: int) -> int | None:
        """The hash code that chooses the queue of row ``number`` of the task; None: it may go to any."""
        if self.options.derive_dedup_keys:
            return self._code_of_row(number)
        return None if dedup_key is None else crc32(dedup_key.encode())

    def _code_of_row(self, number: int) -> int:
        # partitions have consecutive hash codes, so that they begin in different queues
        return java_hash_of(self.key_prefix) + number // BLOCK_ROWS

    async def _send_one(self, columns: MessageColumns, at: int, first: int) -> None:
        message = columns.message(at)
        code = self._code_of(message.properties.get(DEDUP_PROPERTY), first + at)
        try:
            queue = None
            if code is not None and message.order_key is None:
                queue = queue_of_key(code, await self._queues_of(message.topic))
            pending = await self.producer.enqueue(message, queue=queue)
        except (GantryError, ValueError, TypeError) as error:
            raise SendFailed(f"row {first + at} of the task is not a valid message: {error}") from None
        pending.when_done(self._finish)

    def check(self) -> None:
        """Raise :class:`SendFailed` if a message was not stored."""
        if self.failure is not None:
            raise SendFailed(f"a message was not sent: {self.failure}")

    def _finish(self, pending: PendingSend) -> None:
        try:
            self._settle(pending.result().status)
        except GantryError as error:
            self._settle(error)

    def _finish_rows(self, sent: Batch) -> None:
        for outcome in sent.outcomes:
            self._settle(outcome if isinstance(outcome, GantryError) else outcome.status)

    def _settle(self, outcome: SendStatus | GantryError) -> None:
        if self.failure is not None or outcome is SendStatus.OK:
            return
        if isinstance(outcome, GantryError):
            self.failure = str(outcome)
        else:
            self.failure = f"the broker stored a message, but not as safely as it should: {outcome.name}"


def _values(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    """The values of a column; of one that is not there, None for each row."""
    return batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows


@asynccontextmanager
async def _producer(options: SinkOptions) -> AsyncIterator[Producer]:
    async with (
        connect(options.nameservers, **options.security.as_arguments()) as client,
        client.producer(options.group, linger=options.linger_seconds) as producer,
    ):
        yield producer

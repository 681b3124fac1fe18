"""Sends the rows of a Spark task as messages. The columns say what a message has; the options, where it goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from gantrymq.client import PendingSend, Producer, connect
from gantrymq.client.errors import GantryError
from gantrymq.message import Message, SendStatus
from gantrymq.spark.errors import SendFailed, SparkError, WrongOption
from gantrymq.spark.options import SinkOptions

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
DEDUP_PROPERTY = "DEDUP_KEY"
"""The property of a message's deduplication key."""


def check_sink_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Raise :class:`WrongOption` unless columns of these ``types`` can be sent with ``options``."""
    for name, kind in types.items():
        allowed = SINK_COLUMNS.get(name)
        if allowed is None:
            raise WrongOption(f"column {name!r} is no part of a message; there are {', '.join(SINK_COLUMNS)}")
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

    With ``dedupKeys`` the key of row ``n`` is ``key_prefix`` and ``n``. Raises :class:`SendFailed` for a row that no
    message can be made of, and if a message was not stored; others may be stored then.
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
        outstanding = _Outstanding()
        # The next rows are made in a thread, because Spark's iterator blocks.
        while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
            for message in to_messages(batch, options, key_prefix, count):
                try:
                    pending = await producer.enqueue(message)
                except (GantryError, ValueError, TypeError) as error:
                    raise SendFailed(f"row {count} of the task is no message: {error}") from None
                pending.when_done(outstanding.finish)
                count += 1
                if outstanding.failure is not None:
                    break
            outstanding.check()
        await producer.flush()
        outstanding.check()
    return count


@asynccontextmanager
async def _producer(options: SinkOptions) -> AsyncIterator[Producer]:
    async with (
        connect(options.nameservers, **options.security.as_arguments()) as client,
        client.producer(options.group, linger=options.linger_seconds) as producer,
    ):
        yield producer


@attrs.define
class _Outstanding:
    """Keeps the first failure of messages that were enqueued."""

    failure: str | None = None

    def finish(self, pending: PendingSend) -> None:
        if self.failure is not None:
            return
        try:
            status = pending.result().status
        except GantryError as error:
            self.failure = str(error)
            return
        if status is not SendStatus.OK:
            self.failure = f"the broker stored a message, but not as safely as it should: {status.name}"

    def check(self) -> None:
        if self.failure is not None:
            raise SendFailed(f"a message was not sent: {self.failure}")


def to_messages(batch: pa.RecordBatch, options: SinkOptions, key_prefix: str, first: int) -> Iterator[Message]:
    """The messages of one Arrow batch, whose first row has number ``first`` in its task."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == "body":
            column = column.cast(pa.binary())
        columns[name] = column.to_pylist()
    topics = columns.pop("topic", None)
    bodies = columns.pop("body")
    dedup_keys = columns.pop("dedup_key", None)
    properties = columns.pop("properties", None)
    fields = [(name, columns[name], _CONVERT.get(name, _same)) for name in columns]
    for at, body in enumerate(bodies):
        topic = options.topic if topics is None or topics[at] is None else topics[at]
        if body is None or topic is None:
            raise SendFailed(f"row {first + at} of the task has no {'body' if topic else 'topic'}: it is null")
        own = {} if properties is None or properties[at] is None else dict(properties[at])
        if options.derive_dedup_keys:
            own[DEDUP_PROPERTY] = f"{key_prefix}-{first + at}"
        elif dedup_keys is not None and dedup_keys[at] is not None:
            own[DEDUP_PROPERTY] = dedup_keys[at]
        yield Message(
            topic,
            body,
            properties=own,
            **{name: convert(values[at]) for name, values, convert in fields if values[at] is not None},
        )


def _same(value: Any) -> Any:
    return value


_CONVERT: dict[str, Callable[[Any], Any]] = {"delay": float}

"""Converts stored records from a pull into Arrow columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.properties import KEYS, TAGS
from gantrymq.remoting.records import (
    COMPRESSED,
    BodyError,
    CompressorMissing,
    Record,
    cut_records,
    decode_records,
    decompress,
    show_host,
)
from gantrymq.spark.errors import BrokenRecord
from gantrymq.spark.wire import Queue

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "topic": "string",
    "broker": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "commitLogOffset": "bigint",
    "msgId": "string",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "reconsumeTimes": "int",
    "flag": "int",
    "sysFlag": "int",
}
"""The columns in order, with the names of their types in Spark."""

INNER_BATCH = 0x80
"""Several messages stored as one record (topics of type BatchCQ, RocketMQ 5)."""
_MILLIS_MAX = (2**63 - 1) // 1000
"""A producer may set any born timestamp; one that exceeds the range of Spark's microseconds becomes null."""


compiled: Any = None
"""The compiled loops, where they are there and ``GANTRYMQ_PURE=1`` does not exclude them."""
if os.environ.get("GANTRYMQ_PURE") != "1":
    with suppress(ImportError):
        compiled = import_module("gantrymq.spark._columns")


class ColumnBuilder(Protocol):
    """Collects messages of one queue and converts them into record batches.

    With ``rows`` and ``size`` the caller decides when a batch is full.
    """

    @property
    def rows(self) -> int:
        """The number of collected messages."""

    @property
    def size(self) -> int:
        """The bytes of their bodies and properties, as far as columns are made of these."""

    @property
    def next_offset(self) -> int:
        """The offset after the last message that was added; 0 before."""

    def add(self, raw: bytes, start: int, end: int, at: int = 0) -> tuple[int, int]:
        """Add the messages of ``raw`` from byte ``at`` on with ``start <= queue offset < end``, until the builder is
        full; returns their number, and the byte where it stopped.

        Ignores others, because the response to a pull may have messages behind ``end``, which belong to the next range.
        Raises :class:`BrokenRecord`; the builder is of no use then.
        """

    def build(self) -> pa.RecordBatch:
        """The collected messages as one batch; the builder is empty afterwards."""


BadBody = Callable[[int, str], None]
"""Called with the queue offset of a message whose body cannot be read, and the reason."""


def make_builder(
    queue: Queue,
    names: Sequence[str],
    body_max_bytes: int,
    size_max: int = sys.maxsize,
    bad_body: BadBody | None = None,
) -> ColumnBuilder:
    """A builder of the columns ``names``, which is full when ``size`` has reached ``size_max``.

    ``body_max_bytes`` is the most bytes of a decompressed body. A body that cannot be read is null, and ``bad_body`` is
    called; without it, that raises :class:`BrokenRecord`.
    """
    kind = PlainColumns if compiled is None else CompiledColumns
    return kind(queue, names, body_max_bytes, size_max, bad_body)


class _Bodies:
    """Reads the bodies that are not stored as they are, for both twins."""

    def __init__(self, queue: Queue, body_max_bytes: int, bad_body: BadBody | None) -> None:
        self._queue, self._body_max_bytes, self._bad_body = queue, body_max_bytes, bad_body

    def read(self, stored: bytes, sys_flag: int, queue_offset: int) -> bytes | None:
        """The decompressed body, or None."""
        if sys_flag & INNER_BATCH:
            reason = "a batch kept as one record (a topic of type BatchCQ), which cannot be read"
        else:
            try:
                return decompress(stored, sys_flag, self._body_max_bytes)
            except CompressorMissing as error:
                raise _broken(self._queue, f"offset {queue_offset}: {error}") from None
            except BodyError as error:
                reason = str(error)
        if self._bad_body is None:
            advice = "Set badBodies to null to read the message without its body"
            raise _broken(self._queue, f"offset {queue_offset}: {reason}. {advice}")
        self._bad_body(queue_offset, reason)
        return None


class CompiledColumns:
    """:class:`ColumnBuilder`, which makes no object of a message."""

    def __init__(
        self,
        queue: Queue,
        names: Sequence[str],
        body_max_bytes: int,
        size_max: int = sys.maxsize,
        bad_body: BadBody | None = None,
    ) -> None:
        self._queue = queue
        self._names = tuple(names)
        self._size_max = size_max
        self._columns = compiled.Columns(
            self._names, size_max, _Bodies(queue, body_max_bytes, bad_body).read, show_host
        )

    @property
    def rows(self) -> int:
        """See :class:`ColumnBuilder`."""
        return int(self._columns.rows)

    @property
    def size(self) -> int:
        """See :class:`ColumnBuilder`."""
        return int(self._columns.size)

    @property
    def next_offset(self) -> int:
        """See :class:`ColumnBuilder`."""
        return int(self._columns.next_offset)

    def add(self, raw: bytes, start: int, end: int, at: int = 0) -> tuple[int, int]:
        """See :class:`ColumnBuilder`."""
        count, stop = self._columns.add(raw, at, start, end)
        if stop < len(raw) and self.size < self._size_max:
            try:
                cut_records(raw, Record, True, stop)
            except FatalRemoteFault as error:
                raise _broken(self._queue, _unreadable(start, error)) from None
            raise _broken(self._queue, f"the record at byte {stop} of a pull at offset {start} is damaged")
        return int(count), int(stop)

    def build(self) -> pa.RecordBatch:
        """See :class:`ColumnBuilder`."""
        import pyarrow as pa

        schema, rows = arrow_schema(self._names), self.rows
        taken = self._columns.take()
        arrays = []
        for field in schema:
            if field.name in ("topic", "broker"):
                arrays.append(pa.repeat(pa.scalar(getattr(self._queue, field.name), field.type), rows))
            elif field.name == "properties":
                ends, names, values = taken["properties"]
                offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(ends or bytes(4))])
                pairs = [_array(pa.string(), _count(column), column) for column in (names, values)]
                arrays.append(pa.MapArray.from_arrays(offsets, *pairs))
            else:
                arrays.append(_array(field.type, rows, taken[field.name]))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, rows: int, column: tuple[bytes | None, bytes | None, bytes, int]) -> pa.Array:
    import pyarrow as pa

    valid, ends, data, nulls = column
    buffers = [None if valid is None else pa.py_buffer(valid)]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        buffers.append(pa.py_buffer(bytes(4) if ends is None else ends))
    return pa.Array.from_buffers(kind, rows, [*buffers, pa.py_buffer(data)], nulls)


def _count(column: tuple[bytes | None, bytes | None, bytes, int]) -> int:
    return len(column[1]) // 4 - 1 if column[1] else 0


class PlainColumns:
    """:class:`ColumnBuilder` without compiled code: the reference."""

    def __init__(
        self,
        queue: Queue,
        names: Sequence[str],
        body_max_bytes: int,
        size_max: int = sys.maxsize,
        bad_body: BadBody | None = None,
    ) -> None:
        self._queue = queue
        self._names = tuple(names)
        self._size_max = size_max
        self._read_body = _Bodies(queue, body_max_bytes, bad_body).read
        self._records: list[Record] = []
        self._bodies: list[bytes | None] = []
        self._has_body = "body" in self._names
        self._has_properties = not {"properties", "msgId", "keys", "tags"}.isdisjoint(self._names)
        self.size = 0
        self.next_offset = 0

    @property
    def rows(self) -> int:
        """See :class:`ColumnBuilder`."""
        return len(self._records)

    def add(self, raw: bytes, start: int, end: int, at: int = 0) -> tuple[int, int]:
        """See :class:`ColumnBuilder`."""
        try:
            records = decode_records(raw[at:])  # the first call for ``raw`` has read it to its end
        except FatalRemoteFault as error:
            raise _broken(self._queue, _unreadable(start, error)) from None
        before = self.rows
        for record in records:
            if self.size >= self._size_max:
                break
            at += record.stored_size
            # A repeated message, or one out of order, adds no row.
            if max(start, self.next_offset) <= record.queue_offset < end:
                self.next_offset = record.queue_offset + 1
                self._put(record)
        return self.rows - before, at

    def _put(self, record: Record) -> None:
        body: bytes | None = record.stored_body
        if record.sys_flag & INNER_BATCH or (record.sys_flag & COMPRESSED and self._has_body):
            body = self._read_body(record.stored_body, record.sys_flag, record.queue_offset)
        if self._has_body:
            self.size += len(body or b"")
        if self._has_properties:
            self.size += len(record.raw_properties)
        self._records.append(record)
        self._bodies.append(body)

    def build(self) -> pa.RecordBatch:
        """See :class:`ColumnBuilder`."""
        import pyarrow as pa

        schema = arrow_schema(self._names)
        arrays = [self._column(field.name, field.type) for field in schema]
        self._records, self._bodies, self.size = [], [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str, kind: pa.DataType) -> pa.Array:
        import pyarrow as pa

        if name == "properties":
            return _map_array([record.properties for record in self._records])
        if name == "body":
            return pa.array(self._bodies, kind)
        if name in ("topic", "broker"):
            return pa.repeat(pa.scalar(getattr(self._queue, name), kind), self.rows)
        values = _VALUES[name](self._records)
        if name.endswith("Timestamp"):
            values = [millis * 1000 if abs(millis) <= _MILLIS_MAX else None for millis in values]
        return pa.array(values, kind)


def _broken(queue: Queue, what: str) -> BrokenRecord:
    return BrokenRecord(f"{queue} on {queue.address}: {what}")


def _unreadable(start: int, error: Exception) -> str:
    return f"a pull at offset {start} answers with {error}"


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of the columns ``names``, exactly as Spark derives it from its own schema."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[COLUMNS[name]]) for name in names])


def _born_hosts(records: list[Record]) -> list[str]:
    texts: dict[bytes, str] = {}  # a batch has few producers
    for record in records:
        if record.raw_born_host not in texts:
            texts[record.raw_born_host] = record.born_host
    return [texts[record.raw_born_host] for record in records]


_VALUES: dict[str, Callable[[list[Record]], list[Any]]] = {
    "queueId": lambda records: [record.queue_id for record in records],
    "queueOffset": lambda records: [record.queue_offset for record in records],
    "commitLogOffset": lambda records: [record.commit_log_offset for record in records],
    "msgId": lambda records: [record.message_id for record in records],
    "keys": lambda records: [record.properties.get(KEYS) for record in records],
    "tags": lambda records: [record.properties.get(TAGS) for record in records],
    "bornTimestamp": lambda records: [record.born_timestamp for record in records],
    "storeTimestamp": lambda records: [record.store_timestamp for record in records],
    "bornHost": _born_hosts,
    "reconsumeTimes": lambda records: [record.reconsume_times for record in records],
    "flag": lambda records: [record.flag for record in records],
    "sysFlag": lambda records: [record.sys_flag for record in records],
}


def _map_array(maps: list[dict[str, str]]) -> pa.MapArray:
    import pyarrow as pa

    names: list[str] = []
    values: list[str] = []
    offsets = [0]
    for found in maps:
        names.extend(found)
        values.extend(found.values())
        offsets.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )

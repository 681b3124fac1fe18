"""Converts stored records from a pull into Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.properties import KEYS, TAGS
from gantrymq.remoting.records import COMPRESSED, BodyError, Record, decode_records, decompress
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


class ColumnBuilder:
    """Collects messages of one queue and converts them into record batches with the columns ``names``.

    ``body_max_bytes`` is the most bytes of a decompressed body. With ``rows`` and ``size`` (bytes of bodies) the caller
    decides when a batch is full.
    """

    def __init__(self, queue: Queue, names: Sequence[str], body_max_bytes: int) -> None:
        self._queue = queue
        self._names = tuple(names)
        self._body_max_bytes = body_max_bytes
        self._records: list[Record] = []
        self._bodies: list[bytes] = []
        self.size = 0

    @property
    def rows(self) -> int:
        """The number of collected messages."""
        return len(self._records)

    def add(self, raw: bytes, start: int, end: int) -> int:
        """Add the messages of ``raw`` with ``start <= queue offset < end``; returns their number.

        Ignores others, because the response to a pull may have messages behind ``end``, which belong to the next range.
        Raises :class:`BrokenRecord`.
        """
        try:
            records = decode_records(raw)
        except FatalRemoteFault as error:
            raise self._broken(f"a pull at offset {start} answers with {error}") from None
        before = self.rows
        for record in records:
            if start <= record.queue_offset < end:
                start = record.queue_offset + 1  # a repeated message, or one out of order, adds no row
                body = self._inflate(record)
                self.size += len(body)
                self._records.append(record)
                self._bodies.append(body)
        return self.rows - before

    def build(self) -> pa.RecordBatch:
        """The collected messages as one batch; the builder is empty afterwards."""
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

    def _inflate(self, record: Record) -> bytes:
        if record.sys_flag & INNER_BATCH:
            what = "is a batch kept as one record (a topic of type BatchCQ), which cannot be read"
            raise self._broken(f"offset {record.queue_offset} {what}")
        if not record.sys_flag & COMPRESSED:
            return record.stored_body
        try:
            return decompress(record.stored_body, record.sys_flag, self._body_max_bytes)
        except BodyError as error:
            raise self._broken(f"offset {record.queue_offset}: {error}") from None

    def _broken(self, what: str) -> BrokenRecord:
        return BrokenRecord(f"{self._queue} on {self._queue.address}: {what}")


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

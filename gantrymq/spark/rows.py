"""Encodes the rows of Arrow batches as messages of a batch, in the form of the client's ``encode_row``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gantrymq.client.checks import check_message, encode_message_properties
from gantrymq.client.outgoing import encode_row, has_times
from gantrymq.message import Message
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.properties import RESERVED, SHARDING_KEY
from gantrymq.spark.errors import SendFailed
from gantrymq.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

DEDUP_PROPERTY = "DEDUP_KEY"
"""The property of a message's deduplication key."""
ENCODED_COLUMNS = frozenset({"body", "tags", "keys", "properties", "order_key", "dedup_key"})
"""A frame with other columns has messages for several topics, or with times."""
_REFUSED = frozenset(name.encode() for name in (*RESERVED, SHARDING_KEY, DEDUP_PROPERTY))

compiled: Any = None
"""The compiled loops, where they are there and ``GANTRYMQ_PURE=1`` does not exclude them."""
if os.environ.get("GANTRYMQ_PURE") != "1":
    with suppress(ImportError):
        compiled = import_module("gantrymq.spark._rows")


class RowEncoder(Protocol):
    """Encodes the rows of one Arrow batch."""

    def encode(self, rows: Sequence[int], first: int, unique_keys: list[str], limit: int) -> tuple[bytes, int]:
        """The messages of the rows with the numbers ``rows`` from place ``first`` on, one behind another, and the place
        after them.

        They have at most ``limit`` bytes, unless the first one alone has more. The unique key of row n is
        ``unique_keys[n]``. Nothing, and ``first``, if that row cannot be encoded here: :class:`MessageColumns` has its
        message, which the client can send or refuses with the reason.
        """


def make_encoder(batch: pa.RecordBatch, options: SinkOptions, key_prefix: str, first: int) -> RowEncoder | None:
    """The encoder of ``batch``, whose first row has number ``first`` in its task; None if its messages have to be sent
    one by one."""
    if options.topic is None or not ENCODED_COLUMNS.issuperset(batch.schema.names):
        return None
    columns = MessageColumns(batch, options, key_prefix, first)
    if compiled is None:
        return PlainRows(columns)
    return make_compiled(batch, options, key_prefix, first) or PlainRows(columns)


def make_compiled(batch: pa.RecordBatch, options: SinkOptions, key_prefix: str, first: int) -> RowEncoder | None:
    """The compiled encoder of ``batch``; None for columns of types that it does not read."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    maps = columns.pop("properties", None)
    if (order_keys := columns.get("order_key")) is not None:
        columns["order_key"] = order_keys.cast("string")
    if maps is not None and not len(maps.keys):
        maps = None  # no row has a property
    texts = {name: _texts(column) for name, column in columns.items()}
    pairs = None if maps is None else _pairs(maps)
    if None in texts.values() or (pairs is None) != (maps is None):
        return None
    prefix = f"{key_prefix}-".encode() if options.derive_dedup_keys else None
    given = (texts.get(name) for name in ("body", "tags", "keys", "order_key", "dedup_key"))
    encoder: RowEncoder = compiled.Rows(batch.num_rows, *given, pairs, prefix, first, _REFUSED)
    return encoder


def _texts(column: pa.Array) -> Any:
    import pyarrow as pa

    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) or not len(column):
        return None
    return compiled.Texts(*map(_view, column.buffers()), column.offset, len(column))


def _pairs(column: pa.Array) -> tuple[Any, ...] | None:
    names, values = _texts(column.keys), _texts(column.items)
    if names is None or values is None:
        return None
    valid, ends = map(_view, column.buffers()[:2])
    return valid, ends, column.offset, names, values, len(column.keys)


def _view(buffer: pa.Buffer | None) -> memoryview | None:
    return None if buffer is None else memoryview(buffer).cast("B")


class PlainRows:
    """:class:`RowEncoder` without compiled code: the reference."""

    def __init__(self, columns: MessageColumns) -> None:
        self._columns = columns

    def encode(self, rows: Sequence[int], first: int, unique_keys: list[str], limit: int) -> tuple[bytes, int]:
        """See :class:`RowEncoder`."""
        encoded: list[bytes] = []
        size = 0
        for place in range(first, len(rows)):
            row = self._encode(rows[place], unique_keys[rows[place]])
            if row is None or (encoded and size + len(row) > limit):
                break
            encoded.append(row)
            size += len(row)
        return b"".join(encoded), first + len(encoded)

    def _encode(self, at: int, unique_key: str) -> bytes | None:
        try:
            message = self._columns.message(at)
            check_message(message)
            text = encode_message_properties(message, unique_key)
        except (GantryError, SendFailed, ValueError, TypeError):
            return None
        return None if has_times(text) else encode_row(message.body, text, message.flag)


class MessageColumns:
    """The rows of one Arrow batch as :class:`Message`. Its first row has number ``first`` in its task.

    With ``dedupKeys`` the deduplication key of row ``n`` of the task is ``key_prefix`` and ``n``.
    """

    def __init__(self, batch: pa.RecordBatch, options: SinkOptions, key_prefix: str, first: int) -> None:
        self.rows = batch.num_rows
        self._batch = batch
        self._options = options
        self._key_prefix = key_prefix
        self._first = first
        self._values: dict[str, list[Any]] | None = None

    def message(self, at: int) -> Message:
        """The message of one row. Raises :class:`SendFailed` if it has no body or topic."""
        if self._values is None:
            self._values = _to_lists(self._batch)
        own = {name: values[at] for name, values in self._values.items() if values[at] is not None}
        body, topic = own.pop("body", None), own.pop("topic", self._options.topic)
        if body is None or topic is None:
            what = "topic" if topic is None else "body"
            raise SendFailed(f"row {self._first + at} of the task has no {what}: it is null")
        properties = dict(own.pop("properties", ()))
        dedup_key = own.pop("dedup_key", None)
        if self._options.derive_dedup_keys:
            dedup_key = f"{self._key_prefix}-{self._first + at}"
        if dedup_key is not None:
            properties[DEDUP_PROPERTY] = dedup_key
        return Message(
            topic, body, properties=properties,
            **{name: _CONVERT.get(name, _same)(value) for name, value in own.items()},
        )  # fmt: skip


def _to_lists(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    import pyarrow as pa

    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["body"] = columns["body"].cast(pa.binary())
    return {name: column.to_pylist() for name, column in columns.items()}


def _same(value: Any) -> Any:
    return value


_CONVERT: dict[str, Callable[[Any], Any]] = {"delay": float}

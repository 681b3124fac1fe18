"""Decodes whole columns of Avro bodies with compiled code, where it is built and the schema and the bodies allow it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import pyarrow as pa

MARK = "gantrymq"
"""The prefix of the logical types in a plan, and the property with what belongs to them."""
WRITERS_MAX = 16
"""The most headers in one batch of bodies: each costs a pass over the batch."""

compiled: Any = None
"""The compiled loops, where they are there and ``GANTRYMQ_PURE=1`` does not exclude them."""
if os.environ.get("GANTRYMQ_PURE") != "1":
    with suppress(ImportError):
        compiled = import_module("gantrymq.spark.schemas._avro")


class _Unsupported(Exception):
    """The compiled loops do not decode this type."""


@attrs.define
class ColumnDecoder:
    """Decodes bodies by a plan of :class:`~gantrymq.spark.schemas.avro.AvroReader` into arrays of type ``kind``."""

    kind: pa.DataType
    node: Any
    column: _Column

    def decode(self, bodies: pa.Array, prefix: bytes, done: bytearray) -> tuple[bytes, pa.Array] | None:
        """The values of the bodies that begin with ``prefix``, behind it, and the numbers of their rows as int32.

        ``bodies`` are of type binary; ``done`` has a byte for each, which is not 0 for those to leave out, and is set
        for the decoded ones. None if one of them has to be decoded otherwise.
        """
        ends, data = (memoryview(buffer or b"").cast("B") for buffer in bodies.buffers()[1:])
        try:
            rows = compiled.decode(self.node, prefix, data, ends, done, bodies.offset, len(bodies))
            return None if rows is None else (rows, self.column.build())
        finally:
            self.column.source.clear()


def make_decoder(plan: Any, kind: pa.DataType) -> ColumnDecoder | None:
    """A decoder of bodies by ``plan``; None if the compiled loops are not there or do not decode one of its types."""
    if compiled is None:
        return None
    column = _Column.make(kind)
    try:
        return ColumnDecoder(kind, _compile(plan, column), column)
    except _Unsupported:
        return None


def decode_column(
    column: pa.Array, kind: pa.DataType, find: Callable[[bytes], tuple[ColumnDecoder | None, int]]
) -> pa.Array | None:
    """``column`` decoded as an array of type ``kind``; None if a body has to be decoded otherwise.

    ``find`` has the decoder of a body, and where the value begins: before it is a header that other bodies of this
    decoder have too.
    """
    import pyarrow as pa

    try:
        bodies = column.cast(pa.binary())
    except pa.ArrowInvalid:  # more than 2 GiB
        return None
    done = bytearray(bodies.is_null().cast(pa.uint8()).to_pylist()) if bodies.null_count else bytearray(len(bodies))
    pieces: list[tuple[bytes, pa.Array]] = []
    while (row := done.find(0)) >= 0:
        body = bodies[row].as_py()
        decoder, start = find(body)
        piece = None if decoder is None or len(pieces) == WRITERS_MAX else decoder.decode(bodies, body[:start], done)
        if piece is None:
            return None
        pieces.append(piece)
    if not pieces:
        return pa.nulls(len(bodies), kind)
    if len(pieces) == 1 and not bodies.null_count:
        return pieces[0][1]
    places: list[int | None] = [None] * len(bodies)
    for place, row in enumerate(row for rows, _ in pieces for row in memoryview(rows).cast("i")):
        places[row] = place
    return pa.concat_arrays([values for _, values in pieces]).take(pa.array(places, pa.int32()))


@attrs.define
class _Column:
    """A column of the compiled loops, of Arrow's type ``kind``."""

    kind: pa.DataType
    source: Any
    children: tuple[_Column, ...]
    default: Any = None
    """The value of all rows, if ``is_default``: of a field that the writer does not have."""
    is_default: bool = False
    is_read: bool = False

    @classmethod
    def make(cls, kind: pa.DataType) -> _Column:
        import pyarrow as pa

        children: tuple[_Column, ...] = ()
        nests, digits = pa.types.is_struct(kind), 0
        if nests:
            children = tuple(cls.make(field.type) for field in kind)
        elif pa.types.is_list(kind):
            children = (cls.make(kind.value_type),)
        elif pa.types.is_map(kind):
            children = (cls.make(kind.key_type), cls.make(kind.item_type))
        has_ends = not nests and (bool(children) or pa.types.is_binary(kind) or pa.types.is_string(kind))
        width = 0
        if pa.types.is_boolean(kind):
            width = 1
        elif pa.types.is_decimal(kind):
            width, digits = 16, kind.precision
        elif not nests and not has_ends and not pa.types.is_null(kind):
            width = kind.bit_width // 8
        source = compiled.Column(width, has_ends, nests, tuple(child.source for child in children), digits)
        return cls(kind, source, children)

    def build(self) -> pa.Array:
        import pyarrow as pa

        rows, nulls, valid, ends, data = self.source.take()
        if pa.types.is_null(self.kind):
            return pa.nulls(rows)
        if self.is_default:
            return pa.array([self.default], self.kind).take(pa.repeat(pa.scalar(0, pa.int32()), rows))
        buffers = [None if valid is None else pa.py_buffer(valid)]
        if ends is not None:
            buffers.append(pa.py_buffer(ends))
        children = [child.build() for child in self.children]
        if pa.types.is_map(self.kind):
            pair = pa.struct([self.kind.key_field, self.kind.item_field])
            children = [pa.Array.from_buffers(pair, len(children[0]), [None], 0, children=children)]
        elif not children and not pa.types.is_struct(self.kind):
            buffers.append(pa.py_buffer(data))
        return pa.Array.from_buffers(self.kind, rows, buffers, nulls, children=children)


def _compile(plan: Any, column: _Column | None) -> Any:
    """The compiled form of fastavro's schema ``plan``. Raises :class:`_Unsupported`."""
    import pyarrow as pa

    if column is not None:
        if column.is_default:
            raise _Unsupported  # another branch of a union lacks the field
        column.is_read = True
    if isinstance(plan, list):
        return _node("union", column, [_compile(branch, column) for branch in plan])
    if isinstance(plan, str):
        plan = {"type": plan}
    kind, more = plan["type"], plan.get(MARK, {})
    function = plan.get("logicalType", "").removeprefix(f"{MARK}-") if MARK in plan else ""
    if kind == "record":
        return _compile_record(plan, column, more.get("defaults", {}))
    if kind in ("array", "map"):
        item = column.children[-1] if column is not None else None
        return _node(kind, column, [_compile(plan["items" if kind == "array" else "values"], item)])
    if function == "enum":
        symbols = [None if symbol is None else symbol.encode() for symbol in more["symbols"]]
        return _node("enum", column, symbols=symbols)
    if function == "decimal":
        if column is not None and (not pa.types.is_decimal(column.kind) or column.kind.scale != more["scale"]):
            raise _Unsupported
        return _node("decimal", column, size=plan["size"] if kind == "fixed" else -1)
    if function == "unresolved":
        return _node("enum", column)  # it has no symbol, so the other reader says what is wrong
    if kind == "fixed":
        return _node(kind, column, size=plan["size"])
    if function == "float":
        return _node("float" if kind == "float" else "real", column)
    operation = {"text": "string", "encode": "string"}.get(function, "long" if kind == "int" else kind)
    return _node(operation, column, size=more.get("factor", 1))


def _compile_record(plan: Any, column: _Column | None, defaults: dict[str, Any]) -> Any:
    columns: dict[str, _Column] = {}
    if column is not None:
        columns = {field.name: child for field, child in zip(column.kind, column.children, strict=True)}
    children = [_compile(field["type"], columns.pop(field["name"], None)) for field in plan["fields"]]
    for name, child in columns.items():
        if child.is_read and name in defaults:
            raise _Unsupported
        if name in defaults:
            if child.is_default and child.default != defaults[name]:
                raise _Unsupported
            child.default, child.is_default = defaults[name], True
    return _node("record", column, children, missing=[child.source for child in columns.values()])


def _node(operation: str, column: _Column | None, children: Any = (), **more: Any) -> Any:
    source = None if column is None else column.source
    return compiled.Node(compiled.OPERATIONS[operation], source, children, **more)

"""Reads and writes Avro bodies with fastavro.

fastavro decodes with one schema only, which is made here of the writer's and the reader's: it has the bytes of the
writer's, the names of the reader's, and functions where the two differ, so that Avro's rules of schema resolution are
applied once for each pair of schemas and not to each message.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gantrymq.spark.errors import WrongSchema
from gantrymq.spark.schemas.avro_columns import MARK, ColumnDecoder, make_decoder
from gantrymq.spark.schemas.avro_schema import MAX_PRECISION, MAX_WEIGHT, NANOS, AvroType
from gantrymq.spark.schemas.bodies import UnreadableBody

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PAIRS = 10 * MAX_WEIGHT
"""The most pairs of types that are compared for two schemas."""
_TIMESTAMPS = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
_FACTORS = {"timestamp-millis": 1000, "local-timestamp-millis": 1000, "time-micros": 1000}
"""From Avro's units to those of Arrow: microseconds of a timestamp, nanoseconds of a time of day."""
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class AvroReader:
    """Decodes bodies that were written with ``writer`` into values for the Arrow type of ``reader``.

    Raises :class:`WrongSchema` if no body of ``writer`` can be read with ``reader``.
    """

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        import fastavro
        import fastavro.read

        fastavro.read.LOGICAL_READERS.update(_FUNCTIONS)
        plan = _Planner().plan(writer, reader)
        self._read = fastavro.schemaless_reader
        self._schema = fastavro.parse_schema(plan)
        self._writer = writer
        self._plan = plan
        self._decoder: tuple[pa.DataType, ColumnDecoder | None] | None = None

    def decoder(self, kind: pa.DataType) -> ColumnDecoder | None:
        """What decodes whole columns into arrays of type ``kind``, that of ``reader``; None if nothing does."""
        if self._decoder is None or self._decoder[0] != kind:
            self._decoder = kind, make_decoder(self._plan, kind)
        return self._decoder[1]

    def __call__(self, body: bytes, start: int = 0) -> Any:
        """See :meth:`read`."""
        return self.read(body, start)

    def read(self, body: bytes, start: int = 0) -> Any:
        """The value in ``body`` from ``start`` to its end. Raises :class:`UnreadableBody`."""
        buffer = BytesIO(body)
        buffer.seek(start)
        try:
            value = self._read(buffer, self._schema, None)
        except _Unresolved as error:
            raise UnreadableBody(str(error)) from None
        except EOFError:
            raise self._unreadable(body, start, "end within a value") from None
        except UnicodeDecodeError:
            raise self._unreadable(body, start, "have text that is not UTF-8") from None
        except (ValueError, IndexError, ArithmeticError, struct.error) as error:
            if isinstance(error, IndexError) and buffer.tell() == len(body):  # within a number
                raise self._unreadable(body, start, "end within a value") from None
            raise self._unreadable(body, start, f"are damaged ({error})") from None
        if left := len(body) - buffer.tell():
            raise self._unreadable(body, start, f"have {left} more than a value needs")
        return value

    def _unreadable(self, body: bytes, start: int, what: str) -> UnreadableBody:
        return UnreadableBody(f"the {len(body) - start} bytes of Avro {what}; the schema is that of {self._writer}")


class _Unresolved(ValueError):
    """A value of the writer's schema has none in the reader's."""


class _Planner:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pairs = 0

    def plan(self, writer: AvroType, reader: AvroType) -> Any:
        """fastavro's schema that reads bytes of ``writer`` as values of ``reader``. Raises :class:`WrongSchema`."""
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            raise WrongSchema(f"the unions of two Avro schemas make more than {MAX_PAIRS:,} pairs of types")
        if writer.kind == "union":
            return self._from_union(writer, reader)
        if reader.kind == "union":
            return self._into_union(writer, reader)
        if writer.kind == "record" == reader.kind:
            return self._record(writer, reader)
        if writer.kind == "enum" == reader.kind:
            symbols = [symbol if symbol in reader.symbols else reader.default_symbol for symbol in writer.symbols]
            return _marked("int", "enum", symbols=symbols, written=list(writer.symbols), name=reader.name)
        if writer.items is not None and reader.items is not None and writer.kind == reader.kind:
            if writer.kind == "array" and not writer.items.min_bytes:
                # A few bytes would announce billions of them.
                raise WrongSchema("an Avro schema has an array whose items take no bytes")
            name = "items" if writer.kind == "array" else "values"
            return {"type": writer.kind, name: self.plan(writer.items, reader.items)}
        if writer.kind == "fixed" == reader.kind and writer.size == reader.size:
            return _with_meaning({"type": "fixed", "name": self._name(), "size": writer.size}, writer, reader)
        if writer.kind == reader.kind != "fixed":
            return _with_meaning({"type": writer.kind}, writer, reader)
        if reader.kind in _PROMOTIONS.get(writer.kind, ()):
            return _promoted(writer, reader)
        raise WrongSchema(f"{writer} in the writer's Avro schema cannot be read as {reader}")

    def _name(self) -> str:
        return f"{MARK}_{next(self._numbers)}"

    def _from_union(self, writer: AvroType, reader: AvroType) -> Any:
        plans: list[Any] = []
        failed: WrongSchema | None = None
        for branch in writer.branches:
            try:
                plans.append(self.plan(branch, reader))
            except WrongSchema as error:
                failed = error
                plans.append(_marked("null", "unresolved", reason=str(error)))
        if failed is not None and all(isinstance(plan, dict) and "reason" in plan.get(MARK, {}) for plan in plans):
            raise failed
        return plans

    def _into_union(self, writer: AvroType, reader: AvroType) -> Any:
        if writer.kind == "null":
            if any(branch.kind == "null" for branch in reader.branches):
                return "null"
            raise WrongSchema("null in the writer's Avro schema cannot be read as a union without null")
        members = reader.members
        for at in _by_likeness(writer, members):
            try:
                plan = self.plan(writer, members[at])
            except WrongSchema:
                continue
            if len(members) == 1:
                return plan
            return {"type": "record", "name": self._name(), "fields": [{"name": f"member{at}", "type": plan}]}
        raise WrongSchema(f"{writer} in the writer's Avro schema fits no branch of a union of the reader's")

    def _record(self, writer: AvroType, reader: AvroType) -> Any:
        names = _match_fields(writer, reader)
        types = {field.name: field.type for field in reader.fields}
        fields = []
        for field in writer.fields:
            name = names.get(field.name)
            wanted = field.type if name is None else types[name]
            fields.append({"name": self._name() if name is None else name, "type": self.plan(field.type, wanted)})
        record = {"type": "record", "name": self._name(), "fields": fields}
        defaults, matched = {}, set(names.values())
        for field in reader.fields:
            if field.name not in matched:
                if not field.has_default:
                    raise WrongSchema(
                        f"the field {field.name!r} of {reader} is not in the writer's Avro schema and has no default"
                    )
                defaults[field.name] = default_value(field.type, field.default)
        return _marked(record, "defaults", defaults=defaults) if defaults else record


def _marked(kind: str | dict[str, Any], function: str, **more: Any) -> dict[str, Any]:
    """The type ``kind`` whose values go through one of our functions, which finds ``more`` in its schema."""
    plan = {"type": kind} if isinstance(kind, str) else kind
    return {**plan, "logicalType": f"{MARK}-{function}", MARK: more}


def _match_fields(writer: AvroType, reader: AvroType) -> dict[str, str]:
    """The names of the writer's fields that are read, each with the name of the reader's field.

    An alias gets a field only if no other field of the reader has its name or, earlier, its alias.
    """
    theirs = {field.name for field in writer.fields}
    found = {field.name: field.name for field in reader.fields if field.name in theirs}
    for field in reader.fields:
        if field.name not in theirs:
            alias = next((alias for alias in field.aliases if alias in theirs and alias not in found), None)
            if alias is not None:
                found[alias] = field.name
    return found


def _by_likeness(writer: AvroType, members: tuple[AvroType, ...]) -> Iterator[int]:
    """The places in ``members`` of those that may read ``writer``, the best first."""
    short = writer.name.rpartition(".")[2]

    def rank(at: int) -> int:
        member = members[at]
        if member.kind != writer.kind:
            return 3
        if member.name == writer.name or writer.name in member.aliases:
            return 0
        return 1 if member.name.rpartition(".")[2] == short else 2

    yield from sorted(range(len(members)), key=rank)


def _with_meaning(plan: dict[str, Any], writer: AvroType, reader: AvroType) -> dict[str, Any]:
    if "decimal" in (writer.logical, reader.logical):
        return _decimal(plan, writer, reader)
    if writer.logical and reader.logical and (writer.logical in NANOS) != (reader.logical in NANOS):
        raise WrongSchema(f"{writer.logical} in the writer's Avro schema cannot be read as {reader.logical}")
    # A producer may have changed the unit of its times.
    by_writer = writer.logical in _TIMESTAMPS and reader.logical in _TIMESTAMPS
    factor = _FACTORS.get(writer.logical if by_writer else reader.logical, 1)
    if (writer.logical, reader.logical) == ("time-millis", "time-micros"):
        factor *= 1000
    return plan if factor == 1 else _marked(plan, "times", factor=factor)


def _decimal(plan: dict[str, Any], writer: AvroType, reader: AvroType) -> dict[str, Any]:
    if reader.logical != "decimal":
        return plan
    if writer.precision > MAX_PRECISION:
        raise WrongSchema(
            f"a decimal of {writer.precision} digits in the writer's Avro schema can be read as {writer.kind} only"
        )
    scale = writer.scale if writer.logical == "decimal" else reader.scale
    return _marked(plan, "decimal", scale=scale)


def _promoted(writer: AvroType, reader: AvroType) -> dict[str, Any]:
    if reader.kind == "string":
        return _marked("bytes", "text")
    if reader.kind == "bytes":
        if reader.logical == "decimal":
            raise WrongSchema(f"{writer} in the writer's Avro schema cannot be read as a decimal")
        return _marked("string", "encode")
    if reader.kind in ("float", "double"):
        return _marked(writer.kind, "float")
    return _with_meaning({"type": writer.kind}, writer, reader)


def default_value(type_: AvroType, value: Any, *, encodable: bool = False) -> Any:
    """The default ``value``, which is JSON, as a decoded value of ``type_``. Raises :class:`WrongSchema`.

    With ``encodable`` it is what fastavro encodes instead: numbers in Avro's units, and decimals as their bytes.
    """
    if type_.kind == "union":
        return _default_of_union(type_, value, encodable)

    def inner(below: AvroType, each: Any) -> Any:
        return default_value(below, each, encodable=encodable)

    try:
        if type_.kind == "record":
            return {field.name: inner(field.type, value.get(field.name, field.default)) for field in type_.fields}
        if type_.kind == "array" and type_.items is not None:
            return [inner(type_.items, each) for each in value]
        if type_.kind == "map" and type_.items is not None:
            return {str(name): inner(type_.items, each) for name, each in value.items()}
        if type_.kind in ("bytes", "fixed"):
            data = value.encode("latin-1")
            return _to_decimal(data, type_.scale) if type_.logical == "decimal" and not encodable else data
        if type_.kind in ("float", "double"):
            return float(value)
        allowed: dict[str, type] = {"boolean": bool, "int": int, "long": int, "string": str, "enum": str}
        if type_.kind == "null" and value is None:
            return None
        if not isinstance(value, allowed[type_.kind]) or (isinstance(value, bool) and type_.kind != "boolean"):
            raise TypeError
        factor = 1 if encodable else _FACTORS.get(type_.logical, 1)
        return value * factor if isinstance(value, int) and factor != 1 else value
    except (AttributeError, KeyError, TypeError, ValueError):
        raise WrongSchema(f"the default {value!r} in an Avro schema is not of its type, {type_}") from None


def _default_of_union(type_: AvroType, value: Any, encodable: bool) -> Any:
    if value is None and any(branch.kind == "null" for branch in type_.branches):
        return None
    members = type_.members
    for at, member in enumerate(members):
        try:
            found = default_value(member, value, encodable=encodable)
        except WrongSchema:
            continue
        return found if len(members) == 1 else {f"member{at}": found}
    raise WrongSchema(f"the default {value!r} of a union in an Avro schema has the type of none of its branches")


def _to_decimal(data: bytes, scale: int) -> Decimal:
    number = int.from_bytes(data, "big", signed=True)
    # By its digits, which no context rounds.
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _read_decimal(data: bytes, schema: dict[str, Any], reader: Any = None) -> Decimal:
    if not 1 <= len(data) <= 1024:
        raise ValueError(f"a decimal of {len(data)} bytes")
    return _to_decimal(data, schema[MARK]["scale"])


def _read_enum(number: int, schema: dict[str, Any], reader: Any = None) -> str:
    enum = schema[MARK]
    symbols: list[str | None] = enum["symbols"]
    if not 0 <= number < len(symbols):
        raise ValueError(f"symbol {number} of an enum that has {len(symbols)}")
    symbol = symbols[number]
    if symbol is None:
        what = f"the symbol {enum['written'][number]!r} is not in the enum {enum['name']!r} of the reader's schema"
        raise _Unresolved(f"{what}, which has no default")
    return symbol


def _raise_unresolved(value: Any, schema: dict[str, Any], reader: Any = None) -> None:
    raise _Unresolved(schema[MARK]["reason"])


def _add_defaults(value: dict[str, Any], schema: dict[str, Any], reader: Any = None) -> dict[str, Any]:
    return {**schema[MARK]["defaults"], **value}


_Function = Callable[..., Any]
_FUNCTIONS: dict[str, _Function] = {
    f"int-{MARK}-enum": _read_enum,
    f"null-{MARK}-unresolved": _raise_unresolved,
    f"record-{MARK}-defaults": _add_defaults,
    f"bytes-{MARK}-decimal": _read_decimal,
    f"fixed-{MARK}-decimal": _read_decimal,
    f"bytes-{MARK}-text": lambda value, schema, reader=None: value.decode(),
    f"string-{MARK}-encode": lambda value, schema, reader=None: value.encode(),
}
for _kind in ("int", "long", "float"):
    _FUNCTIONS[f"{_kind}-{MARK}-float"] = lambda value, schema, reader=None: float(value)
    _FUNCTIONS[f"{_kind}-{MARK}-times"] = lambda value, schema, reader=None: value * schema[MARK]["factor"]

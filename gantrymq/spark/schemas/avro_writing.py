"""Writes Avro bodies with fastavro."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gantrymq.spark.errors import WrongSchema
from gantrymq.spark.schemas.avro import default_value
from gantrymq.spark.schemas.avro_schema import AvroField, AvroType
from gantrymq.spark.schemas.bodies import UnreadableBody, is_bytes, is_text

if TYPE_CHECKING:
    import pyarrow as pa

_Prepare = Callable[[Any], Any]
_FAILURES = (ValueError, TypeError, AttributeError, ArithmeticError, struct.error)
"""What fastavro raises for a value that a schema has no place for."""


class AvroWriter:
    """Encodes values of a column of type ``given`` by ``schema``, behind ``header``.

    Raises :class:`WrongSchema` if the type does not fit the schema.
    """

    def __init__(self, schema: AvroType, given: pa.DataType, header: bytes = b"") -> None:
        import fastavro

        self._write = fastavro.schemaless_writer
        self._schema = _parsed(schema)
        self._prepare = _fit(schema, given, "the column")
        self._header = header
        self._name = str(schema)

    def write(self, value: Any) -> bytes:
        """The body. Raises :class:`UnreadableBody` for a value that the schema has no place for."""
        buffer = BytesIO()
        buffer.write(self._header)
        try:
            self._write(buffer, self._schema, self._prepare(value) if self._prepare else value)
        except _FAILURES as error:
            raise UnreadableBody(f"a row does not fit the Avro schema of {self._name}: {error}") from None
        return buffer.getvalue()


def check_writable(schema: AvroType) -> None:
    """Raise :class:`WrongSchema` if no column can be written by ``schema``."""
    _parsed(schema)


def _parsed(schema: AvroType) -> Any:
    """What fastavro writes values of ``schema`` by. Raises :class:`WrongSchema`."""
    import fastavro
    import fastavro.schema

    try:
        return fastavro.parse_schema(_plan(schema, itertools.count()))
    except fastavro.schema.SchemaParseException as error:
        raise WrongSchema(f"an Avro schema cannot be written: {error}") from None


def _plan(type_: AvroType, numbers: Iterator[int]) -> Any:
    """fastavro's schema for ``type_``, each named type under a name of its own.

    It has no defaults: :func:`_fit_record` sets them, because fastavro takes those of JSON for values of some types
    only, and refuses 0 for a double.
    """
    if type_.kind == "union":
        if len([branch for branch in type_.branches if branch.kind != "null"]) > 1:
            raise WrongSchema("a union of several types cannot be written, only one of null and a type")
        return [_plan(branch, numbers) for branch in type_.branches]
    plan: dict[str, Any] = {"type": type_.kind}
    if type_.name:
        plan["name"] = f"type_{next(numbers)}"
    if type_.logical:
        plan["logicalType"] = type_.logical
    if type_.logical == "decimal":
        plan |= {"precision": type_.precision, "scale": type_.scale}
    if type_.kind == "fixed":
        plan["size"] = type_.size
    if type_.kind == "enum":
        plan["symbols"] = list(type_.symbols)
    if type_.items is not None:
        plan["items" if type_.kind == "array" else "values"] = _plan(type_.items, numbers)
    if type_.kind == "record":
        plan["fields"] = [{"name": field.name, "type": _plan(field.type, numbers)} for field in type_.fields]
    return plan


def _fit(type_: AvroType, given: pa.DataType, where: str) -> _Prepare | None:
    """Return the function that converts a value of type ``given`` to fastavro's, None if they are the same.

    Raises :class:`WrongSchema` if values of ``given`` do not fit ``type_``; ``where`` names the column or field.
    """
    import pyarrow as pa

    if type_.kind == "union":
        members = [branch for branch in type_.branches if branch.kind != "null"]
        if pa.types.is_null(given) or not members:
            return None
        prepare = _fit(members[0], given, where)
        return None if prepare is None else lambda value: None if value is None else prepare(value)
    if type_.kind == "record" and pa.types.is_struct(given):
        return _fit_record(type_, given, where)
    if type_.items is not None:
        if type_.kind == "array" and pa.types.is_list(given):
            item = _fit(type_.items, given.value_type, f"{where}[]")
            return None if item is None else lambda value: [item(each) for each in value]
        if type_.kind == "map" and pa.types.is_map(given) and is_text(given.key_type):
            return _fit_map(_fit(type_.items, given.item_type, f"{where}[]"))
    if _fits(type_, given):
        return _fit_boolean if type_.kind == "boolean" else None
    raise WrongSchema(f"{where} is {given}, which cannot be written as Avro's {type_.logical or type_}")


def _fit_boolean(value: bool | None) -> bool:
    """``value``. Raises TypeError for None, which fastavro would write as false; it refuses None of other types."""
    if value is None:
        raise TypeError("null has no place in a boolean")
    return value


def _fit_map(item: _Prepare | None) -> _Prepare:
    return dict if item is None else lambda value: {name: item(each) for name, each in value}


def _fit_record(type_: AvroType, given: pa.StructType, where: str) -> _Prepare | None:
    fields = {given.field(at).name: given.field(at).type for at in range(given.num_fields)}
    if unknown := fields.keys() - {field.name for field in type_.fields}:
        raise WrongSchema(f"{where} has {', '.join(sorted(unknown))}, which is not in the Avro schema of {type_}")
    prepared, defaults = {}, {}
    for field in type_.fields:
        if field.name in fields:
            if prepare := _fit(field.type, fields[field.name], f"{where}.{field.name}"):
                prepared[field.name] = prepare
        elif field.has_default:
            defaults[field.name] = _encodable_default(field)
        else:
            raise WrongSchema(f"{where} lacks {field.name}, which has no default in the Avro schema of {type_}")
    if not prepared and not defaults:
        return None
    return lambda value: defaults | value | {name: prepare(value[name]) for name, prepare in prepared.items()}


def _encodable_default(field: AvroField) -> Any:
    """What fastavro encodes for a field that the column lacks. Raises :class:`WrongSchema` if that has no encoding."""
    import fastavro

    value = default_value(field.type, field.default, encodable=True)
    try:
        fastavro.schemaless_writer(BytesIO(), _parsed(field.type), value)
    except _FAILURES as error:
        what = f"the default {field.default!r} of {field.name!r} in an Avro schema cannot be written"
        raise WrongSchema(f"{what}: {error}") from None
    return value


def _fits(type_: AvroType, given: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if type_.logical == "decimal":
        if not kinds.is_decimal(given):
            return False
        return bool(given.scale <= type_.scale and given.precision - given.scale <= type_.precision - type_.scale)
    if type_.logical in ("timestamp-millis", "timestamp-micros"):
        return bool(kinds.is_timestamp(given) and given.tz is not None)
    if type_.logical in ("local-timestamp-millis", "local-timestamp-micros"):
        return bool(kinds.is_timestamp(given) and given.tz is None)
    small = kinds.is_int8(given) or kinds.is_int16(given) or kinds.is_int32(given)
    fits: dict[str, bool] = {
        "date": kinds.is_date32(given),
        "time-micros": kinds.is_time64(given),
        "time-millis": kinds.is_int32(given),
        "null": kinds.is_null(given),
        "boolean": kinds.is_boolean(given),
        "int": small,
        "long": small or kinds.is_int64(given),
        "float": kinds.is_float32(given),
        "double": kinds.is_float32(given) or kinds.is_float64(given) or small,
        "bytes": is_bytes(given),
        "fixed": is_bytes(given),
        "string": is_text(given),
        "enum": is_text(given),
    }
    return fits.get(type_.logical if type_.logical in fits else type_.kind, False)

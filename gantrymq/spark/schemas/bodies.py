"""Converts a column of bodies row by row, and says which row failed; Avro and Protobuf share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gantrymq.spark.errors import BadBody

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

Convert = Callable[[Any], Any]
"""Makes a value of one that is not null. Raises :class:`UnreadableBody`."""


class ColumnConverter:
    """A :data:`Convert` that can also convert a whole column."""

    def __call__(self, value: Any) -> Any:
        """See :data:`Convert`."""
        raise NotImplementedError

    def convert_all(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """``column`` as an array of type ``kind``; None if its values have to be converted one by one."""
        raise NotImplementedError


class UnreadableBody(Exception):
    """One value cannot be converted; the text says why."""


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which Spark takes a column of type ``kind`` from a Python worker."""
    import pyarrow as pa
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return pa.struct([(field.name, arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, types.MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return {
        "void": pa.null(),
        "boolean": pa.bool_(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "string": pa.string(),
        "date": pa.date32(),
        "time": pa.time64("ns"),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "daytimeinterval": pa.duration("us"),
    }[kind.typeName().replace(" ", "").partition("(")[0]]


def is_text(given: pa.DataType) -> bool:
    """Whether Spark sends strings as ``given``, which also depends on spark.sql.execution.arrow.useLargeVarTypes."""
    import pyarrow as pa

    return bool(pa.types.is_string(given) or pa.types.is_large_string(given))


def is_bytes(given: pa.DataType) -> bool:
    """Whether Spark sends binary values as ``given``; see :func:`is_text`."""
    import pyarrow as pa

    return bool(pa.types.is_binary(given) or pa.types.is_large_binary(given))


def check_binary(given: pa.DataType) -> None:
    """Raise :class:`BadBody` unless a column of type ``given`` has bodies."""
    if not is_bytes(given):
        raise BadBody(f"a column of bodies is binary, not {given}")


def convert_column(
    column: pa.Array, convert: Convert, kind: pa.DataType, permissive: bool, origin: Sequence[tuple[str, pa.Array]]
) -> pa.Array:
    """``column`` with each value converted, as an array of type ``kind``; null stays null.

    A value that cannot be converted is null if ``permissive``, else :class:`BadBody` names its row by the columns
    ``origin``.
    """
    import pyarrow as pa

    if isinstance(convert, ColumnConverter):
        whole = convert.convert_all(column, kind)
        if whole is not None:
            return whole
    values: list[Any] = []
    for row, value in enumerate(_values(column, origin)):
        try:
            values.append(None if value is None else convert(value))
        except UnreadableBody as error:
            if not permissive:
                raise _bad(error, row, origin) from None
            values.append(None)
    problems = (pa.ArrowException, OverflowError, ValueError, TypeError)
    try:
        return pa.array(values, kind)
    except problems:  # which of them it was costs one array a row
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except problems as error:
                if not permissive:
                    raise _bad(error, row, origin) from None
                values[row] = None
        return pa.array(values, kind)


def _values(column: pa.Array, origin: Sequence[tuple[str, pa.Array]]) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):  # a timestamp that Python has none for, among others
        for row, value in enumerate(column):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                raise _bad(error, row, origin) from None
        raise


def _bad(error: Exception, row: int, origin: Sequence[tuple[str, pa.Array]]) -> BadBody:
    where = ", ".join(f"{name} {column[row].as_py()!r}" for name, column in origin)
    return BadBody(f"{where}: {error}" if where else f"{error} (the option origin names the row's columns)")

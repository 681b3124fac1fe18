"""The types of Spark for an Avro schema: those of Spark's own ``from_avro``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.spark.errors import WrongSchema
from gantrymq.spark.schemas.avro_schema import MAX_PRECISION, AvroType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def spark_type(type_: AvroType) -> DataType:
    """The type of the column in Spark. Everything in it may be null. Raises :class:`WrongSchema`: it has none."""
    from pyspark.sql import types

    if type_.kind == "union":
        members = type_.members
        if len(members) == 1:
            return spark_type(members[0])
        if members:
            fields = [types.StructField(f"member{at}", spark_type(each)) for at, each in enumerate(members)]
            return types.StructType(fields)
        return types.NullType()
    if type_.kind == "record":
        return types.StructType([types.StructField(field.name, spark_type(field.type)) for field in type_.fields])
    if type_.items is not None:
        items = spark_type(type_.items)
        return types.ArrayType(items) if type_.kind == "array" else types.MapType(types.StringType(), items)
    if type_.precision > MAX_PRECISION:
        raise WrongSchema(
            f"an Avro schema has a decimal of {type_.precision} digits, Spark has {MAX_PRECISION} at most; give a "
            "schema of your own that reads it as bytes"
        )
    if type_.logical == "decimal":
        return types.DecimalType(type_.precision, type_.scale)
    logical: dict[str, DataType] = {
        "date": types.DateType(),
        "time-micros": types.TimeType(6),
        "timestamp-millis": types.TimestampType(),
        "timestamp-micros": types.TimestampType(),
        "local-timestamp-millis": types.TimestampNTZType(),
        "local-timestamp-micros": types.TimestampNTZType(),
    }
    plain: dict[str, DataType] = {
        "null": types.NullType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "long": types.LongType(),
        "float": types.FloatType(),
        "double": types.DoubleType(),
        "bytes": types.BinaryType(),
        "fixed": types.BinaryType(),
        "string": types.StringType(),
        "enum": types.StringType(),
    }
    return logical.get(type_.logical) or plain[type_.kind]

"""The functions for columns of Avro bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.spark.errors import RegistryFailed, WrongOption, WrongSchema
from gantrymq.spark.local import check_pyspark
from gantrymq.spark.schemas.avro import AvroReader
from gantrymq.spark.schemas.avro_columns import ColumnDecoder, decode_column
from gantrymq.spark.schemas.avro_schema import AvroType, SchemaText, parse_avro, to_text
from gantrymq.spark.schemas.avro_types import spark_type
from gantrymq.spark.schemas.avro_writing import AvroWriter, check_writable
from gantrymq.spark.schemas.bodies import ColumnConverter, Convert, UnreadableBody, check_binary
from gantrymq.spark.schemas.extras import import_extra
from gantrymq.spark.schemas.registry import FoundSchema, SchemaRegistry
from gantrymq.spark.schemas.udfs import RegistryConverter, ask_id, ask_latest, is_permissive, make_udf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

Schema = str | Mapping[str, Any] | Sequence[Any]
"""An Avro schema: JSON text, or what ``json.loads`` makes of it."""


def from_avro(
    column: Column | str, schema: Schema | None = None, *, writer_schema: Schema | None = None,
    registry: SchemaRegistry | None = None, subject: str | None = None, mode: str = "failfast",
    origin: Sequence[str] = (),
) -> Column:  # fmt: skip
    """The column of Avro bodies as a column of the type of ``schema``, in batches and streams.

    With ``registry`` each body begins with the id of the schema that wrote it; ``schema`` is the reader's, or the
    newest one of ``subject``, which is asked for once, on the driver. Without, bodies are plain Avro of
    ``writer_schema``, by default ``schema``. Fields are matched by Avro's rules of schema resolution.

    With ``mode`` ``permissive`` a body that cannot be decoded is null; with ``failfast`` it fails the query, and the
    error names the values of the columns ``origin``, such as ``("topic", "queueId", "queueOffset")``. A registry that
    does not answer fails the query in both.

    Raises :class:`WrongSchema`, :class:`WrongOption`, :class:`RegistryFailed`; :class:`SparkMissing` without the extra
    ``spark-schemas``.
    """
    return avro_decoder(
        schema, writer_schema=writer_schema, registry=registry, subject=subject, mode=mode, origin=origin
    )(column, *origin)


def avro_decoder(
    schema: Schema | None = None, *, writer_schema: Schema | None = None, registry: SchemaRegistry | None = None,
    subject: str | None = None, mode: str = "failfast", origin: Sequence[str] = (),
) -> Callable[..., Column]:  # fmt: skip
    """The function of :func:`from_avro`, for ``spark.udf.register`` and so for SQL.

    It takes the column of bodies, and then those that ``origin`` names.
    """
    check_pyspark()
    import_extra("fastavro")
    if registry is not None and writer_schema is not None:
        raise WrongOption("with a registry each body says its writer's schema: leave writer_schema out")
    reader = _reader_schema(schema, registry, subject)
    writer = reader if writer_schema is None else SchemaText(to_text(writer_schema))
    spec = _AvroSpec(reader, writer if registry is None else None, registry)
    kind = spark_type(parse_avro(reader))
    if registry is None:
        AvroReader(parse_avro(writer), parse_avro(reader))
    return make_udf(_avro_converter, spec, kind, is_permissive(mode), tuple(origin))


def to_avro(
    column: Column | str, schema: Schema | None = None, *, registry: SchemaRegistry | None = None,
    subject: str | None = None, register: bool = False, origin: Sequence[str] = (),
) -> Column:  # fmt: skip
    """The column as Avro bodies of ``schema``; fields of a struct are matched by name.

    With ``registry`` each body begins with the schema's id in ``subject``: of ``schema``, which must be there already
    or is added with ``register``, or of the newest schema without ``schema``. The registry is asked on the driver only.

    Raises as :func:`from_avro` does. A row that does not fit the schema fails the query.
    """
    check_pyspark()
    import_extra("fastavro")
    if registry is None and (subject is not None or register):
        raise WrongOption("subject and register are for a registry")
    header = b""
    if registry is None:
        if schema is None:
            raise WrongOption("to_avro needs a schema, or a registry and a subject")
        text = _writable(SchemaText(to_text(schema)))
    else:
        text, number = _schema_to_write(schema, registry, subject, register)
        header = registry.header(number)
    from pyspark.sql.types import BinaryType

    return make_udf(_avro_encoder, (text, header), BinaryType(), False, tuple(origin))(column, *origin)


@attrs.frozen
class _AvroSpec:
    reader: SchemaText
    writer: SchemaText | None
    registry: SchemaRegistry | None


def _reader_schema(schema: Schema | None, registry: SchemaRegistry | None, subject: str | None) -> SchemaText:
    if schema is not None:
        if subject is not None:
            raise WrongOption("give a schema or a subject, not both: the column has the type of one of them")
        return SchemaText(to_text(schema))
    if registry is None or subject is None:
        raise WrongOption("give the schema that the column is read with, or a registry and a subject that has one")
    found = ask_latest(registry, subject, "AVRO")
    return SchemaText(found.text, found.references)


def _schema_to_write(
    schema: Schema | None, registry: SchemaRegistry, subject: str | None, register: bool
) -> tuple[SchemaText, int]:
    if schema is not None:
        given = _writable(SchemaText(to_text(schema)))  # before the registry keeps it
        return given, ask_id(registry, subject, FoundSchema(given.text), register)
    if subject is None or register:
        raise WrongOption("a registry needs the subject, and register the schema too")
    found = ask_latest(registry, subject, "AVRO")
    if found.id is None:
        raise RegistryFailed(f"subject {subject!r} answers without an id")
    return _writable(SchemaText(found.text, found.references)), found.id


def _writable(text: SchemaText) -> SchemaText:
    """``text``. Raises :class:`WrongSchema` if no column can be written by it."""
    check_writable(parse_avro(text))
    return text


@attrs.frozen
class _AvroBodies(ColumnConverter):
    """Decodes bodies; ``find`` has the reader of one, and where its value begins."""

    find: Callable[[bytes], tuple[AvroReader, int]]

    def __call__(self, value: bytes) -> Any:
        """The value of one body. Raises :class:`UnreadableBody`."""
        reader, start = self.find(value)
        return reader.read(value, start)

    def convert_all(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """See :class:`ColumnConverter`."""

        def find(body: bytes) -> tuple[ColumnDecoder | None, int]:
            reader, start = self.find(body)
            return reader.decoder(kind), start

        try:
            return decode_column(column, kind, find)
        except UnreadableBody:
            return None


# A Python worker makes each converter once, with the schemas that it has fetched, and not once a batch.
@lru_cache(maxsize=32)
def _avro_converter(spec: _AvroSpec, given: pa.DataType) -> Convert:
    import_extra("fastavro")
    check_binary(given)
    reader = parse_avro(spec.reader)
    if spec.registry is not None:
        registry = spec.registry
        return _AvroBodies(RegistryConverter(registry, lambda number: _open_avro(registry.by_id(number), reader)).find)
    assert spec.writer is not None
    only = AvroReader(parse_avro(spec.writer), reader)
    return _AvroBodies(lambda body: (only, 0))


@lru_cache(maxsize=32)
def _avro_encoder(spec: tuple[SchemaText, bytes], given: pa.DataType) -> Convert:
    import_extra("fastavro")
    text, header = spec
    return AvroWriter(parse_avro(text), given, header).write


def _open_avro(found: FoundSchema, reader: AvroType) -> AvroReader:
    if found.kind != "AVRO":
        raise WrongSchema(f"it is {found.kind}, not AVRO")
    return AvroReader(parse_avro(SchemaText(found.text, found.references)), reader)

"""The functions for columns of bodies; each plans on the driver and works in the Python workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.spark.errors import RegistryFailed, WrongOption, WrongSchema
from gantrymq.spark.local import check_pyspark
from gantrymq.spark.schemas.avro import AvroReader
from gantrymq.spark.schemas.avro_schema import AvroType, SchemaText, parse_avro, to_text
from gantrymq.spark.schemas.avro_types import spark_type
from gantrymq.spark.schemas.avro_writing import AvroWriter, check_writable
from gantrymq.spark.schemas.bodies import Convert, UnreadableBody, arrow_type, check_binary, convert_column
from gantrymq.spark.schemas.extras import import_extra
from gantrymq.spark.schemas.registry import FoundSchema, SchemaRegistry, UnknownSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Schema = str | Mapping[str, Any] | Sequence[Any]
"""An Avro schema: JSON text, or what ``json.loads`` makes of it."""

MAX_UNKNOWN = 1000
"""The most unknown ids that a Python worker meets before it fails, also if unreadable bodies become null: each costs a
request, and so many mean that the bodies are not of this registry."""
_UNKNOWN_SECONDS = 60.0


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
    return _make_udf(_avro_converter, spec, kind, _is_permissive(mode), tuple(origin))


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
        text = SchemaText(to_text(schema))
    else:
        text, number = _schema_to_write(schema, registry, subject, register)
        header = registry.header(number)
    check_writable(parse_avro(text))
    from pyspark.sql.types import BinaryType

    return _make_udf(_avro_encoder, (text, header), BinaryType(), False, tuple(origin))(column, *origin)


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


def ask_latest(registry: SchemaRegistry, subject: str, kind: str) -> FoundSchema:
    """The newest schema of ``subject``. Raises :class:`WrongSchema` if it is not of ``kind``."""
    try:
        found = registry.latest(subject)
    except UnknownSchema as error:
        raise RegistryFailed(str(error)) from None
    if found.kind != kind:
        raise WrongSchema(f"the schema of subject {subject!r} is {found.kind}, not {kind}")
    return found


def ask_id(registry: SchemaRegistry, subject: str | None, schema: FoundSchema, register: bool) -> int:
    """The id of ``schema`` in ``subject``, where it is added with ``register``."""
    if subject is None:
        raise WrongOption("a registry needs the subject that has the schema")
    try:
        return registry.register(subject, schema) if register else registry.find(subject, schema)
    except UnknownSchema as error:
        raise RegistryFailed(f"{error}; register=True adds the schema to subject {subject!r}") from None


def _schema_to_write(
    schema: Schema | None, registry: SchemaRegistry, subject: str | None, register: bool
) -> tuple[SchemaText, int]:
    if schema is not None:
        text = to_text(schema)
        parse_avro(SchemaText(text))
        return SchemaText(text), ask_id(registry, subject, FoundSchema(text), register)
    if subject is None or register:
        raise WrongOption("a registry needs the subject, and register the schema too")
    found = ask_latest(registry, subject, "AVRO")
    if found.id is None:
        raise RegistryFailed(f"subject {subject!r} answers without an id")
    return SchemaText(found.text, found.references), found.id


def _is_permissive(mode: str) -> bool:
    if mode.lower() not in ("failfast", "permissive"):
        raise WrongOption(f"mode is 'failfast' or 'permissive', not {mode!r}")
    return mode.lower() == "permissive"


def _make_udf(
    make: Callable[[Any, pa.DataType], Convert], spec: Any, kind: DataType, permissive: bool, origin: tuple[str, ...]
) -> Callable[..., Column]:
    """A function of columns: one that ``make(spec, its type)`` converts into ``kind``, and those of ``origin``."""
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    def convert(column: pa.Array, *where: pa.Array) -> pa.Array:
        named = list(zip(origin, where, strict=True))
        return convert_column(column, make(spec, column.type), arrow_type(kind), permissive, named)

    # Spark evaluates the hints to find what kind of function it is.
    convert.__annotations__ = dict.fromkeys(("column", "where", "return"), pa.Array)
    udf: Callable[..., Column] = arrow_udf(convert, kind)
    return udf


# A Python worker makes each converter once, with the schemas that it has fetched, and not once a batch.
@lru_cache(maxsize=32)
def _avro_converter(spec: _AvroSpec, given: pa.DataType) -> Convert:
    import_extra("fastavro")
    check_binary(given)
    reader = parse_avro(spec.reader)
    if spec.registry is not None:
        return _RegistryConverter(spec.registry, lambda found: _open_avro(found, reader)).convert
    assert spec.writer is not None
    return AvroReader(parse_avro(spec.writer), reader).read


@lru_cache(maxsize=32)
def _avro_encoder(spec: tuple[SchemaText, bytes], given: pa.DataType) -> Convert:
    import_extra("fastavro")
    text, header = spec
    return AvroWriter(parse_avro(text), given, header).write


def _open_avro(found: FoundSchema, reader: AvroType) -> Callable[[bytes, int], Any]:
    if found.kind != "AVRO":
        raise WrongSchema(f"it is {found.kind}, not AVRO")
    return AvroReader(parse_avro(SchemaText(found.text, found.references)), reader).read


class _RegistryConverter:
    """Decodes bodies with a header, each by the schema that its id names."""

    def __init__(self, registry: SchemaRegistry, make: Callable[[FoundSchema], Callable[[bytes, int], Any]]) -> None:
        self._registry = registry
        self._make = make
        self._readers: dict[int, Callable[[bytes, int], Any]] = {}
        self._refused: dict[int, tuple[float, str]] = {}

    def convert(self, body: bytes) -> Any:
        """The value of ``body``. Raises :class:`UnreadableBody`, :class:`RegistryFailed`."""
        number, start = self._registry.split(body)
        read = self._readers.get(number)
        return (read or self._open(number))(body, start)

    def _open(self, number: int) -> Callable[[bytes, int], Any]:
        since, reason = self._refused.get(number, (0.0, ""))
        if not reason or time.monotonic() - since > _UNKNOWN_SECONDS:
            if len(self._refused) >= MAX_UNKNOWN:
                raise RegistryFailed(f"{self._registry} lacks {MAX_UNKNOWN:,} ids of these bodies, the last: {reason}")
            try:
                self._readers[number] = self._make(self._registry.by_id(number))
                return self._readers[number]
            except UnknownSchema as error:
                reason = str(error)
            except WrongSchema as error:
                reason = f"schema {number} of {self._registry}: {error}"
            self._refused[number] = (time.monotonic(), reason)
        raise UnreadableBody(reason)

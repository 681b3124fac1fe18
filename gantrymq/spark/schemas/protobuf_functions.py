"""The functions for columns of Protobuf bodies."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.spark.errors import WrongOption, WrongSchema
from gantrymq.spark.local import check_pyspark
from gantrymq.spark.schemas.bodies import Convert, UnreadableBody, check_binary
from gantrymq.spark.schemas.extras import import_extra
from gantrymq.spark.schemas.protobuf import (
    MessageType,
    ProtobufReader,
    ProtobufWriter,
    file_of,
    find_message,
    names_at,
    path_of,
    read_path,
    write_path,
)
from gantrymq.spark.schemas.registry import FoundSchema, SchemaRegistry
from gantrymq.spark.schemas.udfs import RegistryConverter, ask_id, is_permissive, make_udf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


def from_protobuf(
    column: Column | str, message: Any, descriptors: bytes | str | Path | None = None, *,
    registry: SchemaRegistry | None = None, mode: str = "failfast", origin: Sequence[str] = (),
) -> Column:  # fmt: skip
    """The column of Protobuf bodies as a column of the type of ``message``, in batches and streams.

    ``message`` is a generated class, or a full name in ``descriptors``: a serialized FileDescriptorSet with all
    imports, or the file that has it (``protoc --include_imports --descriptor_set_out``). With ``registry`` each body
    begins with a schema's id and a message index; a body of another message is one that cannot be decoded.

    ``mode`` and ``origin`` mean the same as for :func:`from_avro`, and the errors are the same.
    """
    return protobuf_decoder(message, descriptors, registry=registry, mode=mode, origin=origin)(column, *origin)


def protobuf_decoder(
    message: Any, descriptors: bytes | str | Path | None = None, *, registry: SchemaRegistry | None = None,
    mode: str = "failfast", origin: Sequence[str] = (),
) -> Callable[..., Column]:  # fmt: skip
    """The function of :func:`from_protobuf`, for ``spark.udf.register`` and so for SQL.

    It takes the column of bodies, and then those that ``origin`` names.
    """
    check_pyspark()
    import_extra("google.protobuf")
    type_ = find_message(message, descriptors)
    kind = ProtobufReader(type_).kind
    return make_udf(_converter, _Spec(type_, registry), kind, is_permissive(mode), tuple(origin))


def to_protobuf(
    column: Column | str, message: Any, descriptors: bytes | str | Path | None = None, *,
    registry: SchemaRegistry | None = None, subject: str | None = None, register: bool = False,
    origin: Sequence[str] = (),
) -> Column:  # fmt: skip
    """The struct column as Protobuf bodies of ``message``; fields are matched by name, and null ones are not set.

    With ``registry`` each body begins with the id of the message's file in ``subject``, which must be there already or
    is added with ``register``, and the message index. The registry is asked on the driver only.

    Raises as :func:`from_avro` does. A row that does not fit the message fails the query.
    """
    check_pyspark()
    import_extra("google.protobuf")
    if registry is None and (subject is not None or register):
        raise WrongOption("subject and register are for a registry")
    type_ = find_message(message, descriptors)
    descriptor = ProtobufReader(type_).descriptor
    header = b""
    if registry is not None:
        file = file_of(descriptor)
        imports = [each.name for each in descriptor.file.dependencies if not each.name.startswith("google/protobuf/")]
        if imports:
            raise WrongOption(
                f"the file of {type_.name!r} imports {', '.join(imports)}: a registry takes files that import nothing "
                "but google/protobuf; write bodies without a registry"
            )
        schema = FoundSchema(base64.b64encode(file).decode(), "PROTOBUF")
        header = registry.header(ask_id(registry, subject, schema, register)) + write_path(path_of(file, type_.name))
    from pyspark.sql.types import BinaryType

    return make_udf(_encoder, (type_, header), BinaryType(), False, tuple(origin))(column, *origin)


@attrs.frozen
class _Spec:
    message: MessageType
    registry: SchemaRegistry | None


@lru_cache(maxsize=32)
def _converter(spec: _Spec, given: pa.DataType) -> Convert:
    check_binary(given)
    reader, registry = ProtobufReader(spec.message), spec.registry
    if registry is None:
        return reader.read
    return RegistryConverter(registry, lambda number: _open(registry, number, reader)).convert


@lru_cache(maxsize=32)
def _encoder(spec: tuple[MessageType, bytes], given: pa.DataType) -> Convert:
    message, header = spec
    return ProtobufWriter(message, given, header).write


def _open(registry: SchemaRegistry, number: int, reader: ProtobufReader) -> Callable[[bytes, int], Any]:
    found = registry.by_id(number)
    if found.kind != "PROTOBUF":
        raise WrongSchema(f"it is {found.kind}, not PROTOBUF")
    name = reader.descriptor.full_name
    # Without the writer's descriptor the message is known by its place, which is the reader's unless a file changed.
    file = registry.descriptor(number, found) or file_of(reader.descriptor)
    accepted: set[tuple[int, ...]] = set()

    def read(body: bytes, start: int) -> Any:
        path, at = read_path(body, start)
        if path not in accepted:
            names = names_at(file, path)
            if name not in names:
                written = " or ".join(sorted(names)) or f"number {path}"
                raise UnreadableBody(f"the body has the message {written} of schema {number}, not {name}")
            accepted.add(path)
        return reader.read(body, at)

    return read

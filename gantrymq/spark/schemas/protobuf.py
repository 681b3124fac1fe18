"""Reads and writes Protobuf bodies with the library of Google's that makes message classes of descriptors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.spark.errors import WrongOption, WrongSchema
from gantrymq.spark.schemas.avro_schema import MAX_DEPTH, MAX_WEIGHT
from gantrymq.spark.schemas.bodies import UnreadableBody, is_bytes, is_text
from gantrymq.spark.schemas.extras import import_extra

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_Convert = Callable[[Any], Any]
_WRAPPERS = tuple(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON_TYPES = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_MICROS = 1_000_000


@attrs.frozen
class MessageType:
    """A message type by its full name, and a serialized FileDescriptorSet that has it with all it imports."""

    name: str
    files: bytes = attrs.field(repr=False)

    def load(self) -> Any:
        """The message class. Raises :class:`WrongSchema`."""
        descriptor_pb2 = import_extra("google.protobuf.descriptor_pb2")
        pools = import_extra("google.protobuf.descriptor_pool")
        factory = import_extra("google.protobuf.message_factory")
        pool = pools.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self.files)
            for file in _by_dependency(list(files.file)):
                pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
            return factory.GetMessageClass(pool.FindMessageTypeByName(self.name))
        except KeyError:
            raise WrongSchema(f"the descriptors have no message {self.name!r}, with its package") from None
        except Exception as error:  # the library's own errors have no common base
            raise WrongSchema(f"the descriptors of {self.name!r} cannot be read: {error}") from None


def find_message(message: Any, descriptors: bytes | str | Path | None) -> MessageType:
    """The type ``message``, a generated class, or a full name in ``descriptors``, a FileDescriptorSet or its file.

    Raises :class:`WrongSchema`, :class:`WrongOption`.
    """
    if not isinstance(message, str):
        if descriptors is not None or not hasattr(message, "DESCRIPTOR"):
            raise WrongOption("give a generated message class, or a message's full name and descriptors")
        return MessageType(message.DESCRIPTOR.full_name, _files_of(message.DESCRIPTOR.file))
    if descriptors is None:
        raise WrongOption(
            f"the message {message!r} needs descriptors: the file that protoc --include_imports --descriptor_set_out "
            "writes, or its bytes"
        )
    try:
        files = descriptors if isinstance(descriptors, bytes) else Path(descriptors).read_bytes()
    except OSError as error:
        raise WrongOption(f"the descriptors {str(descriptors)!r} cannot be read: {error.strerror}") from None
    return MessageType(message, files)


def _files_of(file: Any) -> bytes:
    descriptor_pb2 = import_extra("google.protobuf.descriptor_pb2")
    found = descriptor_pb2.FileDescriptorSet()
    added: set[str] = set()

    def add(each: Any) -> None:
        if each.name not in added:
            added.add(each.name)
            for dependency in each.dependencies:
                add(dependency)
            each.CopyToProto(found.file.add())

    add(file)
    data: bytes = found.SerializeToString()
    return data


def _by_dependency(files: list[Any]) -> list[Any]:
    """``files``, each after those that it imports."""
    by_name = {file.name: file for file in files}
    ordered: dict[str, Any] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise WrongSchema(f"the descriptor file {name!r} imports itself")
        if name in by_name and name not in ordered:
            for dependency in by_name[name].dependency:
                add(dependency, (*above, name))
            ordered[name] = by_name[name]

    for file in files:
        add(file.name, ())
    return list(ordered.values())


def file_of(descriptor: Any) -> bytes:
    """The serialized FileDescriptorProto of the file that has the message."""
    found = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto()
    descriptor.file.CopyToProto(found)
    data: bytes = found.SerializeToString()
    return data


def path_of(file: bytes, name: str) -> tuple[int, ...]:
    """Where the message ``name`` is in a file: its number, preceded by those of the messages around it."""
    found = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(file)
    path: list[int] = []
    messages: Any = found.message_type
    for part in name.removeprefix(f"{found.package}.").split("."):
        path.append([each.name for each in messages].index(part))
        messages = messages[path[-1]].nested_type
    return tuple(path)


def names_at(file: bytes, path: Sequence[int]) -> set[str]:
    """The full names that the message at ``path`` in a serialized FileDescriptorProto may have.

    Serializers count differently: those of some languages count the entries of maps, which protoc adds to a message.
    """
    found = import_extra("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(file)
    names = set()
    for with_entries in (True, False):
        parts = [found.package] if found.package else []
        messages: Any = found.message_type
        for number in path:
            messages = [each for each in messages if with_entries or not each.options.map_entry]
            if not 0 <= number < len(messages):
                break
            parts.append(messages[number].name)
            messages = messages[number].nested_type
        else:
            names.add(".".join(parts))
    return names


def read_path(body: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The message's path behind a registry's id, and where the message begins. Raises :class:`UnreadableBody`."""
    count, at = _read_number(body, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_DEPTH:
        raise UnreadableBody(f"the header of a schema registry has a message index of {count} numbers")
    path = []
    for _ in range(count):
        number, at = _read_number(body, at)
        path.append(number)
    return tuple(path), at


def write_path(path: Sequence[int]) -> bytes:
    """What :func:`read_path` reads."""
    numbers = () if tuple(path) == (0,) else path
    return b"".join(_write_number(number) for number in (len(numbers), *numbers))


def _read_number(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(body[at : at + 5]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise UnreadableBody("the header of a schema registry ends within the message index")


def _write_number(number: int) -> bytes:
    value, written = number << 1, bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


def _message_type(descriptor: Any, above: tuple[str, ...], count: Any) -> DataType:
    """The type in Spark of a message within those ``above``. Raises :class:`WrongSchema`."""
    from pyspark.sql import types

    name = descriptor.full_name
    if name in above:
        raise WrongSchema(f"the Protobuf message {name!r} is recursive, which no type of Spark can be")
    if len(above) >= MAX_DEPTH:
        raise WrongSchema(f"the Protobuf message {above[0]!r} is nested deeper than {MAX_DEPTH} levels")
    if name == "google.protobuf.Timestamp":
        return types.TimestampType()
    if name == "google.protobuf.Duration":
        return types.DayTimeIntervalType()
    if name in _JSON_TYPES:
        return types.StringType()
    if name in _WRAPPERS:
        return _field_type(descriptor.fields_by_name["value"], above, count)
    struct = types.StructType()
    for field in descriptor.fields:
        if next(count) > MAX_WEIGHT:
            raise WrongSchema(f"a Protobuf message has more than {MAX_WEIGHT:,} fields")
        struct.add(field.name, _field_type(field, (*above, name), count))
    return struct


def _field_type(field: Any, above: tuple[str, ...], count: Any) -> DataType:
    from pyspark.sql import types

    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return types.MapType(_field_type(key, above, count), _field_type(value, above, count))
    if field.message_type is not None:
        kind = _message_type(field.message_type, above, count)
    else:
        kind = {
            field.TYPE_DOUBLE: types.DoubleType(), field.TYPE_FLOAT: types.FloatType(),
            field.TYPE_BOOL: types.BooleanType(), field.TYPE_STRING: types.StringType(),
            field.TYPE_BYTES: types.BinaryType(), field.TYPE_ENUM: types.StringType(),
            field.TYPE_UINT32: types.LongType(), field.TYPE_FIXED32: types.LongType(),
            field.TYPE_UINT64: types.DecimalType(20, 0), field.TYPE_FIXED64: types.DecimalType(20, 0),
            field.TYPE_INT32: types.IntegerType(), field.TYPE_SINT32: types.IntegerType(),
            field.TYPE_SFIXED32: types.IntegerType(),
        }.get(field.type, types.LongType())  # fmt: skip
    return types.ArrayType(kind) if _is_repeated(field) else kind


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: Any) -> bool:
    # Older releases of the library have the label only.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


class ProtobufReader:
    """Decodes messages of ``type_`` into values for the Arrow type of ``kind``, the type of its column.

    Raises :class:`WrongSchema`.
    """

    def __init__(self, type_: MessageType) -> None:
        self._class = type_.load()
        self._name = type_.name
        self.kind = _message_type(self._class.DESCRIPTOR, (), itertools.count())
        self._errors = (
            import_extra("google.protobuf.message").DecodeError,
            import_extra("google.protobuf.json_format").Error,  # a Struct with a number that JSON does not have
            ValueError,
        )
        self._convert = _message_reader(self._class.DESCRIPTOR)

    @property
    def descriptor(self) -> Any:
        """The message's descriptor."""
        return self._class.DESCRIPTOR

    def read(self, body: bytes, start: int = 0) -> Any:
        """The value in ``body`` from ``start`` to its end. Raises :class:`UnreadableBody`."""
        try:
            return self._convert(self._class.FromString(body[start:] if start else body))
        except self._errors as error:
            what = f"the {len(body) - start} bytes are no Protobuf message {self._name!r}"
            raise UnreadableBody(f"{what}: {error}") from None


def _message_reader(descriptor: Any) -> _Convert:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp" or name == "google.protobuf.Duration":
        return lambda found: found.seconds * _MICROS + found.nanos // 1000
    if name in _JSON_TYPES:
        to_json = import_extra("google.protobuf.json_format").MessageToJson
        return lambda found: to_json(found, indent=None)
    if name in _WRAPPERS:
        value = _value_reader(descriptor.fields_by_name["value"])
        return lambda found: value(found.value)
    getters = [(field.name, _field_reader(field)) for field in descriptor.fields]
    return lambda found: {name: get(found) for name, get in getters}


def _field_reader(field: Any) -> _Convert:
    name = field.name
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _value_reader(entry["key"]), _value_reader(entry["value"])
        return lambda found: {key(each): value(it) for each, it in getattr(found, name).items()}
    convert = _value_reader(field)
    if _is_repeated(field):
        return lambda found: [convert(each) for each in getattr(found, name)]
    if field.has_presence:
        return lambda found: convert(getattr(found, name)) if found.HasField(name) else None
    return lambda found: convert(getattr(found, name))


def _value_reader(field: Any) -> _Convert:
    if field.message_type is not None:
        return _message_reader(field.message_type)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Decimal
    if field.type == field.TYPE_ENUM:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda number: names.get(number) or str(number)
    return lambda value: value


class ProtobufWriter:
    """Encodes values of a column of type ``given`` as messages of ``type_``, behind ``header``.

    Raises :class:`WrongSchema` if the column's fields are not those of the message.
    """

    def __init__(self, type_: MessageType, given: pa.DataType, header: bytes = b"") -> None:
        self._class = type_.load()
        self._name = type_.name
        self._header = header
        self._fill = _message_writer(self._class.DESCRIPTOR, given, "the column")
        self._errors = (
            import_extra("google.protobuf.message").EncodeError,  # a required field that is not set
            import_extra("google.protobuf.json_format").Error,  # text for a Struct that is not JSON
            TypeError, ValueError, AttributeError, KeyError, ArithmeticError,  # failures of setting fields
        )  # fmt: skip

    def write(self, value: Any) -> bytes:
        """The body. Raises :class:`UnreadableBody` for a value that the message has no place for."""
        message = self._class()
        try:
            self._fill(message, value)
            return self._header + bytes(message.SerializeToString(deterministic=True))
        except self._errors as error:
            raise UnreadableBody(f"a row does not fit the Protobuf message {self._name!r}: {error}") from None


_Fill = Callable[[Any, Any], None]


def _message_writer(descriptor: Any, given: pa.DataType, where: str) -> _Fill:
    import pyarrow.types as kinds

    name = descriptor.full_name
    if name == "google.protobuf.Timestamp" and kinds.is_timestamp(given) and given.tz is not None:
        return lambda message, value: message.FromDatetime(value)
    if name == "google.protobuf.Duration" and kinds.is_duration(given):
        return lambda message, value: message.FromTimedelta(value)
    if name in _JSON_TYPES and is_text(given):
        parse = import_extra("google.protobuf.json_format").Parse
        return lambda message, value: parse(value, message)
    if name in _WRAPPERS and not kinds.is_struct(given):
        convert = _value_writer(descriptor.fields_by_name["value"], given, where)
        return lambda message, value: setattr(message, "value", convert(value))
    if not kinds.is_struct(given):
        raise WrongSchema(f"{where} is {given}, which cannot be written as the Protobuf message {name!r}")
    setters: list[tuple[str, _Fill]] = []
    for at in range(given.num_fields):
        column = given.field(at)
        field = descriptor.fields_by_name.get(column.name)
        if field is None:
            raise WrongSchema(f"{where} has {column.name}, which is not in the Protobuf message {name!r}")
        setters.append((column.name, _field_writer(field, column.type, f"{where}.{column.name}")))

    def fill(message: Any, value: Any) -> None:
        message.SetInParent()
        for name, set_field in setters:
            if value[name] is not None:
                set_field(message, value[name])

    return fill


def _field_writer(field: Any, given: pa.DataType, where: str) -> _Fill:
    import pyarrow.types as kinds

    name = field.name
    if _is_map(field):
        if not kinds.is_map(given):
            raise WrongSchema(f"{where} is {given}, which cannot be written as a map")
        return _map_writer(field, given, where)
    if _is_repeated(field):
        if not kinds.is_list(given):
            raise WrongSchema(f"{where} is {given}, which cannot be written as a repeated field")
        inner = f"{where}[]"
        if field.message_type is not None:
            fill = _message_writer(field.message_type, given.value_type, inner)

            def add(message: Any, values: Any) -> None:
                for each in values:
                    fill(getattr(message, name).add(), _not_null(each, inner))

            return add
        item = _value_writer(field, given.value_type, inner)
        return lambda message, values: getattr(message, name).extend(item(_not_null(each, inner)) for each in values)
    if field.message_type is not None:
        fill_one = _message_writer(field.message_type, given, where)
        return lambda message, value: fill_one(getattr(message, name), value)
    convert = _value_writer(field, given, where)
    return lambda message, value: setattr(message, name, convert(value))


def _map_writer(field: Any, given: pa.DataType, where: str) -> _Fill:
    name, inner = field.name, f"{where}[]"
    entry = field.message_type.fields_by_name
    key = _value_writer(entry["key"], given.key_type, f"{where} keys")
    if entry["value"].message_type is not None:
        fill = _message_writer(entry["value"].message_type, given.item_type, inner)

        def add(message: Any, pairs: Any) -> None:
            for each, value in pairs:
                fill(getattr(message, name)[key(each)], _not_null(value, inner))

        return add
    item = _value_writer(entry["value"], given.item_type, inner)

    def put(message: Any, pairs: Any) -> None:
        for each, value in pairs:
            getattr(message, name)[key(each)] = item(_not_null(value, inner))

    return put


def _not_null(value: Any, where: str) -> Any:
    """``value``, an item of a list or map. Raises TypeError for None: ``str`` and ``bool`` would convert it."""
    if value is None:
        raise TypeError(f"null has no place in {where}")
    return value


def _enum_writer(enum: Any) -> _Convert:
    numbers = {value.name: value.number for value in enum.values}
    # A number that the reader had no name for is written as it was.
    return lambda name: numbers[name] if name in numbers else int(name)


def _value_writer(field: Any, given: pa.DataType, where: str) -> _Convert:
    import pyarrow.types as kinds

    if field.type == field.TYPE_ENUM:
        fits, made = is_text(given), _enum_writer(field.enum_type)
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        fits, made = kinds.is_floating(given) or kinds.is_integer(given), float
    elif field.type == field.TYPE_BOOL:
        fits, made = kinds.is_boolean(given), bool
    elif field.type == field.TYPE_STRING:
        fits, made = is_text(given), str
    elif field.type == field.TYPE_BYTES:
        fits, made = is_bytes(given), bytes
    else:
        fits, made = kinds.is_integer(given) or (kinds.is_decimal(given) and given.scale == 0), int
    if not fits:
        raise WrongSchema(f"{where} is {given}, which cannot be written as the Protobuf field {field.full_name!r}")
    return made

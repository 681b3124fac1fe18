"""Turn objects into bodies and bodies into objects: what ``serializer=`` and ``deserializer=`` may be.

Models of pydantic are known by their methods, so that nothing is imported for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_origin

import msgspec

from gantrymq.client.errors import BodyError, InvalidMessage

Serializer = Callable[[Any], bytes]
"""Makes a body of an object."""
Deserializer = Callable[[bytes], Any]
"""Makes an object of a body."""

Format = Literal["str", "json", "msgpack"]
"""A form of bodies: text in UTF-8, JSON, or MessagePack."""
SerializerChoice = Format | Serializer
"""A form, or a function."""
V = TypeVar("V")
TypedDeserializer = type[V] | Callable[[bytes], V]
"""A type, whose JSON the bodies are, or a function of the bytes; type checkers know ``message.value`` from it."""
DeserializerChoice = Format | type | Deserializer
"""A form; a type, whose JSON the bodies are (``bytes`` and ``str`` are taken as they are); or a function."""

REASON_MAX_CHARACTERS: Final = 500
"""The part of a library's error text that our error quotes: some libraries quote the whole body."""


def serializer_of(choice: SerializerChoice) -> Serializer:
    """A function that makes bodies; it raises :class:`InvalidMessage` for what has none. ValueError for no choice."""
    made: Serializer
    name: str
    if callable(choice):
        made, name = choice, getattr(choice, "__name__", type(choice).__name__)
    elif choice in _ENCODERS:
        made, name = _ENCODERS[choice], choice
    else:
        raise ValueError(f"serializer {choice!r} is neither one of {', '.join(map(repr, _ENCODERS))} nor a function")
    return partial(_serialize, made, name)


def deserializer_of(choice: DeserializerChoice) -> Deserializer:
    """A function that reads bodies; it raises :class:`BodyError` for those that it cannot read. ValueError for no
    choice, also for a type that JSON cannot stand for."""
    made: Deserializer
    name: str
    if isinstance(choice, str):
        if choice not in _DECODERS:
            raise ValueError(
                f"deserializer {choice!r} is neither one of {', '.join(map(repr, _DECODERS))} nor a type or a function"
            )
        made, name = _DECODERS[choice], choice
    elif isinstance(choice, type) or get_origin(choice) is not None:
        made, name = _decoder_of(choice), getattr(choice, "__name__", str(choice))
    elif callable(choice):
        made, name = choice, getattr(choice, "__name__", type(choice).__name__)
    else:
        raise ValueError(f"deserializer {choice!r} is not a format, a type or a function")
    return partial(_deserialize, made, name)


def _serialize(encode: Serializer, name: str, value: Any) -> bytes:
    try:
        body = encode(value)
    except Exception as error:
        raise InvalidMessage(f"serializer {name} cannot encode {type(value).__name__}: {_reason(error)}") from error
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidMessage(f"serializer {name} returned {type(body).__name__}, not bytes")
    return bytes(body)


def _deserialize(decode: Deserializer, name: str, body: bytes) -> Any:
    try:
        return decode(body)
    except Exception as error:
        raise BodyError(f"the body cannot be read as {name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_MAX_CHARACTERS]


def _encode_str(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError("it is not a str")
    return value.encode()


def _encode_json(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes have no form in JSON; a producer without a serializer sends them as they are")
    if hasattr(type(value), "model_dump_json"):  # pydantic
        return _model_json(value)
    return msgspec.json.encode(value, enc_hook=_inner_json)


def _encode_msgpack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_inner_msgpack)


def _model_json(model: Any) -> bytes:
    return str(model.model_dump_json()).encode()


def _inner_json(value: Any) -> msgspec.Raw:
    """The JSON of a pydantic model within another object: the same as that of the model alone."""
    if hasattr(type(value), "model_dump_json"):
        return msgspec.Raw(_model_json(value))
    raise TypeError(f"it has a {type(value).__name__} in it")


def _inner_msgpack(value: Any) -> Any:
    """A pydantic model within another object, as what MessagePack has types for, such as bytes."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump()
    raise TypeError(f"it has a {type(value).__name__} in it")


def _decoder_of(kind: Any) -> Deserializer:
    if kind is bytes:
        return bytes
    if kind is str:
        return _DECODERS["str"]
    if hasattr(kind, "model_validate_json"):  # pydantic
        validate: Deserializer = kind.model_validate_json
        return validate
    try:
        msgspec.json.schema(kind)  # raises for classes of which each body would be an error, nested ones as well
        return msgspec.json.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise ValueError(f"{kind!r} is not a type that JSON can stand for: {_reason(error)}") from None


_ENCODERS: Final[dict[str, Serializer]] = {"str": _encode_str, "json": _encode_json, "msgpack": _encode_msgpack}
_DECODERS: Final[dict[str, Deserializer]] = {
    "str": bytes.decode,
    "json": msgspec.json.decode,
    "msgpack": msgspec.msgpack.decode,
}

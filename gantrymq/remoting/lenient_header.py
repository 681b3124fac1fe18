"""Reads JSON headers that are not in the form the Java client writes, with the meaning that RocketMQ gives them.

RocketMQ decodes a header with ``JSON.parseObject(text, RemotingCommand.class)``, and fastjson converts what does not
fit the Java field: a number or a boolean becomes text where a ``String`` is wanted, text becomes a number where an
``int`` is wanted. Clients depend on that: Node's ``ali-ons`` writes ``"queueId":0``. Source: RocketMQ 4.9.7 with
fastjson 1.2.69 (``TypeUtils.castToInt``, ``IntegerCodec``, ``StringCodec``, ``EnumDeserializer``); the cases in
``tests/remoting/test_lenient_header.py`` were answered by that library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import msgspec

from gantrymq.remoting.bodies.body import count_values
from gantrymq.remoting.fastjson_reader import ObjectMap, Reader
from gantrymq.remoting.fastjson_types import comparable

LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
DIALECT_MAX_BYTES: Final = 64 * 1024
"""The longest header that is read as fastjson's dialect. A longer one must be JSON, which compiled code reads."""
DIALECT_VALUES_MAX: Final = 1024
"""The most values of a header, or of nested values of its fields, in fastjson's dialect, because Python reads them."""
LENIENT_MAX_BYTES: Final = 256 * 1024
"""The longest JSON header in another form than the Java client's; properties of 32 KiB of escapes fit."""

_FIELDS: Final = ("code", "extFields", "flag", "language", "opaque", "remark", "version")
_FIELD_NAMES: Final = {comparable(name): name for name in _FIELDS}
_NUMBER_MAX_LENGTH: Final = 400
_EXPONENT_MAX: Final = 2**31 - 1
_SCALE_MAX: Final = 100
_INTEGER = re.compile(r"[+-]?[0-9]+(?:\.0*)?", re.ASCII)
_FAULTS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Effort:
    """The number of values that :func:`read_lenient` has read in this process; readers of many headers limit it."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: int = 0


EFFORT: Final = Effort()


class HeaderFields(NamedTuple):
    """The fields of a header; missing fields and nulls have the Java class's default (``opaque``: 0)."""

    code: int
    ext: dict[str, str] | None
    opaque: int
    flag: int
    remark: str | None
    language: str
    version: int


def read_lenient(header: bytes, fields_max: int) -> HeaderFields:
    """The fields of a JSON header. :class:`ValueError` if RocketMQ could not read it either, or if it exceeds a limit,
    such as ``fields_max`` names. Counts its values in :data:`EFFORT`.

    Names match without regard to case, ``_`` and ``-``. Bytes that are not UTF-8 become U+FFFD, as in Java. A nested
    object or array becomes its JSON text, its keys in the client's order (Java: in the order of a ``HashMap``).
    """
    if len(header) > LENIENT_MAX_BYTES:
        raise ValueError(f"a header of {len(header)} bytes that is not in the form of RocketMQ's Java client")
    header = header.decode(errors="replace").encode()
    try:
        values = _strict_values(header, fields_max)
    except _FAULTS as error:
        if len(header) > DIALECT_MAX_BYTES:
            raise ValueError(str(error)) from None
        values = _dialect_values(header)
    values = {_field_of(name): value for name, value in values.items()}
    return HeaderFields(
        _integer(values, "code"),
        _ext(values.get("extFields")),
        _integer(values, "opaque"),
        _integer(values, "flag"),
        _text(values.get("remark")),
        _language(values),
        _integer(values, "version"),
    )


def known_language(name: str) -> str:
    """The language as RocketMQ names it; fastjson compares names without case. OTHER for an unknown one."""
    name = name.upper()
    return name if name in LANGUAGES else "OTHER"


class _Number(str):
    """A number as text, because a float does not keep all digits."""

    __slots__ = ()


class _DialectReader(Reader):
    """Keeps numbers as text."""

    whole = decimal = _Number

    def _number(self, match: re.Match[str]) -> Any:
        self.at = match.end()
        return _Number(match.group())


_strict_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_strict_text = msgspec.json.Decoder(str).decode


def _strict_values(header: bytes, fields_max: int) -> dict[str, Any]:
    """The values of a header that is JSON."""
    raws = _strict_decode(header)
    objects = {
        name: _strict_decode(raw)
        for name, raw in raws.items()
        if bytes(memoryview(raw)[:1]) == b"{" and _field_of(name) == "extFields"
    }
    rows = [(name, raw) for name, raw in raws.items() if name not in objects]
    fields = len(raws) + sum(map(len, objects.values()))
    if fields > fields_max + len(_FIELDS):
        raise ValueError(f"a header of {fields} fields")
    EFFORT.values += fields
    _count_dialect(raw for _, raw in rows)
    values: dict[str, Any] = {name: _strict_value(raw) for name, raw in rows}
    for name, own in objects.items():
        _count_dialect(own.values())
        values[name] = {key: _strict_value(raw) for key, raw in own.items()}
    return values


def _count_dialect(raws: Iterable[msgspec.Raw]) -> None:
    """Count nested values; ``ValueError`` if there are too many for Python to read."""
    values = sum(count_values(bytes(raw)) for raw in raws if bytes(memoryview(raw)[:1]) in (b"{", b"["))
    _check_dialect(values)


def _field_of(name: Any) -> str:
    """The field with this name in a header."""
    return _FIELD_NAMES.get(comparable(str(name)), str(name))


def _strict_value(raw: msgspec.Raw) -> Any:
    text = bytes(raw)
    first = text[:1]
    if first == b'"':
        return _strict_text(text)
    if first in b"{[":
        return _dialect_value(text.decode())
    if first in b"tfn":
        return {b"t": True, b"f": False, b"n": None}[first]
    return _Number(text.decode())


def _check_dialect(values: int) -> None:
    if values > DIALECT_VALUES_MAX:
        raise ValueError(f"JSON: about {values} values that are not plain texts, at most {DIALECT_VALUES_MAX} are read")
    EFFORT.values += values


def _dialect_values(header: bytes) -> dict[str, Any]:
    """The values of a header in fastjson's dialect."""
    _check_dialect(count_values(header))
    values = _dialect_value(header.decode())
    if type(values) is not dict:
        raise ValueError("JSON: the header is not an object")
    return values


def _dialect_value(text: str) -> Any:
    if len(text) > DIALECT_MAX_BYTES:
        raise ValueError(f"JSON: a nested value of {len(text)} characters")
    return _DialectReader(text, DIALECT_VALUES_MAX).read()


def _ext(fields: Any) -> dict[str, str] | None:
    if fields is None:
        return None
    if type(fields) is not dict:
        raise ValueError(f"extFields: expected an object, got {_kind(fields)}")
    return {str(name): text for name, value in fields.items() if (text := _text(value)) is not None}


def _text(value: Any) -> str | None:
    """``value`` as Java converts it to ``String``."""
    if value is None or type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is _Number:
        return str(value) if value.lstrip("-").isdigit() else _decimal_text(_decimal(value))
    return _json_text(value)


def _json_text(value: Any) -> str:
    """A nested value as fastjson writes it: objects without nulls, numbers in canonical form."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is _Number:
        return _decimal_text(_decimal(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, ObjectMap | Mapping):
        items = value if isinstance(value, ObjectMap) else value.items()
        parts = (f"{_json_text(key)}:{_json_text(item)}" for key, item in items if item is not None)
        return "{" + ",".join(parts) + "}"
    return "[" + ",".join(map(_json_text, value)) + "]"


def _decimal(number: _Number) -> Decimal:
    if len(number) > _NUMBER_MAX_LENGTH:
        raise ValueError(f"JSON: a number of {len(number)} characters")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"JSON: no number: {number}") from None
    if abs(value.adjusted()) > _EXPONENT_MAX:
        raise ValueError(f"JSON: the exponent of {number} has more than 32 bits")
    return value


def _decimal_text(value: Decimal) -> str:
    # As Java's BigDecimal.toString, which knows no negative zero.
    return str(abs(value) if value.is_zero() else value)


def _integer(values: Mapping[str, Any], name: str) -> int:
    """The value of ``name`` as Java converts it to ``int``; the default if it is missing, null, "" or "null"."""
    value = values.get(name)
    if type(value) is str:
        text = value.replace(",", "")
        if value.lower() in ("", "null"):
            return 0
        if not _INTEGER.fullmatch(text) or len(text) > _NUMBER_MAX_LENGTH:
            raise ValueError(f"{name}: {value[:40]!r} is not a number")
        number = int(text.partition(".")[0])
    elif type(value) is _Number:
        exact = _decimal(value)
        if abs(exact.adjusted()) > _SCALE_MAX:
            raise ValueError(f"{name}: {value[:40]} is out of range")
        number = int(exact)
    elif value is None or type(value) is bool:
        number = int(value or 0)
    else:
        raise ValueError(f"{name}: expected a number, got {_kind(value)}")
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise ValueError(f"{name}: {number} is no 32-bit number")
    return number


def _language(values: Mapping[str, Any]) -> str:
    value = values.get("language", "JAVA")
    if type(value) is str:
        return known_language(value)
    if type(value) is _Number and value.isdigit() and len(value) < 4:
        return LANGUAGES[int(value)] if int(value) < len(LANGUAGES) else "OTHER"
    if value is None:
        return "OTHER"
    raise ValueError(f"language: expected a name, got {_kind(value)}")


def _kind(value: Any) -> str:
    if type(value) is _Number or type(value) is bool:
        return f"the value {str(value)[:40]}"
    return "a string" if type(value) is str else "an object" if isinstance(value, Mapping) else "an array"

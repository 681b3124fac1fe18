"""The JSON dialect of RocketMQ's bodies: what fastjson 1.2 writes and accepts, read with limits. No I/O.

Beyond JSON it has unquoted keys (``{0:"127.0.0.1:10911"}``), whole objects as keys (``{{"queueId":3}:7}``), references
to an object that came earlier (``{"$ref":"$.a.b"}``), single quotes and stray commas. Source: the bodies that RocketMQ
4.9.7 (fastjson 1.2.69) and 5.3.3 (1.2.83) put on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final

import msgspec
import msgspec.inspect

from gantrymq.remoting.fastjson_reader import DEPTH_MAX, SHARED_MAX, ObjectMap, Reader

__all__ = ["DEPTH_MAX", "SIZE_MAX", "ObjectMap", "dumps", "join_between", "loads"]

SIZE_MAX: Final = 64 * 1024 * 1024
"""The longest text that is read. A body is shorter by its frame's limit; configuration files may be longer."""


def loads(data: bytes | str, shared_max: int = SHARED_MAX) -> Any:
    """Decode ``data``; :class:`ValueError` names the problem and its position.

    Unquoted integer keys become int, quoted ones str. References are resolved to the same object. A reference to
    nothing, or to an object that contains it, is an error, and so are references that repeat more than ``shared_max``
    values.
    """
    if len(data) > SIZE_MAX:
        raise ValueError(f"JSON of {len(data)} bytes, at most {SIZE_MAX} are read")
    reference = b'"$ref"' in data if isinstance(data, bytes) else '"$ref"' in data
    if not reference:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # the tolerant reader decides, and raises the error
        else:
            _check_depth(value)
            return value
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    return Reader(text, shared_max).read()


def join_between(begin: bytes, members: Iterable[bytes], end: bytes) -> bytes:
    """``begin``, the members with commas between them, and ``end``. Many megabytes of members are copied only once."""
    parts = list(members)
    if not parts:
        return begin + end
    parts[0] = begin + parts[0]
    parts[-1] += end
    return b",".join(parts)


def dumps(value: Any, *, quoted_keys: bool = False) -> bytes:
    """``value`` as fastjson writes it: no whitespace, None left out of objects, a struct's keys in alphabetical order.

    ``value`` is made of msgspec structs, mappings (keys: str, int, or structs, which are written as raw objects),
    :class:`ObjectMap`, lists, tuples, sets (written sorted), str, bytes-free scalars and enums (by value). Integer keys
    are not quoted, which RocketMQ's Go client needs, and mappings keep their order. ``quoted_keys`` gives strict JSON:
    keys quoted and sorted, everything outside ASCII escaped (fastjson's BrowserCompatible). :class:`TypeError` for
    anything else, :class:`ValueError` for text that is not Unicode or an object key in the strict form.
    """
    parts: list[str] = []
    try:
        _write(value, parts.append, quoted_keys, 0)
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text cannot be written as UTF-8: {error.reason}") from None


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below.extend(item.values())
            elif type(item) is list:
                below.extend(item)
        level = [item for item in below if type(item) is dict or type(item) is list]
        if not level:
            return
    raise ValueError(f"JSON is more than {DEPTH_MAX} levels deep")


@lru_cache(maxsize=512)
def _struct_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    fields = msgspec.structs.fields(kind)
    return tuple(sorted((field.encode_name, field.name) for field in fields))


@lru_cache(maxsize=512)
def _is_flat(kind: type[msgspec.Struct]) -> bool:
    """Whether the compiled encoder writes these structs correctly: they consist of strings, integers and booleans, and
    lists and sets of these."""
    return all(_plain_type(field.type) for field in msgspec.inspect.type_info(kind).fields)  # type: ignore[attr-defined]


def _plain_type(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _plain_type(kind.type)
    if isinstance(kind, msgspec.inspect.StructType):
        return _is_flat(kind.cls)
    if isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.SetType | msgspec.inspect.FrozenSetType):
        return _plain_type(kind.item_type)
    return isinstance(kind, msgspec.inspect.StrType | msgspec.inspect.IntType | msgspec.inspect.BoolType)


_encode_flat = msgspec.json.Encoder(order="sorted").encode


def _write(value: Any, put: Callable[[str], None], strict: bool, depth: int) -> None:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        put("null")
    elif isinstance(value, bool):
        put("true" if value else "false")
    elif isinstance(value, str):
        put(encode_basestring_ascii(value) if strict else encode_basestring(value))
    elif isinstance(value, int):
        put(str(value))
    elif isinstance(value, float):
        # fastjson writes what JSON cannot express as null
        put(repr(value) if value - value == 0.0 else "null")
    elif isinstance(value, msgspec.Struct):
        if not strict and _is_flat(type(value)):
            put(_encode_flat(value).decode())
            return
        fields = ((name, getattr(value, attribute)) for name, attribute in _struct_fields(type(value)))
        _write_object(fields, put, strict, depth)
    elif isinstance(value, Mapping):
        items = sorted(value.items(), key=_key_order) if strict else value.items()
        _write_object(items, put, strict, depth)
    elif isinstance(value, ObjectMap):
        _write_object(value, put, strict, depth)
    elif isinstance(value, list | tuple):
        _write_array(value, put, strict, depth)
    elif isinstance(value, set | frozenset):
        _write_array(sorted(value), put, strict, depth)
    else:
        raise TypeError(f"{type(value).__name__} has no form in JSON")


def _key_order(item: tuple[Any, Any]) -> tuple[int, Any]:
    key = item[0]
    return (0, key) if isinstance(key, int) else (1, str(key))


def _write_array(values: Iterable[Any], put: Callable[[str], None], strict: bool, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels are not written")
    rows = list(values)
    kinds = {type(row) for row in rows}
    if not strict and len(kinds) == 1 and issubclass(kind := kinds.pop(), msgspec.Struct) and _is_flat(kind):
        put(_encode_flat(rows).decode())
        return
    separator = "["
    for value in rows:
        put(separator)
        _write(value, put, strict, depth + 1)
        separator = ","
    put("[]" if separator == "[" else "]")


def _write_object(items: Iterable[tuple[Any, Any]], put: Callable[[str], None], strict: bool, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} levels are not written")
    separator = "{"
    for key, value in items:
        if value is None:
            continue
        put(separator)
        separator = ","
        if isinstance(key, str):
            put(encode_basestring_ascii(key) if strict else encode_basestring(key))
        elif isinstance(key, int):
            put(f'"{key:d}"' if strict else f"{key:d}")
        elif strict:
            raise ValueError(f"a key of type {type(key).__name__} cannot be written in strict JSON")
        else:
            _write(key, put, strict, depth + 1)
        put(":")
        _write(value, put, strict, depth + 1)
    put("{}" if separator == "{" else "}")

"""The base of all JSON bodies: how one is written, read, and refused.

Reading follows fastjson: unknown keys are ignored, missing ones and nulls take the Java field's default, numbers in
quotes count as numbers. Whatever else does not fit the type is the sender's fault and answered with code 1.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec

from gantrymq.remoting import fastjson
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault


class Body(msgspec.Struct, rename="camel"):
    """Base of the wire structs. Fields that are None stay out of the text."""

    def to_bytes(self, *, quoted_keys: bool = False) -> bytes:
        """The JSON text; see :func:`gantrymq.remoting.fastjson.dumps` for ``quoted_keys``."""
        return fastjson.dumps(self, quoted_keys=quoted_keys)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The value in ``data``; :class:`RemoteFault` (code 1) names what does not fit. ``{}`` gives the defaults."""
        if b"$ref" not in data:  # a reference would be taken for an object without known keys
            try:
                return msgspec.json.decode(data, type=cls)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # most likely the dialect: the tolerant way decides
        try:
            return cls.from_value(fastjson.loads(data))
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{cls.__name__}: {error}") from None

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The typed form of what :func:`fastjson.loads` returned; :class:`ValueError` when it does not fit."""
        return msgspec.convert(_without_nulls(cls._repair(value)), cls, strict=False)

    @classmethod
    def _repair(cls, value: Any) -> Any:
        """Where a class takes forms that differ in more than a number's quotes, it straightens them here."""
        return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, fastjson.ObjectMap):
        return [(_without_nulls(key), _without_nulls(item)) for key, item in value]
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value

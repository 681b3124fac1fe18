"""The base class of all JSON bodies: encodes, decodes and refuses them.

Decoding follows fastjson: it ignores unknown keys, takes the Java field's default for missing keys and nulls, and
accepts numbers in quotes. Any other value that does not fit its type is refused with code 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from gantrymq.remoting import fastjson
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson_types import fit, spells_differently

TOLERANT_VALUES_MAX: Final = 8_192
"""The most values of a request's body that is not plain JSON of the expected form. Python reads it, with 1 to 2 us for
each value, while other connections wait. Counted are the commas, colons, brackets and escapes, and values that
references repeat."""


TOLERANT_BYTES_MAX: Final = 256 * 1024
"""The most bytes of such a body, because Python reads each character, also of spaces or of one long text."""


class Body(msgspec.Struct, rename="camel"):
    """Base of the structs of bodies. The text omits fields that are None.

    A class for bodies from clients sets ``any_spelling``: keys then match in any spelling that fastjson accepts,
    because NewLife.RocketMQ writes ``ClientID``. In all classes, values of another type are converted as fastjson
    converts them, see :mod:`gantrymq.remoting.fastjson_types`.
    """

    any_spelling: ClassVar[bool] = False

    def to_bytes(self, *, quoted_keys: bool = False) -> bytes:
        """The JSON text; see :func:`gantrymq.remoting.fastjson.dumps` for ``quoted_keys``."""
        return fastjson.dumps(self, quoted_keys=quoted_keys)

    def to_bytes_with(self, unknown: Mapping[str, Any]) -> bytes:
        """The JSON text with the keys that :meth:`unknown_keys` returned."""
        known = {field.encode_name: getattr(self, field.name) for field in msgspec.structs.fields(type(self))}
        return fastjson.dumps(dict(sorted({**unknown, **known}.items())))

    @classmethod
    def unknown_keys(cls, value: Any) -> dict[str, Any]:
        """The keys of the JSON object ``value`` that are not fields of the class; empty for other values."""
        if not isinstance(value, dict):
            return {}
        return {key: item for key, item in value.items() if key not in cls.__struct_encode_fields__}

    @classmethod
    def from_request(cls, data: bytes) -> Self:
        """:meth:`from_bytes` with the limits for bodies of requests: see :data:`TOLERANT_VALUES_MAX`."""
        return cls.from_bytes(data, TOLERANT_VALUES_MAX)

    @classmethod
    def from_bytes(cls, data: bytes, values_max: int | None = None) -> Self:
        """Decode ``data``; :class:`RemoteFault` (code 1) names a value that does not fit. ``{}`` gives the defaults.

        ``values_max`` limits the values of a text that is not plain JSON of this form, because Python reads it slowly.
        """
        if b"$ref" not in data:  # the fast decoder would take a reference for an object without known keys
            try:
                body = msgspec.json.decode(data, type=cls)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # most likely the dialect: the tolerant way decides
            else:
                if not (cls.any_spelling and spells_differently(data, cls)):
                    return body
        try:
            if values_max is None:
                return cls.from_value(fastjson.loads(data))
            values = check_values(data, values_max)
            # Java replaces invalid UTF-8 by U+FFFD; in the broker's own files it is an error.
            return cls.from_value(fastjson.loads(data.decode(errors="replace"), values_max - values))
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{cls.__name__}: {error}") from None

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Convert the result of :func:`fastjson.loads`; :class:`ValueError` if it does not fit."""
        return msgspec.convert(fit(_without_nulls(value), cls), cls, strict=False)


def count_values(data: bytes) -> int:
    """An upper bound of the number of values in a JSON text."""
    return sum(map(data.count, (b",", b":", b"[", b"{", b"\\")))


def check_values(data: bytes, values_max: int) -> int:
    """Return the estimated number of values; ``ValueError`` if it exceeds ``values_max``, or the text is too long."""
    if len(data) > TOLERANT_BYTES_MAX:
        raise ValueError(
            f"a body of {len(data)} bytes that is not plain JSON of this form: {TOLERANT_BYTES_MAX} are the limit"
        )
    values = count_values(data)
    if values > values_max:
        raise ValueError(
            f"about {values} values, and not plain JSON of this form: at most {values_max} are read so; send a smaller "
            "body, or keys and types as RocketMQ's Java client writes them"
        )
    return values


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, fastjson.ObjectMap):
        return [(_without_nulls(key), _without_nulls(item)) for key, item in value]
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value

"""The base of all JSON bodies: how one is written, read, and refused.

Reading follows fastjson: unknown keys are ignored, missing ones and nulls take the Java field's default, numbers in
quotes count as numbers. Whatever else does not fit the type is the sender's fault and answered with code 1.
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
"""Values of a request's body that is not plain JSON of the expected form: Python reads it, 1 to 2 us a value, while
other connections wait. Commas, colons, brackets and escapes are counted, which stand between values; what references
repeat counts as well."""


TOLERANT_BYTES_MAX: Final = 256 * 1024
"""The longest request's body of that kind; whatever it has, spaces or one long text, Python looks at each character."""


class Body(msgspec.Struct, rename="camel"):
    """Base of the wire structs. Fields that are None stay out of the text.

    A class whose text clients write sets ``any_spelling``: keys then count however they are spelled, as fastjson
    counts them. NewLife.RocketMQ writes ``ClientID``. Where keys are spelled as the fields are, other values than the
    expected ones are fitted in any class, see :mod:`gantrymq.remoting.fastjson_types`.
    """

    any_spelling: ClassVar[bool] = False

    def to_bytes(self, *, quoted_keys: bool = False) -> bytes:
        """The JSON text; see :func:`gantrymq.remoting.fastjson.dumps` for ``quoted_keys``."""
        return fastjson.dumps(self, quoted_keys=quoted_keys)

    def to_bytes_with(self, unknown: Mapping[str, Any]) -> bytes:
        """The JSON text with keys that this version does not know, as :meth:`unknown_keys` gave them."""
        known = {field.encode_name: getattr(self, field.name) for field in msgspec.structs.fields(type(self))}
        return fastjson.dumps(dict(sorted({**unknown, **known}.items())))

    @classmethod
    def unknown_keys(cls, value: Any) -> dict[str, Any]:
        """What of the JSON object ``value`` no field of the class takes; empty for anything else."""
        if not isinstance(value, dict):
            return {}
        return {key: item for key, item in value.items() if key not in cls.__struct_encode_fields__}

    @classmethod
    def from_request(cls, data: bytes) -> Self:
        """As :meth:`from_bytes`, from a peer that must not keep others waiting: see :data:`TOLERANT_VALUES_MAX`."""
        return cls.from_bytes(data, TOLERANT_VALUES_MAX)

    @classmethod
    def from_bytes(cls, data: bytes, values_max: int | None = None) -> Self:
        """The value in ``data``; :class:`RemoteFault` (code 1) names what does not fit. ``{}`` gives the defaults.

        ``values_max`` bounds the values of a text that is no plain JSON of this form, and is read slowly.
        """
        if b"$ref" not in data:  # a reference would be taken for an object without known keys
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
            # Java puts U+FFFD for bytes that are no UTF-8; in a file of our own they are an error.
            return cls.from_value(fastjson.loads(data.decode(errors="replace"), values_max - values))
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{cls.__name__}: {error}") from None

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The typed form of what :func:`fastjson.loads` returned; :class:`ValueError` when it does not fit."""
        return msgspec.convert(fit(_without_nulls(value), cls), cls, strict=False)


def count_values(data: bytes) -> int:
    """About how many values a JSON text has, an upper bound."""
    return sum(map(data.count, (b",", b":", b"[", b"{", b"\\")))


def check_values(data: bytes, values_max: int) -> int:
    """How many values the text may have; ``ValueError`` when that is more than ``values_max``, or it is too long."""
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

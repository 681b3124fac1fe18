"""The base class of all typed headers: encodes and decodes them.

An encoded header has text fields (``Command.ext``). A missing field without a default, or a value that is not a number
of the field's width, is refused with code 1.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


H = TypeVar("H", bound="Header")


class Header(msgspec.Struct, rename="camel"):
    """Base of all typed headers."""

    def to_ext(self) -> dict[str, str]:
        """The fields as text; omits those that are None."""
        ext: dict[str, str] = {}
        for name, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is None:
                continue
            ext[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return ext


def read_header(kind: type[H], ext: dict[str, str] | None) -> H:
    """The typed form of ``ext``; :class:`RemoteFault` (code 1) names the field that is missing or wrong."""
    try:
        return msgspec.convert(ext or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{kind.__name__}: {error}") from None

"""Hot requests of the plain twin: read from the JSON header straight into a struct, without a dict of all fields.

Only the form that clients write is read here: ``code`` first, no field but those that are known, text in all of them.
Whatever else a header may be is for :func:`gantrymq.remoting.command.decode`, which gives it its meaning or its error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG
from gantrymq.remoting.command import Command, decode
from gantrymq.remoting.frame import JSON_HEADER, Frame
from gantrymq.remoting.headers.header import H, read_header

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

CODE_BYTES: Final = 12
"""So many bytes at the start of a header tell which of :data:`HOT_HEADERS` it is."""

UNUSUAL: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading a header raises that has another form than the usual one."""

_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_MEMORY: Final = 10_000
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Flag = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Bool = Literal["true", "false"]


class Numbers(dict[str, int]):
    """The numbers of texts that were met before; others are read when they are asked for.

    Asking raises ``ValueError`` for what is not plainly a number of ``bits`` bits.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._end = 1 << (bits - 1)

    def __missing__(self, text: str) -> int:
        number = int(text) if _NUMBER.fullmatch(text) else self._end
        if not -self._end <= number < self._end:
            raise ValueError(text)
        if len(self) >= _MEMORY:
            self.clear()
        self[text] = number
        return number


class SendFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The fields of SEND_MESSAGE_V2 as they travel; see :class:`gantrymq.remoting.headers.send.SendMessageHeader`."""

    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: str
    i: str = ""
    j: str = "0"
    k: _Bool = "false"
    l: str = "0"  # noqa: E741
    m: _Bool = "false"
    n: str = ""


class _SendHeader(msgspec.Struct, rename={"ext": "extFields"}, gc=False, forbid_unknown_fields=True):
    code: Literal[310]
    ext: SendFields
    opaque: _Int32 = 0
    flag: _Flag = 0
    language: str = ""
    version: int = 0
    remark: str | None = None
    serializeTypeCurrentRPC: str = ""  # noqa: N815


class SendRequest(msgspec.Struct, gc=False, eq=False):
    """A send request whose header has not become a ``Command``: that one is made when it is asked for.

    Has the attributes of :class:`gantrymq.kernel.processors.Request`.
    """

    connection: Connection
    code: int
    fields: SendFields
    opaque: int
    flag: int
    head: bytes
    body: bytes
    answered: bool = False
    decoded: Command | None = None

    @property
    def command(self) -> Command:
        """The request as :mod:`gantrymq.remoting` decodes it."""
        if self.decoded is None:
            self.decoded = decode(Frame(JSON_HEADER, self.head, self.body))
        return self.decoded

    @property
    def is_oneway(self) -> bool:
        """See :attr:`gantrymq.kernel.processors.Request.is_oneway`."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def size(self) -> int:
        """See :attr:`gantrymq.kernel.processors.Request.size`."""
        return len(self.head) + len(self.body)

    def header(self, kind: type[H]) -> H:
        """See :meth:`gantrymq.kernel.processors.Request.header`."""
        return read_header(kind, self.command.ext)

    def forget(self) -> None:
        """See :meth:`gantrymq.kernel.processors.Request.forget`."""
        self.head = self.body = b""
        self.decoded = Command(self.code, None, b"", self.opaque, self.flag, kind=JSON_HEADER)

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """See :meth:`gantrymq.kernel.processors.Request.answer`."""
        if not (self.answered or self.flag & ONEWAY_FLAG):
            self.answered = True
            self.connection.send(Command(code, ext, body, self.opaque, RESPONSE_FLAG, remark, kind=JSON_HEADER))


HOT_HEADERS: Final[dict[bytes, Callable[[bytes], Any]]] = {
    b'{"code":310,': msgspec.json.Decoder(_SendHeader).decode,
}
"""How to read the headers that begin so; they raise one of :data:`UNUSUAL`."""

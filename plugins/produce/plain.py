"""The inner loops of sends as plain functions: usual sends become rows without a header object, and their responses
come from a template.

These functions read only the form that clients write: ``code`` first, only known fields, all of them text.
:func:`gantrymq.remoting.command.decode` handles every other form and its errors. Written for speed: a row is a tuple
first, and all tuples become columns at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.fast.plain_requests import Unusual
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import BINARY_HEADER, JSON_HEADER, PREFIX, Frame
from gantrymq.remoting.headers.header import H, read_header
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES, find_property

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.processors import Request

KIND: Final = "plain"

Terms = tuple[int, int]

_SLOTS: Final = ("<msgId>", "<queueId>", "<queueOffset>")
_OPAQUE: Final = 1_234_567_890
_VARYING_MAX: Final = 3 * 20
"""The most decimal digits of queue id, queue offset and opaque together."""
_BORN_HOST_V6: Final = 0x10
_SUCCESS: Final = ResponseCode.SUCCESS
_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_MEMORY: Final = 10_000
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Flag = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Bool = Literal["true", "false"]


class Numbers(dict[str, int]):
    """A cache of parsed numbers by their text.

    Raises ``ValueError`` for a text that is not a plain number of ``bits`` bits.
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
    """The fields of SEND_MESSAGE_V2 by their short names; see
    :class:`gantrymq.remoting.headers.send.SendMessageHeader`."""

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
    """A send request that creates its ``Command`` on first use.

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

    @property
    def ext(self) -> Mapping[str, str]:
        """See :attr:`gantrymq.kernel.processors.Request.ext`."""
        return self.command.ext or {}

    @property
    def topic(self) -> str | None:
        """See :attr:`gantrymq.kernel.processors.Request.topic`."""
        return self.fields.b

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


_decode: Final = msgspec.json.Decoder(_SendHeader).decode


def read_send(connection: Connection, header: bytes, body: bytes) -> SendRequest:
    """Return the request of a frame whose header begins as one of SEND_MESSAGE_V2; :class:`Unusual` for any other
    form."""
    try:
        head = _decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unusual from error
    if head.flag & RESPONSE_FLAG:
        raise Unusual
    return SendRequest(connection, head.code, head.ext, head.opaque, head.flag, header, body)


READERS: Final[Mapping[int, Any]] = {RequestCode.SEND_MESSAGE_V2: read_send}
"""The readers of send requests, by code."""

_int32 = Numbers(32)
_int64 = Numbers(64)


class ReplyForm(NamedTuple):
    """The constant part of responses to stored messages, for both kinds of header."""

    json: tuple[bytes, ...]
    """The JSON header in five parts; message id, queue id, queue offset and opaque go between them."""
    binary_fixed: bytes
    """The 13 bytes before the remark of a binary header; opaque is at 5."""
    binary_fields: bytes
    """The encoded constant fields."""
    id_prefix: bytes
    """The message id up to the log offset."""


def reply_form(fields: dict[str, str], id_prefix: str) -> ReplyForm:
    """Return the template of responses with the constant ``fields`` followed by ``msgId``, ``queueId``,
    ``queueOffset``."""
    varying = dict(zip(("msgId", "queueId", "queueOffset"), _SLOTS, strict=True))
    rest = encode(Command(0, {**fields, **varying}, opaque=_OPAQUE, flag=RESPONSE_FLAG))[8:]
    pieces = []
    for slot in (*_SLOTS, str(_OPAQUE)):
        piece, found, rest = rest.partition(slot.encode())
        if not found or slot.encode() in rest:
            raise ValueError(f"{slot} stands in a constant field of a reply")
        pieces.append(piece)
    binary = encode(Command(0, fields, flag=RESPONSE_FLAG, kind=BINARY_HEADER))[8:]
    return ReplyForm((*pieces, rest), binary[:13], binary[21:], id_prefix.encode())


def add_sends(
    batch: AppendBatch,
    requests: list[Request],
    terms: Callable[[str], Terms | None],
    suffix: bytes,
    max_body_bytes: int,
    make_origin: Callable[[Any, int, int, int | None], Any],
    fallback: Callable[[AppendBatch, Request], int | None],
    most_bytes: int = 1 << 62,
) -> int:
    """Add rows to ``batch`` for the send requests, in their order; returns how many were handled: it stops when the
    records of batches, which can be much larger than their requests, have more than ``most_bytes``.

    ``terms`` returns the number of queues of a topic and the sys flag bits for its rows, or None. A send may become
    rows here if its topic has terms, and no property except WAIT concerns the broker:

    - A single message becomes a row with the request as origin. Its properties lose WAIT and get ``suffix``.
    - A batch becomes rows with the origin ``make_origin(request, first row, rows, None)``. The properties of the batch
      and ``suffix`` follow those of each message.
    - A half message (TRAN_MSG is true) becomes a row with the origin ``make_origin(request, row, 1, queue id)``,
      because a plugin will divert it. It keeps WAIT, and the batch gets the trait.

    ``fallback`` handles all other requests; it returns the bytes of the records of a batch.
    """
    int32, int64, known = _int32, _int64, dict[str, "Terms | None"]()
    connection: Connection | None = None
    host, host_bits, topic = b"", 0, None
    usual: Terms | None = None
    rows: list[tuple[Any, ...]] = []
    add = rows.append
    request: Any
    handled = 0
    for request in requests:
        if most_bytes < 0:
            break
        handled += 1
        if type(request) is SendRequest and request.head:  # otherwise forget() was called
            fields, body = request.fields, request.body
            if fields.b != topic:
                topic = fields.b
                if topic not in known:
                    known[topic] = terms(topic)
                usual = known[topic]
            if usual is not None and len(body) <= max_body_bytes and fields.m == "false":
                try:
                    queue_id, sys_flag, flag, times = int32[fields.e], int32[fields.f], int32[fields.h], int32[fields.j]
                    born, _, _ = int64[fields.g], int32[fields.d], int32[fields.l]
                except ValueError:
                    queue_id = -1
                own, wait, prepared = _stored(fields.i, suffix) if fields.i else (suffix, True, False)
                if own and 0 <= queue_id < usual[0]:
                    if request.connection is not connection:
                        connection = request.connection
                        host = connection.host
                        host_bits = _BORN_HOST_V6 if len(host) > 8 else 0
                    sys_flag = sys_flag & ~_BORN_HOST_V6 | host_bits | usual[1]
                    origin: Any = request
                    if prepared:
                        batch.traits |= Trait.PREPARED
                        origin = make_origin(request, len(batch) + len(rows), 1, queue_id)
                    add((topic, queue_id, body, own, flag, sys_flag, born, host, times, 0, wait, origin, _SUCCESS))
                    continue
        _move_rows(batch, rows)
        most_bytes -= fallback(batch, request) or 0
        if usual is None:
            # It may have created the topic.
            known.clear()
            topic = None
    _move_rows(batch, rows)
    return handled


def _move_rows(batch: AppendBatch, rows: list[tuple[Any, ...]]) -> None:
    if not rows:
        return
    columns: tuple[list[Any], ...] = (
        batch.topics, batch.queue_ids, batch.bodies, batch.properties, batch.flags, batch.sys_flags,
        batch.born_timestamps, batch.born_hosts, batch.reconsume_times, batch.prepared_offsets, batch.waits,
        batch.origins, batch.statuses,
    )  # fmt: skip
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        column.extend(values)
    rows.clear()


def _stored(text: str, suffix: bytes) -> tuple[bytes, bool, bool]:
    """Return the properties to store, with ``suffix``; whether the sender waits for the guarantees; whether it is a
    half message.

    None if ``fallback`` must handle them, or if they are too long.
    """
    given = text.encode()
    if (
        len(given) + len(suffix) >= PROPERTIES_MAX_BYTES
        or b"DELAY\x01" in given
        or b"TIMER_DEL" in given
        or b"CLUSTER\x01" in given
    ):
        return b"", True, False
    wait, prepared = True, False
    if b"TRAN_MSG\x01" in given:
        prepared = find_property(given, b"TRAN_MSG") == b"true"
        if not prepared:
            return b"", True, False
    if b"WAIT\x01" in given:
        if not prepared and given.endswith(b"\x02WAIT\x01true") and given.find(b"WAIT\x01") == len(given) - 9:
            given = given[:-10]
        else:
            pieces = given.split(b"\x02")
            wait = b"WAIT\x01false" not in pieces
            if not prepared:
                given = b"\x02".join([piece for piece in pieces if not piece.startswith(b"WAIT\x01")])
    if given.endswith(b"\x02"):
        given = given.rstrip(b"\x02")
    return (given + b"\x02" + suffix if given else suffix), wait, prepared


def answer_sends(batch: AppendBatch, form: ReplyForm, fallback: Callable[[AppendBatch, int], int]) -> None:
    """Answer the senders of the rows. ``fallback`` answers the sender of the given first row and returns the next row.

    A response in ``form`` to a row whose origin is the request itself can be sent here.
    """
    template, prefixes = _template(form)
    remarks, settled, more_fields = batch.remarks, batch.settled, batch.response_fields
    columns = (batch.origins, batch.statuses, batch.offsets, batch.queue_ids, batch.queue_offsets)
    row = following = 0
    if any(len(column) != len(batch) for column in columns):  # refused before the append
        while row < len(batch):
            row = fallback(batch, row)
        return
    connection: Connection | None = None
    frames: list[bytes] = []
    for row, (request, status, offset, queue_id, queue_offset) in enumerate(zip(*columns, strict=True)):
        if row < following:
            continue
        if (
            type(request) is not SendRequest or status is not _SUCCESS
            or row in remarks or row in settled or row in more_fields
        ):  # fmt: skip
            _send(connection, frames)
            following = fallback(batch, row)
            continue
        if request.connection is not connection:
            _send(connection, frames)
            connection = request.connection
        if not (request.answered or request.flag & ONEWAY_FLAG):
            request.answered = True
            header = template % (offset, queue_id, queue_offset, request.opaque)
            frames.append(prefixes[len(header)])
            frames.append(header)
    _send(connection, frames)


def _send(connection: Connection | None, frames: list[bytes]) -> None:
    if connection is not None and frames:
        connection.send_bytes(b"".join(frames))
        frames.clear()


@lru_cache(maxsize=16)
def _template(form: ReplyForm) -> tuple[bytes, dict[int, bytes]]:
    """Return a format of the JSON header of a reply, for log offset, queue id, queue offset and opaque; and the bytes
    before a header, by its length."""
    first, second, third, fourth, last = [piece.replace(b"%", b"%%") for piece in form.json]
    template = b"%b%b%%016X%b%%d%b%%d%b%%d%b" % (
        first, form.id_prefix.replace(b"%", b"%%"), second, third, fourth, last,
    )  # fmt: skip
    least = len(template % (0, 0, 0, 0)) - 3
    return template, {size: PREFIX.pack(4 + size, size) for size in range(least, least + _VARYING_MAX + 1)}

"""Sends of the plain twin: usual ones become rows without a header object, their replies come from one template.

Written for speed, not for reading: a row is a tuple first, and all tuples become columns at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.kernel.batch import STORED, AppendBatch, Trait
from gantrymq.kernel.fast.plain_hot import Numbers, SendRequest
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import BINARY_HEADER, PREFIX
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES, find_property

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.kernel.processors import Request

Terms = tuple[int, int]

_SLOTS: Final = ("<msgId>", "<queueId>", "<queueOffset>")
_OPAQUE: Final = 1_234_567_890
_VARYING_MAX: Final = 3 * 20
"""The longest that queue id, queue offset and opaque are together, in decimal digits."""
_BORN_HOST_V6: Final = 0x10
_SUCCESS: Final = ResponseCode.SUCCESS
_int32 = Numbers(32)
_int64 = Numbers(64)


class ReplyForm(NamedTuple):
    """What is the same in every reply to a stored message, in both kinds of header."""

    json: tuple[bytes, ...]
    """The JSON header in five pieces; between them stand message id, queue id, queue offset and opaque."""
    binary_fixed: bytes
    """The 13 bytes before the remark of a binary header; opaque is at 5."""
    binary_fields: bytes
    """The encoded constant fields."""
    id_prefix: bytes
    """The message id up to the log offset."""


def reply_form(fields: dict[str, str], id_prefix: str) -> ReplyForm:
    """The form of replies with the constant ``fields`` and, behind them, ``msgId``, ``queueId``, ``queueOffset``."""
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
    mark: bytes,
    max_body_bytes: int,
    many: Callable[[Any, int, int, int | None], Any],
    other: Callable[[AppendBatch, Request], None],
) -> None:
    """Make rows of ``batch`` from the send requests, in their order.

    A usual one (nothing but WAIT for us in its properties, to a topic with ``terms``: its number of queues and the sys
    flag bits that its rows get) may become a row here: its properties without WAIT, ``mark`` behind them, the request
    itself as origin; or, if it is a batch, rows with the origin ``many(request, first row, rows, None)``, which have
    the batch's properties and ``mark`` behind their own. One that is prepared (TRAN_MSG is true) may as well: the trait
    is set, WAIT stays, and its origin is ``many(request, row, 1, queue id)``, for somebody will let it go to another
    queue. All others go to ``other``.
    """
    int32, int64, known = _int32, _int64, dict[str, "Terms | None"]()
    connection: Connection | None = None
    host, host_bits, topic = b"", 0, None
    usual: Terms | None = None
    rows: list[tuple[Any, ...]] = []
    add = rows.append
    request: Any
    for request in requests:
        if type(request) is SendRequest and request.head:  # else it was forgotten
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
                own, wait, prepared = _stored(fields.i, mark) if fields.i else (mark, True, False)
                if own and 0 <= queue_id < usual[0]:
                    if request.connection is not connection:
                        connection = request.connection
                        host = connection.host
                        host_bits = _BORN_HOST_V6 if len(host) > 8 else 0
                    sys_flag = sys_flag & ~_BORN_HOST_V6 | host_bits | usual[1]
                    origin: Any = request
                    if prepared:
                        batch.traits |= Trait.PREPARED
                        origin = many(request, len(batch) + len(rows), 1, queue_id)
                    add((topic, queue_id, body, own, flag, sys_flag, born, host, times, 0, wait, origin, _SUCCESS))
                    continue
        if rows:
            _add_rows(batch, rows)
            rows.clear()
        other(batch, request)
        if usual is None:
            # It may have brought the topic into being.
            known.clear()
            topic = None
    if rows:
        _add_rows(batch, rows)


def _add_rows(batch: AppendBatch, rows: list[tuple[Any, ...]]) -> None:
    columns: tuple[list[Any], ...] = (
        batch.topics, batch.queue_ids, batch.bodies, batch.properties, batch.flags, batch.sys_flags,
        batch.born_timestamps, batch.born_hosts, batch.reconsume_times, batch.prepared_offsets, batch.waits,
        batch.origins, batch.statuses,
    )  # fmt: skip
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        column.extend(values)


def _stored(text: str, mark: bytes) -> tuple[bytes, bool, bool]:
    """The properties as they are stored, with ``mark``; whether it waits for the guarantees; whether it is prepared.

    Nothing where ``other`` has to look at them, or they are too long.
    """
    given = text.encode()
    if (
        len(given) + len(mark) >= PROPERTIES_MAX_BYTES
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
    return (given + b"\x02" + mark if given else mark), wait, prepared


def answer_sends(batch: AppendBatch, form: ReplyForm, other: Callable[[AppendBatch, int], int]) -> None:
    """Answer the senders of the rows. ``other`` answers the one whose first row it is given, and returns the next row.

    A reply in ``form`` to a row whose origin is the request itself may be sent here.
    """
    template, prefixes = _template(form)
    remarks = batch.remarks
    columns = (batch.origins, batch.statuses, batch.offsets, batch.queue_ids, batch.queue_offsets)
    row = following = 0
    if any(len(column) != len(batch) for column in columns):  # refused before it came to the log
        while row < len(batch):
            row = other(batch, row)
        return
    connection: Connection | None = None
    frames: list[bytes] = []
    for row, (request, status, offset, queue_id, queue_offset) in enumerate(zip(*columns, strict=True)):
        if row < following:
            continue
        if type(request) is not SendRequest or status is not _SUCCESS or row in remarks:
            _send(connection, frames)
            following = other(batch, row)
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


def answer_rows(batch: AppendBatch) -> None:
    """Answer each request that is the origin of a row: with success alone when the row lies in the log, else with its
    status and remark. A row may have no origin."""
    for row, (request, status) in enumerate(zip(batch.origins, batch.statuses, strict=True)):
        if request is None:
            continue
        if status in STORED:
            request.answer(_SUCCESS)
        else:
            request.answer(status, batch.remarks.get(row))


def _send(connection: Connection | None, frames: list[bytes]) -> None:
    if connection is not None and frames:
        connection.send_bytes(b"".join(frames))
        frames.clear()


@lru_cache(maxsize=16)
def _template(form: ReplyForm) -> tuple[bytes, dict[int, bytes]]:
    """A JSON reply's header to be filled with log offset, queue id, queue offset and opaque; and what stands before a
    header of a certain length."""
    first, second, third, fourth, last = [piece.replace(b"%", b"%%") for piece in form.json]
    template = b"%b%b%%016X%b%%d%b%%d%b%%d%b" % (
        first, form.id_prefix.replace(b"%", b"%%"), second, third, fourth, last,
    )  # fmt: skip
    least = len(template % (0, 0, 0, 0)) - 3
    return template, {size: PREFIX.pack(4 + size, size) for size in range(least, least + _VARYING_MAX + 1)}

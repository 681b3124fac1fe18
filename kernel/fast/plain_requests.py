"""The wire's inner loops as plain functions: requests out of received bytes, rows out of sends, pull bodies.

Their compiled twins know the hot requests in their usual forms and hand everything else to what is here or to the
``other`` that the caller passes, so that there is one meaning of every request and one text for every refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.processors import Request
from gantrymq.kernel.record import is_intact
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import BINARY_HEADER, cut_frames
from gantrymq.remoting.headers import PullMessageHeader, read_header

if TYPE_CHECKING:
    from gantrymq.kernel.connection import Connection

ENTRY: Final = struct.Struct(">qiq")
"""A queue entry: log offset, record size, tag code."""
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in an entry that stands for no message: where the queue begins late, or lost a record."""

Terms = tuple[int, int]
Window = Callable[[int, int], "memoryview | bytes | None"]

_SLOTS: Final = ("<msgId>", "<queueId>", "<queueOffset>")
_OPAQUE: Final = 1_234_567_890


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


def read_requests(connection: Connection, buffer: bytes | bytearray, limit: int) -> tuple[list[Request], int]:
    """The requests in all whole frames at the start of ``buffer``, and how many bytes those took.

    ``FatalRemoteFault`` as :func:`cut_frames` and :func:`decode`. Responses go to ``connection.take_answer``.
    """
    frames, taken = cut_frames(buffer, limit)
    commands = [decode(frame) for frame in frames]
    requests = []
    for command in commands:
        if command.is_response:
            connection.take_answer(command)
        else:
            requests.append(Request(connection, command))
    return requests, taken


def read_pull_header(request: Request) -> PullMessageHeader:
    """The header of a pull request; ``RemoteFault`` as :func:`read_header`."""
    return read_header(PullMessageHeader, request.command.ext)


def add_sends(
    batch: AppendBatch,
    requests: list[Request],
    terms: Callable[[str], Terms | None],
    mark: bytes,
    max_body_bytes: int,
    many: Callable[[Request, int, int], Any],
    other: Callable[[AppendBatch, Request], None],
) -> None:
    """Make rows of ``batch`` from the send requests, in their order.

    A usual one (nothing but WAIT for us in its properties, to a topic with ``terms``: its number of queues and the sys
    flag bits that its rows get) may become a row here: its properties without WAIT, ``mark`` behind them, the request
    itself as origin; or, if it is a batch, rows with the origin ``many(request, first row, rows)``, which have the
    batch's properties and ``mark`` behind their own. All others go to ``other``.
    """
    for request in requests:
        other(batch, request)


def answer_sends(batch: AppendBatch, form: ReplyForm, other: Callable[[AppendBatch, int], int]) -> None:
    """Answer the senders of the rows. ``other`` answers the one whose first row it is given, and returns the next row.

    A reply in ``form`` to a row whose origin is the request itself may be sent here.
    """
    row = 0
    while row < len(batch):
        row = other(batch, row)


def gather(
    entries: bytes,
    limit: int,
    max_bytes: int,
    oldest: int,
    matches: Callable[[int], bool] | None,
    window: Window,
    damaged: Callable[[int, int], None],
) -> tuple[list[bytes | memoryview], int, bool]:
    """The records of these queue entries that ``matches`` lets through: up to ``limit``, up to ``max_bytes`` but one.

    ``window(offset, size)`` gives the log from that offset on, the record at least, or None when it cannot be read.
    What is no record (see :func:`is_intact`) is told to ``damaged(offset, size)`` and left out.
    Returns what makes the body, how many entries were looked at, and whether one lay before ``oldest``.
    """
    parts: list[bytes | memoryview] = []
    total = 0
    scanned = 0
    removed = False
    for at, size, code in ENTRY.iter_unpack(entries):
        if len(parts) >= limit or (parts and total + size > max_bytes):
            break
        scanned += 1
        if size == FILLER_SIZE:
            continue
        if at < oldest:
            removed = True
        elif matches is None or matches(code):
            data = window(at, size)
            if data is None:
                continue
            data = data[:size]
            if is_intact(data, at):
                parts.append(data)
                total += size
            else:
                damaged(at, size)
    return parts, scanned, removed

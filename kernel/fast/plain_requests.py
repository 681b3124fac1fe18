"""The wire's inner loops as plain functions: requests out of received bytes, rows out of sends, pull bodies.

Their compiled twins know the hot requests in their usual forms and hand everything else to what is here or to the
``other`` that the caller passes, so that there is one meaning of every request and one text for every refusal.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.fast.plain import dispatch_batch, encode_rows, queue_entries, scan
from gantrymq.kernel.fast.plain_hot import CODE_BYTES, HOT_HEADERS, UNUSUAL, SendRequest
from gantrymq.kernel.fast.plain_sends import ReplyForm, Terms, add_sends, answer_rows, answer_sends, reply_form
from gantrymq.kernel.layouts import ENTRY, PROOF_V4, QUEUE_PLACE
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import (
    CRC_MASK,
    HOST_V6_BITS,
    BadRecord,
    Record,
    body_end_in,
    decode_at,
    is_intact,
)
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import decode
from gantrymq.remoting.frame import BINARY_HEADER, PREFIX, Frame, cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.lenient_header import EFFORT
from gantrymq.remoting.records import HEADS, MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

"""A queue entry: log offset, record size, tag code."""
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in an entry that stands for no message: where the queue begins late, or lost a record."""

UNUSUAL_VALUES: Final = 512
"""Values of headers in other forms than the Java client's that one call reads, before the last one: milliseconds."""

Window = Callable[[int, int, int], "memoryview | bytes | None"]
"""By the number of an entry, its offset and size: see :func:`gather`."""

__all__ = [
    "FILLER_SIZE", "PullLimits", "QueuePart", "ReplyForm", "Terms", "Window", "add_sends", "answer_rows",
    "answer_sends", "dispatch_batch", "encode_rows", "gather", "new_batch", "queue_entries", "read_pull_header",
    "read_records", "read_requests", "reply_form", "scan",
]  # fmt: skip

_LENGTH_MASK: Final = 0xFFFFFF
_LENGTH = struct.Struct(">i")
_LAST_OF_V1: Final = MAGIC_V1 & 0xFF
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_V4_HEAD_SIZE: Final = HEADS[0].size


def read_requests(connection: Connection, buffer: bytes | bytearray, limit: int) -> tuple[list[Request], int]:
    """The requests in all whole frames at the start of ``buffer``, and how many bytes those took.

    Frames are left for the next call once it has read :data:`UNUSUAL_VALUES` values of headers that are not in the
    form of RocketMQ's Java client.

    ``FatalRemoteFault`` as :func:`cut_frames` and :func:`decode`. Responses go to ``connection.take_answer``.
    """
    requests: list[Any] = []
    # One copy, of which slices are bytes; none of all that came with each further piece of a long frame.
    is_whole = len(buffer) >= 4 and _LENGTH.unpack_from(buffer)[0] + 4 <= len(buffer)
    data = bytes(buffer if is_whole else buffer[:8])
    position, size = 0, len(data)
    unpack, hot_headers = PREFIX.unpack_from, HOT_HEADERS
    effort_until = EFFORT.values + UNUSUAL_VALUES
    while size - position >= 8 and EFFORT.values < effort_until:
        length, mark = unpack(data, position)
        start, end = position + 8, position + 4 + length
        body_start = start + (mark & 0xFFFFFF)
        if end > size or body_start > end or length + 4 > limit or mark >> 24 > BINARY_HEADER:
            break
        header, body = data[start:body_start], data[body_start:end]
        position = end
        read = hot_headers.get(header[:CODE_BYTES]) if mark <= _LENGTH_MASK else None  # a JSON header, that is
        if read is not None:
            try:
                head = read(header)
            except UNUSUAL:
                pass
            else:
                if not head.flag & RESPONSE_FLAG:
                    requests.append(SendRequest(connection, head.code, head.ext, head.opaque, head.flag, header, body))
                    continue
        command = decode(Frame(mark >> 24, header, body))
        if command.is_response:
            connection.take_answer(command)
        else:
            requests.append(Request(connection, command))
    cut_frames(data[position : position + 8], limit)  # refuses what can be no frame
    return requests, position


def new_batch(done: Callable[[AppendBatch], None]) -> AppendBatch:
    """An empty batch for :func:`add_sends`; the compiled twin has a kind of its own, which looks the same."""
    return AppendBatch(done=done)


def read_pull_header(request: Request) -> PullMessageHeader:
    """The header of a pull request; ``RemoteFault`` as :func:`read_header`."""
    return read_header(PullMessageHeader, request.command.ext)


def read_records(data: memoryview | bytes, start: int, offsets: Sequence[int]) -> list[Record | None]:
    """The records at these offsets of the log, of which ``data`` is what lies from ``start`` on, checked.

    None for one that is no record, or not all of it in ``data``. They are made for few parts of each to be looked at,
    and may only look like a :class:`Record`.
    """
    records: list[Record | None] = []
    for offset in offsets:
        at = offset - start
        size = int.from_bytes(data[at : at + 4], "big") if 0 <= at <= len(data) - 4 else 0
        try:
            records.append(decode_at(data[at : at + size], offset) if 0 < size <= len(data) - at else None)
        except BadRecord:
            records.append(None)
    return records


class PullLimits(NamedTuple):
    """How much one answer to a pull may carry. The first record always fits, a further one only within the limits."""

    messages: int
    size: int
    """In bytes."""
    disk_messages: int
    disk_size: int
    """The limits for records that count as read from the disk."""
    disk_end: int
    """The log offset where memory begins: records below it count as read from the disk."""

    @property
    def most(self) -> int:
        """The most records that any answer within these limits has."""
        return max(self.messages, self.disk_messages)


def is_of(record: memoryview | bytes, body_end: int, part: QueuePart | None, number: int) -> bool:
    """Whether an intact record, whose body ends there, is the one of an entry of ``part``."""
    if part is None:
        return True
    start = body_end + (1 if record[7] == _LAST_OF_V1 else 2)
    return (
        record[start : start + len(part.topic)] == part.topic
        and int.from_bytes(record[body_end:start], "big") == len(part.topic)
        and QUEUE_PLACE.unpack_from(record, 12) == (part.queue_id, part.first + number)
    )


class QueuePart(NamedTuple):
    """Which entries of which queue are read: what their records must say of themselves."""

    topic: bytes
    queue_id: int
    first: int
    """The queue offset of the first one."""
    is_current: bool
    """Whether no entry is known to lie before the log's begin."""


def gather(
    entries: bytes,
    limits: PullLimits,
    oldest: int,
    matches: Callable[[int], bool] | None,
    window: Window,
    wrong: Callable[[int], None],
    part: QueuePart | None,
) -> tuple[list[bytes | memoryview], int, bool, int]:
    """The records of these queue entries that ``matches`` lets through, within ``limits``.

    As in RocketMQ the first entry that does not fit ends the answer, whether or not its record is wanted.
    ``window(number, offset, size)`` gives the log from that offset on, the record at least, or None when there is none
    that can be read. An entry that leads to no record (see :func:`is_intact`), or to one of another place than
    ``part`` says, is reported to ``wrong(number)`` and left out. Both may raise.
    Returns what makes the body, how many entries were looked at, whether one lay before ``oldest``, and the number of
    records in the body.
    """
    parts: list[bytes | memoryview] = []
    total = scanned = base = end = 0
    removed = False
    data: bytes | memoryview = b""
    unpack, crc32 = PROOF_V4.unpack_from, zlib.crc32
    messages, room, disk_messages, disk_room, disk_end = limits
    for number, (at, size, code) in enumerate(ENTRY.iter_unpack(entries)):
        if not parts:
            pass
        elif at < disk_end:
            if len(parts) >= disk_messages or total + size > disk_room:
                break
        elif len(parts) >= messages or total + size > room:
            break
        scanned += 1
        if size == FILLER_SIZE:
            continue
        if at < oldest:
            if at < 0 or (part is not None and part.is_current):
                wrong(number)
            else:
                removed = True
        elif matches is None or matches(code):
            if at < base or at + size > end or size < 0:
                found = window(number, at, size)
                if found is None:
                    continue
                data, base, end = found, at, at + len(found)
            start = at - base
            record = data[start : start + size]
            if size >= _V4_HEAD_SIZE:
                told, magic, crc, place, bits, length = unpack(record)
                if (
                    told == size
                    and place == at
                    and not bits & HOST_V6_BITS
                    and 0 <= length < size - _V4_HEAD_SIZE
                    and magic in _MAGICS
                    and crc32(record[_V4_HEAD_SIZE : _V4_HEAD_SIZE + length]) & CRC_MASK == crc
                    and is_of(record, _V4_HEAD_SIZE + length, part, number)
                ):
                    parts.append(record)
                    total += size
                    continue
            if is_intact(record, at) and is_of(record, body_end_in(record), part, number):
                parts.append(record)
                total += size
            else:
                wrong(number)
                # What was just quarantined is not to be read through the window of before.
                base = end = 0
    return parts, scanned, removed, len(parts)

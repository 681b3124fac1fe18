"""The wire's inner loops as plain functions: requests out of received bytes, answers to rows.

Their compiled twins read requests in their usual forms and hand everything else to what is here, so that there is one
meaning of every request and one text for every refusal. What a plugin's requests say, its own readers know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantrymq.kernel.batch import STORED, AppendBatch
from gantrymq.kernel.fast.plain import dispatch_batch, encode_rows, queue_entries, scan
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import BadRecord, Record, decode_at
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import decode
from gantrymq.remoting.frame import BINARY_HEADER, PREFIX, Frame, cut_frames
from gantrymq.remoting.lenient_header import EFFORT

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

UNUSUAL_VALUES: Final = 512
"""Values of headers in other forms than the Java client's that one call reads, before the last one: milliseconds."""

__all__ = [
    "Readers", "Unusual", "answer_rows", "dispatch_batch", "encode_rows", "new_batch", "queue_entries", "read_records",
    "read_requests", "scan",
]  # fmt: skip

_LENGTH_MASK: Final = 0xFFFFFF
_BEGIN_BYTES: Final = len('{"code":-2147483648,')
_LENGTH = struct.Struct(">i")


class Unusual(Exception):
    """A header has another form than the usual one: the decoder must look at it."""


class Readers:
    """What reads the requests of some codes in place of the decoder; a processor brings its own as ``readers``.

    A reader of this twin is a function of the connection, the header and the body that returns a
    :class:`~gantrymq.kernel.processors.Request`, or what has its attributes. It is asked where a JSON header begins
    with the code, as the Java client writes it, and raises :class:`Unusual` for what the decoder must look at. Readers
    of the compiled twin are passed over.
    """

    def __init__(self, readers: Mapping[int, Any] | None = None) -> None:
        self.by_begin = {b'{"code":%d,' % code: reader for code, reader in (readers or {}).items() if callable(reader)}


_NO_READERS: Final = Readers()


def read_requests(
    connection: Connection, buffer: bytes | bytearray, limit: int, readers: Readers | None = None
) -> tuple[list[Request], int]:
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
    unpack, by_begin = PREFIX.unpack_from, (readers or _NO_READERS).by_begin
    effort_until = EFFORT.values + UNUSUAL_VALUES
    while size - position >= 8 and EFFORT.values < effort_until:
        length, mark = unpack(data, position)
        start, end = position + 8, position + 4 + length
        body_start = start + (mark & 0xFFFFFF)
        if end > size or body_start > end or length + 4 > limit or mark >> 24 > BINARY_HEADER:
            break
        header, body = data[start:body_start], data[body_start:end]
        position = end
        if mark <= _LENGTH_MASK:  # a JSON header, that is
            read = by_begin.get(header[: header.find(b",", 0, _BEGIN_BYTES) + 1])
            if read is not None:
                try:
                    requests.append(read(connection, header, body))
                    continue
                except Unusual:
                    pass
        command = decode(Frame(mark >> 24, header, body))
        if command.is_response:
            connection.take_answer(command)
        else:
            requests.append(Request(connection, command))
    cut_frames(data[position : position + 8], limit)  # refuses what can be no frame
    return requests, position


def new_batch(done: Callable[[AppendBatch], None], source: str) -> AppendBatch:
    """An empty batch of this source; the compiled twin has a kind of its own, which looks the same."""
    return AppendBatch(done=done, source=source)


def answer_rows(batch: AppendBatch) -> None:
    """Answer each request that is the origin of a row: with success alone when the row lies in the log, else with its
    status and remark. A row may have no origin."""
    for row, (request, status) in enumerate(zip(batch.origins, batch.statuses, strict=True)):
        if request is None:
            continue
        if status in STORED:
            request.answer(ResponseCode.SUCCESS)
        else:
            request.answer(status, batch.remarks.get(row))


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

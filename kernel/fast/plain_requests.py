"""The inner loops for requests as plain functions: read requests from received bytes, answer rows.

The compiled twins read requests in their usual forms and pass all others to these functions, so that both twins decode
and refuse alike, with the same texts. Plugins bring their own readers for the fields of their requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gantrymq.kernel.batch import STORED, AppendBatch
from gantrymq.kernel.fast.plain import dispatch_batch, encode_rows, queue_entries, scan
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import BadRecord, Record, decode_at
from gantrymq.kernel.store.log.record import decode as decode_record
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import decode
from gantrymq.remoting.frame import BINARY_HEADER, PREFIX, Frame, cut_frames
from gantrymq.remoting.lenient_header import EFFORT

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

UNUSUAL_VALUES: Final = 512
"""After so many header values in other forms than the Java client's, a call reads no further request. Reading them
takes milliseconds."""

__all__ = [
    "DeliveryColumns",
    "Readers",
    "Unusual",
    "answer_rows",
    "common_code",
    "delivery_columns",
    "dispatch_batch",
    "encode_rows",
    "new_batch",
    "queue_entries",
    "read_ready",
    "read_records",
    "read_requests",
    "scan",
    "write_ready",
]  # fmt: skip

DeliveryColumns = tuple[list[int], list[str], list[int], list[int], list[int], list[int], list[bytes], list[bytes]]
"""See :func:`delivery_columns`."""

_LENGTH_MASK: Final = 0xFFFFFF
_BEGIN_BYTES: Final = len('{"code":-2147483648,')
_LENGTH = struct.Struct(">i")


class Unusual(Exception):
    """A header does not have the usual form; the decoder has to decode it."""


class Readers:
    """Functions that read the requests of some codes in place of the decoder; processors bring them as ``readers``.

    A reader of this twin takes the connection, the header and the body, and returns a
    :class:`~gantrymq.kernel.processors.Request` or an object with its attributes. It is called for a JSON header that
    begins with the code, as the Java client writes it, and raises :class:`Unusual` if the decoder has to decode the
    header. Readers of the compiled twin are ignored.
    """

    def __init__(self, readers: Mapping[int, Any] | None = None) -> None:
        self.by_begin = {b'{"code":%d,' % code: reader for code, reader in (readers or {}).items() if callable(reader)}


_NO_READERS: Final = Readers()


def read_requests(
    connection: Connection, buffer: bytes | bytearray, limit: int, readers: Readers | None = None
) -> tuple[list[Request], int]:
    """Return the requests in the whole frames at the start of ``buffer``, and the size of these frames in bytes.

    After :data:`UNUSUAL_VALUES` values of headers in another form than that of RocketMQ's Java client, the remaining
    frames are left for the next call.

    Raises ``FatalRemoteFault`` as :func:`cut_frames` and :func:`decode` do. Passes responses to
    ``connection.take_response``.
    """
    requests: list[Any] = []
    # Copy the whole frames once; a slice of ``bytes`` is cheap. An incomplete long frame is not copied at each call.
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
            connection.take_response(command)
        else:
            requests.append(Request(connection, command))
    cut_frames(data[position : position + 8], limit)  # refuses what can be no frame
    return requests, position


def common_code(requests: list[Request]) -> int | None:
    """Return the code of the requests if all have the same one; None if not, or without requests."""
    codes = {request.code for request in requests}
    return codes.pop() if len(codes) == 1 else None


def read_ready(
    events: list[tuple[int, int]],
    position: int,
    connections: dict[int, Connection],
    requests: list[Request],
    now: float,
    read: Callable[[Connection, bytes, list[Request], float], object],
    limit: int,
    readers: Readers,
    most: int,
    rows: int,
) -> tuple[int, int]:
    """Receive from the ready sockets of ``events``, from ``position`` on, and append their requests to ``requests``.

    It stops after ``most`` bytes or ``rows`` requests, and at each event that needs the caller: of the waker, of a
    connection with a long part of a frame, and so on. ``read`` is the caller's function for received data that is not
    usual. An incomplete frame behind whole ones is kept in ``connection.inbound``. Returns the position of the next
    event, and the bytes received. This twin leaves all events to the caller.
    """
    return position, 0


def write_ready(connections: Collection[Connection]) -> tuple[list[Connection], int]:
    """Send the waiting response of each connection, and return the connections that still have something to send or
    have failed, and the bytes sent. This twin leaves all to the caller."""
    return list(connections), 0


def new_batch(done: Callable[[AppendBatch], None], source: str) -> AppendBatch:
    """Return an empty batch of this source. The compiled twin returns its own class, with the same attributes."""
    return AppendBatch(done=done, source=source)


def answer_rows(batch: AppendBatch) -> None:
    """Answer each request that is the origin of a row: with success if the row is in the log, else with its status and
    remark. Rows without an origin need no answer."""
    for row, (request, status) in enumerate(zip(batch.origins, batch.statuses, strict=True)):
        if request is None:
            continue
        if status in STORED:
            request.answer(ResponseCode.SUCCESS)
        else:
            request.answer(status, batch.remarks.get(row))


def delivery_columns(records: bytes) -> DeliveryColumns:
    """Return the columns of whole records that ``records`` has one after the other; :class:`BadRecord` for other bytes.

    Where each record starts, and where the last one ends; topics, queue ids, queue offsets, log offsets, store
    timestamps, bodies and properties.
    """
    starts: list[int] = []
    found: list[Record] = []
    end = 0
    while end < len(records):
        starts.append(end)
        record, end = decode_record(records, end, check_body=False)
        found.append(record)
    starts.append(end)
    return (
        starts,
        [record.topic for record in found],
        [record.queue_id for record in found],
        [record.queue_offset for record in found],
        [record.offset for record in found],
        [record.store_timestamp for record in found],
        [record.body for record in found],
        [record.properties for record in found],
    )


def read_records(data: memoryview | bytes, start: int, offsets: Sequence[int]) -> list[Record | None]:
    """Read and check the records at these log offsets from ``data``, the log's bytes from offset ``start`` on.

    The result has None for bytes that are not a whole record. The compiled twin returns its own class, with the
    attributes of :class:`Record`, which is fast if few of them are read.
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

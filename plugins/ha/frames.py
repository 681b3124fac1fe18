"""Encode and decode the messages between a master and its slaves; no input or output.

A slave sends 8 bytes: the end of its log. A master sends 12 bytes, a log offset and a size, followed by this many bytes
of the log; size 0 is a heartbeat. All numbers are big-endian. Source: RocketMQ 4.9.7 ``HAConnection`` and
``HAService.HAClient``; 5.3.3's ``DefaultHAConnection`` is the same.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

REPORT: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(">qi")
TICKET_MARK: Final = b"\xffticket\x00"
"""The bytes before a slave's ticket, at the start of a connection; as a report they would be a negative offset."""
TICKET_BYTES: Final = 32
CHUNK_MAX_BYTES: Final = 4 * 1024 * 1024 - HEADER.size
"""The most that a RocketMQ slave accepts at once: with its header it must fit into ``READ_MAX_BUFFER_SIZE``."""
RECORD_EXTRA_BYTES: Final = 256 * 1024
"""The largest size of a record without its body, in bytes."""
RECORD_MAX_BYTES: Final = 16 * 1024 * 1024 + RECORD_EXTRA_BYTES
"""The largest record in bytes, with the highest ``store.max_message_bytes``: that of the configuration may have been
higher when the record was stored."""


class BadFrame(Exception):
    """The peer sent invalid data; the connection must be closed."""


class Piece(NamedTuple):
    """Bytes of the master's log with their offset; empty: a heartbeat. They are views of the received data."""

    offset: int
    data: memoryview


class Reports:
    """Decodes a slave's reports from pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets that are complete now. :class:`BadFrame` for a negative one."""
        data = self._rest + data if self._rest else data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        offsets: list[int] = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        if offsets and min(offsets) < 0:
            raise BadFrame(f"a slave reports the offset {min(offsets)}")
        return offsets


class Pieces:
    """Decodes a master's log data from pieces of any size.

    A size is checked before its data is stored, so at most one chunk is in memory. Data is returned before its chunk is
    complete.
    """

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: bytes | memoryview) -> list[Piece]:
        """Return the received log data, in order. :class:`BadFrame` for invalid numbers."""
        data = memoryview(data)
        found: list[Piece] = []
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                found.append(Piece(self._offset, part))
                self._offset += len(part)
                self._left -= len(part)
                at += len(part)
                continue
            missing = HEADER.size - len(self._header)
            self._header += bytes(data[at : at + missing])
            at += missing
            if len(self._header) < HEADER.size:
                break
            self._begin(found)
        return found

    def _begin(self, found: list[Piece]) -> None:
        offset, size = HEADER.unpack(self._header)
        self._header = b""
        if offset < 0 or not 0 <= size <= CHUNK_MAX_BYTES:
            raise BadFrame(f"a master says that {size} bytes follow from the offset {offset}")
        self._offset, self._left = offset, size
        if not size:
            found.append(Piece(offset, memoryview(b"")))

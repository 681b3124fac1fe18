"""What a master and its slaves say to each other, as bytes and back; no input or output of its own.

A slave says 8 bytes: the offset that its log has come to. A master says 12 bytes, an offset of the log and a size, and
then so many bytes of the log from there; size 0 is a heartbeat. All numbers are big-endian.
Source: RocketMQ 4.9.7 ``HAConnection`` and ``HAService.HAClient``; 5.3.3's ``DefaultHAConnection`` says the same.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

REPORT: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(">qi")
CHUNK_MAX_BYTES: Final = 4 * 1024 * 1024 - HEADER.size
"""The most that a RocketMQ slave takes at once: with its header it must fit into ``READ_MAX_BUFFER_SIZE``."""
RECORD_EXTRA_BYTES: Final = 256 * 1024
"""What a record may have beside its body, or a blank at the end of a file behind the largest record."""


class BadFrame(Exception):
    """The peer speaks something else, or of what cannot be; the connection must be closed."""


class Piece(NamedTuple):
    """Bytes of the master's log, and where they lie; none: a heartbeat. They are views of what was fed."""

    offset: int
    data: memoryview


class Reports:
    """A slave's reports, out of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The offsets that are whole now. :class:`BadFrame` for one below 0."""
        data = self._rest + data if self._rest else data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        offsets: list[int] = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        if offsets and min(offsets) < 0:
            raise BadFrame(f"a slave reports the offset {min(offsets)}")
        return offsets


class Pieces:
    """A master's pieces of its log, out of bytes that come in pieces of any size.

    A size is checked before a byte behind it is kept: there is never more than one chunk in memory, and what is given
    out does not wait for a chunk to be whole.
    """

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: bytes | memoryview) -> list[Piece]:
        """What has come of the log, in order. :class:`BadFrame` for numbers that cannot be."""
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

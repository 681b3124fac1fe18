"""The layout of an index file: header, hash slots, entries; no input or output. Format: ``docs/format/index.md``.

Source: RocketMQ 4.9.7 ``IndexHeader``, ``IndexFile``, ``IndexService``. Big-endian; times are ms since 1970.
"""

from __future__ import annotations

import re
import struct
from datetime import datetime
from typing import Final

import attrs

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY: Final = struct.Struct(">iqii")
"""Key hash, log offset, seconds since the file's begin, number of the previous entry in the slot's chain."""
_HEADER = struct.Struct(">qqqqii")
NAME: Final = re.compile(r"[0-9]{17}")
"""A file's name: the local time of its creation, ``yyyyMMddHHmmssSSS``."""


@attrs.define
class Header:
    """The fields in the first 40 bytes. ``count`` is the number of the next entry; the first has number 1."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    count: int = 1

    def encode(self) -> bytes:
        """Return the 40 bytes."""
        return _HEADER.pack(
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset, self.slots_used, self.count
        )

    def copy(self) -> Header:
        """Return a new header with the same values."""
        return attrs.evolve(self)


def decode_header(data: bytes) -> Header:
    """Return the header in ``data`` (40 bytes). A count below 1 counts as 1, as in RocketMQ."""
    header = Header(*_HEADER.unpack(data))
    header.count = max(header.count, 1)
    return header


@attrs.frozen
class Shape:
    """The size of the files: ``slots`` and ``entries`` of a file (one entry is unused)."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        """The position of entry 0 in the file; it is never used."""
        return HEADER_BYTES + self.slots * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        """The size of each file in bytes."""
        return self.entries_at + self.entries * ENTRY.size

    def is_sane(self, header: Header) -> bool:
        """Return whether the header is valid for a file of this shape."""
        return (
            1 <= header.count <= self.entries
            and 0 <= header.slots_used < max(header.count, 2)
            and 0 <= header.begin_offset <= header.end_offset
            and header.begin_timestamp >= 0
            and header.end_timestamp >= 0
        )


def file_name(now_ms: int, last: str) -> str:
    """Return the name of a file created at ``now_ms``, in local time. It sorts behind ``last`` even if the clock was
    set back."""
    stamp = datetime.fromtimestamp(now_ms / 1000).strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
    return stamp if stamp > last else f"{int(last) + 1:017d}"

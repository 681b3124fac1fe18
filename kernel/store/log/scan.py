"""Scan the files of the log in blocks, so that neither a large file nor a damaged length determines how much is
read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.fast import Stop, scan
from gantrymq.kernel.layouts import SIZE_AND_MAGIC
from gantrymq.kernel.store.log.record import BLANK_BYTES, BLANK_MAGIC, LEAST_BYTES, BadRecord, check_begun
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.remoting.records import HEADS, MAGIC_V1

BLOCK_BYTES: Final = 256 * 1024
ROW_BYTES: Final = 1024
"""A reader of few records reads at most this for each, and at least a page."""
_LEAST_READ: Final = 4096
LARGE_BYTES: Final = 64 * 1024
"""Up to this size, a damaged length may be read as it is."""
_LONGEST_HEAD: Final = max(head.size for head in HEADS.values())


def scan_block(
    segments: Segments, offset: int, limit: int, rows: int, *, check_body: bool, replay: bool = False
) -> tuple[DispatchBatch, Stop]:
    """Scan from ``offset`` on as :func:`gantrymq.kernel.fast.scan` does, a block or at least one record.

    Reads nothing at or behind ``limit``, nor behind the end of the file. ``Stop.ROWS`` also means that the block ended.
    :class:`OSError` if the disk cannot read the first block.
    """
    segment = segments.at(offset)
    if segment is None:
        return scan(b"", offset, 0, check_body=False)[0], Stop.DATA
    size = min(limit, segment.end) - offset
    data = segments.read_readable(offset, min(size, BLOCK_BYTES, max(rows * ROW_BYTES, _LEAST_READ)))
    batch, stop = scan(data, offset, rows, check_body=check_body, replay=replay)
    if len(data) == size:
        return batch, stop
    if stop is Stop.BLANK:
        stop = Stop.CUT  # it crosses the end of the block, not of the file
    if stop is Stop.DATA:
        return batch, Stop.ROWS
    if stop is not Stop.CUT:
        return batch, stop
    if batch.end > offset:
        return batch, Stop.ROWS
    whole = _whole_size(segments, offset, size)
    if whole is None:
        return batch, Stop.BLANK if _is_blank(segments, offset, size) else Stop.BAD
    if whole > size:
        return batch, Stop.CUT
    data = segments.pread(offset, whole)
    batch, stop = scan(data, offset, min(rows, 1), check_body=check_body, replay=replay)
    return batch, Stop.ROWS if batch.end > offset else stop


def checked_size(view: Callable[[int, int], bytes], offset: int) -> int:
    """Return the size field of the record at ``offset``, at least 0; ``view`` as :meth:`CommitLog.view`.

    A large size is accepted, and may cost memory, only if all lengths of the record agree; otherwise ``BadRecord``.
    """
    size = int.from_bytes(view(offset, 4), "big", signed=True)
    if size > LARGE_BYTES:
        head = view(offset, _LONGEST_HEAD)
        check_begun(head)
        if int.from_bytes(head[28:36], "big") != offset:
            raise BadRecord(f"the record at {offset} belongs to another place")
    return max(size, 0)


def _is_blank(segments: Segments, offset: int, size: int) -> bool:
    """Return whether a blank begins at ``offset``."""
    head = segments.pread(offset, BLANK_BYTES)
    return len(head) == BLANK_BYTES and SIZE_AND_MAGIC.unpack(head) == (size, BLANK_MAGIC)


def _whole_size(segments: Segments, offset: int, size: int) -> int | None:
    """Return the size of the record that begins at ``offset``, if all its lengths agree; else None.

    The result exceeds ``size`` if the record does not end within it. The body is not read, so a damaged length costs no
    memory.
    """
    head = segments.pread(offset, min(_LONGEST_HEAD, size))
    if len(head) < LEAST_BYTES or SIZE_AND_MAGIC.unpack_from(head)[1] == BLANK_MAGIC:
        return None
    try:
        check_begun(head)
    except BadRecord:
        return None
    if int.from_bytes(head[28:36], "big") != offset:
        return None
    whole, magic = SIZE_AND_MAGIC.unpack_from(head)
    if whole > size:
        return int(whole)
    fixed = HEADS[int.from_bytes(head[36:40], "big") & 0x30].size
    at = offset + fixed + int.from_bytes(head[fixed - 4 : fixed], "big")
    width = 1 if magic == MAGIC_V1 else 2
    at += width + int.from_bytes(segments.pread(at, width), "big")
    at += 2 + int.from_bytes(segments.pread(at, 2), "big")
    return int(whole) if at == offset + whole else None

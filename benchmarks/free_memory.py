"""Use all free memory once before a run.

A virtual machine's host may provide memory only when the guest writes to it for the first time, page by page. That can
take longer than the write itself: writing to the page cache is then many times slower in memory that no program has
used since the machine started, and which system gets such memory is a matter of chance.
"""

from __future__ import annotations

import mmap
from pathlib import Path

LEFT_BYTES = 2**30
"""So much free memory is left alone."""
_PIECE_BYTES = 2**26
_PAGE_BYTES = 4096


def touch_free_memory() -> int:
    """Write to each page of the free memory but a GiB; returns how many bytes that were."""
    size = max(0, free_bytes() - LEFT_BYTES)
    pieces: list[mmap.mmap] = []
    try:
        for _ in range(size // _PIECE_BYTES):
            piece = mmap.mmap(-1, _PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pieces.append(piece)
            piece.madvise(mmap.MADV_HUGEPAGE)
            piece[::_PAGE_BYTES] = b"x" * (_PIECE_BYTES // _PAGE_BYTES)
    finally:
        for piece in pieces:
            piece.close()
    return len(pieces) * _PIECE_BYTES


def free_bytes() -> int:
    """Memory in bytes that no program and no file uses."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say how much memory is free")

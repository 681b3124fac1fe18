"""Fill the page cache before a system starts, as on a machine that has run for long.

A virtual machine's host may provide memory only when the guest writes to it for the first time, and take back what is
free. Each write to a new page of the page cache then takes many times as long as the write itself, and which system
gets such memory is a matter of chance. Memory with pages of a file is not free, and the system reuses it at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LEFT_BYTES = 3 * 2**30
"""So much available memory is not filled."""
_PIECE_BYTES = 2**20


@contextmanager
def filler(most: int | None = None) -> Iterator[Callable[[], int]]:
    """A function that fills the available memory but 3 GiB, or ``most`` bytes, with pages of a sparse file, and returns
    how many bytes that are. It may be called again and again. The file needs no disk space and is removed at the end.
    """
    size = max(0, available_bytes() - LEFT_BYTES)
    if most is not None:
        size = min(size, most)
    buffer = bytearray(_PIECE_BYTES)
    with tempfile.TemporaryFile(prefix="gantrymq-bench-pages-") as file:
        file.truncate(size)

        def fill() -> int:
            for position in range(0, size, _PIECE_BYTES):
                os.preadv(file.fileno(), [buffer], position)
            return size

        yield fill


def available_bytes() -> int:
    """Memory in bytes that is free or can be taken from the page cache."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say how much memory is available")

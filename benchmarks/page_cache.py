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

from systems import memory_bytes

LEFT_BYTES = 3 * 2**30
"""So much available memory is not filled."""
_PIECE_BYTES = 2**20


@contextmanager
def filler() -> Iterator[Callable[[], int]]:
    """A function that fills the available memory but 3 GiB with pages of a sparse file; returns how many bytes.

    It may be called again and again. The file needs no disk space and is removed at the end.
    """
    size = max(0, memory_bytes("MemAvailable") - LEFT_BYTES)
    buffer = bytearray(_PIECE_BYTES)
    with tempfile.TemporaryFile(prefix="gantrymq-bench-pages-") as file:
        file.truncate(size)

        def fill() -> int:
            for position in range(0, size, _PIECE_BYTES):
                os.preadv(file.fileno(), [buffer], position)
            return size

        yield fill

"""Buffers, and the behavior without memory for a small object: in this twin, only Python's MemoryError."""

from __future__ import annotations


def end_where_memory_ends(text: bytes) -> None:
    """From now on, if the process cannot allocate a small object, it writes ``text`` to stderr and ends with exit code
    1.

    Small means up to 64 KiB; a larger allocation still raises MemoryError. ``text`` has at most 512 bytes; None
    disables this. Only the compiled twin supports it: this one raises MemoryError.
    """


def empty_buffer(size: int) -> bytearray:
    """Return a buffer of ``size`` bytes whose content is undefined, for a caller that overwrites what it uses.

    The compiled twin does not clear the memory first, which takes as long as to read it from the page cache.
    """
    return bytearray(size)

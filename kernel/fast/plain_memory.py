"""What happens where memory for a small object ends: nothing more than Python's MemoryError, in this twin."""

from __future__ import annotations


def end_where_memory_ends(text: bytes) -> None:
    """From now on the process writes ``text`` to stderr and ends, with 1, where it gets no memory for a small object.

    Small is what has up to 64 KiB; more than that still raises MemoryError, for the one who asked for it. ``text`` has
    512 bytes at most; none takes the order back. Only the compiled twin can do it: here a MemoryError is raised.
    """

"""What the kernel asks of open files and of a store's lock. ``gantrymq.kernel.env`` has those of the system."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class DiskUsage(NamedTuple):
    """Sizes in bytes of the file system that a path lies on."""

    total: int
    free: int


class Lock(Protocol):
    """A lock that is held; released by :meth:`close` or by the end of the process."""

    def close(self) -> None:
        """Let it go."""


class File(Protocol):
    """One open file. Offsets and sizes are bytes. Every failure is an :class:`OSError`."""

    def fileno(self) -> int:
        """The system's descriptor, -1 for what is no file of the system."""

    def size(self) -> int:
        """The file's size."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``, or raise: then any part of it may have been written."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only where the file ends."""

    def peek(self, size: int, offset: int) -> bytes | None:
        """As :meth:`pread`; None instead of waiting for the disk, where the system can tell."""

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on as far as that does not wait for the disk; returns how many bytes."""

    def read_ahead(self, offset: int, size: int) -> None:
        """Let the system begin to read what will be needed soon."""

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Start and end of the parts from ``offset`` on that may have bytes other than zero."""

    def datasync(self) -> None:
        """Return when what was written, and the size, is on the disk. After a failure nothing can be relied upon."""

    def truncate(self, size: int) -> None:
        """Cut the file, or let it grow by a hole of zeros."""

    def preallocate(self, size: int) -> None:
        """Let the file grow to ``size`` bytes of zeros that have their room on the disk."""

    def share(self) -> File:
        """Another handle of the open file, which stays open when this one is closed."""

    def close(self) -> None:
        """Close it. A call that another thread has begun is completed first."""

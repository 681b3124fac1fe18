"""A disk in memory that knows which of its files are in the page cache."""

from __future__ import annotations

import threading

from gantrymq.kernel.env import File
from gantrymq.testing.memory_env import MemoryEnv, MemoryFile, _Inode


class Disk(MemoryEnv):
    """A disk of which only files that were read or written since the last ``cool`` are in the page cache.

    ``reads`` has the files that were read from the disk, ``waited_for`` those of them that this thread read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cached: set[str] = set()
        self.reads: list[str] = []
        self.waited_for: list[str] = []
        self.thread = threading.current_thread()

    def open(self, path: str, create: bool = False) -> File:
        super().open(path, create)
        return DiskFile(self, self.files[path])

    def cool(self) -> None:
        """Drop the page cache."""
        self.cached.clear()
        self.reads.clear()
        self.waited_for.clear()


class DiskFile(MemoryFile):
    """An open file of a :class:`Disk`."""

    def __init__(self, disk: Disk, inode: _Inode) -> None:
        super().__init__(disk, inode)
        self._disk = disk

    @property
    def _path(self) -> str:
        return next((path for path, inode in self._disk.files.items() if inode is self._inode), "")

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        return super().peek_into(buffer, offset) if self._path in self._disk.cached else 0

    def peek(self, size: int, offset: int) -> bytes | None:
        return super().peek(size, offset) if self._path in self._disk.cached else None

    def pread(self, size: int, offset: int) -> bytes:
        if self._path not in self._disk.cached:
            self._disk.reads.append(self._path)
            if threading.current_thread() is self._disk.thread:
                self._disk.waited_for.append(self._path)
            self._disk.cached.add(self._path)
        return super().pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        super().pwrite(data, offset, zeros)
        self._disk.cached.add(self._path)

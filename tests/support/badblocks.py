"""The real disk with parts of files that are unreadable until a test changes that."""

from __future__ import annotations

import errno
from typing import Any
from weakref import WeakSet

from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.fast.plain_flusher import Flusher


class BadBlocksEnv(SystemEnv):
    """Reads that touch one of the parts :attr:`bad` raise EIO; writes are as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[tuple[str, int, int]] = []
        """The end of a file's path, and the start and the end of its unreadable range."""
        self.failed = 0
        """The number of failed reads."""
        self._opened: WeakSet[_BadFile] = WeakSet()

    def spoil(self, path_end: str, start: int, end: int) -> None:
        """Make this part of the file unreadable."""
        self.bad.append((path_end, start, end))

    def open(self, path: str, create: bool = False) -> File:
        """A file that looks before each read."""
        file = _BadFile(self, path, super().open(path, create))
        self._opened.add(file)
        return file

    def rename(self, source: str, target: str) -> None:
        """Open files have the new name too."""
        super().rename(source, target)
        for file in self._opened:
            if file.path == source:
                file.path = target

    def read_bytes(self, path: str) -> bytes:
        """A whole file."""
        data = super().read_bytes(path)
        self.check(path, 0, len(data))
        return data

    def flusher(self) -> Flusher:
        """A flusher that syncs through this environment's files."""
        return Flusher()

    def check(self, path: str, offset: int, size: int) -> None:
        """:class:`OSError` when a part of this cannot be read."""
        for path_end, start, end in self.bad:
            if path.endswith(path_end) and offset < end and start < offset + size:
                self.failed += 1
                raise OSError(errno.EIO, "Input/output error")


class _BadFile:
    def __init__(self, env: BadBlocksEnv, path: str, file: File) -> None:
        self._env = env
        self.path = path
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fileno(self) -> int:
        return -1

    def share(self) -> File:
        return self

    def pread(self, size: int, offset: int) -> bytes:
        self._env.check(self.path, offset, size)
        return self._file.pread(size, offset)

    def peek(self, size: int, offset: int) -> bytes | None:
        self._env.check(self.path, offset, size)
        return self._file.peek(size, offset)

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        self._env.check(self.path, offset, len(buffer))
        return self._file.peek_into(buffer, offset)

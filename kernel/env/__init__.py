"""What the broker asks of the operating system: files, lock, clock, random numbers, addresses.

Only ``system`` beside this module calls ``open``, ``os``, ``time`` or ``random``, so that a test may put a
disk that forgets, or a clock of its own, under the whole broker (``gantrymq.testing.memory_env``). Paths are strings.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from gantrymq.kernel.fast.plain_flusher import Flusher


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


class Listener(Protocol):
    """An address that is taken. Nothing here blocks; what comes out is a socket that does not block either."""

    address: tuple[str, int]
    """What was taken: host and port."""

    def fileno(self) -> int:
        """A descriptor that is readable while somebody waits to be accepted."""

    def listen(self, backlog: int) -> None:
        """Let peers connect from now on."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection, and who that is: host and port. ``BlockingIOError`` when nobody waits; OSError."""

    def close(self) -> None:
        """Give the address back; connections that were accepted go on."""


class Waker(Protocol):
    """Wakes whoever waits for a descriptor to become readable; ``wake`` may be called from any thread."""

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def wake(self) -> None:
        """Make the descriptor readable."""

    def drain(self) -> None:
        """Make it wait again."""

    def close(self) -> None:
        """Give the descriptor back."""


class Env(Protocol):
    """Everything the kernel asks of the system. Changes of names last once :meth:`sync_dir` returned."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` make an empty file when there is none."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; of a folder that is missing, none."""

    def mkdirs(self, path: str) -> None:
        """Make a folder and those above it, for this user alone (mode 0700), to last."""

    def replace(self, path: str, data: bytes) -> None:
        """Let ``path`` hold ``data``, to last. A crash leaves the old content or the new; the old is kept as .bak."""

    def read_bytes(self, path: str) -> bytes: ...

    def unlink(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Give ``source`` the name ``target``, in place of what had it."""

    def rmtree(self, path: str) -> None:
        """Delete a folder and all in it; none is no error."""

    def sync_dir(self, path: str) -> None:
        """Return when the names in this folder are on the disk."""

    def lock(self, path: str) -> Lock:
        """Hold the store's lock, as RocketMQ does: a record lock on byte 0. :class:`StoreInUse` if another does."""

    def disk_usage(self, path: str) -> DiskUsage: ...

    def memory_bytes(self) -> int:
        """How much memory the machine has."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; never steps back while the process lives."""

    def monotonic(self) -> float:
        """Seconds since some moment, for measuring time."""

    def random_int(self, bound: int) -> int:
        """A number from 0 to ``bound`` - 1."""

    def waker(self) -> Waker: ...

    def bind(self, host: str, port: int) -> Listener:
        """Take a TCP address (port 0: any) without listening yet. ``OSError`` or OverflowError when it is not free."""

    def flusher(self) -> Flusher:
        """What brings files of this environment onto the disk."""


def environment(name: str) -> str | None:
    """A variable of the process's environment."""
    return os.environ.get(name)

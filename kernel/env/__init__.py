"""The broker's interface to the operating system: files, lock, clock, random numbers, addresses.

Only ``system`` and ``memory`` call ``open``, ``os``, ``time`` or ``random``, so that a test can run the whole broker
on a disk that loses data or with its own clock (``gantrymq.testing.memory_env``). Paths are strings.
"""

from __future__ import annotations

import os
import socket
import time
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
        """Release the lock."""


class File(Protocol):
    """One open file. Offsets and sizes are bytes. Every failure is an :class:`OSError`."""

    def fileno(self) -> int:
        """Return the system's file descriptor, -1 if this is not a file of the system."""

    def size(self) -> int:
        """Return the file's size."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        """Write all of ``data`` at ``offset``, and behind it so many bytes of zeros, at most 1 MiB.

        After an error any part of it may have been written."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only where the file ends."""

    def peek(self, size: int, offset: int) -> bytes | None:
        """As :meth:`pread`; None instead of waiting for the disk, if the system supports it."""

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on without waiting for the disk; returns the number of bytes."""

    def read_ahead(self, offset: int, size: int) -> None:
        """Ask the system to prefetch a range."""

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Start and end of the parts from ``offset`` on that may have bytes other than zero."""

    def datasync(self) -> None:
        """Flush the written data and the size. After a failure, the state of the file is unknown."""

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with a hole of zeros."""

    def preallocate(self, size: int) -> None:
        """Extend the file to ``size`` bytes of zeros with allocated disk space."""

    def share(self) -> File:
        """Another handle of the open file, which stays open when this one is closed."""

    def close(self) -> None:
        """Close it. A call in another thread is completed first."""


class TreeFlusher(Protocol):
    """Flushes everything below one folder in one call, which costs less than a flush of each of many files."""

    def flush(self) -> None:
        """Flush data and names that were written before. :class:`OSError` if a write since the last call failed."""

    def close(self) -> None:
        """Release it."""


class Listener(Protocol):
    """A bound address. No method blocks, and accepted sockets are non-blocking."""

    address: tuple[str, int]
    """The bound host and port."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while a connection waits to be accepted."""

    def listen(self, backlog: int) -> None:
        """Let peers connect from now on."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection, with host and port of the peer. ``BlockingIOError`` if none waits; OSError."""

    def close(self) -> None:
        """Release the address; accepted connections stay open."""


class Waker(Protocol):
    """Makes a descriptor readable to wake a waiting thread; ``wake`` may be called from any thread."""

    def fileno(self) -> int:
        """Return the descriptor to wait for."""

    def wake(self) -> None:
        """Make the descriptor readable."""

    def drain(self) -> None:
        """Make it wait again."""

    def close(self) -> None:
        """Give the descriptor back."""


class Env(Protocol):
    """The kernel's interface to the system. Changes of names are durable after :meth:`sync_dir`."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing; with ``create``, create an empty file if there is none."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder; empty for a missing folder."""

    def mkdirs(self, path: str, *, durable: bool = True) -> None:
        """Create a folder and its parents, only for this user (mode 0700); with ``durable``, flush their names."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace the content of ``path`` durably. A crash leaves the old or the new content; the old one is kept as
        .bak."""

    def read_bytes(self, path: str) -> bytes: ...

    def unlink(self, path: str) -> None: ...

    def delete_large(self, path: str, staging: str) -> None:
        """Delete a file that may be large, in steps, so that flushes of other files do not wait for all of it; for a
        worker thread.

        It first moves to the folder ``staging`` of the same file system: a crash leaves no part of it in its own.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``, replacing an existing file."""

    def rmtree(self, path: str) -> None:
        """Delete a folder with its content; a missing folder is not an error."""

    def sync_dir(self, path: str) -> None:
        """Flush the names in this folder."""

    def tree_flusher(self, path: str) -> TreeFlusher | None:
        """Return the flusher for the files below the folder ``path`` that are written from now on.

        None if the system has none, or has one that would not report each failed write."""

    def has_large_folios(self, path: str) -> bool:
        """Return whether a long write to a new range of a file below ``path`` takes memory in large folios.

        False: the page cache takes each page of 4 KiB on its own, or it is not known."""

    def lock(self, path: str) -> Lock:
        """Take the store's lock, as RocketMQ does: a record lock on byte 0. :class:`StoreInUse` if another process
        holds it."""

    def disk_usage(self, path: str) -> DiskUsage: ...

    def memory_bytes(self) -> int:
        """Return how much memory the machine has, or the limit of this process's control group if it is lower."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; never steps back while the process runs."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, for measuring time."""

    def random_int(self, bound: int) -> int:
        """Return a number from 0 to ``bound`` - 1."""

    def waker(self) -> Waker: ...

    def bind(self, host: str, port: int) -> Listener:
        """Bind a TCP address (port 0: any) without listening yet. ``OSError`` or OverflowError if it cannot be
        bound."""

    def flusher(self) -> Flusher:
        """Return the flusher for files of this environment."""


def machine_seconds() -> float:
    """Seconds since an arbitrary moment by the machine's clock, also in a simulation: for statistics only."""
    return time.perf_counter()


def environment(name: str) -> str | None:
    """Return a variable of the process's environment."""
    return os.environ.get(name)

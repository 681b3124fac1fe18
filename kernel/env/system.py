"""The implementation of :mod:`gantrymq.kernel.env` for Linux, with system calls."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.kernel.env import DiskUsage, File, Listener, Lock, TreeFlusher, Waker
from gantrymq.kernel.env.memory import memory_limits
from gantrymq.kernel.errors import LockNotRegular, StoreInUse, StoreNotWritable

if TYPE_CHECKING:
    from gantrymq.kernel.fast.plain_flusher import Flusher


_ZEROS = memoryview(bytes(1024 * 1024))
STEP_BYTES = 4 * 1024 * 1024
"""A larger file is deleted in steps of this size. The disk then works for about half of the time for others."""
STEP_PAUSE_S = 0.002
"""The shortest pause between two steps: a GiB takes half a second at least."""


class _Descriptor:
    """A file descriptor that is closed when it is no longer referenced, so no call can use the number of another
    file."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            close(self.number)


_CLOSED = _Descriptor(-1)


class SystemFile:
    """A :class:`File` of Linux.

    Reads are system calls, never loads from a map: an unreadable page would end the process with SIGBUS, whereas a call
    raises :class:`OSError`.
    """

    def __init__(self, descriptor: int | _Descriptor) -> None:
        self._descriptor = _Descriptor(descriptor) if isinstance(descriptor, int) else descriptor

    def fileno(self) -> int:
        return self._descriptor.number

    def share(self) -> SystemFile:
        return SystemFile(self._descriptor)

    # Each method keeps its own reference while it runs, because another thread may close the file to delete it.

    def size(self) -> int:
        descriptor = self._descriptor
        return os.fstat(descriptor.number).st_size

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        descriptor = self._descriptor
        size = len(data)
        if zeros:
            written = os.pwritev(descriptor.number, [data, _ZEROS[:zeros]], offset)
            if written < size + zeros:
                data = bytes(data) + _ZEROS[:zeros]
                size = len(data)
        else:
            written = os.pwrite(descriptor.number, data, offset)
        while written < size:
            # A full disk first causes a short write; the next write returns the error.
            more = os.pwrite(descriptor.number, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "a write that writes nothing")
            written += more

    def pread(self, size: int, offset: int) -> bytes:
        descriptor = self._descriptor
        data = os.pread(descriptor.number, size, offset)
        while data and len(data) < size:
            more = os.pread(descriptor.number, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def peek(self, size: int, offset: int) -> bytes | None:
        data = bytearray(size)
        return bytes(data) if self.peek_into(memoryview(data), offset) == size else None

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        descriptor = self._descriptor
        try:
            return os.preadv(descriptor.number, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # A file system without support is read with an ordinary call.
            data = self.pread(len(buffer), offset)
            buffer[: len(data)] = data
            return len(data)

    def read_ahead(self, offset: int, size: int) -> None:
        descriptor = self._descriptor
        os.posix_fadvise(descriptor.number, offset, size, os.POSIX_FADV_WILLNEED)

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        # Find all ranges before reading: pages in the page cache count as data, and reading prefetches.
        ranges: list[tuple[int, int]] = []
        descriptor = self._descriptor
        try:
            while True:
                start = os.lseek(descriptor.number, offset, os.SEEK_DATA)
                offset = os.lseek(descriptor.number, start, os.SEEK_HOLE)
                ranges.append((start, offset))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return ranges
            raise

    def datasync(self) -> None:
        descriptor = self._descriptor
        os.fdatasync(descriptor.number)

    def truncate(self, size: int) -> None:
        descriptor = self._descriptor
        os.ftruncate(descriptor.number, size)

    def preallocate(self, size: int) -> None:
        descriptor = self._descriptor
        os.posix_fallocate(descriptor.number, 0, size)

    def close(self) -> None:
        self._descriptor = _CLOSED


class EventWaker:
    """A :class:`Waker` over an eventfd."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def wake(self) -> None:
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FLOCK = struct.Struct("@hhqqi4x")
"""``struct flock`` of Linux with 64-bit offsets: type, whence, start, length, process (fcntl(2))."""


def _holder(descriptor: int, wanted: int) -> int:
    """Return the id of the process whose record lock excludes one of the kind ``wanted`` on byte 0.

    0 if there is none, or if it is in another PID namespace.
    """
    asked = _FLOCK.pack(wanted, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(process, 0)


def _shrink(path: str, size: int) -> None:
    """Shorten a file of ``size`` bytes to one step, unless it has another name or somebody has it open: a backup or a
    reader keeps what it has.

    With the mount option ``discard``, ext4 discards the freed blocks within the system call (``ext4_free_blocks``), and
    all flushes wait for that: 36 to 51 ms for 256 MiB.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_nlink > 1 or not _is_only_opener(descriptor):
            return
        for shorter in range(size - STEP_BYTES, STEP_BYTES, -STEP_BYTES):
            began = time.monotonic()
            os.ftruncate(descriptor, shorter)
            time.sleep(max(time.monotonic() - began, STEP_PAUSE_S))
    finally:
        os.close(descriptor)


def _is_only_opener(descriptor: int) -> bool:
    """Return whether no other descriptor of any process has the file open: only then the system gives a lease for
    writing (fcntl(2)). False where it gives none, as on NFS."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # the default, SIGIO, would end the process
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


class SystemLock:
    """A POSIX record lock on byte 0 of a file that says ``lock``, as ``DefaultMessageStore.start`` takes it.

    ``shared``: a read lock on an existing file, which needs no write access and several processes can hold.
    """

    _held: set[str] = set()  # noqa: RUF012 - one for the process, on purpose
    _guard = threading.Lock()

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self._path = os.path.realpath(path)
        # Record locks belong to the process: a second store in this process would get the lock too, and closing any
        # descriptor of the file would release it. So the process's own holders are checked before the file is opened.
        with self._guard:
            if self._path in self._held:
                raise StoreInUse(path, os.getpid())
            self._held.add(self._path)
        holder = 0
        try:
            access = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
            # Without O_NONBLOCK, the opening of a pipe waits for a writer.
            access |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                self._descriptor = os.open(path, access, 0o600)
            except OSError as error:
                if error.errno in _NOT_REGULAR:
                    raise LockNotRegular(path) from None
                raise
            try:
                if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                    raise LockNotRegular(path)
                holder = _holder(self._descriptor, fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
                fcntl.lockf(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, 0)
                if not shared:
                    os.pwrite(self._descriptor, b"lock", 0)
            except BaseException:
                os.close(self._descriptor)
                raise
        except BaseException as error:
            self._forget()
            if isinstance(error, BlockingIOError | PermissionError) and error.errno in (errno.EAGAIN, errno.EACCES):
                raise (
                    StoreInUse(path, holder) if error.errno == errno.EAGAIN else StoreNotWritable(path, error)
                ) from None
            raise

    def _forget(self) -> None:
        with self._guard:
            self._held.discard(self._path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._forget()


_NOT_REGULAR = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Errors of opening a folder, a symbolic link and a socket."""
REPORTING_FILE_SYSTEMS = ("ext4", "xfs")
"""Their ``syncfs`` writes the data, commits the journal and flushes the disk's cache."""
REPORTS_SINCE = (5, 8)
"""The first version of Linux whose ``syncfs`` returns the errors of earlier writes."""
LARGE_FOLIOS_SINCE = {"ext4": (6, 16), "xfs": (6, 6)}
"""The first version of Linux in which a write to a file of this file system takes memory in large folios."""


def _file_system(path: str) -> str:
    """Return the type of the file system of ``path``; empty if the system does not say."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                mount, _, rest = line.partition(" - ")
                if mount.split()[2] == number:
                    return rest.split()[0]
    except (OSError, IndexError):
        pass
    return ""


def _linux_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


class SystemTreeFlusher:
    """Flushes the file system of a folder with ``syncfs``, other programs' files included.

    The system reports each failed write once to every descriptor that was open when it failed: so this one is opened
    before the first write and stays open. A failed write of another program's file is reported too.
    """

    def __init__(self, path: str) -> None:
        import ctypes  # loads slowly, and only here

        self._syncfs = ctypes.CDLL(None, use_errno=True).syncfs
        self._errno = ctypes.get_errno
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def flush(self) -> None:
        if self._syncfs(self._descriptor):
            number = self._errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SystemListener:
    """A :class:`Listener` for Linux. OSError or OverflowError if the address cannot be bound (port 0: any)."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:  # or another socket with the option could bind the port that the system chooses, and listen first
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self.address = str(name[0]), int(name[1])

    def fileno(self) -> int:
        return self._socket.fileno()

    def listen(self, backlog: int) -> None:
        self._socket.listen(backlog)
        # Accepted connections take the option over: once they are closed, they do not keep the port from a next start.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        accepted, peer = self._socket.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted, (str(peer[0]), int(peer[1]))

    def close(self) -> None:
        self._socket.close()


class SystemEnv:
    """Linux itself."""

    def __init__(self) -> None:
        # Time since boot, including suspended time: unlike the wall clock, it cannot be set back.
        self._anchor_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._random = random.Random()  # noqa: S311 - spreads load, guards nothing

    def open(self, path: str, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        return SystemFile(os.open(path, flags, 0o600))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def mkdirs(self, path: str, *, durable: bool = True) -> None:
        path = os.path.abspath(path)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder, 0o700)
            if durable:
                self.sync_dir(os.path.dirname(folder))

    def replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if os.path.exists(path):
            # A hard link and not a rename, so that at every moment one of the two files exists under its name.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}.bak")
            os.link(path, f"{path}.bak")
        os.replace(temporary, path)
        self.sync_dir(os.path.dirname(os.path.abspath(path)))

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as stream:
            return stream.read()

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def delete_large(self, path: str, staging: str) -> None:
        size = os.stat(path, follow_symlinks=False).st_size
        if size > STEP_BYTES:
            staged = f"{staging}/{self.random_int(1 << 62):020d}"
            try:
                os.rename(path, staged)
            except OSError:  # its folder may be on another file system
                os.unlink(path)
                return
            self.sync_dir(staging)
            self.sync_dir(os.path.dirname(os.path.abspath(path)))  # before it becomes shorter
            path = staged
            with contextlib.suppress(OSError):  # then it is deleted at once
                _shrink(path, size)
        os.unlink(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def rmtree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def tree_flusher(self, path: str) -> TreeFlusher | None:
        if _linux_version() < REPORTS_SINCE or _file_system(path) not in REPORTING_FILE_SYSTEMS:
            return None
        return SystemTreeFlusher(path)

    def has_large_folios(self, path: str) -> bool:
        since = LARGE_FOLIOS_SINCE.get(_file_system(path))
        return since is not None and _linux_version() >= since

    def lock(self, path: str) -> Lock:
        return SystemLock(path)

    def disk_usage(self, path: str) -> DiskUsage:
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.free)

    def memory_bytes(self) -> int:
        return min((os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *memory_limits()))

    def wall_ms(self) -> int:
        return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._anchor_ns) // 1_000_000

    monotonic = staticmethod(time.monotonic)

    def random_int(self, bound: int) -> int:
        return self._random.randrange(bound)

    def waker(self) -> Waker:
        return EventWaker()

    def bind(self, host: str, port: int) -> Listener:
        return SystemListener(host, port)

    def flusher(self) -> Flusher:
        from gantrymq.kernel.fast import Flusher as SystemFlusher  # which asks this module which of its twins to use

        return SystemFlusher()


class NoLock:
    """The lock of a store that has no lock file: no broker has ever started on it."""

    def close(self) -> None:
        pass


class ReadOnlyEnv(SystemEnv):
    """Linux, for reading a store that this user may not write, also on a read-only file system.

    Files cannot be written, and the store's lock is shared: brokers do not start meanwhile, other readers do.
    """

    def open(self, path: str, create: bool = False) -> File:
        # Without O_NONBLOCK, the opening of a pipe waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return SystemFile(descriptor)

    def lock(self, path: str) -> Lock:
        try:
            return SystemLock(path, shared=True)
        except FileNotFoundError:
            return NoLock()

"""An environment in memory: its disk can lose unsynced data, and a test controls its clock.

It replaces :class:`gantrymq.kernel.env.system.SystemEnv` for a store or a whole broker.
"""

from __future__ import annotations

import errno
import random
import threading
from typing import Any, Self

from gantrymq.kernel.env import DiskUsage, File, Listener, Lock, TreeFlusher, Waker
from gantrymq.kernel.env.system import EventWaker, SystemListener
from gantrymq.kernel.errors import StoreInUse
from gantrymq.kernel.fast.plain_flusher import Flusher

BLOCK_BYTES = 512
"""The size of a block, which a disk writes whole or not at all."""


class _Inode:
    """The content of a file: as the processes see it, and as it would be after a power cut."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = bytearray()
        self.dirty: set[int] = set()
        self.guard = threading.Lock()

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.resize(end)
        self.data[offset:end] = data
        if data:
            with self.guard:
                self.dirty.update(range(offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1))

    def resize(self, size: int) -> None:
        old = len(self.data)
        if size < old:
            del self.data[size:]
        else:
            self.data += bytes(size - old)
        # Blocks that were truncated and added again are zero now, whatever the disk has.
        self.dirty.update(range(min(old, size) // BLOCK_BYTES, (max(old, size, 1) - 1) // BLOCK_BYTES + 1))

    def sync(self) -> None:
        _resize(self.synced, len(self.data))
        with self.guard:  # a write by another thread belongs entirely to this sync, or to the next
            dirty, self.dirty = self.dirty, set()
        for block in dirty:
            start = block * BLOCK_BYTES
            self.synced[start : start + BLOCK_BYTES] = self.data[start : start + BLOCK_BYTES]

    def copy(self) -> _Inode:
        other = _Inode()
        other.data, other.synced, other.dirty = bytearray(self.data), bytearray(self.synced), set(self.dirty)
        return other

    def cut(self, chance: random.Random | None) -> _Inode:
        """Return the file after a power cut: without the unsynced blocks, or with those that ``chance`` picks."""
        survivor = _Inode()
        survivor.data = bytearray(self.synced)
        if chance is not None:
            if len(self.data) != len(self.synced) and chance.random() < 0.5:
                _resize(survivor.data, len(self.data))
            for block in sorted(self.dirty):
                start = block * BLOCK_BYTES
                piece = self.data[start : start + BLOCK_BYTES]
                room = max(len(survivor.data) - start, 0)
                if chance.random() < 0.5:
                    survivor.data[start : start + min(len(piece), room)] = piece[:room]
        survivor.synced = bytearray(survivor.data)
        return survivor


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data += bytes(size - len(data))


class MemoryFile:
    """An open file of a :class:`MemoryEnv`."""

    def __init__(self, env: MemoryEnv, inode: _Inode) -> None:
        self._env = env
        self._inode = inode

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return len(self._inode.data)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        self._env.check()
        data = bytes(data) + bytes(zeros) if zeros else data
        self._env.take_room(max(offset + len(data) - len(self._inode.data), 0))
        self._inode.write(data, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._env.check()
        return bytes(self._inode.data[offset : offset + size])

    def peek(self, size: int, offset: int) -> bytes | None:
        return self.pread(size, offset)

    def peek_into(self, buffer: memoryview, offset: int) -> int:
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def share(self) -> MemoryFile:
        return self

    def read_ahead(self, offset: int, size: int) -> None:
        pass

    def data_ranges(self, offset: int) -> list[tuple[int, int]]:
        return [(offset, len(self._inode.data))] if offset < len(self._inode.data) else []

    def datasync(self) -> None:
        self._env.check()
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._env.check()
        self._inode.resize(size)

    def preallocate(self, size: int) -> None:
        self._env.check()
        if size > len(self._inode.data):
            self._env.take_room(size - len(self._inode.data))
            self._inode.resize(size)

    def close(self) -> None:
        """Nothing to release."""


class MemoryLock:
    """The lock of a store on a :class:`MemoryEnv`."""

    def __init__(self, env: MemoryEnv, path: str) -> None:
        self._env = env
        self._path = path

    def close(self) -> None:
        self._env.locks.discard(self._path)


class MemoryEnv:
    """A machine in memory, whose clock stands still until :meth:`advance`.

    It tracks synced contents and names separately. :meth:`power_cut` and :meth:`kill` switch it off and return the
    machine after the restart as a copy, so that a test can continue one moment in several ways. ``free_bytes`` is the
    free disk space, None for no limit; ``large_folios`` is what :meth:`has_large_folios` returns.
    """

    def __init__(self, seed: int = 0, start_ms: int = 1_700_000_000_000) -> None:
        self.files: dict[str, _Inode] = {}
        self.folders: set[str] = {"/", "."}
        self.locks: set[str] = set()
        self.free_bytes: int | None = None
        self.large_folios = True
        self.wall = start_ms
        self._synced_names: dict[str, _Inode] = {}
        self._unsynced: list[tuple[str | None, str | None, _Inode]] = []
        self._random = random.Random(seed)  # noqa: S311 - chance that can be repeated is the point
        self._alive = True

    # --------------------------------------------------------------------------------------------------- for tests

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.wall += milliseconds

    def kill(self) -> Self:
        """End the process at once: written data remains, synced or not."""
        copies: dict[int, _Inode] = {}

        def copy(inode: _Inode) -> _Inode:
            return copies.setdefault(id(inode), inode.copy())

        return self._restart(
            {path: copy(inode) for path, inode in self.files.items()},
            {path: copy(inode) for path, inode in self._synced_names.items()},
            [(source, target, copy(inode)) for source, target, inode in self._unsynced],
        )

    def power_cut(self, seed: int | None = None) -> Self:
        """Cut the power: unsynced data is lost. With a ``seed``, some unsynced blocks and names survive."""
        chance = None if seed is None else random.Random(seed)  # noqa: S311
        names = dict(self._synced_names)
        for change in self._unsynced[: chance.randint(0, len(self._unsynced)) if chance else 0]:
            _apply(names, change)
        survivors: dict[int, _Inode] = {}
        files = {path: survivors.setdefault(id(inode), inode.cut(chance)) for path, inode in sorted(names.items())}
        return self._restart(files, files, [])

    def _restart(self, files: dict[str, _Inode], synced: dict[str, _Inode], unsynced: list[Any]) -> Self:
        self._alive = False
        env = self._successor(self._random.randrange(1 << 30))
        env.files, env._synced_names, env._unsynced = dict(files), dict(synced), list(unsynced)
        env.folders = set(self.folders)
        env.free_bytes = self.free_bytes
        env.large_folios = self.large_folios
        return env

    def _successor(self, seed: int) -> Self:
        """Return the machine after its next start."""
        return type(self)(seed, self.wall)

    @property
    def alive(self) -> bool:
        """Whether this machine is switched on."""
        return self._alive

    def switch_off(self) -> None:
        """Switch this machine off, without a successor."""
        self._alive = False

    def check(self) -> None:
        """Raise an error if this machine is switched off."""
        if not self._alive:
            raise OSError(errno.EIO, "this machine is switched off")

    def take_room(self, size: int) -> None:
        """Raise ENOSPC if ``size`` more bytes do not fit."""
        if self.free_bytes is not None:
            if size > self.free_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.free_bytes -= size

    # -------------------------------------------------------------------------------------------------- Env's methods

    def open(self, path: str, create: bool = False) -> File:
        self.check()
        inode = self.files.get(path)
        if inode is None:
            if not create or _parent(path) not in self.folders:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self.take_room(0)
            inode = _Inode()
            self._change(None, path, inode)
        return MemoryFile(self, inode)

    def _change(self, source: str | None, target: str | None, inode: _Inode) -> None:
        change = (source, target, inode)
        _apply(self.files, change)
        self._unsynced.append(change)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def is_dir(self, path: str) -> bool:
        return path in self.folders

    def listdir(self, path: str) -> list[str]:
        return sorted(
            name.rpartition("/")[2] for name in {*self.files, *self.folders} if _parent(name) == path and name != path
        )

    def mkdirs(self, path: str, *, durable: bool = True) -> None:
        self.check()
        while path not in self.folders:
            self.folders.add(path)
            path = _parent(path)

    def replace(self, path: str, data: bytes) -> None:
        self.check()
        old = self.files.get(path)
        self.take_room(len(data))
        oldest = self.files.get(f"{path}.bak")
        if self.free_bytes is not None and oldest is not None:
            self.free_bytes += len(oldest.data)
        inode = _Inode()
        inode.write(data, 0)
        inode.sync()
        self._change(None, f"{path}.tmp", inode)
        if old is not None:
            self._change(None, f"{path}.bak", old)
        self._change(f"{path}.tmp", path, inode)
        self.sync_dir(_parent(path))

    def read_bytes(self, path: str) -> bytes:
        self.check()
        inode = self.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return bytes(inode.data)

    def unlink(self, path: str) -> None:
        self.check()
        inode = self.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if self.free_bytes is not None:
            self.free_bytes += len(inode.data)
        self._change(path, None, inode)

    def delete_large(self, path: str, staging: str) -> None:
        self.unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.check()
        inode = self.files.get(source)
        if (inode is None and source not in self.folders) or _parent(target) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        if inode is None:
            self._rename_folder(source, target)
        elif target in self.folders:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", target)
        else:
            self._change(source, target, inode)

    def _rename_folder(self, source: str, target: str) -> None:
        """Rename it durably, as folders are created."""
        if target in self.files:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", target)
        if self.listdir(target):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", target)

        def moved(name: str) -> str:
            return target + name[len(source) :] if f"{name}/".startswith(f"{source}/") else name

        self.folders = set(map(moved, self.folders))
        for names in (self.files, self._synced_names):
            renamed = {moved(name): inode for name, inode in names.items()}
            names.clear()
            names.update(renamed)
        self._unsynced = [(old and moved(old), new and moved(new), inode) for old, new, inode in self._unsynced]

    def rmtree(self, path: str) -> None:
        self.check()
        for name in [name for name in self.files if name.startswith(f"{path}/")]:
            self.unlink(name)
        self.folders -= {folder for folder in self.folders if folder == path or folder.startswith(f"{path}/")}

    def tree_flusher(self, path: str) -> TreeFlusher | None:
        return MemoryTreeFlusher(self, path)

    def has_large_folios(self, path: str) -> bool:
        return self.large_folios

    def sync_tree(self, path: str) -> None:
        """Flush data and names below ``path``."""
        self.check()
        waiting = []
        for change in self._unsynced:
            if any(name is not None and name.startswith(f"{path}/") for name in change[:2]):
                _apply(self._synced_names, change)
            else:
                waiting.append(change)
        self._unsynced = waiting
        for name, inode in self.files.items():
            if name.startswith(f"{path}/"):
                inode.sync()

    def sync_dir(self, path: str) -> None:
        self.check()
        waiting = []
        for change in self._unsynced:
            if any(name is not None and _parent(name) == path for name in change[:2]):
                _apply(self._synced_names, change)
            else:
                waiting.append(change)
        self._unsynced = waiting

    def lock(self, path: str) -> Lock:
        self.check()
        if path in self.locks:
            raise StoreInUse(path)
        self.open(path, create=True).pwrite(b"lock", 0)
        self.locks.add(path)
        return MemoryLock(self, path)

    def disk_usage(self, path: str) -> DiskUsage:
        used = sum(len(inode.data) for inode in self.files.values())
        free = 1 << 40 if self.free_bytes is None else self.free_bytes
        return DiskUsage(used + free, free)

    def memory_bytes(self) -> int:
        return 1 << 30

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.wall / 1000

    def random_int(self, bound: int) -> int:
        return self._random.randrange(bound)

    def waker(self) -> Waker:
        return EventWaker()

    def bind(self, host: str, port: int) -> Listener:
        return SystemListener(host, port)

    def flusher(self) -> Flusher:
        return Flusher()


class MemoryTreeFlusher:
    """Flushes a folder of a :class:`MemoryEnv`."""

    def __init__(self, env: MemoryEnv, path: str) -> None:
        self._env = env
        self._path = path

    def flush(self) -> None:
        self._env.sync_tree(self._path)

    def close(self) -> None:
        """Nothing is held."""


def _apply(names: dict[str, _Inode], change: tuple[str | None, str | None, _Inode]) -> None:
    source, target, inode = change
    if source is not None:
        names.pop(source, None)
    if target is not None:
        names[target] = inode


def _parent(path: str) -> str:
    head, separator, _ = path.rpartition("/")
    return head or ("/" if separator else ".")

"""An environment whose calls fail on demand."""

from __future__ import annotations

import errno
from collections import Counter
from typing import Any

from gantrymq.kernel.env import Env, File, TreeFlusher
from gantrymq.kernel.fast.plain_flusher import Flusher


class FaultEnv:
    """Makes calls of another environment fail.

    ``fail_at``: the number of the call that fails, counted from 1 over all calls that change the disk, or over those of
    ``kinds`` if given. ``forever``: all following calls fail too. ``number`` is the errno. ``tear``: a failing write
    writes its first half (``"short"``) or its second half (``"tear"``). ``lie``: instead of failing, a ``pwrite``,
    ``datasync``, ``sync_dir`` or ``sync_tree`` does nothing and reports success; other kinds fail. ``no_memory``: the
    call raises ``MemoryError``. ``calls`` counts all calls by kind, ``failed`` those that failed or did nothing.
    """

    KINDS = (
        "open", "pwrite", "datasync", "truncate", "preallocate", "mkdirs", "replace", "unlink", "rename", "rmtree",
        "sync_dir", "sync_tree",
    )  # fmt: skip

    def __init__(
        self,
        env: Env,
        fail_at: int = 0,
        *,
        number: int = errno.EIO,
        forever: bool = False,
        tear: str = "",
        lie: bool = False,
        no_memory: bool = False,
        kinds: tuple[str, ...] = KINDS,
    ) -> None:
        self.env = env
        self.fail_at = fail_at
        self.number = number
        self.forever = forever
        self.tear = tear
        self.lie = lie
        self.no_memory = no_memory
        self.kinds = kinds
        self.count = 0
        self.failed = 0
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        """Other attributes are those of the other environment."""
        return getattr(self.env, name)

    def is_due(self, kind: str) -> bool:
        """Count a call; True if it must fail."""
        self.calls[kind] += 1
        if kind not in self.kinds:
            return False
        self.count += 1
        due = self.fail_at > 0 and (self.count == self.fail_at or (self.forever and self.count > self.fail_at))
        self.failed += due
        return due

    def enter(self, kind: str) -> None:
        """Count a call, and raise its error if it must fail."""
        if self.is_due(kind):
            raise self.error(kind)

    def lies(self, kind: str) -> bool:
        """Count a call; True if it must do nothing and report success. Raises its error if it must fail instead."""
        if not self.is_due(kind):
            return False
        if self.lie:
            return True
        raise self.error(kind)

    def error(self, kind: str) -> Exception:
        """Return the error of the call that was counted last."""
        if self.no_memory:
            return MemoryError(f"injected, {kind}, call {self.count}")
        return OSError(self.number, f"injected failure of {kind}, call {self.count}")

    def open(self, path: str, create: bool = False) -> File:
        if create:
            self.enter("open")
        return FaultFile(self, self.env.open(path, create))

    def flusher(self) -> Flusher:
        """Return a flusher that uses files of this environment."""
        return Flusher()

    def mkdirs(self, path: str, *, durable: bool = True) -> None:
        self.enter("mkdirs")
        self.env.mkdirs(path, durable=durable)

    def replace(self, path: str, data: bytes) -> None:
        self.enter("replace")
        self.env.replace(path, data)

    def unlink(self, path: str) -> None:
        self.enter("unlink")
        self.env.unlink(path)

    def delete_large(self, path: str, staging: str) -> None:
        self.enter("unlink")
        self.env.delete_large(path, staging)

    def rename(self, source: str, target: str) -> None:
        self.enter("rename")
        self.env.rename(source, target)

    def rmtree(self, path: str) -> None:
        self.enter("rmtree")
        self.env.rmtree(path)

    def sync_dir(self, path: str) -> None:
        if not self.lies("sync_dir"):
            self.env.sync_dir(path)

    def tree_flusher(self, path: str) -> TreeFlusher | None:
        flusher = self.env.tree_flusher(path)
        return None if flusher is None else FaultTreeFlusher(self, flusher)


class FaultTreeFlusher:
    """A flusher of a folder of a :class:`FaultEnv`."""

    def __init__(self, env: FaultEnv, flusher: TreeFlusher) -> None:
        self._env = env
        self._flusher = flusher

    def flush(self) -> None:
        if not self._env.lies("sync_tree"):
            self._flusher.flush()

    def close(self) -> None:
        self._flusher.close()


class FaultFile:
    """An open file of a :class:`FaultEnv`."""

    def __init__(self, env: FaultEnv, file: File) -> None:
        self._env = env
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fileno(self) -> int:
        return -1

    def share(self) -> FaultFile:
        return FaultFile(self._env, self._file.share())

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int, zeros: int = 0) -> None:
        if self._env.is_due("pwrite"):
            if self._env.lie:
                return
            half = len(data) // 2
            if self._env.tear == "short":
                self._file.pwrite(data[:half], offset)
            elif self._env.tear == "tear":
                self._file.pwrite(data[half:], offset + half)
            raise self._env.error("pwrite")
        self._file.pwrite(data, offset, zeros)

    def datasync(self) -> None:
        if not self._env.lies("datasync"):
            self._file.datasync()

    def truncate(self, size: int) -> None:
        self._env.enter("truncate")
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        self._env.enter("preallocate")
        self._file.preallocate(size)

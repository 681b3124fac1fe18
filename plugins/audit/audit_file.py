"""The file of the audit: lines are appended, and the file is opened anew after a rotation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env, File


class AuditFile:
    """Appends to a file that others may move away, or truncate. Calls of :meth:`write` must not overlap."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._file: File | None = None
        self._is_stale = False

    def open(self) -> None:
        """Open the file, and create it for this user alone if it does not exist; OSError."""
        self.close()
        self._file = self._env.open(self._path, create=True)

    def reopen(self) -> None:
        """Open the file anew before the next write, because it was moved away."""
        self._is_stale = True

    def write(self, data: bytes) -> None:
        """Append ``data``; OSError, after which the file is as before, and the next call opens it anew."""
        if not data:
            return
        if self._file is None or self._is_stale or not self._env.exists(self._path):
            self._is_stale = False
            self.open()
        assert self._file is not None
        try:
            _append(self._file, data)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _append(file: File, data: bytes) -> None:
    size = file.size()
    try:
        file.pwrite(data, size)
    except OSError:
        with suppress(OSError):  # a part of a line would spoil the next one as well
            file.truncate(size)
        raise

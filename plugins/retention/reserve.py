"""Disk space that is released when the disk is full, so that work that frees space can be written.

The log keeps records that delays and transactions need, and their progress is in state files. On a disk without free
blocks these files cannot be replaced, and the log could never shrink. While messages are refused, the broker itself
does not fill the released space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.errors import NO_ROOM

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

HOLD_FACTOR: Final = 4
"""The space is reserved again only when this many times its size is free."""

log = structlog.get_logger("gantrymq.retention")


class Reserve:
    """The file at ``path`` of ``size`` bytes; no file with size 0. The methods access the disk."""

    def __init__(self, env: Env, path: str, size: int) -> None:
        self._env = env
        self._path = path
        self.size = size

    def adapt(self, free: int, *, is_refusing: bool) -> None:
        """Release the space while messages are refused and ``free`` is less than the size; reserve it again when there
        is more, also if the file has another size, as after a change of the setting or a kill.

        :class:`OSError` when the disk fails.
        """
        held = self._held()
        if held is not None and (not self.size or (is_refusing and free < self.size)):
            self._env.unlink(self._path)
            if self.size:
                log.warning("reserve_released", path=self._path, bytes=held)
        elif held != self.size and self.size and not is_refusing and free + (held or 0) >= HOLD_FACTOR * self.size:
            if held is not None:
                self._env.unlink(self._path)
            self._take()

    def _held(self) -> int | None:
        """The size of the file; None if there is none."""
        if not self._env.exists(self._path):
            return None
        file = self._env.open(self._path)
        try:
            return file.size()
        finally:
            file.close()

    def _take(self) -> None:
        file = self._env.open(self._path, create=True)
        try:
            file.preallocate(self.size)
        except OSError as error:
            self._env.unlink(self._path)
            if error.errno not in NO_ROOM:
                raise
        finally:
            file.close()

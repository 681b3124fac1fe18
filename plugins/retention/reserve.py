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

    @property
    def is_held(self) -> bool:
        """Whether the file exists."""
        return self._env.exists(self._path)

    def adapt(self, free: int, *, is_refusing: bool) -> None:
        """Release the space while messages are refused and ``free`` is less than the size; reserve it again when there
        is more.

        :class:`OSError` when the disk fails.
        """
        if self.is_held:
            if is_refusing and free < self.size:
                self._env.unlink(self._path)
                log.warning("reserve_released", path=self._path, bytes=self.size)
        elif self.size and not is_refusing and free >= HOLD_FACTOR * self.size:
            self._take()

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

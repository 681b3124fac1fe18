"""Room on the disk that is given back when it is full, so that what frees space can be written.

The log keeps what delays and transactions still need, and how far those are is in tables of theirs. On a disk without a
free block the tables cannot be replaced, and the log could never shrink. While messages are refused nobody else fills
what is given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.errors import NO_ROOM

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

HOLD_FACTOR: Final = 4
"""It is taken again only when so many times its size is free."""

log = structlog.get_logger("gantrymq.retention")


class Reserve:
    """The file at ``path`` of ``size`` bytes; none with size 0. Its methods touch the disk."""

    def __init__(self, env: Env, path: str, size: int) -> None:
        self._env = env
        self._path = path
        self.size = size

    @property
    def is_held(self) -> bool:
        """Whether the file is there."""
        return self._env.exists(self._path)

    def adapt(self, free: int, *, is_refusing: bool) -> None:
        """Give the room back while messages are refused and ``free`` bytes are less, take it again when there is more.

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

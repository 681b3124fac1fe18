"""Unreadable places of the log, remembered so that the disk is not read again at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.errors import UnreadableRange
from gantrymq.kernel.fast import Stop
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segments

log = structlog.get_logger("gantrymq.commitlog")

UNREADABLE_S: Final = 5.0
"""Time for which an unreadable place is not read again."""
UNREADABLE_MAX: Final = 1024
"""The most unreadable places that are remembered."""


class UnreadablePlaces:
    """Reads ``segments`` and remembers unreadable places. ``clock``: monotonic seconds.

    A failing disk can take seconds for each attempt, and clients repeat their requests. So a failed place is not read
    again for some seconds, and is logged once.
    """

    def __init__(self, segments: Segments, clock: Callable[[], float]) -> None:
        self._segments = segments
        self._clock = clock
        self._failed: dict[tuple[int, int], tuple[float, str, int]] = {}
        self._logged: set[int] = set()

    def read_if_readable(self, offset: int, size: int) -> bytes:
        """As :meth:`Segments.pread`; empty if the disk fails, because an unneeded block may be the cause."""
        try:
            return self._segments.pread(offset, size)
        except OSError:
            return b""

    def scan(self, offset: int, limit: int, rows: int) -> tuple[DispatchBatch, Stop]:
        """As :func:`scan_block`, without the bodies; :class:`UnreadableRange` when the disk fails."""
        try:
            return scan_block(self._segments, offset, limit, rows, check_body=False)
        except OSError as error:
            raise UnreadableRange(offset, limit - offset, error.strerror or str(error), error.errno or 0) from error

    def read(self, offset: int, size: int) -> bytes:
        """As :meth:`Segments.pread`; :class:`UnreadableRange` when the disk fails or did so just now."""
        place = (offset, size)
        failure = self._failed.get(place)  # one look-up, because another thread may clear them
        if failure is not None:
            failed_at, reason, number = failure
            if self._clock() - failed_at < UNREADABLE_S:
                raise UnreadableRange(offset, size, reason, number)
        try:
            return self._segments.pread(offset, size)
        except OSError as error:
            reason, number = error.strerror or str(error), error.errno or 0
            if len(self._failed) >= UNREADABLE_MAX:
                self._failed.clear()
            self._failed[place] = (self._clock(), reason, number)
            if offset not in self._logged and len(self._logged) < UNREADABLE_MAX:
                self._logged.add(offset)
                log.error("log_unreadable", offset=offset, size=size, error=reason)
            raise UnreadableRange(offset, size, reason, number) from error

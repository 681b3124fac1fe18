"""Reading many records of the log without waiting for the disk in the sweep.

Whoever waits for a page of a map holds up everybody: the sweep, and with it each producer. So what is given out here
was looked for in the page cache first, a chunk of a file at a time; what is not there is brought by a worker thread,
which asks the system to read ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.commitlog import CommitLog

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.segments import Segment

CHUNK_BYTES: Final = 1024 * 1024
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""How far the system is asked to read ahead of what was missing."""
TRUSTED_S: Final = 1.0
"""So long a chunk that was found in memory is taken to be there."""
_CHUNKS_KEPT: Final = 4096
_PIECE_BYTES: Final = 256 * 1024


class NotAtHand(Exception):
    """What was asked for is on the disk only. ``fetch`` brings it into memory, in a worker thread."""

    def __init__(self, fetch: Callable[[], object]) -> None:
        super().__init__("it has to come from the disk")
        self.fetch = fetch


class LogWindows:
    """Parts of the log that are in memory. All but :meth:`fetch` is for the one thread of the sweep."""

    def __init__(self, env: Env, log: CommitLog) -> None:
        self._env = env
        self._log = log
        self._trusted: dict[int, float] = {}

    @property
    def min_offset(self) -> int:
        """The offset of the log's first byte."""
        return self._log.min_offset

    def mistrust(self, start: int, end: int) -> None:
        """See :meth:`CommitLog.mistrust`."""
        self._log.mistrust(start, end)

    def span(self, offset: int, size: int, touched: int) -> tuple[int, memoryview | bytes] | None:
        """Where a part of the log begins that holds these ``size`` bytes, and that part: as much as is at hand.

        None when they lie outside the log, in a damaged range, across the end of a file, or on the disk only. Of the
        spans before, ``touched`` bytes were read.
        """
        log = self._log
        segment = log.segments.at(offset)
        if (
            segment is None
            or offset + size > min(segment.end, log.written)
            or not self._is_at_hand(segment, offset, size)
        ):
            return None
        start, stop = self._chunks(segment, offset, size)
        for first, last in log.quarantine:
            if last <= offset:
                start = max(start, last)
            elif first >= offset + size:
                stop = min(stop, first)
            else:
                return None
        return start, segment.file.view(start - segment.base, stop - start, touched)

    def window(self, offset: int, size: int, stop: int, *, wait: bool) -> memoryview | bytes:
        """As :meth:`CommitLog.view`, and what lies behind it up to the offset ``stop``, as far as it is at hand.

        :class:`NotAtHand` when it is on the disk only, unless the caller will ``wait``.
        """
        log = self._log
        data = log.view(offset, size)
        segment = log.segments.at(offset)
        if segment is None:
            return data
        if not wait and not self._is_at_hand(segment, offset, size):
            raise NotAtHand(partial(self.fetch, offset, size))
        longer = min(stop, self._chunks(segment, offset, size)[1]) - offset
        return data if log.quarantine or longer <= size else log.segments.view(offset, longer)

    def fetch(self, offset: int, size: int) -> None:
        """Bring this part of the log into memory, and let the system read ahead; for a worker thread.

        :class:`OSError` when the disk cannot give it.
        """
        segment = self._log.segments.at(offset)
        if segment is None:
            return
        start, stop = self._chunks(segment, offset, size)
        segment.file.read_ahead(start - segment.base, min(AHEAD_BYTES, segment.end - start))
        for at in range(start, stop, _PIECE_BYTES):
            segment.file.pread(min(_PIECE_BYTES, stop - at), at - segment.base)

    def _chunks(self, segment: Segment, offset: int, size: int) -> tuple[int, int]:
        """Begin and end of the chunks that hold these bytes."""
        start = offset - (offset - segment.base) % CHUNK_BYTES
        stop = start + -(-(offset + size - start) // CHUNK_BYTES) * CHUNK_BYTES
        return start, min(stop, segment.end, self._log.written)

    def _is_at_hand(self, segment: Segment, offset: int, size: int) -> bool:
        now, trusted = self._env.monotonic(), self._trusted
        start, stop = self._chunks(segment, offset, size)
        for chunk in range(start, stop, CHUNK_BYTES):
            if trusted.get(chunk, now) > now:
                continue
            if not segment.file.is_cached(chunk - segment.base, min(CHUNK_BYTES, stop - chunk)):
                return False
            if len(trusted) >= _CHUNKS_KEPT:
                trusted.clear()
            trusted[chunk] = now + TRUSTED_S
        return True

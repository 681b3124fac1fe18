"""Prepare the part of the log that is written next: zeros on the disk, or pages in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gantrymq.kernel.env import File
from gantrymq.kernel.errors import NO_ROOM
from gantrymq.kernel.store.log.segments import Segment, Segments

_MIB = 1024 * 1024
_ZEROS_MAX_BYTES = 32 * _MIB
_PAGES_MAX_BYTES = 128 * _MIB
_PAGES_BYTES = 128 * 1024
"""Size of one request: Linux truncates longer ones (``force_page_cache_ra``)."""
FOLIO_BYTES = 64 * 1024
"""Linux takes memory for a write in folios of its length. Each write to a folio looks at all its blocks, so a folio of
1 MiB makes small writes slow, and one of 4 KiB makes large ones slow. ``docs/design/performance.md`` has the times."""
_ZEROS = bytes(FOLIO_BYTES)


class LogPrefault:
    """Works ahead of a log that is appended to by another thread.

    If senders wait for each flush (:attr:`zeros`), it writes zeros behind the log's end, four times the bytes that were
    appended since the last call (1 to 32 MiB). Flushing bytes that were written before takes about half as long as
    flushing reserved ones, which the file system must first mark as used. If more than that is appended between two
    calls, zeros would only slow the log down.

    Otherwise each append would take memory for its pages. With :attr:`large_folios`, an append to a new range includes
    zeros up to the next multiple of :data:`FOLIO_BYTES`, so that one large folio serves all appends to this range.
    Without, the next pages are brought into the page cache (twice the appended bytes, up to 128 MiB), since the system
    takes, clears and maps each on its own, which took longer than the rest of a batch.
    """

    def __init__(self, segments: Segments, sync: Callable[[File], None]) -> None:
        self.zeros = False
        """Whether zeros are written for flushes."""
        self.large_folios = False
        """Whether the system takes memory for a long write in large folios."""
        self._segments = segments
        self._sync = sync
        self._zeroing = threading.Lock()
        self._seen = self._zeroed = self._paged = 0

    def start_at(self, end: int) -> None:
        """The log ends at ``end`` and nothing is prepared behind it."""
        self._seen = self._zeroed = self._paged = end

    def appending(self, end: int) -> int:
        """Call this before records are written up to ``end``: the worker's zeros are then written only behind it.

        Returns the offset up to which zeros belong in the same write, as far as the file reaches; ``end`` for none.
        """
        if end <= self._zeroed:
            return end
        ready = -(-end // FOLIO_BYTES) * FOLIO_BYTES if self.large_folios else end
        with self._zeroing:
            if end <= self._zeroed:
                return end
            self._zeroed = ready
        return ready

    def prepare(self, end: int) -> None:
        """Prepare the part behind ``end``, the log's end; for a worker thread. :class:`OSError`, except for a full
        disk."""
        progress, self._seen = end - self._seen, end
        segment = self._segments.at(end)
        if segment is None:
            return
        if self.zeros and progress <= _ZEROS_MAX_BYTES:
            wanted = min(max(4 * progress, _MIB), _ZEROS_MAX_BYTES)
            self._write_zeros(segment, min(end + wanted, segment.end))
        elif not self.large_folios:
            wanted = min(2 * progress, _PAGES_MAX_BYTES)
            self._want_pages(segment, end, min(end + wanted, segment.end))

    def _want_pages(self, segment: Segment, end: int, stop: int) -> None:
        for start in range(max(self._paged, end), stop, _PAGES_BYTES):
            segment.file.read_ahead(start - segment.base, min(_PAGES_BYTES, stop - start))
        self._paged = max(self._paged, stop)

    def _write_zeros(self, segment: Segment, stop: int) -> None:
        first = self._zeroed
        while self._zeroed < stop:
            # Write only behind all records: an append beyond this announces itself first, under the same lock.
            with self._zeroing:
                start = self._zeroed
                size = min(FOLIO_BYTES - start % FOLIO_BYTES, stop - start)
                if size > 0:
                    try:
                        segment.file.pwrite(_ZEROS[:size], start - segment.base)
                    except OSError as error:
                        if error.errno in NO_ROOM:  # the next append will handle the error; this was only a preparation
                            return
                        raise
                    self._zeroed = start + size
        if self._zeroed > first:
            self._sync(segment.file)

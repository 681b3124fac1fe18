"""Make the part of the log that is written next quick to write: zeros on the disk, or pages in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gantrymq.kernel.env import File
from gantrymq.kernel.errors import NO_ROOM
from gantrymq.kernel.store.log.segments import Segment, Segments

_ZEROS = bytes(1024 * 1024)
_ZEROS_MAX_BYTES = 32 * len(_ZEROS)
_PAGES_MAX_BYTES = 128 * len(_ZEROS)
_PAGES_BYTES = 128 * 1024
"""Asked for at once: Linux cuts longer requests short (``force_page_cache_ra``)."""


class LogPrefault:
    """Works ahead of a log that is appended to by another thread.

    Where somebody waits for each flush (:attr:`zeros`), zeros go behind the log's end, four times what was appended
    since the last call (1 to 32 MiB): syncing bytes that were written before takes about half as long as syncing
    reserved ones, for which the file system must note first that they are in use. When more than that is appended
    between two calls they would only be in the way. Else the page cache gets the pages that come next (twice what
    was appended, up to 128 MiB): each append would wait while the system finds memory and clears it, which took
    more time than all the rest of a batch.
    """

    def __init__(self, segments: Segments, sync: Callable[[File], None]) -> None:
        self.zeros = False
        """Whether zeros are written."""
        self._segments = segments
        self._sync = sync
        self._zeroing = threading.Lock()
        self._seen = self._zeroed = self._paged = 0

    def start_at(self, end: int) -> None:
        """The log ends at ``end`` and nothing is prepared behind it."""
        self._seen = self._zeroed = self._paged = end

    def appending(self, end: int) -> None:
        """Before records are written up to ``end``: zeros go behind that from now on."""
        if end > self._zeroed:
            with self._zeroing:
                self._zeroed = max(self._zeroed, end)

    def prepare(self, end: int) -> None:
        """Work ahead of ``end``, where the log ends; for a worker thread. :class:`OSError` but for a full disk."""
        progress, self._seen = end - self._seen, end
        segment = self._segments.at(end)
        if segment is None:
            return
        if self.zeros and progress <= _ZEROS_MAX_BYTES:
            wanted = min(max(4 * progress, len(_ZEROS)), _ZEROS_MAX_BYTES)
            self._write_zeros(segment, min(end + wanted, segment.end))
        else:
            wanted = min(2 * progress, _PAGES_MAX_BYTES)
            self._want_pages(segment, end, min(end + wanted, segment.end))

    def _want_pages(self, segment: Segment, end: int, stop: int) -> None:
        for start in range(max(self._paged, end), stop, _PAGES_BYTES):
            segment.file.read_ahead(start - segment.base, min(_PAGES_BYTES, stop - start))
        self._paged = max(self._paged, stop)

    def _write_zeros(self, segment: Segment, stop: int) -> None:
        first = self._zeroed
        while self._zeroed < stop:
            # Only behind everything that was written: an append that goes further says so first, under the same lock.
            with self._zeroing:
                start = self._zeroed
                size = min(len(_ZEROS), stop - start)
                if size > 0:
                    try:
                        segment.file.pwrite(_ZEROS[:size], start - segment.base)
                    except OSError as error:
                        if error.errno in NO_ROOM:  # an append will find out what that means; this one was ahead
                            return
                        raise
                    self._zeroed = start + size
        if self._zeroed > first:
            self._sync(segment.file)

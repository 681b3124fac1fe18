"""Read in a worker thread what is only on the disk and needed for the next deliveries.

A read that waits for the disk would stop the thread that serves all clients, and messages that waited for hours are
often not in the page cache any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from gantrymq.kernel.store.reading import Place, count_cached, fetch

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.commitlog import CommitLog


class Prefetch:
    """The reads for one row of batches; calls ``done`` after each."""

    def __init__(self, log: CommitLog, done: Callable[[], None]) -> None:
        self._log = log
        self._done = done
        self._asked = trio.Event()
        self._read: Callable[[], None] | None = None
        self._first: object = None
        """What the last read began with, which is not read ahead twice in a row: it may be unreadable."""

    @property
    def is_running(self) -> bool:
        """Whether the worker thread is reading. The batch waits for it."""
        return self._read is not None

    def ready(self, places: Sequence[Place]) -> int:
        """Return how many of the first records of a batch (at least one) to read now. If it is 0, the worker thread
        reads them all first."""
        count = count_cached(self._log, places)
        if count == 0 and not self.begin(places[0], partial(fetch, self._log, places)):
            return 1
        if count:
            self._first = None
        return count

    def begin(self, first: object, read: Callable[[], None]) -> bool:
        """Let the worker thread call ``read``, which begins with ``first``; False if the last read began with it."""
        if first == self._first:
            self._first = None
            return False
        self._first, self._read = first, read
        self._asked.set()
        return True

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            if self._read is not None:
                await trio.to_thread.run_sync(self._read)
            self._read = None
            self._done()

"""Read records that are only on the disk in a worker thread, before they are delivered.

A read that waits for the disk would stop the thread that serves all clients, and messages that waited for hours are
often not in the page cache any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        self._places: Sequence[Place] = ()
        self._fetched: Place | None = None
        """The first record of the last read, which is not read ahead twice in a row: it may be unreadable."""

    @property
    def is_running(self) -> bool:
        """Whether records are being read. The batch waits for them."""
        return bool(self._places)

    def ready(self, places: Sequence[Place]) -> int:
        """Return how many of the first records of a batch (at least one) to read now. If it is 0, the worker thread
        reads them all first."""
        count = count_cached(self._log, places)
        if count == 0 and places[0] == self._fetched:
            count = 1
        if count == 0:
            self._places = places
            self._asked.set()
        self._fetched = None
        return count

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            await trio.to_thread.run_sync(fetch, self._log, self._places)
            self._fetched, self._places = self._places[0], ()
            self._done()

"""Group commit: one thread flushes, and the next flush covers everything that arrived during one."""

from __future__ import annotations

from collections.abc import Callable

import trio

from gantrymq.kernel.env import Waker
from gantrymq.kernel.store.log.commitlog import CommitLog

FAST_FLUSHES = 64
"""After so many fast flushes, a flush in the sweep is expected to be fast too. A slow one takes one away for each
millisecond, so that a disk with short pauses is not treated as one that hangs."""


class DirectFlush:
    """Flushes in the sweep for a sender that is alone and waits: passing the flush to a thread costs more than it.

    No other client has requests then. But the system cannot interrupt a flush: if the disk hangs during this one, the
    whole broker hangs, readers included. So the thread flushes until :data:`FAST_FLUSHES` flushes were fast. After a
    slow flush, as many fast ones must follow as it took milliseconds, up to all of them. A disk that becomes slow or
    hangs therefore stops readers for one flush, and not again before it is fast again.
    """

    def __init__(self, log: CommitLog, is_alone: Callable[[], bool]) -> None:
        self._log = log
        self._is_alone = is_alone

    def flush(self) -> bool:
        """Flush if that is the right way now; returns whether all is durable."""
        return self._is_alone() and self._log.fast_flushes >= FAST_FLUSHES and self._log.flush_at_once()


class GroupCommit:
    """Flushes as soon as there is data; ``waker`` wakes the sweep when the watermark has moved.

    With ``direct``, a sender that is alone does not wait for the thread.
    """

    def __init__(self, log: CommitLog, waker: Waker, direct: DirectFlush | None = None) -> None:
        self._log = log
        self._waker = waker
        self._direct = direct

    def appended(self, end: int) -> None:
        """Flush directly, or wake the flusher, which reads the log's end itself."""
        if self._direct is None or not self._direct.flush():
            self._log.ask_flush()

    async def run(self) -> None:
        """Flush until cancelled; the thread's last flush covers everything that was appended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._log.flush_when_asked, self._waker)
            try:
                await trio.sleep_forever()
            finally:
                self._log.end_flushing()

"""Flush by interval: responses do not wait, and the disk works in larger steps."""

from __future__ import annotations

import trio

from gantrymq.kernel.store.log.commitlog import CommitLog


class IntervalFlush:
    """Flush every ``interval_s`` seconds if ``least_bytes`` wait, and every ``thorough_s`` seconds in any case."""

    def __init__(self, log: CommitLog, interval_s: float, least_bytes: int, thorough_s: float) -> None:
        self._log = log
        self._interval_s = interval_s
        self._least_bytes = least_bytes
        self._thorough_s = thorough_s

    def appended(self, end: int) -> None:
        """Do nothing: the interval decides."""

    async def run(self) -> None:
        """Flush until cancelled, and a last time after that."""
        log = self._log
        last = trio.current_time()
        try:
            while True:
                await trio.sleep(self._interval_s)
                waiting = log.end - log.durable
                now = trio.current_time()
                if waiting >= self._least_bytes or (waiting and now - last >= self._thorough_s):
                    await trio.to_thread.run_sync(log.flush)
                    last = now
        except trio.Cancelled:
            if log.durable < log.end:
                log.flush()
            raise

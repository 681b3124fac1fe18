"""Collect in memory, write in a thread, flush by interval: the sweep never waits for a write."""

from __future__ import annotations

import trio

from gantrymq.kernel.env import Waker
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.remoting.codes import ResponseCode


class BufferedFlush(IntervalFlush):
    """As :class:`IntervalFlush`, but a thread writes the log's records and wakes the sweep with ``waker``."""

    def __init__(self, log: CommitLog, waker: Waker, interval_s: float, least_bytes: int, thorough_s: float) -> None:
        super().__init__(log, interval_s, least_bytes, thorough_s)
        self._writer = log.write_behind(waker)

    async def run(self) -> None:
        """Write and flush until cancelled, and a last time after that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._writer.run)
            try:
                await super().run()
            finally:
                self._writer.stop()


class WrittenGate:
    """Written records may be acknowledged and read, because the end of the process cannot lose them."""

    late_code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    late_remark = "the disk did not take it in time; the message waits in memory and is not promised"

    def __init__(self, log: CommitLog, timeout_s: float) -> None:
        self._log = log
        self.timeout_s = timeout_s

    @property
    def watermark(self) -> int:
        """The log's written end."""
        return self._log.written

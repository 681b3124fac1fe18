"""Group commit: one thread flushes, and the next flush covers everything that arrived during one."""

from __future__ import annotations

import trio

from gantrymq.kernel.env import Waker
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.remoting.codes import ResponseCode


class GroupCommit:
    """Flushes as soon as there is data; ``waker`` wakes the sweep when the watermark has moved."""

    def __init__(self, log: CommitLog, waker: Waker) -> None:
        self._log = log
        self._waker = waker

    def appended(self, end: int) -> None:
        """Wake the flusher, which reads the log's end itself."""
        self._log.ask_flush()

    async def run(self) -> None:
        """Flush until cancelled; the thread's last flush covers everything that was appended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._log.flush_when_asked, self._waker)
            try:
                await trio.sleep_forever()
            finally:
                self._log.end_flushing()


class DurableGate:
    """Durable records may be acknowledged and read."""

    late_code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    late_remark = "the disk did not flush in time; the message is stored but not promised"

    def __init__(self, log: CommitLog, timeout_s: float) -> None:
        self._log = log
        self.timeout_s = timeout_s

    @property
    def watermark(self) -> int:
        """The log's durable end."""
        return self._log.durable

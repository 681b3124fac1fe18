"""Group commit: one thread flushes, and the next flush covers everything that arrived during one."""

from __future__ import annotations

from collections.abc import Callable

import trio

from gantrymq.kernel.env import Waker
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.remoting.codes import ResponseCode

FAST_S = 0.001
"""A flush in the sweep may take this long: passing one to the thread and back costs about a tenth of it."""
SKIPS = 64
SKIPS_MAX = 4096
"""After a slower flush, the next 64 go to the thread; while the disk remains slow, 128, 256, up to 4096."""


class DirectFlush:
    """Flushes in the sweep for a sender that is alone and waits: passing the flush to a thread costs more than it.

    No other client has requests then. But while the disk hangs, the whole broker hangs, readers included. So it
    measures flushes on ``clock`` (seconds), leaves them to the thread while they are slow, and is not the default.
    """

    def __init__(self, log: CommitLog, is_alone: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._log = log
        self._is_alone = is_alone
        self._clock = clock
        self._skips = 0
        self._left = 0

    def flush(self) -> bool:
        """Flush if that is the right way now; returns whether all is durable."""
        if not self._is_alone():
            return False
        if self._left:
            self._left -= 1
            return False
        began = self._clock()
        is_durable = self._log.flush_at_once()
        is_fast = self._clock() - began <= FAST_S
        self._left = self._skips = 0 if is_fast else min(max(SKIPS, 2 * self._skips), SKIPS_MAX)
        return is_durable


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

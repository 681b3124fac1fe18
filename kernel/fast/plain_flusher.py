"""The flusher of the commit log as a plain class: the durable offset, and the loop of the thread.

The thread of its compiled twin runs without Python's global interpreter lock, on file descriptors.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.env import machine_seconds
from gantrymq.kernel.fast.durations import Durations

if TYPE_CHECKING:
    from gantrymq.kernel.env import File, Waker


FAST_S: Final = 0.001
FAST_FLUSHES_MAX: Final = 64
"""The most that :attr:`Flusher.fast_flushes` counts, so that a long flush is not outweighed by many fast ones."""


class Flusher:
    """The durable end of a log. One thread appends, one runs :meth:`run`; other methods may be called from any thread.

    Of two concurrent flushes of a file only one gets the error for a lost page. So there is one at a time, and none
    after a failed one: each call then raises the same :class:`OSError`.
    """

    def __init__(self, fast_s: float = FAST_S) -> None:
        """A flush of at most ``fast_s`` seconds counts as fast."""
        self.fast_s = fast_s
        self._appended = (0, 0)
        self._durable = (0, 0)
        self._files: list[File] = []
        self._guard = threading.Lock()
        self._syncing = threading.Lock()
        self._asked = threading.Event()
        self._stopping = False
        self._failure: OSError | None = None
        self._sync_times = Durations()
        self._fast_flushes = 0

    @property
    def sync_times(self) -> tuple[list[int], float]:
        """The durations of syncs of a file: counts as in :class:`~gantrymq.kernel.fast.durations.Durations`, and the
        sum in seconds."""
        with self._guard:
            return list(self._sync_times.counts), self._sync_times.seconds

    @property
    def fast_flushes(self) -> int:
        """How many flushes were fast, :data:`FAST_FLUSHES_MAX` at most. A slow one takes away one for each
        ``fast_s`` that it lasted. :meth:`sync` does not count."""
        return self._fast_flushes

    @property
    def durable(self) -> int:
        """The offset up to which everything is flushed."""
        return self._durable[0]

    @property
    def durable_mark(self) -> tuple[int, int]:
        """:attr:`durable`, and the timestamp that was given with it."""
        return self._durable

    def start_at(self, end: int, timestamp: int) -> None:
        """Set the end of the log, all of which is flushed."""
        with self._guard:
            self._appended = self._durable = (end, timestamp)
            self._files.clear()

    def follow(self, file: File) -> None:
        """Later appends are in ``file``; earlier ones are in the files that were passed before."""
        shared = file.share()  # deleting the file closes another handle
        with self._guard:
            self._files.append(shared)

    def appended(self, end: int, timestamp: int) -> None:
        """The log ends at ``end`` now."""
        self._appended = (end, timestamp)

    def flush(self) -> int:
        """Flush everything that was appended; returns the durable end. :class:`OSError` if a flush fails or failed
        before."""
        with self._syncing:
            self._flush()
            return self._durable[0]

    def flush_at_once(self) -> bool:
        """Flush everything that was appended, unless another flush runs; returns whether all of it is durable.

        After a failure it returns False, and :meth:`run` raises the error once it is asked.
        """
        if not self._syncing.acquire(blocking=False):
            return False
        try:
            self._flush()
        except OSError:
            return False
        finally:
            self._syncing.release()
        return True

    def sync(self, file: File) -> None:
        """``file.datasync()``, in turn with the flushes."""
        with self._syncing:
            self._check()
            self._sync(file.share())

    def ask(self) -> None:
        """Let :meth:`run` flush; never blocks."""
        self._asked.set()

    def run(self, waker: Waker) -> None:
        """Flush on each request and wake the sweep after it, until :meth:`stop`; then flush the rest.

        The next flush covers what is appended during one flush. :class:`OSError` as :meth:`flush`.
        """
        while True:
            self._asked.wait()
            self._asked.clear()
            self._check()
            while self._durable[0] < self._appended[0]:
                self.flush()
                waker.wake()
            if self._stopping:
                return

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopping = True
        self._asked.set()

    def fail(self, error: OSError) -> None:
        """Make no more data durable, because of ``error`` elsewhere."""
        self._failure = self._failure or error
        self._asked.set()

    def _flush(self) -> None:
        self._check()
        with self._guard:
            appended, files = self._appended, list(self._files)
        if appended[0] > self._durable[0]:
            began = machine_seconds()
            for file in files:
                self._sync(file)
            seconds = machine_seconds() - began
            if seconds <= self.fast_s:
                self._fast_flushes = min(self._fast_flushes + 1, FAST_FLUSHES_MAX)
            else:
                lost = seconds / self.fast_s if self.fast_s > 0 else FAST_FLUSHES_MAX
                self._fast_flushes = max(self._fast_flushes - int(min(lost, FAST_FLUSHES_MAX)), 0)
            with self._guard:
                # The last file may have more by now.
                del self._files[: len(files) - 1]
            self._durable = appended

    def _sync(self, file: File) -> None:
        began = machine_seconds()
        try:
            file.datasync()
        except OSError as error:
            self._failure = error
            raise
        finally:
            seconds = machine_seconds() - began
            with self._guard:
                self._sync_times.add(seconds)

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

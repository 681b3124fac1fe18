"""What brings the commit log onto the disk, as a plain class: which bytes are durable, and the loop of the thread.

Its compiled twin has a thread that runs without Python's global lock, and works on descriptors of the system.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gantrymq.kernel.env import File, Waker


class Flusher:
    """The durable end of a log. One thread appends, one runs :meth:`run`; the rest may be called from any.

    Of two syncs of a file at a time only one is told of a page that was lost. So there is one at a time, and after one
    that failed there is no other: each call ends with the same :class:`OSError`.
    """

    def __init__(self) -> None:
        self._appended = (0, 0)
        self._durable = (0, 0)
        self._files: list[File] = []
        self._guard = threading.Lock()
        self._syncing = threading.Lock()
        self._asked = threading.Event()
        self._stopping = False
        self._failure: OSError | None = None

    @property
    def durable(self) -> int:
        """The offset up to which everything is on the disk."""
        return self._durable[0]

    @property
    def durable_mark(self) -> tuple[int, int]:
        """:attr:`durable`, and the timestamp that was given with it."""
        return self._durable

    def start_at(self, end: int, timestamp: int) -> None:
        """The log ends at ``end``, and all of it is on the disk."""
        with self._guard:
            self._appended = self._durable = (end, timestamp)
            self._files.clear()

    def follow(self, file: File) -> None:
        """What is appended from now on lies in ``file``; what was appended before lies in those named before."""
        shared = file.share()  # whoever deletes the file closes his own handle only
        with self._guard:
            self._files.append(shared)

    def appended(self, end: int, timestamp: int) -> None:
        """The log ends at ``end`` now."""
        self._appended = (end, timestamp)

    def flush(self) -> int:
        """Bring all that was appended to the disk; the durable end. :class:`OSError` when that fails or did before."""
        with self._syncing:
            self._check()
            with self._guard:
                appended, files = self._appended, list(self._files)
            if appended[0] > self._durable[0]:
                for file in files:
                    self._sync(file)
                with self._guard:
                    # The last one may hold more by now.
                    del self._files[: len(files) - 1]
                self._durable = appended
            return self._durable[0]

    def sync(self, file: File) -> None:
        """``file.datasync()``, in turn with the flushes."""
        with self._syncing:
            self._check()
            self._sync(file.share())

    def ask(self) -> None:
        """Let :meth:`run` flush; never blocks."""
        self._asked.set()

    def run(self, waker: Waker) -> None:
        """Flush whenever somebody asks, wake after each flush, until :meth:`stop`; then once more if there is need.

        What is appended while one flush runs is covered by the next. :class:`OSError` as :meth:`flush`.
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
        """Nothing may become durable any more, because of ``error`` elsewhere."""
        self._failure = self._failure or error
        self._asked.set()

    def _sync(self, file: File) -> None:
        try:
            file.datasync()
        except OSError as error:
            self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

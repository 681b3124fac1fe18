"""A server that has failed, or was told to end, ends in time, also where memory or threads were missing meanwhile.

What was to end a wait can be lost then: a worker thread that died before it gave its result, for one. The store is
built for an end as by kill -9, so that is how the process ends when its time is up.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from gantrymq.cli.failures import FAILED, NO_MEMORY

END_SECONDS = 15.0
"""From a failure, or from the end of a stop's own time (``DRAIN_SECONDS``), until the process is gone."""
OVERDUE = b"gantrymq: a task did not end when the process was to, so it ended as by kill -9; the next start recovers\n"
OUT_OF_MEMORY = f"gantrymq: {NO_MEMORY}\n".encode()


class EndDeadline:
    """Ends the process some time after :meth:`arm`, by a thread that waits for it from the beginning."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Bare locks, which need no memory: released once, at most.
        self._unarmed = threading.Lock()
        self._unarmed.acquire()
        self._unended = threading.Lock()
        self._unended.acquire()

    def start(self) -> None:
        """Start the thread. RuntimeError where none can be started."""
        threading.Thread(target=self._wait, name="gantrymq-end-deadline", daemon=True).start()

    def arm(self) -> None:
        """Let the time run from now on, if it does not yet. Of one thread's calls only."""
        if self._unarmed.locked():
            self._unarmed.release()

    async def arm_when_cancelled(self) -> None:
        """For a nursery: it is cancelled when a task of it has failed, before anything is waited for."""
        try:
            await trio.sleep_forever()
        finally:
            self.arm()

    def cancel(self) -> None:
        """The process ends by itself; nothing is done any more."""
        self._unended.release()
        self.arm()

    def _wait(self) -> None:
        self._unarmed.acquire()
        text = OVERDUE
        try:
            if self._unended.acquire(True, self._seconds):
                return
        except MemoryError:
            text = OUT_OF_MEMORY
        end_at_once(text)


def end_at_once(text: bytes) -> None:
    """Say ``text`` on stderr and end as by kill -9, with 1; needs no memory."""
    try:
        os.write(2, text)
    finally:
        os._exit(FAILED)


@contextmanager
def ending_in_time() -> Iterator[EndDeadline]:
    """For the length of the block: a deadline to arm, and the end of the process where a thread dies without memory.

    Whoever waits for such a thread would wait for ever: for its start, or for its result.
    """
    deadline = EndDeadline(END_SECONDS)
    deadline.start()
    usual = threading.excepthook, sys.unraisablehook

    def thread_died(args: threading.ExceptHookArgs) -> None:
        if _comes_of_memory(args.exc_value):
            end_at_once(OUT_OF_MEMORY)
        usual[0](args)

    def was_lost(args: sys.UnraisableHookArgs) -> None:
        if _comes_of_memory(args.exc_value):
            end_at_once(OUT_OF_MEMORY)
        usual[1](args)

    threading.excepthook, sys.unraisablehook = thread_died, was_lost
    try:
        yield deadline
    finally:
        threading.excepthook, sys.unraisablehook = usual
        deadline.cancel()


def _comes_of_memory(error: BaseException | None) -> bool:
    """Whether it is a MemoryError, or was raised while one was handled: a thread that dies at its start does so."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__context__
    return error is not None


def end_where_memory_ends() -> None:
    """See :func:`gantrymq.kernel.fast.end_where_memory_ends`; for processes that are brokers."""
    from gantrymq.kernel import fast

    fast.end_where_memory_ends(OUT_OF_MEMORY)

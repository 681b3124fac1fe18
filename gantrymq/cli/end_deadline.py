"""End a failed or stopping server in time, even if memory or threads were exhausted meanwhile.

The event that ends a wait can be lost then, for example when a worker thread dies before it returns its result. The
store recovers from kill -9, so the process ends in this way when its time is up.
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
"""Time from a failure, or from the end of ``DRAIN_SECONDS`` of a stop, until the process is ended."""
OVERDUE = b"gantrymq: a task did not end when the process was to, so it ended as by kill -9; the next start recovers\n"
OUT_OF_MEMORY = f"gantrymq: {NO_MEMORY}\n".encode()


class EndDeadline:
    """Ends the process some time after :meth:`arm`, with a thread that exists from the start."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Plain locks, which need no memory; each is released at most once.
        self._unarmed = threading.Lock()
        self._unarmed.acquire()
        self._unended = threading.Lock()
        self._unended.acquire()

    def start(self) -> None:
        """Start the thread. RuntimeError if the system cannot start one."""
        threading.Thread(target=self._wait, name="gantrymq-end-deadline", daemon=True).start()

    def arm(self) -> None:
        """Start the time, unless it runs already. Only one thread may call this."""
        if self._unarmed.locked():
            self._unarmed.release()

    async def arm_when_cancelled(self) -> None:
        """Wait until cancelled, then arm. For a nursery, which cancels its tasks when one has failed, and then waits
        for all."""
        try:
            await trio.sleep_forever()
        finally:
            self.arm()

    def cancel(self) -> None:
        """The process ends by itself: cancel the deadline."""
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
    """Write ``text`` to stderr and end at once, like kill -9, with exit code 1; needs no memory."""
    try:
        os.write(2, text)
    finally:
        os._exit(FAILED)


@contextmanager
def ending_in_time() -> Iterator[EndDeadline]:
    """Within the block: provide a deadline to arm, and end the process if a thread dies for lack of memory.

    A wait for the start or the result of such a thread would never end.
    """
    deadline = EndDeadline(END_SECONDS)
    deadline.start()
    usual = threading.excepthook, sys.unraisablehook

    def thread_died(args: threading.ExceptHookArgs) -> None:
        if _is_caused_by_memory(args.exc_value):
            end_at_once(OUT_OF_MEMORY)
        usual[0](args)

    def was_lost(args: sys.UnraisableHookArgs) -> None:
        if _is_caused_by_memory(args.exc_value):
            end_at_once(OUT_OF_MEMORY)
        usual[1](args)

    threading.excepthook, sys.unraisablehook = thread_died, was_lost
    try:
        yield deadline
    finally:
        threading.excepthook, sys.unraisablehook = usual
        deadline.cancel()


def _is_caused_by_memory(error: BaseException | None) -> bool:
    """Whether ``error`` is a MemoryError or was raised while one was handled, as in a thread that fails to start."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__context__
    return error is not None


def end_where_memory_ends() -> None:
    """See :func:`gantrymq.kernel.fast.end_where_memory_ends`; for processes that are brokers."""
    from gantrymq.kernel import fast

    fast.end_where_memory_ends(OUT_OF_MEMORY)

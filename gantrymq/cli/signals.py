"""The signals that end a process, the first one cleanly and the second one at once, and those that reload the
configuration and open the log file again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import trio

from gantrymq.cli.logs import reopen_log_file

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ENDING = (signal.SIGINT, signal.SIGTERM)
REPEAT_SECONDS = 0.5
"""Within this time after the first signal, another one is the same request: a Ctrl-C reaches all processes of a
terminal, and wrappers such as timeout(1), sudo and uv send it to their child once more."""


@contextmanager
def reloading_by_signal(reload: Callable[[], None]) -> Iterator[None]:
    """Each SIGHUP calls ``reload`` inside the running trio loop."""
    token = trio.lowlevel.current_trio_token()
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: token.run_sync_soon(reload, idempotent=True))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def reopening_by_signal(also: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Each SIGUSR1 opens the log file again and calls ``also``."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        reopen_log_file()
        also()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class FirstSignal:
    """The first signal in a block of :func:`ending_by_signal`."""

    number: int = 0
    """0 until there is one."""

    @property
    def exit_code(self) -> int:
        """The exit code of a command that prints until it is ended: 130 after Ctrl-C, otherwise 0."""
        return 128 + signal.SIGINT if self.number == signal.SIGINT else 0


@contextmanager
def ending_by_signal(stop: Callable[[], None], log: FilteringBoundLogger | None = None) -> Iterator[FirstSignal]:
    """The first SIGINT or SIGTERM calls ``stop`` inside the running trio loop; another one ends the process at once.

    A server gives its ``log``, which gets the event ``stop_requested`` with the name of the first signal.

    Within :data:`REPEAT_SECONDS` it counts as the first one.

    At once means as by kill -9 (exit code 130 or 143), because an event loop that hangs cannot stop cleanly. The store
    recovers from it.
    """
    token = trio.lowlevel.current_trio_token()
    asked_at: float | None = None
    first = FirstSignal()

    def end(signal_name: str) -> None:
        if log is not None:
            log.info("stop_requested", reason=signal_name)
        stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if asked_at is None:
            asked_at = now
            first.number = number
            token.run_sync_soon(end, signal.Signals(number).name)
        elif now - asked_at >= REPEAT_SECONDS:
            os.write(2, b"gantrymq: forced to end\n")
            os._exit(128 + number)

    before = {number: signal.signal(number, handle) for number in ENDING}
    try:
        yield first
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The signals that end a process, the first one cleanly and the second one at once, and those that reload the
configuration and open the log file again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import trio

from gantrymq.cli.logs import reopen_log_file

ENDING = (signal.SIGINT, signal.SIGTERM)


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


@contextmanager
def ending_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM calls ``stop`` inside the running trio loop; the second ends the process at once.

    At once means as by kill -9 (exit code 130 or 143), because an event loop that hangs cannot stop cleanly. The store
    recovers from it.
    """
    token = trio.lowlevel.current_trio_token()
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os.write(2, b"gantrymq: forced to end\n")
            os._exit(128 + number)
        asked = True
        token.run_sync_soon(stop)

    before = {number: signal.signal(number, handle) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

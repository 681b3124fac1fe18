"""Run an :class:`App` as the whole of a process, as both commands ``worker`` do."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NoReturn

from gantrymq.client.app import App
from gantrymq.client.errors import GantryError
from gantrymq.remoting.errors import leaves

INTERRUPTED: Final = 130
FLUSH_SECONDS: Final = 1.0
"""The longest wait for the output: a handler that hangs may hold a lock of a stream."""


def run_as_process(app: App, backend: Literal["asyncio", "trio"], report: Callable[[BaseException], int]) -> None:
    """Run ``app`` until it ends, and raise its errors; :class:`GantryError` for one of a startup function.

    The process ends here where it must not wait for a handler in a thread: with 130 at an interrupt, and when handlers
    have not ended within their drain timeout, with 0, or what ``report`` returns for the app's error.
    """
    try:
        app.main(backend=backend)
    except BaseException as error:
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
            _end_process(INTERRUPTED)
        if app._left_threads:
            _end_process(report(error))
        failure = app._startup_failure
        if failure is not None and failure.error is error:
            raise GantryError(str(failure)) from error
        raise
    if app._left_threads:
        _end_process(0)


def _end_process(code: int) -> NoReturn:
    """End the process without waiting for its threads, which Python does even after :func:`sys.exit`."""
    try:
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
    finally:
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a closed pipe, a closed stream
            stream.flush()
    logging.shutdown()

"""Find out which plugin blocks the event loop: without this, a blocking plugin shows only as silence."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog
import trio

from gantrymq.kernel.manager import PluginManager

log = structlog.get_logger("gantrymq.watchdog")

FRAMES_MAX = 5


class Watchdog:
    """A thread that checks that the loop responds, and examines its stack if it has not responded for ``limit_s``."""

    def __init__(self, manager: PluginManager, limit_s: float) -> None:
        self._manager = manager
        self._limit_s = limit_s
        self._alive = threading.Event()
        self._stop = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calling event loop within the block; a limit of 0 disables it."""
        if not self._limit_s:
            yield
            return
        token = trio.lowlevel.current_trio_token()
        loop = threading.get_ident()
        thread = threading.Thread(target=self._watch, args=(token, loop), name="gantrymq-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._alive.set()

    def _watch(self, token: trio.lowlevel.TrioToken, loop: int) -> None:
        while not self._stop.is_set():
            self._alive.clear()
            try:
                token.run_sync_soon(self._alive.set)
            except trio.RunFinishedError:
                return
            if not self._alive.wait(self._limit_s) and not self._stop.is_set():
                self._report(loop)
                while not self._alive.wait(self._limit_s) and not self._stop.is_set():
                    pass
                if not self._stop.is_set():
                    log.warning("loop_resumed")
            self._stop.wait(self._limit_s)

    def _report(self, loop: int) -> None:
        frame = sys._current_frames().get(loop)
        stack = list(_outwards(frame))
        owner = next((name for each in stack if (name := self._manager.owner_of(each)) is not None), None)
        log.error(
            "loop_blocked",
            plugin=owner or "none",
            seconds=self._limit_s,
            where=[f"{each.f_globals.get('__name__')}:{each.f_lineno}" for each in stack[:FRAMES_MAX]],
            todo="a hook must not block: await, or use a worker thread",
        )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back

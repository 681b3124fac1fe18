"""Tell workers of SIGTERM and SIGINT: all of an event loop at once, whichever of them began first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

Stop = Callable[[str], None]
"""Called in the event loop with the name of the signal."""

_watches: anyio.lowlevel.RunVar[_Watch] = anyio.lowlevel.RunVar("gantrymq_signals")


class _Watch:
    # An event loop has one handler for a signal, so one task receives signals for all; when it ends, another does.
    def __init__(self) -> None:
        self.stops: list[Stop] = []
        self.taken = False
        self.freed = anyio.Event()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        self.taken = True
        try:
            yield
        finally:
            self.taken = False
            self.freed.set()
            self.freed = anyio.Event()


def gets_signals() -> bool:
    """Whether this thread is the one that gets the process's signals."""
    return threading.current_thread() is threading.main_thread()


async def watch_signals(stop: Stop, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT, then return: a second signal has its usual effect.

    Only for the main thread. Started when signals are received.
    """
    try:
        watch = _watches.get()
    except LookupError:
        watch = _Watch()
        _watches.set(watch)
    watch.stops.append(stop)
    is_started = False
    try:
        while stop in watch.stops:
            if watch.taken:
                if not is_started:
                    is_started = True
                    task_status.started()
                await watch.freed.wait()
                continue
            with watch.receiving(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
                if not is_started:
                    is_started = True
                    task_status.started()
                number = await anext(aiter(received))
                stops, watch.stops = watch.stops, []
                for each in stops:
                    each(number.name)
    finally:
        if stop in watch.stops:
            watch.stops.remove(stop)

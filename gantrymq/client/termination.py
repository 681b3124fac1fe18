"""Tell workers of SIGTERM and SIGINT: all of an event loop at once, whichever of them began first."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal

from gantrymq.remoting.logs import LibraryLog

SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name))
"""SIGBREAK (Ctrl-Break) is what Windows has to end a process that is not in the foreground."""
WAKE_SECONDS: Final = 1.0
"""The interval in which the main thread wakes up where a wait prevents the handling of a signal (Windows)."""

Stop = Callable[[str], None]
"""Called in the event loop with the name of the signal."""

log: LibraryLog = LibraryLog()

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


def _takes_signals(wanted: bool | None) -> bool:
    """Whether a worker with ``signals=wanted`` takes the signals, which only the main thread gets.

    With None not if the application, or its server, has a handler of SIGTERM; SIGINT is Python's own, or the event
    loop's.
    """
    if wanted is False or threading.current_thread() is not threading.main_thread():
        return False
    if wanted is None and signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN):
        log.info("signals_left_to_application")
        return False
    return True


async def watch_signals(
    stop: Stop, wanted: bool | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT, then return: a second signal has its usual effect.

    Started when signals are received, or left to others: always with False for ``wanted``, and with None if others have
    a handler.
    """
    try:
        watch = _watches.get()
    except LookupError:
        watch = _Watch()
        _watches.set(watch)
    if wanted is False or not (watch.taken or _takes_signals(wanted)):
        task_status.started()
        return
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
            with watch.receiving(), _signal_receiver() as received:
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


@contextmanager
def _signal_receiver() -> Iterator[AsyncIterator[signal.Signals]]:
    with ExitStack() as stack:
        try:
            received = stack.enter_context(anyio.open_signal_receiver(*SIGNALS))
        except NotImplementedError:  # of asyncio on Windows
            received = stack.enter_context(_handlers_for_asyncio())
        yield received


@contextmanager
def _handlers_for_asyncio() -> Iterator[AsyncIterator[signal.Signals]]:
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[signal.Signals](len(SIGNALS))

    def put(number: signal.Signals) -> None:
        # one is enough, and after the end none is wanted
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            send.send_nowait(number)

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(put, signal.Signals(number))  # this also wakes the loop

    with send, receive, _handlers(handle):
        yield receive


@contextmanager
def _handlers(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_portal(
    portal: BlockingPortal, run: Callable[[], Awaitable[None]], stop: Stop, *, signals: bool | None
) -> None:
    """Run ``run`` in the event loop of ``portal`` while this thread waits, and ``stop`` there at the first signal."""
    events: SimpleQueue[signal.Signals | None] = SimpleQueue()
    future = portal.start_task_soon(run)
    future.add_done_callback(lambda _: events.put(None))
    try:
        with _signals_put_into(events, _takes_signals(signals)):
            number = _next(events)
        if number is not None:
            portal.call(stop, number.name)
        future.result()
    except KeyboardInterrupt:  # the second signal, or one that nobody receives
        future.cancel()
        raise


@contextmanager
def _signals_put_into(events: SimpleQueue[signal.Signals | None], wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return

    def received(number: int, frame: FrameType | None) -> None:
        events.put(signal.Signals(number))

    with _handlers(received):
        yield


def _next(events: SimpleQueue[signal.Signals | None]) -> signal.Signals | None:
    while True:
        try:
            return events.get(timeout=WAKE_SECONDS)
        except Empty:
            continue

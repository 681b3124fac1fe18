"""What a request waits for: a result that one task awaits, cheaper than an event, because every request has one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Waiter(Protocol[T]):
    """A result that comes later, in the form of asyncio's futures, which are one. One task may await it."""

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for the result; may be cancelled."""

    def done(self) -> bool:
        """Whether there is a result, or the wait for it has ended."""

    def set_result(self, result: T, /) -> None:
        """Wake the task. Only while not :meth:`done`."""


class _TrioWaiter(Generic[T]):
    __slots__ = ("_is_done", "_lowlevel", "_result", "_task")

    def __init__(self) -> None:
        self._lowlevel: Any = sys.modules["trio"].lowlevel
        self._is_done = False
        self._task: Any = None

    def __await__(self) -> Generator[Any, Any, T]:
        if not self._is_done:
            self._task = self._lowlevel.current_task()
            yield from self._lowlevel.wait_task_rescheduled(self._abort).__await__()
        return self._result

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: T, /) -> None:
        self._is_done = True
        self._result: T = result
        if self._task is not None:
            task, self._task = self._task, None
            self._lowlevel.reschedule(task)

    def _abort(self, _: object) -> Any:
        self._task = None
        return self._lowlevel.Abort.SUCCEEDED


def is_trio() -> bool:
    """Whether the event loop that runs is trio's; otherwise it is asyncio's."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def waiter_kind() -> Callable[[], Waiter[Any]]:
    """Return a factory of waiters for the running event loop."""
    return _TrioWaiter if is_trio() else asyncio.get_running_loop().create_future


def clock_of_loop() -> Callable[[], float]:
    """Return the clock of the running event loop, which ``anyio.current_time`` looks up at each call."""
    if is_trio():
        clock: Callable[[], float] = sys.modules["trio"].current_time
        return clock
    return asyncio.get_running_loop().time


def running_loop() -> object:
    """Return a token of the event loop that runs in this thread; None without one."""
    if is_trio():
        return sys.modules["trio"].lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def caller_in_loop() -> Callable[[Callable[[], object]], object]:
    """Return a function with which any thread has a function called soon in the running event loop.

    The function runs in no task, so on asyncio anyio's functions raise there. RuntimeError when the loop has ended.
    ``anyio.from_thread`` serves only anyio's own threads before 4.11.
    """
    if is_trio():
        call: Callable[[Callable[[], object]], object] = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon
        return call
    return asyncio.get_running_loop().call_soon_threadsafe

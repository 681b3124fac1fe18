"""A one-shot event for a single waiter, cheaper than an event, because every request waits for one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Waiter(Protocol):
    """One task may wait, and it may be cancelled."""

    async def wait(self) -> None:
        """Return when :meth:`set` has been called."""

    def set(self) -> None:
        """Wake the task. Further calls have no effect."""


class _AsyncioWaiter:
    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await self._future

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class _TrioWaiter:
    __slots__ = ("_is_set", "_lowlevel", "_task")

    def __init__(self) -> None:
        self._lowlevel: Any = sys.modules["trio"].lowlevel
        self._is_set = False
        self._task: Any = None

    async def wait(self) -> None:
        if not self._is_set:
            self._task = self._lowlevel.current_task()
            await self._lowlevel.wait_task_rescheduled(self._abort)

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            if self._task is not None:
                task, self._task = self._task, None
                self._lowlevel.reschedule(task)

    def _abort(self, _: object) -> Any:
        self._task = None
        return self._lowlevel.Abort.SUCCEEDED


def waiter_kind() -> Callable[[], Waiter]:
    """The class of waiters for the running event loop."""
    trio = sys.modules.get("trio")
    return _TrioWaiter if trio is not None and trio.lowlevel.in_trio_run() else _AsyncioWaiter


def clock_of_loop() -> Callable[[], float]:
    """The clock of the event loop that runs, which ``anyio.current_time`` looks up each time anew."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        clock: Callable[[], float] = trio.current_time
        return clock
    return asyncio.get_running_loop().time

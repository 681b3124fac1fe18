"""Wait for one thing, set once: as an event, for a fraction of its cost, which counts where each request waits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Waiter(Protocol):
    """One task may wait, and it may be cancelled."""

    async def wait(self) -> None:
        """Return once :meth:`set` was called."""

    def set(self) -> None:
        """Let the task go on. More than once is as good as once."""


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
    """What makes waiters in the event loop that runs."""
    trio = sys.modules.get("trio")
    return _TrioWaiter if trio is not None and trio.lowlevel.in_trio_run() else _AsyncioWaiter

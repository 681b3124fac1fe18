"""Background work and its task group, whose block keeps its own errors; timeouts that a blocked event loop extends."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

LATE_SECONDS: Final = 0.1
"""A timeout that is noticed so much later extends by as much: something has blocked the event loop, and what was
waited for may have come unseen."""

T = TypeVar("T")


async def within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work()``; TimeoutError after ``seconds``. It is called again where the event loop was blocked."""
    while True:
        with anyio.move_on_after(seconds) as scope:
            return await work()
        seconds = anyio.current_time() - scope.deadline
        if seconds < LATE_SECONDS:
            raise TimeoutError


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Tasks that end with the block: at its end they are cancelled and waited for.

    An error of the block comes out as it is, not wrapped in an ExceptionGroup, so that callers can catch it by its
    type. An error of a background task is a bug: it cancels the block and comes out in a group.
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # all but cancellation, which is the group's
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def hosted_tasks(failed: Callable[[Exception], None]) -> AsyncIterator[TaskGroup]:
    """As :func:`background_tasks`, in a task of their own: the block may end in another task than it began in.

    An error of a background task ends the others and is given to ``failed``; it does not cancel the block.
    """
    began, ended = anyio.Event(), anyio.Event()
    groups: list[TaskGroup] = []

    async def host() -> None:
        try:
            async with anyio.create_task_group() as tasks:
                groups.append(tasks)
                began.set()
                await anyio.sleep_forever()
        except Exception as error:
            failed(error)
        finally:
            ended.set()

    task = _spawn(host)
    with anyio.CancelScope(shield=True):
        await began.wait()
    try:
        yield groups[0]
    finally:
        groups[0].cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await ended.wait()
        del task


def _spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Run ``work`` in the event loop, in no task group; keep what is returned as long as it runs."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return trio.lowlevel.spawn_system_task(work, context=contextvars.copy_context())
    return asyncio.get_running_loop().create_task(work())

"""Background work and its task group, whose block keeps its own errors; timeouts that a blocked event loop extends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

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

"""A task group for background work, whose block keeps its own errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


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

"""Task groups whose errors callers can catch by their types; timeouts that a blocked event loop extends."""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from gantrymq.remoting.errors import GantryError, leaves

LATE_SECONDS: Final = 0.1
"""A timeout that is detected later than this is extended by the delay: the event loop was blocked, and the result may
have arrived unseen."""

T = TypeVar("T")


async def within(seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work()``; TimeoutError after ``seconds``. Calls it again if the event loop was blocked."""
    while True:
        with anyio.move_on_after(seconds) as scope:
            return await work()
        seconds = anyio.current_time() - scope.deadline
        if seconds < LATE_SECONDS:
            raise TimeoutError


@asynccontextmanager
async def concurrent_tasks() -> AsyncIterator[TaskGroup]:
    """Tasks that the end of the block awaits.

    The first error, of a task or of the block, cancels the others and is raised unchanged, not wrapped in an
    ExceptionGroup; later errors are dropped.
    """
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        cancelled = anyio.get_cancelled_exc_class()
        errors = [error for error in leaves(group) if not isinstance(error, cancelled)]
        if not errors or not all(isinstance(error, Exception) for error in errors):
            raise
        failure = errors[0]
    if failure is not None:  # not in the handler above, which would become the context of the error
        raise failure


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Tasks that end with the block: its end cancels and awaits them.

    An error of the block is raised unchanged, not wrapped in an ExceptionGroup, so that callers can catch it by its
    type. An error of a background task is a bug: it cancels the block and is raised in a group.
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # all but cancellation, which the group handles
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@contextmanager
def foreign_cancellation_as_error() -> Iterator[None]:
    """Raise :class:`GantryError` in place of a CancelledError of asyncio that does not cancel the current task.

    For code of users: what awaits another task that was cancelled raises the same exception as a cancelled task, and a
    task group would end all of its tasks because of it.
    """
    task = _asyncio_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is None or task.cancelling() > before or anyio.current_effective_deadline() == -math.inf:
            raise
        raise GantryError("something that was awaited was cancelled, but the task that awaited it was not") from error


class HostedTasks(AbstractAsyncContextManager[TaskGroup]):
    """See :func:`hosted_tasks`. No async generator: the end of an event loop would close it before the block."""

    def __init__(self, failed: Callable[[Exception], None], loop_ends: Callable[[], None]) -> None:
        self._failed = failed
        self._loop_ends = loop_ends
        self._leaving = False
        self._groups: list[TaskGroup] = []

    async def __aenter__(self) -> TaskGroup:
        self._began, self._ended = anyio.Event(), anyio.Event()
        self._task = _spawn(self._host)
        with anyio.CancelScope(shield=True):
            await self._began.wait()
        return self._groups[0]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        self._groups[0].cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _host(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._groups.append(tasks)
                self._began.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    if _is_trio_ending():
                        self._loop_ends()
            if not self._leaving:
                self._failed(GantryError("a task in the background raised CancelledError, which ended the others"))
        except Exception as error:
            self._failed(error)
        finally:
            self._ended.set()


def hosted_tasks(failed: Callable[[Exception], None], loop_ends: Callable[[], None] = lambda: None) -> HostedTasks:
    """:func:`background_tasks` in a separate task, so that the block may end in another task than it began in.

    An error of a background task ends the others and is passed to ``failed``; it does not cancel the block. So does a
    CancelledError of asyncio that a task raises without being cancelled.

    ``loop_ends`` is called when trio's loop ends before the block: it waits for all tasks, so shielded ones must end.
    """
    return HostedTasks(failed, loop_ends)


def _spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Run ``work`` in the event loop without a task group; the caller must keep the result while it runs."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return trio.lowlevel.spawn_system_task(work, context=contextvars.copy_context())
    return asyncio.get_running_loop().create_task(work())


def _is_trio_ending() -> bool:
    """Whether trio's loop has cancelled the task that :func:`_spawn` has made, and runs this."""
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_run():
        return False
    return bool(trio.lowlevel.current_task().parent_nursery.cancel_scope.cancel_called)


def _asyncio_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop of asyncio runs here
        return None

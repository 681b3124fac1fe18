"""A CancelledError of asyncio that does not cancel the task that gets it, as after awaiting a cancelled task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.tasks import foreign_cancellation_as_error, hosted_tasks

Work = Callable[[], Awaitable[None]]


async def cancelled_elsewhere() -> None:
    task = asyncio.ensure_future(asyncio.sleep(20))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def guarded(work: Work) -> None:
    with foreign_cancellation_as_error():
        await work()


def test_a_cancellation_of_something_else_is_an_error() -> None:
    with pytest.raises(GantryError, match="was cancelled") as caught:
        asyncio.run(guarded(cancelled_elsewhere))
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


def test_a_cancellation_of_the_task_itself_is_none() -> None:
    async def by_a_scope() -> bool:
        with anyio.move_on_after(0.01) as scope:
            await guarded(anyio.sleep_forever)
        return scope.cancelled_caught

    async def by_asyncio() -> None:
        task = asyncio.ensure_future(guarded(anyio.sleep_forever))
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task

    async def by_a_timeout_within() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await guarded(anyio.sleep_forever)
        with pytest.raises(TimeoutError):
            await guarded(lambda: asyncio.wait_for(asyncio.sleep(20), 0.01))

    assert asyncio.run(by_a_scope())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(by_asyncio())
    asyncio.run(by_a_timeout_within())


@pytest.mark.trio
async def test_a_cancellation_in_trio_remains_one() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await guarded(anyio.sleep_forever)
    assert scope.cancelled_caught


def test_background_tasks_that_end_before_their_block_are_reported() -> None:
    failures: list[Exception] = []

    async def main() -> None:
        async with hosted_tasks(failures.append) as tasks:
            tasks.start_soon(anyio.sleep_forever)
            assert not failures
            tasks.start_soon(cancelled_elsewhere)
            with anyio.fail_after(20):
                while not failures:  # noqa: ASYNC110
                    await anyio.sleep(0.001)

    asyncio.run(main())
    (failure,) = failures
    assert "raised CancelledError" in str(failure)


def test_background_tasks_that_end_with_their_block_or_their_loop_are_not_reported() -> None:
    failures: list[Exception] = []

    async def main() -> None:
        async with hosted_tasks(failures.append) as tasks:
            tasks.start_soon(anyio.sleep_forever)

    async def leave_open() -> None:
        block = hosted_tasks(failures.append)
        tasks = await block.__aenter__()
        tasks.start_soon(anyio.sleep_forever)

    asyncio.run(main())
    anyio.run(main, backend="trio")
    asyncio.run(leave_open())
    assert not failures

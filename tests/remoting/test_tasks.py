"""Task groups whose errors callers can catch by their types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
import trio.testing

from gantrymq.remoting.errors import ChannelClosed, ConnectFailed
from gantrymq.remoting.tasks import concurrent_tasks

pytestmark = pytest.mark.trio

Work = Callable[[], Awaitable[None]]


def failing(error: BaseException) -> Work:
    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    return work


def failing_when_cancelled(error: BaseException) -> Work:
    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    return work


async def run(*tasks: Work, block: Work = anyio.lowlevel.checkpoint) -> None:
    """``tasks`` beside ``block``."""
    async with concurrent_tasks() as group:
        for each in tasks:
            group.start_soon(each)
        await block()


async def test_the_end_of_the_block_awaits_its_tasks(autojump_clock: trio.testing.MockClock) -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await anyio.sleep(number)
        done.append(number)

    async with concurrent_tasks() as tasks:
        for number in (3, 1, 2):
            tasks.start_soon(work, number)
    assert done == [1, 2, 3]


async def test_the_error_of_a_task_cancels_the_others_and_is_raised_unchanged() -> None:
    error, cause = ConnectFailed("192.0.2.1:1", "refused"), OSError("refused")
    error.__cause__ = cause
    with pytest.raises(ConnectFailed) as caught:
        await run(anyio.sleep_forever, failing(error))
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (cause, None)
    with pytest.raises(ConnectFailed) as caught:
        await run(failing(error), block=anyio.sleep_forever)
    assert caught.value is error


async def test_the_first_of_several_errors_is_raised() -> None:
    first = ExceptionGroup("tasks", [ChannelClosed("192.0.2.1:1", "closed"), ValueError("the second")])
    with pytest.raises(ChannelClosed):
        await run(failing_when_cancelled(ValueError("the third")), failing(first))


async def test_an_error_of_the_block_is_raised_unchanged() -> None:
    error = ConnectFailed("192.0.2.1:1", "refused")
    with pytest.raises(ConnectFailed) as caught:
        await run(anyio.sleep_forever, block=failing(error))
    assert caught.value is error


async def test_a_cancellation_from_outside_ends_the_tasks() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run(anyio.sleep_forever)
    assert scope.cancelled_caught


async def test_an_error_beside_a_cancellation_from_outside_is_raised_unchanged() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(ChannelClosed):
            await run(anyio.sleep_forever, failing_when_cancelled(ChannelClosed("192.0.2.1:1", "closed")))


async def test_an_interrupt_is_not_hidden_by_an_error() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run(failing(ChannelClosed("192.0.2.1:1", "closed")), failing_when_cancelled(KeyboardInterrupt()))
    assert caught.group_contains(KeyboardInterrupt)

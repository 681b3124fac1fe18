"""Both strategies of the slot keep its contract; each has its own cadence on top."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.commitlog import CommitLog, LogPoisoned
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.kernel.flushing import FlushStrategy
from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.plugins.flush.sync import DurableGate, GroupCommit
from gantrymq.testing.envs import MemoryEnv


class SlowFile:
    """A file whose sync takes as long as the test says, and fails if it says so."""

    def __init__(self) -> None:
        self.syncs = 0
        self.entered = threading.Semaphore(0)
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.error: OSError | None = None

    def datasync(self) -> None:
        self.syncs += 1
        self.entered.release()
        assert self.may_finish.wait(10)
        if self.error is not None:
            raise self.error


class Wakes:
    """A waker that keeps how far the log was durable each time."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.seen: list[int] = []

    def fileno(self) -> int:
        return -1

    def wake(self) -> None:
        self.seen.append(self.log.durable)

    def drain(self) -> None:
        raise AssertionError("the sweep's business")

    def close(self) -> None:
        raise AssertionError("the sweep's business")


class FileEnv(MemoryEnv):
    """A disk with one file of the log, which is a :class:`SlowFile`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = SlowFile()
        self.made = super().flusher()
        self.made.follow(self.slow)  # type: ignore[arg-type]

    def flusher(self) -> Flusher:
        return self.made


@pytest.fixture
def env() -> FileEnv:
    return FileEnv()


@pytest.fixture
def log(env: FileEnv) -> CommitLog:
    return CommitLog(
        env, "/log", "/staging", file_bytes=4096, next_offsets={}, store_host=bytes(8), max_body_bytes=1024
    )


def grow(log: CommitLog, env: FileEnv, end: int) -> None:
    """As if records up to ``end`` had been written."""
    log._tail = (end, end)
    env.made.appended(end, end)


async def until(condition: Callable[[], bool]) -> None:
    """The flusher is a real thread: there is no event of trio's to wait for."""
    while not condition():
        await trio.lowlevel.checkpoint()


Make = Callable[[CommitLog], FlushStrategy]
STRATEGIES: dict[str, Make] = {
    "sync": lambda log: GroupCommit(log, Wakes(log)),
    "async": lambda log: IntervalFlush(log, 0.01, 1, 1.0),
}


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_what_was_appended_becomes_durable(make: Make, log: CommitLog, env: FileEnv) -> None:
    strategy = make(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        for end in (100, 200):
            grow(log, env, end)
            strategy.appended(end)
            with trio.fail_after(10):
                await until(lambda: log.durable >= log.end)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_a_cancelled_strategy_flushes_the_rest_before_it_returns(
    make: Make, log: CommitLog, env: FileEnv
) -> None:
    strategy = make(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        await trio.testing.wait_all_tasks_blocked()
        grow(log, env, 100)
        nursery.cancel_scope.cancel()
    assert log.durable == 100


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_a_failed_flush_ends_the_strategy_and_is_not_tried_again(
    make: Make, log: CommitLog, env: FileEnv
) -> None:
    env.slow.error = OSError(errno.EIO, "the disk")
    strategy = make(log)

    async def life() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(strategy.run)
            grow(log, env, 100)
            strategy.appended(100)

    with pytest.RaisesGroup(LogPoisoned, flatten_subgroups=True, allow_unwrapped=True):
        await life()
    assert (log.durable, env.slow.syncs) == (0, 1)
    with pytest.raises(LogPoisoned):
        log.flush()
    assert env.slow.syncs == 1


@pytest.mark.trio
async def test_all_that_arrives_while_one_flush_runs_shares_the_next(log: CommitLog, env: FileEnv) -> None:
    wakes = Wakes(log)
    strategy = GroupCommit(log, wakes)
    env.slow.may_finish.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        grow(log, env, 100)
        strategy.appended(100)
        await trio.to_thread.run_sync(env.slow.entered.acquire)
        for end in range(200, 1100, 100):
            grow(log, env, end)
            strategy.appended(end)
        env.slow.may_finish.set()
        with trio.fail_after(10):
            await until(lambda: log.durable == 1000)
        nursery.cancel_scope.cancel()
    assert env.slow.syncs == 2
    assert wakes.seen == [100, 1000]


@pytest.mark.trio
async def test_the_interval_waits_for_enough_bytes_or_the_thorough_interval(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, log: CommitLog, env: FileEnv
) -> None:
    async def run_here(function: Callable[[], Any]) -> Any:
        return function()  # the mocked clock would not wait for a thread

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    strategy = IntervalFlush(log, 0.5, 1000, 10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        grow(log, env, 999)
        await trio.sleep(9.9)
        assert log.durable == 0
        await trio.sleep(0.6)
        assert log.durable == 999
        grow(log, env, 1999)
        await trio.sleep(0.6)
        assert log.durable == 1999
        nursery.cancel_scope.cancel()


def test_the_gate_is_the_logs_durable_end(log: CommitLog) -> None:
    gate = DurableGate(log, 5.0)
    log.opened_at(123, 0)
    assert gate.watermark == 123
    assert gate.late_code == 10

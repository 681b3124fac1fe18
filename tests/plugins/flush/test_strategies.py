"""Both strategies of the slot keep its contract; each has its own cadence on top."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.plugins.flush.sync import DurableGate, GroupCommit


class FakeLog:
    """A log whose flush takes as long as the test says."""

    def __init__(self) -> None:
        self.end = 0
        self.durable = 0
        self.flushes: list[int] = []
        self.attempts = 0
        self.entered = threading.Semaphore(0)
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.error: Exception | None = None

    def flush(self) -> int:
        end = self.end
        self.attempts += 1
        self.entered.release()
        assert self.may_finish.wait(10)
        if self.error is not None:
            raise self.error
        self.flushes.append(end)
        self.durable = end
        return end


async def until(condition: Callable[[], bool]) -> None:
    """The flusher is a real thread: there is no event of trio's to wait for."""
    while not condition():
        await trio.lowlevel.checkpoint()


Make = Callable[[Any], Any]
STRATEGIES: dict[str, Make] = {
    "sync": lambda log: GroupCommit(log, lambda: None),
    "async": lambda log: IntervalFlush(log, 0.01, 1, 1.0),
}


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_what_was_appended_becomes_durable(make: Make) -> None:
    log = FakeLog()
    strategy = make(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        for end in (100, 200):
            log.end = end
            strategy.appended(end)
            with trio.fail_after(10):
                await until(lambda: log.durable >= log.end)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_a_cancelled_strategy_flushes_the_rest_before_it_returns(make: Make) -> None:
    log = FakeLog()
    strategy = make(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        await trio.testing.wait_all_tasks_blocked()
        log.end = 100
        nursery.cancel_scope.cancel()
    assert log.durable == 100


@pytest.mark.trio
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
async def test_a_failed_flush_ends_the_strategy_and_is_not_tried_again(make: Make) -> None:
    log = FakeLog()
    log.error = OSError("the disk")
    strategy = make(log)

    async def life() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(strategy.run)
            log.end = 100
            strategy.appended(100)

    with pytest.RaisesGroup(OSError, flatten_subgroups=True, allow_unwrapped=True):
        await life()
    assert (log.durable, log.attempts) == (0, 1)


@pytest.mark.trio
async def test_all_that_arrives_while_one_flush_runs_shares_the_next() -> None:
    log = FakeLog()
    woken: list[int] = []
    strategy = GroupCommit(log, lambda: woken.append(log.durable))  # type: ignore[arg-type]
    log.may_finish.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        log.end = 100
        strategy.appended(100)
        await trio.to_thread.run_sync(log.entered.acquire)
        for end in range(200, 1100, 100):
            log.end = end
            strategy.appended(end)
        log.may_finish.set()
        with trio.fail_after(10):
            await until(lambda: log.durable == 1000)
        nursery.cancel_scope.cancel()
    assert log.flushes == [100, 1000]
    assert woken == [100, 1000]


@pytest.mark.trio
async def test_the_interval_waits_for_enough_bytes_or_the_thorough_interval(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_here(function: Callable[[], Any]) -> Any:
        return function()  # the mocked clock would not wait for a thread

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    log = FakeLog()
    strategy = IntervalFlush(log, 0.5, 1000, 10.0)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strategy.run)
        log.end = 999
        await trio.sleep(9.9)
        assert log.durable == 0
        await trio.sleep(0.6)
        assert log.durable == 999
        log.end = 1999
        await trio.sleep(0.6)
        assert log.durable == 1999
        nursery.cancel_scope.cancel()


def test_the_gate_is_the_logs_durable_end() -> None:
    log: Any = FakeLog()
    gate = DurableGate(log, 5.0)
    log.durable = 123
    assert gate.watermark == 123
    assert gate.late_code == 10

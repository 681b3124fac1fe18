"""All flush strategies keep the slot's contract, each with its own timing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.acks import DurableGate
from gantrymq.kernel.errors import LogPoisoned
from gantrymq.kernel.fast.plain_flusher import Flusher
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.plugins.flush.buffered import BufferedFlush, WrittenGate
from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.plugins.flush.sync import FAST_FLUSHES, DirectFlush, GroupCommit
from gantrymq.testing import flushkit
from gantrymq.testing.memory_env import MemoryEnv


class SlowFile:
    """A file whose sync takes as long as the test says."""

    def __init__(self) -> None:
        self.syncs = 0
        self.entered = threading.Semaphore(0)
        self.may_finish = threading.Event()
        self.may_finish.set()

    def share(self) -> SlowFile:
        return self

    def datasync(self) -> None:
        self.syncs += 1
        self.entered.release()
        assert self.may_finish.wait(10)


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


class RatedFlusher(Flusher):
    """A flusher whose last flushes were as fast as the test says."""

    fast = 0

    @property
    def fast_flushes(self) -> int:
        return self.fast


class FileEnv(MemoryEnv):
    """A disk with one file of the log, which is a :class:`SlowFile`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = SlowFile()
        self.made = RatedFlusher()
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
    """Grow the log as if records up to ``end`` had been written."""
    log._tail = (end, end)
    env.made.appended(end, end)


async def until(condition: Callable[[], bool]) -> None:
    """The flusher is a real thread: there is no event of trio's to wait for."""
    while not condition():
        await trio.lowlevel.checkpoint()


STRATEGIES = {
    "sync": flushkit.Strategy(GroupCommit),
    "async": flushkit.Strategy(lambda log, waker: IntervalFlush(log, 0.01, 1, 1.0), lambda log: log.end),
    "buffered": flushkit.Strategy(
        lambda log, waker: BufferedFlush(log, waker, 0.01, 1, 1.0), lambda log: WrittenGate(log, 1.0).watermark
    ),
}


@pytest.mark.trio
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("rule", flushkit.RULES, ids=lambda rule: rule.__name__)
async def test_the_contract_of_the_slot_is_kept(rule: flushkit.Rule, strategy: flushkit.Strategy) -> None:
    await rule(strategy)


@pytest.mark.trio
@pytest.mark.parametrize(
    "rule",
    # the other rules append while the disk waits for the test, and a direct flush waits with it
    [
        flushkit.what_is_appended_becomes_durable,
        flushkit.the_rest_is_flushed_at_the_end,
        flushkit.a_failed_flush_ends_it_and_is_never_retried,
    ],
    ids=lambda rule: rule.__name__,
)
async def test_a_strategy_that_flushes_directly_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, rule: flushkit.Rule
) -> None:
    monkeypatch.setattr("gantrymq.plugins.flush.sync.FAST_FLUSHES", 0)
    await rule(flushkit.Strategy(lambda log, waker: GroupCommit(log, waker, DirectFlush(log, lambda: True))))


class Deaf(IntervalFlush):
    """Flushes nothing."""

    async def run(self) -> None:
        await trio.sleep_forever()


class Stubborn(IntervalFlush):
    """Goes on behind a flush that failed."""

    async def run(self) -> None:
        with contextlib.suppress(LogPoisoned):
            await super().run()
        await trio.sleep_forever()


class Busy(IntervalFlush):
    """Syncs more often than it has to."""

    async def run(self) -> None:
        flusher: Any = self._log._flusher
        while True:
            await trio.lowlevel.checkpoint()
            if self._log.durable < self._log.end:
                await trio.to_thread.run_sync(self._log.flush)
                await trio.to_thread.run_sync(flusher.sync, flusher._files[-1])


class Hasty(IntervalFlush):
    """Calls durable what is still being synced."""

    async def run(self) -> None:
        flusher: Any = self._log._flusher
        while True:
            await trio.lowlevel.checkpoint()
            if self._log.durable < self._log.end:
                flusher._durable = flusher._appended
                try:
                    await trio.to_thread.run_sync(flusher.sync, flusher._files[-1])
                except OSError as error:
                    raise self._log.poison("flushing", error) from error


@pytest.mark.trio
@pytest.mark.parametrize(
    ("broken", "rule", "error"),
    [
        (Deaf, flushkit.what_is_appended_becomes_durable, trio.TooSlowError),
        (Deaf, flushkit.the_rest_is_flushed_at_the_end, AssertionError),
        (Stubborn, flushkit.a_failed_flush_ends_it_and_is_never_retried, trio.TooSlowError),
        (Busy, flushkit.appends_during_a_flush_share_the_next, AssertionError),
        (Hasty, flushkit.what_is_durable_survives_a_power_cut, AssertionError),
    ],
)
async def test_the_kit_finds_what_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch, broken: type[IntervalFlush], rule: flushkit.Rule, error: type[Exception]
) -> None:
    if error is trio.TooSlowError:
        monkeypatch.setattr(flushkit, "TIMEOUT_S", 0.2)
    with pytest.RaisesGroup(error, flatten_subgroups=True, allow_unwrapped=True):
        await rule(flushkit.Strategy(lambda log, waker: broken(log, 0.01, 1, 1.0)))


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


def test_a_sender_that_is_alone_has_its_message_flushed_before_the_next_step(log: CommitLog, env: FileEnv) -> None:
    alone = True
    strategy = GroupCommit(log, Wakes(log), DirectFlush(log, lambda: alone))
    env.made.fast = FAST_FLUSHES
    grow(log, env, 100)
    strategy.appended(100)
    assert log.durable == 100
    alone = False
    grow(log, env, 200)
    strategy.appended(200)
    assert log.durable == 100, "the thread's business, which does not run here"


def test_flushes_are_left_to_the_thread_until_many_in_a_row_were_fast(log: CommitLog, env: FileEnv) -> None:
    direct = DirectFlush(log, lambda: True)
    env.made.fast = FAST_FLUSHES - 1
    grow(log, env, 100)
    assert not direct.flush()
    assert log.durable == 0
    env.made.fast = FAST_FLUSHES
    assert direct.flush()
    assert log.durable == 100


@pytest.mark.trio
async def test_the_interval_waits_for_enough_bytes_or_the_thorough_interval(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, log: CommitLog, env: FileEnv
) -> None:
    async def run_here(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # The mocked clock would not wait for a thread. A broker of the session's fixtures calls this too.
        return function(*args)

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
    log.set_end(123, 0)
    assert gate.watermark == 123
    assert gate.late_code == 10

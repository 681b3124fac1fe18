"""The contract of flush strategies (slot ``flush``), as rules that a test can call.

Each of :data:`RULES` is an async function of a :class:`Strategy`. It raises ``AssertionError`` if the strategy violates
the rule. The disk is in memory and the strategy's threads are real, so a rule takes as long as the strategy's interval:
use a short one.

    @pytest.mark.trio
    @pytest.mark.parametrize("rule", flushkit.RULES, ids=lambda rule: rule.__name__)
    async def test_my_strategy_keeps_the_contract(rule):
        await rule(flushkit.Strategy(lambda log, waker: MyStrategy(log)))
"""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio
import trio.testing

from gantrymq.kernel.acks import FlushStrategy
from gantrymq.kernel.env import File, Waker
from gantrymq.kernel.errors import LogPoisoned
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.testing.memory_env import MemoryEnv, MemoryFile
from gantrymq.testing.tinystore import batch_of, open_store, read_queue

TIMEOUT_S: Final = 10.0
"""The longest wait of a rule for the strategy, in seconds."""
_CHANCES: Final = (None, 1, 2, 3, 4)
"""Seeds that choose the unsynced bytes that survive a power cut."""


def _durable(log: CommitLog) -> int:
    return log.durable


@attrs.frozen
class Strategy:
    """A strategy under test."""

    make: Callable[[CommitLog, Waker], FlushStrategy]
    """Creates the strategy for an open log, with the sweep's waker. It should flush any data within milliseconds."""
    guaranteed: Callable[[CommitLog], int] = _durable
    """The log offset up to which messages are acknowledged: the watermark of its acknowledgment gate, or the log's end
    without a gate. The default stands for a ``DurableGate``, which the strategy's plugin must register. Messages
    before this offset must survive the end of the process; durable ones also survive a power cut."""


class SlowDisk(MemoryEnv):
    """A machine in memory whose syncs wait until ``go_on`` is set, and fail with ``error`` if it is set."""

    def __init__(self, seed: int = 0, start_ms: int = 1_700_000_000_000) -> None:
        super().__init__(seed, start_ms)
        self.syncs = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: OSError | None = None

    def open(self, path: str, create: bool = False) -> File:
        super().open(path, create)
        return _SlowFile(self, self.files[path])

    def synced(self) -> None:
        """A file is being synced."""
        self.syncs += 1
        self.begun.release()
        if not self.go_on.wait(TIMEOUT_S):
            raise AssertionError("the test did not set go_on")
        if self.error is not None:
            raise self.error


class _SlowFile(MemoryFile):
    def datasync(self) -> None:
        assert isinstance(self._env, SlowDisk)
        self._env.synced()
        super().datasync()


class Bench:
    """A store on a :class:`SlowDisk` with one durable message, and the strategy for its log."""

    def __init__(self, case: Strategy) -> None:
        self.disk = SlowDisk()
        self.store = open_store(self.disk)[0]
        self.log = self.store.log
        self.waker = self.disk.waker()
        self.ends: list[int] = []
        self.strategy = case.make(self.log, self.waker)
        self._add()
        self.log.flush()
        self.disk.syncs = 0
        self.disk.begun = threading.Semaphore(0)

    def append(self, count: int = 1) -> None:
        """Append messages, one batch for each, and notify the strategy as the sweep does."""
        for _ in range(count):
            self._add()
            self.strategy.appended(self.log.end)

    def _add(self) -> None:
        self.store.append(batch_of([b"%d" % len(self.ends)]))
        self.ends.append(self.log.end)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the strategy during the block, and cancel it at its end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.strategy.run)
                try:
                    with trio.fail_after(TIMEOUT_S):
                        yield
                finally:
                    self.disk.go_on.set()
                nursery.cancel_scope.cancel()
        finally:
            self.store.abandon()
            self.waker.close()

    async def until_durable(self) -> None:
        """Wait until all appended messages are durable."""
        # The strategy has a real thread, so there is no trio event to wait for.
        while self.log.durable < self.log.end:
            await trio.lowlevel.checkpoint()

    async def until_syncing(self) -> None:
        """Wait until the strategy has begun to sync."""
        while not self.disk.begun.acquire(blocking=False):
            await trio.lowlevel.checkpoint()

    def check_survivors(self, machine: MemoryEnv, guaranteed: int, after: str) -> None:
        """Check that the store has all messages that end at or below ``guaranteed``, and only sent messages in their
        order."""
        wanted = sum(end <= guaranteed for end in self.ends)
        store = open_store(machine)[0]
        bodies = list(read_queue(store).values())
        store.abandon()
        expect(bodies == [b"%d" % number for number in range(len(bodies))], f"{after} the messages are {bodies}")
        expect(len(bodies) >= wanted, f"{after} {len(bodies)} messages are left of {wanted} that were guaranteed")


def expect(holds: bool, otherwise: str) -> None:
    """Raise ``AssertionError`` unless it ``holds``."""
    if not holds:
        raise AssertionError(otherwise)


async def what_is_appended_becomes_durable(case: Strategy) -> None:
    """Each appended message becomes durable without a further event."""
    bench = Bench(case)
    async with bench.running():
        for _ in range(3):
            bench.append()
            await bench.until_durable()


async def the_rest_is_flushed_at_the_end(case: Strategy) -> None:
    """A cancelled strategy returns when all appended messages are durable."""
    bench = Bench(case)
    async with bench.running():
        await trio.testing.wait_all_tasks_blocked()
        bench.append(3)
    expect(bench.log.durable == bench.ends[-1], "messages appended before the end are not durable after it")


async def a_failed_flush_ends_it_and_is_never_retried(case: Strategy) -> None:
    """Linux reports a lost page only once, so the success of a second sync would prove nothing."""
    bench = Bench(case)
    before = bench.log.durable
    bench.disk.error = OSError(errno.EIO, "the disk")
    try:
        async with bench.running():
            bench.append()
            await trio.sleep_forever()
    except* LogPoisoned:
        pass
    expect(bench.log.durable == before, "messages count as durable after a failed flush")
    expect(bench.disk.syncs == 1, f"the disk was synced {bench.disk.syncs} times")
    try:
        bench.log.flush()
    except LogPoisoned:
        pass
    else:
        raise AssertionError("the log can be flushed again")
    expect(bench.disk.syncs == 1, "a flush after the failed one reached the disk")


async def appends_during_a_flush_share_the_next(case: Strategy) -> None:
    """The number of syncs depends on the speed of the disk, not on the number of batches."""
    bench = Bench(case)
    bench.disk.go_on.clear()
    async with bench.running():
        bench.append()
        await bench.until_syncing()
        bench.append(9)
        bench.disk.go_on.set()
        await bench.until_durable()
    expect(bench.disk.syncs == 2, f"{bench.disk.syncs} syncs where two were enough")


async def what_is_durable_survives_a_power_cut(case: Strategy) -> None:
    """A message must not count as durable before its sync has ended."""
    await _restart(case, lambda bench: [(bench.log.durable, bench.disk.power_cut(seed)) for seed in _CHANCES])


async def acknowledged_messages_survive_the_process(case: Strategy) -> None:
    """Acknowledged messages have been passed to the operating system, also during a sync."""
    await _restart(case, lambda bench: [(case.guaranteed(bench.log), bench.disk.kill())])


async def _restart(case: Strategy, crash: Callable[[Bench], list[tuple[int, MemoryEnv]]]) -> None:
    bench = Bench(case)
    machines: list[tuple[int, MemoryEnv]] = []
    try:
        async with bench.running():
            bench.append(3)
            await bench.until_durable()
            bench.disk.go_on.clear()
            bench.disk.begun = threading.Semaphore(0)
            bench.append()
            await bench.until_syncing()
            bench.append(3)
            machines = crash(bench)
            bench.disk.go_on.set()
            await trio.sleep_forever()
    except* LogPoisoned:
        pass  # a machine that is switched off does not sync
    for guaranteed, machine in machines:
        expect(guaranteed >= bench.ends[3], "durable messages are not guaranteed")
        bench.check_survivors(machine, guaranteed, "after the crash")


Rule = Callable[[Strategy], Awaitable[None]]
"""A rule of the contract; it raises ``AssertionError`` if the strategy violates it."""

RULES: Final[tuple[Rule, ...]] = (
    what_is_appended_becomes_durable,
    the_rest_is_flushed_at_the_end,
    a_failed_flush_ends_it_and_is_never_retried,
    appends_during_a_flush_share_the_next,
    what_is_durable_survives_a_power_cut,
    acknowledged_messages_survive_the_process,
)
"""All rules."""

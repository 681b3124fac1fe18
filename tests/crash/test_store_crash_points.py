"""The machine stops before each system call in turn, and again during recovery: rows 2, 3, 10 and 11.

A run rolls log and queue files over and deletes old ones. It is repeated with the end before its first call, its
second, and so on; each end is continued in several ways: what was written is there (the process died), only what was
synced is there (the power went), or a random part of the rest as well, block by block.
Seen failing with ``datasync`` left out of ``CommitLog.flush`` (acknowledged messages missing), with the blank at a
file's end left out (a start that finds no end), and with ``sync_dir`` left out of ``Segments`` (a file missing).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from gantrymq.kernel.errors import LogPoisoned
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv, FaultFile
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, open_store, read_queue

SEEDS = 3
TIMES_DURING_RECOVERY = 5


class Stopped(BaseException):
    """The machine is off. Nothing in the product may catch this."""


class StoppingEnv(FaultEnv):
    """Another environment, up to its ``fail_at``-th call; what tidies up behind that one is off as well."""

    def is_due(self, kind: str) -> bool:
        if super().is_due(kind) or self.failed:
            raise Stopped
        return False

    def enter(self, kind: str) -> None:
        self.is_due(kind)


class Life:
    """The acknowledged bodies of one run in queue order, and the number of those that have expired."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.expired = 0

    def run(self, env: FaultEnv) -> None:
        store, _, _ = open_store(env)
        for turn in range(12):
            batch = batch_of([b"%d/%d:" % (turn, row) + b"x" * 150 for row in range(5)])
            store.append(batch)
            durable = store.flush()
            list(store.dispatch(durable))
            self.acknowledged += [batch.bodies[row] for row in batch.live if batch.offsets[row] < durable]
            if turn % 3 == 0:
                store.prepare_next()
                store.flush_queues()
            if turn == 9:
                self._expire(store)
        store.close()

    def _expire(self, store: Store) -> None:
        detached = store.log.detach_before(2 * store.config.commit_log_file_bytes)
        assert len(detached) == 2
        queue = store.queues.get("T", 0)
        assert queue is not None
        queue.correct_min(store.log.min_offset)
        self.expired = queue.min_offset
        store.discard(detached)
        store.queues.drop_expired()

    def check(self, store: Store) -> None:
        bodies = read_queue(store)
        assert list(bodies) == list(range(min(bodies, default=0), max(bodies, default=-1) + 1)), "a gap"
        assert min(bodies, default=0) <= self.expired
        for number, body in enumerate(self.acknowledged):
            if number >= self.expired:
                assert bodies[number] == body


def survivors(disk: MemoryEnv, seed: int) -> Iterator[MemoryEnv]:
    yield disk.kill()
    yield disk.power_cut()
    for number in range(SEEDS):
        yield disk.power_cut(seed * SEEDS + number)


def recover(env: MemoryEnv, chance: random.Random) -> Store:
    """Open the store on this machine, which stops a few times while it does."""
    for _ in range(TIMES_DURING_RECOVERY):
        stopping = StoppingEnv(env, chance.randint(1, 30))
        try:
            store, _, _ = open_store(stopping)
        except Stopped:
            env = env.kill() if chance.random() < 0.5 else env.power_cut(chance.randrange(1 << 30))
            continue
        stopping.fail_at = 0
        return store
    return open_store(env)[0]


@pytest.mark.slow
def test_a_crash_before_any_call_loses_no_acknowledged_message() -> None:
    stop_at = 0
    while True:
        stop_at += 1
        disk = MemoryEnv(stop_at)
        env = StoppingEnv(disk, stop_at)
        life = Life()
        try:
            life.run(env)
        except Stopped:
            pass
        except LogPoisoned as poisoned:  # whatever ends an append half done
            if not isinstance(poisoned.__cause__, Stopped):
                raise
        else:
            break
        for number, after in enumerate(survivors(disk, stop_at)):
            store = recover(after, random.Random(stop_at * 100 + number))
            life.check(store)
            before = len(read_queue(store))
            batch = batch_of([b"afterwards"])
            store.append(batch)
            list(store.dispatch(store.flush()))
            assert len(read_queue(store)) == before + 1, "and the store works again"
    assert stop_at > 100


def test_the_fault_environment_stops_at_the_given_call() -> None:
    env = StoppingEnv(MemoryEnv(), 3)
    env.mkdirs("a")
    file = env.open("a/b", create=True)
    assert isinstance(file, FaultFile)
    with pytest.raises(Stopped):
        file.pwrite(b"x", 0)

"""Each system call fails once in a run of its own, and acknowledged messages are there after the restart."""

from __future__ import annotations

import errno

import pytest

from gantrymq.kernel.errors import LogPoisoned, StartError
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of, open_store, read_queue

FAULTS = [
    pytest.param(errno.EIO, False, "", id="EIO once"),
    pytest.param(errno.EIO, True, "", id="EIO for good"),
    pytest.param(errno.EIO, False, "short", id="EIO after a short write"),
    pytest.param(errno.EIO, False, "tear", id="EIO after a torn write"),
    pytest.param(errno.ENOSPC, False, "short", id="ENOSPC once"),
    pytest.param(errno.ENOSPC, True, "short", id="ENOSPC for good"),
    pytest.param(errno.ENOSPC, False, "tear", id="ENOSPC after a torn write"),
    pytest.param(errno.EFBIG, True, "short", id="EFBIG for good"),
    pytest.param(errno.EROFS, True, "", id="EROFS for good"),
]


def run(env: FaultEnv, acked: list[bytes]) -> None:
    """Two lives of a store, rolling log and queue files; ``acked`` gets what was acknowledged."""
    for life in range(2):
        store, _, _ = open_store(env)
        for turn in range(8):
            batch = batch_of([b"%d/%d/%d:" % (life, turn, row) + b"x" * 120 for row in range(6)])
            store.append(batch)
            durable = store.flush()
            list(store.dispatch(durable))
            acked.extend(batch.bodies[row] for row in batch.live if batch.offsets[row] < durable)
            if turn % 3 == 0:
                store.prepare_next()
                store.flush_queues()
        store.close()


@pytest.mark.soak(4)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "forever", "tear"), FAULTS)
def test_acknowledged_messages_survive_an_error_of_any_system_call(number: int, forever: bool, tear: str) -> None:
    fail_at = 0
    while True:
        fail_at += 1
        disk = MemoryEnv(fail_at)
        env = FaultEnv(disk, fail_at, number=number, forever=forever, tear=tear)
        acked: list[bytes] = []
        failure: Exception | None = None
        try:
            run(env, acked)
        except (LogPoisoned, StartError) as error:
            failure = error
        for after in (disk.kill(), disk.power_cut(), disk.power_cut(fail_at)):
            store, report, _ = open_store(after)
            bodies = list(read_queue(store).values())
            assert not report.corrupt
            assert [body for body in bodies if body in set(acked)] == acked
            assert len(set(bodies)) == len(bodies)
            # The store works again.
            batch = batch_of([b"afterwards"])
            store.append(batch)
            list(store.dispatch(store.flush()))
            assert read_queue(store)[len(bodies)] == b"afterwards"
            store.close()
        if not env.failed:
            assert failure is None
            break
    assert fail_at > 100


@pytest.mark.slow
def test_row_6_a_process_without_memory_in_any_call_ends_and_leaves_no_partial_batch() -> None:
    """Broken on purpose: with what is appended counted as flushed (acknowledged before the sync), it failed."""
    fail_at = 0
    while True:
        fail_at += 1
        disk = MemoryEnv(fail_at)
        env = FaultEnv(disk, fail_at, no_memory=True)
        acked: list[bytes] = []
        try:
            run(env, acked)
        except (MemoryError, LogPoisoned):
            assert env.failed, "nothing swallows it and goes on"
        else:
            assert not env.failed, "nothing swallows it and goes on"
            break
        for after in (disk.kill(), disk.power_cut(fail_at)):
            store, report, _ = open_store(after)
            bodies = list(read_queue(store).values())
            assert not report.corrupt
            assert [body for body in bodies if body in set(acked)] == acked
            assert len(set(bodies)) == len(bodies)
            store.close()
    assert fail_at > 100


def test_a_failed_flush_is_not_retried() -> None:
    env = FaultEnv(MemoryEnv())
    store, _, _ = open_store(env)
    store.append(batch_of([b"safe"]))
    store.flush()
    store.append(batch_of([b"lost"]))
    env.fail_at = env.count + 1
    with pytest.raises(LogPoisoned, match="flushing the commit log failed"):
        store.flush()
    syncs = env.calls["datasync"]
    for _ in range(2):
        with pytest.raises(LogPoisoned):
            store.flush()
        with pytest.raises(LogPoisoned):
            store.append(batch_of([b"more"]))
    assert env.calls["datasync"] == syncs

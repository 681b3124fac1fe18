"""A store that RocketMQ's broker left after a crash: no watermark, an abort file, incomplete queues."""

from __future__ import annotations

import attrs
import pytest

from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_queue

BODIES = [f"message {number}".encode() for number in range(9)]


@pytest.mark.parametrize("tail_bytes", [20, 10_000], ids=["entries written at once", "entries held in memory"])
@pytest.mark.parametrize("queued", [0, 4, 9])
def test_recovery_queues_each_message_once_after_another_broker_wrote_queues(queued: int, tail_bytes: int) -> None:
    config = attrs.evolve(TINY, queue_tail_bytes=tail_bytes)
    env = MemoryEnv()
    store, _, _ = open_store(env, config=config)
    if queued:
        store.append(batch_of(BODIES[:queued]))
        commit(store)
        store.flush_queues()
    if queued < len(BODIES):
        store.append(batch_of(BODIES[queued:]))
        store.flush()
    env = env.kill()
    assert env.exists("store/abort")
    env.unlink("store/gantrymq.watermark")
    store, report, _ = open_store(env, config=config)
    assert (report.foreign, report.clean, report.dispatched) == (True, False, len(BODIES))
    assert list(read_queue(store).values()) == BODIES
    batch = batch_of([b"next"])
    store.append(batch)
    commit(store)
    store.flush_queues()
    assert batch.queue_offsets == [len(BODIES)]
    store, _, _ = open_store(env.kill(), config=config)
    assert list(read_queue(store).values()) == [*BODIES, b"next"]

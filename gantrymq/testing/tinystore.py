"""Small stores for tests: tiny files, simple batches, and complete reads with consistency checks."""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.kernel.store.recovery.recovery import RecoveryReport
from gantrymq.kernel.store.store import Store, StoreConfig

TINY = StoreConfig(commit_log_file_bytes=4096, queue_file_units=20, max_message_bytes=2048, queue_tail_bytes=100)
"""File sizes with which a few dozen messages need several files."""


def batch_of(bodies: Iterable[bytes], topic: str = "T", queue_id: int = 0, properties: bytes = b"") -> AppendBatch:
    """Return a batch with these bodies."""
    batch = AppendBatch()
    for body in bodies:
        batch.add(topic, queue_id, body, properties)
    return batch


def open_store(
    env: Env, root: str = "store", config: StoreConfig = TINY, replay_from: int | None = None
) -> tuple[Store, RecoveryReport, list[DispatchBatch]]:
    """Open and recover a store. Returns it, the report, and the batches that the recovery dispatched."""
    store = Store(env, root, config)
    store.open()
    replayed: list[DispatchBatch] = []
    report = store.recover(replayed.append, replay_from)
    return store, report, replayed


def commit(store: Store) -> list[DispatchBatch]:
    """Flush and dispatch everything."""
    return list(store.dispatch(store.flush()))


def read_queue(store: Store, topic: str = "T", queue_id: int = 0) -> dict[int, bytes]:
    """Return the bodies by queue offset, without fillers. Checks that each record belongs to its entry."""
    queue = store.queues.get(topic, queue_id)
    bodies: dict[int, bytes] = {}
    if queue is None:
        return bodies
    data = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)
    if len(data) != (queue.max_offset - queue.min_offset) * ENTRY.size:
        raise AssertionError(f"{queue.folder} has {len(data)} bytes from {queue.min_offset} to {queue.max_offset}")
    for position, (offset, size, _) in enumerate(ENTRY.iter_unpack(data), queue.min_offset):
        if size == FILLER_SIZE:
            continue
        record = store.log.read_record(offset)
        where = (record.topic, record.queue_id, record.queue_offset)
        if where != (topic, queue_id, position) or len(store.log.view(offset, size)) != size:
            raise AssertionError(f"entry {position} of {queue.folder} points at {where}")
        bodies[position] = record.body
    return bodies


def read_all(store: Store) -> dict[tuple[str, int], dict[int, bytes]]:
    """:func:`read_queue` of every queue that is not empty."""
    queues = {(queue.topic, queue.queue_id): read_queue(store, queue.topic, queue.queue_id) for queue in store.queues}
    return {key: bodies for key, bodies in queues.items() if bodies}

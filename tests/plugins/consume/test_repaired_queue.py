"""A reader that read a wrong queue entry reads it again after the repair and skips no message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.store.log.windows import LogWindows
from gantrymq.kernel.store.queues.consume_queue import UNIT, ConsumeQueue
from gantrymq.kernel.store.reading import read_messages
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.consume.plain import PullLimits
from gantrymq.plugins.consume.read import QueueDisagrees, read_queue
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import commit, open_store

MESSAGES, WRONG = 20, 10


@pytest.fixture
def store() -> Store:
    """A store whose queue has two entries in the wrong order."""
    store, _, _ = open_store(MemoryEnv())
    for number in range(MESSAGES):
        batch = AppendBatch()
        batch.add("T", 0, b"%03d" % number, b"")
        store.append(batch)
    commit(store)
    store.flush_queues()
    queue = queue_of(store)
    first, second = queue.entries(WRONG, 1), queue.entries(WRONG + 1, 1)
    queue._segments.write(WRONG * UNIT, second + first)
    return store


def queue_of(store: Store) -> ConsumeQueue:
    queue = store.queues.get("T", 0)
    assert queue is not None
    return queue


def repair_after_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another reader report the entry, and its repair finish, when the next reader has read the entries."""
    read: Callable[[ConsumeQueue, int, int], bytes] = ConsumeQueue.entries

    def entries(queue: ConsumeQueue, offset: int, count: int) -> bytes:
        found = read(queue, offset, count)
        monkeypatch.setattr(ConsumeQueue, "entries", read)
        assert queue.suspect(WRONG)
        store.repair.step()
        return found

    monkeypatch.setattr(ConsumeQueue, "entries", entries)


def test_a_pull_does_not_skip_an_entry_that_was_repaired_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, limits = LogWindows(store._env, store.log), PullLimits(32, 1 << 40, 32, 1 << 40, 0)
    repair_after_reading(store, monkeypatch)
    with pytest.raises(QueueDisagrees):
        read_queue(windows, queue_of(store), WRONG, limits, 32, compile_tags("*"))
    again = read_queue(windows, queue_of(store), WRONG, limits, 32, compile_tags("*"))
    assert again.messages == MESSAGES - WRONG
    assert again.next_offset == MESSAGES


def test_a_plugins_read_does_not_skip_an_entry_that_was_repaired_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair_after_reading(store, monkeypatch)
    bodies: list[bytes] = []
    offset = 0
    for _ in range(3):
        found = read_messages(store, "T", 0, offset)
        bodies += [record.body for record in found.records]
        offset = found.next_offset
    assert bodies == [b"%03d" % number for number in range(MESSAGES)]

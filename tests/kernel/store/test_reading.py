"""Reads of many records of the log at once, at any distance from each other."""

from __future__ import annotations

import random

import attrs
import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.commitlog import USUAL_BYTES, CommitLog
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.kernel.store.reading import (
    NEAR_BYTES,
    NamedRecord,
    QueueMessages,
    count_cached,
    fetch,
    find_named,
    message_stored_at,
    read_many,
    read_messages,
)
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.records import HEADS
from gantrymq.testing.memory_env import MemoryEnv, MemoryFile
from gantrymq.testing.tinystore import TINY, batch_of, commit
from support.colddisk import Disk
from support.unreadable import break_queue


def filled(bodies: list[bytes], file_bytes: int, env: MemoryEnv | None = None) -> tuple[CommitLog, list[int]]:
    env = MemoryEnv() if env is None else env
    env.mkdirs("log")
    env.mkdirs("staging")
    log = CommitLog(
        env, "log", "staging", file_bytes=file_bytes, next_offsets={}, store_host=b"\x7f\0\0\x01\0\0\x2a\x9f",
        max_body_bytes=1 << 20,
    )  # fmt: skip
    log.open()
    log.set_end(0, 0)
    batch = batch_of(bodies)
    log.append(batch)
    return log, batch.offsets


@pytest.mark.parametrize("file_bytes", [4000, 1 << 24])
@pytest.mark.parametrize("largest", [10, 3 * USUAL_BYTES, NEAR_BYTES])
def test_records_are_read_whatever_the_distance_between_them(file_bytes: int, largest: int) -> None:
    chance = random.Random(largest)
    largest = min(largest, file_bytes // 2)
    bodies = [bytes([number]) * chance.randrange(largest) for number in range(60)]
    log, offsets = filled(bodies, file_bytes)
    for _ in range(50):
        some = chance.choices(range(60), k=chance.choice([1, 2, 9]))
        found = read_many(log, [offsets[number] for number in some])
        assert [record and (record.body, record.offset) for record in found] == [
            (bodies[number], offsets[number]) for number in some
        ]


@pytest.mark.parametrize("largest", [10, 3 * USUAL_BYTES, NEAR_BYTES])
def test_records_in_the_page_cache_are_counted_and_the_others_fetched(largest: int) -> None:
    disk = Disk()
    chance = random.Random(largest)
    log, offsets = filled([b"x" * chance.randrange(largest) for _ in range(60)], 100_000, disk)
    ends = [*offsets[1:], log.end]
    for _ in range(50):
        numbers = chance.choices(range(60), k=chance.choice([1, 2, 9]))
        places = [(offsets[number], ends[number] - offsets[number]) for number in numbers]
        disk.cool()
        for number in chance.choices(numbers, k=len(numbers) // 2):
            read_many(log, [offsets[number]])
        disk.reads.clear()
        count = count_cached(log, places)
        if count:
            read_many(log, [offset for offset, _ in places[:count]])
        assert disk.reads == []
        fetch(log, places)
        disk.reads.clear()
        assert count_cached(log, places) == len(places)
        read_many(log, [offset for offset, _ in places])
        assert disk.reads == []


def test_records_that_cannot_be_read_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log, offsets = filled([b"x" * 50] * 3, 4000)
    places = [(offsets[0], 100), (-5, 100), (log.end + 10**6, 100), (offsets[1], -7), (offsets[2], 2**31 - 1)]
    fetch(log, places)
    assert count_cached(log, places) == len(places)

    def fail(*_arguments: object) -> bytes:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(MemoryFile, "peek_into", fail)
    monkeypatch.setattr(MemoryFile, "pread", fail)
    fetch(log, places)
    assert count_cached(log, places) == len(places)


def test_an_offset_without_a_record_returns_none_and_the_others_are_found() -> None:
    log, offsets = filled([b"a" * 50, b"b" * 50, b"c" * 50], 1 << 20)
    asked = [-5, offsets[1], offsets[1] + 1, log.end - 2, log.end, 2**62, offsets[2]]
    found = read_many(log, asked)
    assert [record and record.body[:1] for record in found] == [None, b"b", None, None, None, None, b"c"]


def test_quarantined_ranges_are_not_read() -> None:
    log, offsets = filled([b"a" * 50, b"b" * 50, b"c" * 50], 1 << 20)
    log.quarantine_range(offsets[1], offsets[2])
    assert [record and record.body[:1] for record in read_many(log, offsets)] == [b"a", None, b"c"]


@pytest.mark.parametrize("host", [TINY.store_host, bytes(15) + b"\1\0\0\x2a\x9f"], ids=["ipv4", "ipv6"])
def test_a_record_at_a_queue_entry_is_found_and_a_forged_one_is_not(host: bytes) -> None:
    env = MemoryEnv()
    store = Store(env, "store", attrs.evolve(TINY, store_host=host))
    store.open()
    store.recover(lambda batch: None)
    inner = HEADS[0x20 if len(host) == 20 else 0].size  # where the body begins
    batch = AppendBatch()
    batch.add("T", 3, b"first", b"")
    batch.add("T", 3, b"second", b"K\x01v")
    store.append(batch)
    forged = Record("T", 3, b"second", queue_offset=1, offset=store.log.end + inner)
    batch = AppendBatch()
    batch.add("mine", 0, encode(forged), b"")
    batch.add("T", 3, b"prepared", b"", sys_flag=4)
    store.append(batch)
    places = store_offsets(store)
    assert find_named(store, places[1]) is None, "no queue has it yet"
    assert [*store.dispatch(store.flush())]
    assert find_named(store, places[0]) == NamedRecord("T", 3, 0, places[1])
    assert find_named(store, places[1]) == NamedRecord("T", 3, 1, places[2] - places[1])
    assert find_named(store, places[2]) == NamedRecord("mine", 0, 0, places[3] - places[2])
    assert find_named(store, places[3]) is None, "a prepared record is in no queue"
    assert store.log.read_record(forged.offset).body == b"second"
    assert find_named(store, forged.offset) is None
    for offset in (-1, 1, store.log.end - 1, store.log.end, 2**63 - 1, -(2**63)):
        assert find_named(store, offset) is None
    store.queues.delete_topic("T")
    assert find_named(store, places[0]) is None, "its topic is gone"


def store_offsets(store: Store) -> list[int]:
    """The offsets of the log's records."""
    return [offset for batch in store.log.scan(0, store.log.end) for offset in batch.offsets]


def test_messages_of_a_queue_are_read_in_order_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(MemoryEnv(), "store", attrs.evolve(TINY, max_message_bytes=1 << 16))
    store.open()
    store.recover(lambda batch: None)
    batch = AppendBatch()
    for number in range(7):
        batch.add("T", 3, b"%d" % number, b"")
        batch.add("T", 2, b"other", b"")
    store.append(batch)
    assert read_messages(store, "T", 3, 0) == QueueMessages([], 0), "nothing is committed"
    assert [*store.dispatch(store.flush())]

    def bodies(offset: int, count: int = 32) -> tuple[list[bytes], int]:
        found = read_messages(store, "T", 3, offset, count)
        return [record.body for record in found.records], found.next_offset

    assert bodies(0, 3) == ([b"0", b"1", b"2"], 3)
    assert bodies(3) == ([b"3", b"4", b"5", b"6"], 7)
    assert (bodies(7), bodies(99), bodies(-5, 1)) == (([], 7), ([], 99), ([b"0"], 1))
    assert read_messages(store, "missing", 0, 5) == QueueMessages([], 5)
    assert read_messages(store, "T", 3, 1, 1).records[0].queue_offset == 1

    monkeypatch.setattr("gantrymq.kernel.store.reading.READ_BYTES", batch.sizes[0] * 2)
    assert bodies(0) == ([b"0", b"1"], 2)
    monkeypatch.setattr("gantrymq.kernel.store.reading.READ_BYTES", 1)
    assert bodies(0) == ([b"0"], 1)


def test_reading_a_queue_skips_damaged_messages_and_stops_at_entries_that_will_be_repaired() -> None:
    store = Store(MemoryEnv(), "store", TINY)
    store.open()
    store.recover(lambda batch: None)
    batch = AppendBatch()
    for number in range(4):
        batch.add("T", 3, b"%d" % number, b"")
    store.append(batch)
    assert [*store.dispatch(store.flush())]
    store.log.quarantine_range(batch.offsets[1], batch.offsets[2])
    found = read_messages(store, "T", 3, 0)
    assert [record.body for record in found.records] == [b"0", b"2", b"3"]
    assert found.next_offset == 4

    queue = store.queues.get("T", 3)
    assert queue is not None
    queue.flush()
    queue.correct({2: ENTRY.pack(batch.offsets[0], batch.sizes[0], 0)})
    found = read_messages(store, "T", 3, 0)
    assert ([record.body for record in found.records], found.next_offset) == ([b"0"], 2)


def test_a_message_whose_queue_cannot_be_read_has_no_store_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(MemoryEnv(), "store", TINY)
    store.open()
    store.recover(lambda batch: None)
    store.append(batch_of([b"a"]))
    commit(store)
    (queue,) = store.queues
    assert message_stored_at(store.log, queue, 0) >= 0
    break_queue(monkeypatch, queue.topic, queue.queue_id)
    assert message_stored_at(store.log, queue, 0) == -1
    store.close()

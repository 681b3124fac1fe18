"""A log appends records of another log unchanged: only complete, intact ones at its own end."""

from __future__ import annotations

import errno
import random

import attrs
import pytest

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NoRoom, OutOfLog
from gantrymq.kernel.store.log.commitlog import SCAN_ROWS
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_all


def opened(env: Env) -> Store:
    """An open store of tiny files."""
    return open_store(env)[0]


def source(count: int = 60) -> tuple[Store, bytes]:
    """A store of several files, and its log's bytes."""
    store = opened(MemoryEnv())
    for number in range(count):
        store.append(batch_of([b"%d" % number * (number * 7 % 90 + 1)], queue_id=number % 3))
    commit(store)
    size = store.log.segments.file_bytes
    parts = [store.log.segments.pread(base, min(size, store.log.end - base)) for base in range(0, store.log.end, size)]
    return store, b"".join(parts)


def feed(store: Store, data: bytes, at: int, sizes: random.Random | int) -> None:
    """Bring ``data``, which lies at ``at`` in its log, in pieces; what was not taken waits for the next one."""
    waiting, sent = b"", 0
    while sent < len(data):
        size = sizes if isinstance(sizes, int) else sizes.randrange(1, 300)
        waiting += data[sent : sent + size]
        sent += size
        while taken := store.append_encoded(at, waiting):
            waiting, at = waiting[taken:], at + taken
    assert waiting == b""


@pytest.mark.parametrize("sizes", [1, 7, 5000, random.Random(1), random.Random(2)])
def test_a_copy_appended_in_pieces_of_any_size_equals_the_store(sizes: random.Random | int) -> None:
    original, data = source()
    assert len(original.log.segments) > 2
    copy = opened(MemoryEnv())
    feed(copy, data, 0, sizes)
    commit(copy)
    assert (copy.log.end, copy.log.last_timestamp) == (original.log.end, original.log.last_timestamp)
    assert read_all(copy) == read_all(original)
    for segment in original.log.segments:
        assert bytes(copy.log.segments.pread(segment.base, 10**6)) == bytes(
            original.log.segments.pread(segment.base, 10**6)
        )


def test_a_copy_continues_after_a_stop() -> None:
    _, data = source()
    env = MemoryEnv()
    copy = opened(env)
    copy.append_encoded(0, data[:700])
    end = copy.log.end
    commit(copy)
    copy.close()
    copy = opened(env)
    assert copy.log.end == end > 0
    feed(copy, data[end:], end, 4096)
    assert copy.log.end == len(data)


def test_an_empty_log_may_start_at_any_file() -> None:
    original, data = source()
    base = next(iter(list(original.log.segments)[2:])).base
    env = MemoryEnv()
    copy = opened(env)
    with pytest.raises(OutOfLog):
        copy.append_encoded(base + 1, data[base + 1 :])
    assert copy.append_encoded(base, data[base : base + 10]) == 0
    feed(copy, data[base:], base, 64)
    commit(copy)
    assert (copy.log.min_offset, copy.log.end, copy.dispatched) == (base, len(data), len(data))
    queues = read_all(copy)
    assert queues
    copy.close()
    again = opened(env)
    assert (again.log.min_offset, again.log.end) == (base, len(data))
    assert read_all(again) == queues


@pytest.mark.parametrize("place", [0, 3, 5, 8, 28, 35, 84, 87, 88, 100, 103])
def test_a_piece_with_a_flipped_byte_is_rejected_whole(place: int) -> None:
    """Sizes, magic, CRC, the place in the log, body and topic: what the format lets one check."""
    original, data = source(3)
    last = original.log.end - 107
    assert original.log.read_record(last).body == b"2" * 15
    damaged = bytearray(data)
    damaged[last + place] ^= 0xD5
    copy = opened(MemoryEnv())
    try:
        assert copy.append_encoded(0, bytes(damaged)) == last  # a size that says there is more to come
        assert place == 3
    except BadRecord:
        assert copy.log.end == 0


def test_checked_records_are_dispatched_from_memory_even_if_the_buffer_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, data = source()
    copy = opened(MemoryEnv())
    room, at = bytearray(500), 0
    while at < len(data):
        part = data[at : at + len(room)]
        room[: len(part)] = part
        at += copy.append_encoded(at, memoryview(room)[: len(part)])
        room[:] = bytes(len(room))
    with monkeypatch.context() as patched:
        patched.setattr(copy.log, "scan", None)
        dispatched = commit(copy)
    assert [offset for batch in dispatched for offset in batch.offsets] == [
        offset for batch in original.log.scan(0, original.log.end) for offset in batch.offsets
    ]
    assert read_all(copy) == read_all(original)


@pytest.mark.parametrize("backlog_bytes", [0, 700, 2000])
def test_records_beyond_the_memory_limit_are_dispatched_from_the_log(backlog_bytes: int) -> None:
    original, data = source()
    copy, _, _ = open_store(MemoryEnv(), config=attrs.evolve(TINY, backlog_bytes=backlog_bytes))
    feed(copy, data, 0, 500)
    commit(copy)
    assert read_all(copy) == read_all(original)


def test_the_number_of_records_in_one_append_is_limited() -> None:
    original = open_store(MemoryEnv(), config=attrs.evolve(TINY, commit_log_file_bytes=2**20))[0]
    original.append(batch_of([b""] * (SCAN_ROWS + 5)))
    commit(original)
    data = bytes(original.log.view(0, original.log.end))
    copy = open_store(MemoryEnv(), config=attrs.evolve(TINY, commit_log_file_bytes=2**20))[0]
    taken = copy.append_encoded(0, data)
    assert taken == len(data) // (SCAN_ROWS + 5) * SCAN_ROWS
    assert copy.append_encoded(taken, data[taken:]) == len(data) - taken
    assert [len(batch) for batch in commit(copy)] == [SCAN_ROWS, 5]


def test_appends_are_accepted_at_the_end_of_the_log_only() -> None:
    _, data = source()
    copy = opened(MemoryEnv())
    taken = copy.append_encoded(0, data[:500])
    for position in (0, taken - 1, taken + 1):
        with pytest.raises(OutOfLog):
            copy.append_encoded(position, data[taken:])
    assert copy.log.end == taken


def test_zeros_are_rejected() -> None:
    copy = opened(MemoryEnv())
    with pytest.raises(BadRecord):
        copy.append_encoded(0, bytes(500))
    assert (copy.log.end, len(copy.log.segments)) == (0, 0)


def test_a_full_disk_is_reported_as_retryable() -> None:
    _, data = source(2)
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("preallocate",))
    copy = opened(env)
    env.fail_at = env.count + 1
    with pytest.raises(NoRoom):
        copy.append_encoded(0, data)
    assert copy.log.end == 0
    feed(copy, data, 0, 5000)
    assert copy.log.end == len(data)

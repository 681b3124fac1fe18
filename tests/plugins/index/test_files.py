"""The index beside a log: searches, the sequence of files, broken chains, retention."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from gantrymq.plugins.index import files as files_module
from gantrymq.plugins.index import indexfile as indexfile_module
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.index.layout import ENTRY, Header, Shape, decode_header
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv, MemoryFile

TAIL = 4096
ROOMY = Shape(slots=7, entries=1000)


def names(env: MemoryEnv) -> list[str]:
    return env.listdir("store/index")


def test_messages_are_found_by_each_of_their_keys_newest_first(open_indexed: Callable) -> None:
    indexed = open_indexed(MemoryEnv())
    indexed.send(["a", "b"], [], ["b"])
    indexed.send(["c", "a"])
    assert indexed.find("a") == [3, 0]
    assert indexed.find("b") == [2, 0]
    assert indexed.find("nobody") == []
    assert indexed.find("a", topic="other") == []
    assert indexed.check_whole() == 4


def test_a_key_that_a_message_has_twice_is_found_once(open_indexed: Callable) -> None:
    indexed = open_indexed(MemoryEnv())
    indexed.send(["a", "a", "b", "a"])
    assert list(indexed.index.find("T", "a", 0, 2**62)) == [0]


def test_full_files_are_followed_by_the_next_and_all_are_searched(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env)
    for number in range(12):
        indexed.send([f"k{number}", "all", f"m{number % 3}"])
    assert [file.header.count for file in indexed.index.files] == [10, 10, 10, 10]
    assert indexed.check_whole() == 12
    assert indexed.save()
    assert indexed.check_whole() == 12
    assert len(names(env)) == 4


def test_messages_without_keys_make_no_file(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env)
    indexed.send([], [])
    indexed.save(settle=True)
    assert names(env) == []
    assert indexed.index.position == indexed.store.dispatched


def test_rolled_back_messages_are_not_found(open_indexed: Callable) -> None:
    indexed = open_indexed(MemoryEnv(), ROOMY)
    indexed.send(["a"], sys_flag=12)
    indexed.send(["a"], sys_flag=4)
    assert len(list(indexed.index.find("T", "a", 0, 2**62))) == 1


def test_a_time_range_bounds_what_is_found(open_indexed: Callable) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_500)
    indexed = open_indexed(env)
    for _ in range(30):
        indexed.send(["a"])
        env.advance(700)
    times = [indexed.record(offset).store_timestamp for offset in indexed.index.find("T", "a", 0, 2**62)]
    assert len(times) == 30
    for begin, end in [(times[20], times[10]), (times[25] + 1, times[25] + 1), (times[0], 2**62), (0, times[29])]:
        found = {indexed.record(offset).store_timestamp for offset in indexed.index.find("T", "a", begin, end)}
        wanted = {time for time in times if begin <= time <= end}
        assert wanted <= found
        assert all(begin - 1000 < time < end + 1000 for time in found)


def test_a_search_in_a_long_chain_ends(open_indexed: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "STEPS_MAX", 20)
    indexed = open_indexed(MemoryEnv(), Shape(slots=1, entries=1000))
    indexed.send(["old"])
    indexed.send(*([["a"]] * 19))
    assert len(indexed.find("old")) == 1
    indexed.send(["a"])
    assert indexed.find("old") == []


@pytest.mark.parametrize(
    ("number", "entry"),
    [
        (5, (None, None, None, 5)),  # itself
        (5, (None, None, None, 8)),  # a newer one: a loop
        (5, (None, None, None, 10**6)),  # behind the end
        (5, (None, None, None, -1)),
        (5, (None, 2**40, None, None)),  # a place that the log does not have
        (5, (None, -1, None, None)),
        (5, (None, None, -1, None)),
        (8, (0, 0, 0, 0)),
    ],
)
def test_a_broken_chain_ends_a_search_and_finds_nothing_wrong(
    open_indexed: Callable, number: int, entry: tuple[int | None, ...]
) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, Shape(slots=1, entries=100))
    indexed.send(*([[f"k{number}", "all"] for number in range(5)]))
    indexed.save(settle=True)
    (file,) = indexed.index.files
    at = file.shape.entries_at + number * ENTRY.size
    disk = env.open(file.path)
    old = ENTRY.unpack(disk.pread(ENTRY.size, at))
    disk.pwrite(ENTRY.pack(*(before if now is None else now for before, now in zip(old, entry, strict=True))), at)
    found = indexed.find("all")
    assert found == sorted(found, reverse=True)
    assert found[: (10 - number) // 2] == [4, 3, 2, 1, 0][: (10 - number) // 2]
    for key in range(5):
        assert indexed.find(f"k{key}") in ([key], [])


@pytest.mark.parametrize("slot", [-1, 0, 12, 2**31 - 1])
def test_a_slot_that_leads_nowhere_finds_nothing(open_indexed: Callable, slot: int) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, Shape(slots=1, entries=12))
    for number in range(12):
        indexed.send([f"k{number}"])
    indexed.save()
    env.open(indexed.index.files[0].path).pwrite(slot.to_bytes(4, "big", signed=True), 40)
    assert indexed.find("k0") == []
    assert indexed.find("k11") == [11]


@pytest.mark.parametrize("writes", [0, 1, 4], ids=["nothing", "a-part", "everything"])
def test_a_file_begins_with_empty_slots_however_many_were_prepared(
    open_indexed: Callable, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    prepared: list[int] = []
    begin = IndexFile.begin
    monkeypatch.setattr(IndexFile, "begin", lambda file, slots: (prepared.append(len(slots)), begin(file, slots)))
    monkeypatch.setattr(files_module, "PIECE_BYTES", 25)
    indexed = open_indexed(MemoryEnv(), Shape(slots=25, entries=17))
    for number in range(60):
        indexed.send([f"k{number}"])
        if indexed.index.files[-1].is_nearly_full:
            for _ in range(writes):
                assert indexed.index.write()
    assert prepared == [0, *[min(100, 3 * 25 * writes)] * 3], "before each of the last three entries"
    assert {len(file.slots) for file in indexed.index.files} == {100}
    assert indexed.check_whole() == 60
    assert [indexed.find(f"k{number}") for number in range(60)] == [[number] for number in range(60)]


def test_files_of_messages_that_are_gone_are_deleted_but_never_the_last(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env)
    for number in range(60):
        indexed.send([f"k{number}", "all"])
    indexed.save()
    before = names(env)
    indexed.store.log.segments.delete_before(indexed.store.log.segments.end - TAIL)
    start = indexed.store.log.min_offset
    kept = [file.name for file in indexed.index.files if file.header.end_offset >= start]
    assert indexed.index.delete_before(start) == len(before) - len(kept) > 0
    assert names(env) == kept
    indexed.store.queues.correct_min(start)
    assert indexed.check_whole() > 0
    assert indexed.index.delete_before(2**60) == len(kept) - 1
    assert names(env) == kept[-1:]


def test_a_file_that_cannot_be_deleted_is_tried_again_before_younger_ones(open_indexed: Callable) -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, kinds=("unlink",))
    indexed = open_indexed(env)
    for number in range(30):
        indexed.send([f"k{number}", "all"])
    indexed.save()
    before = names(disk)
    ends = [file.header.end_offset for file in indexed.index.files]
    env.count, env.fail_at, env.forever = 0, 2, True
    for offset in (ends[3], ends[4]):
        with pytest.raises(OSError, match="injected"):
            indexed.index.delete_before(offset)
        assert names(disk) == before[1:]
    env.fail_at = 0
    assert indexed.index.delete_before(ends[4]) == 3
    assert names(disk) == before[4:]


def test_a_full_disk_is_logged_once_until_the_index_is_saved(open_indexed: Callable) -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("pwrite",))
    indexed = open_indexed(env, ROOMY)
    indexed.send(["a"], ["b"])
    env.count, env.fail_at, env.forever = 0, 1, True
    with capture_logs() as logs:
        for _ in range(3):
            assert not indexed.index.write()
            assert not indexed.save()
        env.fail_at = 0
        assert indexed.index.write()
        assert indexed.save()
        assert indexed.save()
    named = [each for each in logs if each["log_level"] == "warning"]
    assert [each["event"] for each in named] == ["index_entries_not_written", "outage_ended"]
    assert (named[1]["of"], named[1]["failures"]) == ("index_entries_not_written", 6)


def test_an_index_that_stopped_is_logged_once(open_indexed: Callable) -> None:
    env = FaultEnv(MemoryEnv(), kinds=("pwrite",))
    indexed = open_indexed(env, ROOMY)
    indexed.send(["a"])
    env.count, env.fail_at, env.forever = 0, 1, True
    with capture_logs() as logs:
        assert [indexed.index.write() for _ in range(3)] == [False] * 3
    assert [each["event"] for each in logs] == ["index_stopped"]
    assert env.failed == 1


def test_saves_that_find_no_room_add_the_same_header_to_the_marks_once(open_indexed: Callable) -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("replace",))
    indexed = open_indexed(env)
    for number in range(6):
        indexed.send([f"k{number}", "all"])
    file = indexed.index.files[0]
    assert file.is_full
    env.count, env.fail_at, env.forever = 0, 1, True
    assert [indexed.save() for _ in range(3)] == [False] * 3
    assert len(file.found) == 2
    env.fail_at = 0
    assert indexed.save()
    assert file.is_settled


def test_entries_in_memory_are_found_and_kept_while_the_disk_is_full(open_indexed: Callable) -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("pwrite",))
    indexed = open_indexed(env, ROOMY)
    indexed.send(["a"], ["b"])
    env.fail_at, env.forever = 1, True
    env.count = 0
    assert not indexed.index.write()
    assert not indexed.save()
    assert not indexed.index.failed
    assert indexed.check_whole() == 2
    env.fail_at = 0
    assert indexed.index.write()
    assert indexed.index.waiting_bytes == 0
    assert indexed.save(settle=True)
    assert indexed.check_whole() == 2


def test_a_disk_that_fails_ends_the_index_and_not_the_log(open_indexed: Callable) -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, kinds=("datasync",))
    indexed = open_indexed(env, ROOMY)
    indexed.send(["a"])
    env.count, env.fail_at = 0, 1
    assert not indexed.save()
    assert indexed.index.failed
    assert not indexed.save(settle=True)
    assert not disk.exists("store/gantrymq.index")
    indexed.store.close()
    again = open_indexed(disk, ROOMY)
    again.level()
    assert again.check_whole() == 1


def test_slots_and_header_of_a_settled_file_are_what_rocketmq_writes(open_indexed: Callable) -> None:
    """The layout by hand: three keys in one file of 3 slots."""
    env = MemoryEnv()
    indexed = open_indexed(env, Shape(slots=3, entries=10))
    indexed.send(["x"])
    env.advance(2500)
    indexed.send(["y", "x"])
    indexed.save(settle=True)
    (file,) = indexed.index.files
    data = env.read_bytes(file.path)
    assert len(data) == 40 + 3 * 4 + 10 * 20
    first, second = 0, indexed.record(0) and indexed.index.last[1]
    begin = indexed.record(0).store_timestamp
    hash_x, hash_y = (sum(ord(c) * 31 ** (2 - at) for at, c in enumerate(f"T#{key}")) for key in "xy")
    assert hash_x % 3 != hash_y % 3
    slots = {hash_x % 3: 3, hash_y % 3: 2}
    assert decode_header(data[:40]) == Header(begin, begin + 2500, first, second, 2, 4)
    assert data[40:52] == b"".join(slots.get(slot, 0).to_bytes(4, "big") for slot in range(3))
    entries = [(0, 0, 0, 0), (hash_x, first, 0, 0), (hash_y, second, 2, 0), (hash_x, second, 2, 1)]
    assert data[52:] == b"".join(ENTRY.pack(*entry) for entry in entries) + bytes(6 * 20)


def test_a_put_does_not_wait_for_the_disk_reads_of_a_search(
    open_indexed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's thread puts."""
    indexed = open_indexed(MemoryEnv(), ROOMY)
    indexed.send(["a"])
    indexed.save()
    reading, read = Event(), Event()
    pread = MemoryFile.pread

    def slow_pread(file: MemoryFile, size: int, offset: int) -> bytes:
        if not reading.is_set():
            reading.set()
            read.wait(10)
        return pread(file, size, offset)

    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(MemoryFile, "pread", slow_pread)
        search = pool.submit(list, indexed.index.find("T", "a", 0, 2**62))
        try:
            assert reading.wait(10)
            pool.submit(indexed.send, ["b"]).result(timeout=3)
        finally:
            read.set()
        assert search.result(timeout=10) == [0]
    assert indexed.check_whole() == 2


def test_a_search_during_a_put_finds_what_was_put_before(
    open_indexed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots and header name an entry before its bytes are where a search reads them."""
    indexed = open_indexed(MemoryEnv(), ROOMY)
    indexed.send(["a"])
    searches: list[Future[list[int]]] = []
    real = indexfile_module.put_rows

    def put_rows(*arguments: Any) -> tuple[bytes, int, int]:
        result = real(*arguments)
        searches.append(pool.submit(list, indexed.index.find("T", "a", 0, 2**62)))
        wait(searches, timeout=0.3)  # it may wait for the put
        return result

    monkeypatch.setattr(indexfile_module, "put_rows", put_rows)
    with ThreadPoolExecutor() as pool:
        indexed.send(["a"])
        (search,) = searches
        assert search.result(timeout=10)[-1:] == [0]

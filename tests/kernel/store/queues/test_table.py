"""Consume queues: entries in memory and in files, replay, gaps, both ends, search by time, deletion, failures."""

from __future__ import annotations

import errno
import struct
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given
from structlog.testing import capture_logs

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import File
from gantrymq.kernel.errors import NoRoom
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.queues.consume_queue import FILLER, ConsumeQueue
from gantrymq.kernel.store.queues.table import MANY, MANY_NEW, ConsumeQueues, QueuesPoisoned, check_topic
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv

Row = tuple[str, int, int, int]
"""Topic, queue id, queue offset, log offset."""
SIZE = 100


def make(env: MemoryEnv | FaultEnv, tail_bytes: int = 1 << 20, file_units: int = 20) -> ConsumeQueues:
    env.mkdirs("consumequeue")
    env.mkdirs("staging")
    queues = ConsumeQueues(env, "consumequeue", "staging", file_units=file_units, tail_bytes=tail_bytes)
    queues.open()
    return queues


def batch_of(rows: list[Row], sys_flag: int = 0) -> DispatchBatch:
    count = len(rows)
    return DispatchBatch(
        rows[0][3],
        rows[-1][3] + SIZE,
        [row[3] for row in rows],
        [SIZE] * count,
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [0] * count,
        [sys_flag] * count,
        [0] * count,
        [b""] * count,
        [-row[3] for row in rows],
    )


def fill(queues: ConsumeQueues, count: int, first: int = 0, topic: str = "T") -> ConsumeQueue:
    """Put entries ``first`` to ``first + count`` - 1, entry n at log offset 100 n."""
    queues.put(batch_of([(topic, 0, number, number * SIZE) for number in range(first, first + count)]))
    queue = queues.get(topic, 0)
    assert queue is not None
    return queue


def content(queue: ConsumeQueue) -> list[tuple[int, ...]]:
    return [entry[:2] for entry in ENTRY.iter_unpack(queue.entries(queue.min_offset, 10_000))]


def expected(first: int, end: int) -> list[tuple[int, int]]:
    return [(number * SIZE, SIZE) for number in range(first, end)]


def test_entries_are_readable_at_once_from_memory_and_file() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 25)
    assert (queue.min_offset, queue.max_offset, queues.units) == (0, 25, 25)
    assert queue.entries(24, 5) == struct.pack(">qiq", 2400, SIZE, -2400)
    queues.flush()
    fill(queues, 40, 25)
    for start in range(70):
        for count in (1, 7, 50):
            found = list(ENTRY.iter_unpack(queue.entries(start, count)))
            assert found == [(n * SIZE, SIZE, -n * SIZE) for n in range(start, min(start + count, 65))]
    assert queue.entries(65, 10) == b""


def test_queues_are_reopened_with_full_sized_files() -> None:
    env = MemoryEnv()
    queues = make(env)
    fill(queues, 45)
    fill(queues, 20, topic="%RETRY%g")
    assert env.listdir("consumequeue") == []
    queues.flush()
    assert env.listdir("consumequeue/T/0") == [f"{0:020d}", f"{400:020d}", f"{800:020d}"]
    assert len(env.read_bytes(f"consumequeue/T/0/{800:020d}")) == 400
    for after in (env.kill(), env.power_cut()):
        again = make(after)
        assert again.units == 65
        assert again.next_offsets == {("T", 0): 45, ("%RETRY%g", 0): 20}
        assert (again.next_offset("T", 0), again.next_offset("T", 1)) == (45, 0)
        queue = again.get("T", 0)
        assert queue is not None
        assert content(queue) == expected(0, 45)
        fill(again, 5, 45)
        assert content(queue) == expected(0, 50)


def test_queues_of_every_length_are_reopened() -> None:
    for count in range(1, 62):
        env = MemoryEnv()
        queues = make(env)
        fill(queues, count)
        queues.flush()
        queue = make(env.power_cut()).get("T", 0)
        assert queue is not None
        assert (queue.max_offset, queue.log_end) == (count, count * SIZE)


@pytest.mark.parametrize("count", [203, 204, 205, 407, 408, 409, 998, 999, 1000, 1001, 1204, 2000])
def test_queues_with_several_pages_of_entries_are_reopened(count: int) -> None:
    env = MemoryEnv()
    queues = make(env, file_units=1000)
    fill(queues, count)
    queues.flush()
    queue = make(env, file_units=1000).get("T", 0)
    assert queue is not None
    assert (queue.max_offset, queue.log_end) == (count, count * SIZE)


def test_reopening_a_queue_reads_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    queues = make(env, file_units=300_000)
    fill(queues, 5)
    queues.flush()
    read: list[int] = []
    pread = Segments.pread
    monkeypatch.setattr(Segments, "pread", lambda self, offset, size: read.append(size) or pread(self, offset, size))
    make(env, file_units=300_000)
    assert len(read) <= 4, "one for all entries, not one for each step of a search"


def test_a_long_tail_is_written_before_the_next_flush() -> None:
    env = MemoryEnv()
    queues = make(env, tail_bytes=200)
    fill(queues, 9)
    assert env.listdir("consumequeue") == []
    fill(queues, 1, 9)
    queue = make(env.kill()).get("T", 0)
    assert queue is not None
    assert queue.max_offset == 10


def test_each_topic_and_queue_has_its_own_entries() -> None:
    queues = make(MemoryEnv())
    rows = [("A", 0, 0, 0), ("B", 0, 0, 100), ("A", 1, 0, 200), ("A", 0, 1, 300), ("B", 0, 1, 400)]
    queues.put(batch_of(rows))
    found = {(queue.topic, queue.queue_id): [entry[0] for entry in content(queue)] for queue in queues}
    assert found == {("A", 0): [0, 300], ("B", 0): [100, 400], ("A", 1): [200]}
    assert queues.get("A", 7) is None


@pytest.mark.parametrize(("sys_flag", "count"), [(0, 1), (8, 1), (4, 0), (12, 0), (0x18, 1), (0x14, 0)])
def test_only_plain_and_committed_messages_get_entries(sys_flag: int, count: int) -> None:
    queues = make(MemoryEnv())
    queues.put(batch_of([("T", 0, 0, 0)], sys_flag))
    assert queues.units == count


def test_a_replay_adds_no_entry_twice() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 30)
    fill(queues, 30)
    fill(queues, 20, 15)
    assert content(queue) == expected(0, 35)
    assert queues.units == 35


def test_a_queue_that_starts_above_zero_is_filled_within_its_file() -> None:
    env = MemoryEnv()
    queues = make(env)
    queue = fill(queues, 3, 47)
    assert (queue.min_offset, queue.max_offset) == (47, 50)
    assert content(queue) == expected(47, 50)
    assert queue.entries(40, 7) == FILLER * 7
    assert struct.pack(">qiq", 0, 0x7FFFFFFF, 0) == FILLER
    queues.flush()
    assert env.listdir("consumequeue/T/0") == [f"{800:020d}"]
    again = make(env)
    again.correct_min(0)
    found = again.get("T", 0)
    assert found is not None
    assert (found.min_offset, found.max_offset, found.log_end) == (47, 50, 5000)


def test_a_queue_in_memory_has_a_first_and_an_end_offset() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 9, 47)
    queues.correct_min(5000)
    assert (queue.min_offset, queue.max_offset) == (50, 56)
    queues.truncate(5300, lambda *_: True)
    assert content(queue) == expected(50, 53)
    queues.truncate(0, lambda *_: True)
    assert (queue.max_offset, queues.units) == (40, 40)


def test_a_gap_is_filled_to_keep_later_offsets() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 5)
    fill(queues, 2, 8)
    assert queue.entries(5, 3) == FILLER * 3
    assert [entry[0] for entry in content(queue)] == [0, 100, 200, 300, 400, 0, 0, 0, 800, 900]
    assert queues.units == 10


@pytest.mark.parametrize("flushes", [False, True])
def test_truncation_keeps_fillers_behind_a_correct_entry(flushes: bool) -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 5)
    fill(queues, 2, 8)
    if flushes:
        queues.flush()
    queues.truncate(800, lambda *_: True)
    assert content(queue) == [*expected(0, 5), *[(0, 0x7FFFFFFF)] * 3]
    assert queues.next_offset("T", 0) == queues.units == 8
    queues.truncate(400, lambda *_: True)
    assert content(queue) == expected(0, 4)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_record_takes_the_place_of_a_filler_at_the_end(flushes: bool) -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 5)
    fill(queues, 1, 9)
    if flushes:
        queues.flush()
    queues.truncate(900, lambda *_: True)
    fill(queues, 2, 6)
    fill(queues, 1, 9)
    wanted = [*expected(0, 5), (0, 0x7FFFFFFF), *expected(6, 8), (0, 0x7FFFFFFF), *expected(9, 10)]
    assert content(queue) == wanted
    fill(queues, 1, 5)
    assert content(queue) == wanted, "there are entries of later records"


def test_a_record_takes_the_place_of_a_filler_without_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    queues = make(env)
    queue = fill(queues, 5)
    fill(queues, 1, 45)
    queues.flush()
    queues.truncate(4500, lambda *_: True)
    with monkeypatch.context() as patch:
        refuse_to_open(patch, env, queue)
        fill(queues, 2, 6)
        assert [entry[:2] for entry in ENTRY.iter_unpack(queue.entries(6, 2))] == expected(6, 8)
        with pytest.raises(NoRoom):
            queues.flush()
    fill(queues, 1, 9)
    queues.flush()
    wanted = [*expected(0, 5), (0, 0x7FFFFFFF), *expected(6, 8), (0, 0x7FFFFFFF), *expected(9, 10)]
    wanted += [(0, 0x7FFFFFFF)] * 35
    again = make(env).get("T", 0)
    assert again is not None
    assert content(queue) == content(again) == wanted


def test_entries_in_place_of_many_fillers_are_written_as_seldom_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tail_entries, more = 50, 200
    queues = make(MemoryEnv(), tail_bytes=tail_entries * ENTRY.size, file_units=1000)
    queue = fill(queues, 5)
    queue.extend(5 + more + 3 * tail_entries, 0)
    written: list[int] = []
    write = Segments.write
    monkeypatch.setattr(
        Segments, "write", lambda self, offset, data: written.append(offset) or write(self, offset, data)
    )
    for number in range(5, 5 + more):
        fill(queues, 1, number)
    assert len(written) == more // tail_entries
    assert content(queue) == [*expected(0, 5 + more), *[(0, 0x7FFFFFFF)] * (3 * tail_entries)]


def test_a_taken_queue_offset_is_noticed_without_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    queues = make(env)
    queue = fill(queues, 5)
    queues.flush()
    refuse_to_open(monkeypatch, env, queue)
    with capture_logs() as logs:
        queues.put(batch_of([("T", 0, 3, 600)]))
    assert [line["event"] for line in logs] == ["queue_offset_taken"]
    fill(queues, 1, 7)
    assert queue.max_offset == 8


def test_fillers_of_a_queue_are_forgotten_when_it_begins_again() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 5)
    queue.extend(8, 0)
    queues.put(batch_of([("T", 0, number, 10_000 + number * SIZE) for number in range(8)]))
    before = content(queue)
    queues.put(batch_of([("T", 0, 6, 20_000)]))
    assert content(queue) == before == [(10_000 + number * SIZE, SIZE) for number in range(8)]


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, env: MemoryEnv, queue: ConsumeQueue) -> None:
    """Close the files of ``queue``, and let the process have no descriptor to open any."""

    def refuse(path: str, create: bool = False) -> File:
        raise OSError(errno.EMFILE, "no descriptor", path)

    assert queue.close_files()
    monkeypatch.setattr(env, "open", refuse)


def test_a_record_takes_the_place_of_a_filler_in_a_queue_without_entries() -> None:
    env = MemoryEnv()
    fill(make(env), 3).flush()
    queues = make(env)
    queue = queues.get("T", 0)
    assert queue is not None
    queue.correct(dict.fromkeys(range(3), FILLER))
    queues.truncate(300, lambda *_: True)
    queues.correct_min(0)
    assert (queue.min_offset, queue.max_offset) == (3, 3)
    fill(queues, 1)
    assert content(queue) == [*expected(0, 1), *[(0, 0x7FFFFFFF)] * 2]


def test_an_implausible_queue_offset_is_ignored() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 5)
    queues.put(batch_of([("T", 0, 1 << 40, 500), ("T", 0, 3, 600)]))
    fill(queues, 1, 7)
    assert queue.max_offset == 8


def test_a_recreated_topic_starts_with_empty_queues() -> None:
    queues = make(MemoryEnv())
    queue = fill(queues, 30)
    queues.flush()
    queues.put(batch_of([("T", 0, 0, 9000), ("T", 0, 1, 9100)]))
    assert content(queue) == [(9000, SIZE), (9100, SIZE)]
    assert queues.units == 2
    queues.flush()
    assert queue.entries(1, 5)[:8] == (9100).to_bytes(8, "big")


@pytest.mark.parametrize("topic", ["../x", "a/b", "", ".", "a\0b", "x" * 256, "a b", "é", "T\n"])
def test_an_illegal_topic_name_is_never_used_as_a_path(topic: str) -> None:
    env = MemoryEnv()
    queues = make(env)
    with pytest.raises(ValueError, match="not the name of a topic"):
        check_topic(topic)
    with pytest.raises(ValueError, match="not the name of a topic"):
        queues.delete_topic(topic)
    queues.put(batch_of([(topic, 0, 0, 0), ("T", -1, 0, 100), ("T", 0, 0, 200)]))
    queues.flush()
    assert env.listdir("consumequeue") == ["T"]
    assert env.listdir("consumequeue/T") == ["0"]


def test_foreign_files_in_the_queue_folder_are_kept() -> None:
    env = MemoryEnv()
    env.mkdirs("consumequeue/a b/0")
    env.mkdirs("consumequeue/T/x")
    env.open("consumequeue/file", create=True)
    assert list(make(env)) == []
    assert env.listdir("consumequeue") == ["a b", "file", "T"] or len(env.listdir("consumequeue")) == 3


@pytest.mark.parametrize("damage", ["size", "gap"])
def test_damaged_queue_files_are_discarded_for_a_rebuild(damage: str) -> None:
    env = MemoryEnv()
    queues = make(env)
    fill(queues, 60)
    queues.flush()
    if damage == "size":
        env.open(f"consumequeue/T/0/{0:020d}").truncate(399)
    else:
        env.unlink(f"consumequeue/T/0/{400:020d}")
    again = make(env)
    assert again.units == 0
    fill(again, 60)
    again.flush()
    assert env.listdir("consumequeue/T/0") == [f"{0:020d}", f"{400:020d}", f"{800:020d}"]


def test_the_first_entries_are_dropped_with_their_log_files() -> None:
    env = MemoryEnv()
    queues = make(env)
    queue = fill(queues, 65)
    queues.flush()
    for log_min, first, files in [(0, 0, 4), (1, 1, 4), (2500, 25, 3), (4000, 40, 2), (9999, 65, 1), (9999, 65, 1)]:
        queues.correct_min(log_min)
        assert (queue.min_offset, queue.max_offset) == (first, 65)
        assert len(env.listdir("consumequeue/T/0")) == files
    fill(queues, 1, 65)
    assert content(queue) == expected(65, 66)


@given(st.integers(0, 7000), st.integers(0, 65), st.integers(0, 13))
def test_truncation_drops_later_and_implausible_entries(bound: int, good: int, rubbish: int) -> None:
    env = MemoryEnv()
    queues = make(env)
    fill(queues, 65)
    queues.flush()
    # A power cut let some bytes behind the end reach the disk.
    last = env.open(f"consumequeue/T/0/{1200:020d}")
    last.pwrite(bytes(range(1, 21)) * 2, (5 + rubbish) * 20)
    again = make(env)
    lowest = again.truncate(bound, lambda queue, offset, size: offset < good * SIZE and size == SIZE)
    found = again.get("T", 0)
    assert found is not None
    end = min(-(-bound // SIZE), good, 65)
    assert found.max_offset == end
    assert content(found) == expected(0, end)
    assert lowest <= max(bound, 0)
    if end < min(-(-bound // SIZE), 65) and end > 0:
        assert lowest == end * SIZE
    assert again.next_offset("T", 0) == again.units == end
    # Nothing is left that could be read as an entry later.
    again.flush()
    after = make(env)
    assert after.units == end
    fill(after, 3, end)
    after.flush()
    assert make(env).units == end + 3


def times(stamps: dict[int, int | None]) -> ConsumeQueues:
    queues = make(MemoryEnv())
    fill(queues, len(stamps))
    return queues


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(0, 0), (10, 0), (13, 0), (15, 0), (16, 1), (20, 1), (21, 1), (25, 1), (26, 4), (30, 4), (31, 4), (999, 4)],
)
def test_search_by_time_finds_the_nearest_and_first_entry(timestamp: int, offset: int) -> None:
    stamps = {0: 10, 1: 20, 2: 20, 3: 20, 4: 30}
    queues = times({**stamps})
    found = queues.offset_by_time("T", 0, timestamp, lambda at: stamps[at // SIZE])
    # Between two, the nearer one; of those stored at 20 the one next to the gap, or the first when it is exact.
    assert found == (3 if timestamp in (21, 25) else offset)


@pytest.mark.parametrize(
    ("timestamp", "first_since", "last_until"),
    [(0, 0, 0), (10, 0, 0), (13, 1, 0), (20, 1, 3), (26, 4, 3), (30, 4, 4), (31, 5, 4)],
)
def test_search_by_time_finds_the_first_since_and_the_last_until(
    timestamp: int, first_since: int, last_until: int
) -> None:
    stamps: dict[int, int | None] = {0: 10, 1: 20, 2: 20, 3: 20, 4: 30}
    queues = times(stamps)
    found = [queues.offset_by_time("T", 0, timestamp, lambda at: stamps[at // SIZE], bound)
             for bound in ("first_since", "last_until")]  # fmt: skip
    assert found == [first_since, last_until]


@pytest.mark.parametrize("read", ["entry", "entries"])
def test_search_by_time_continues_behind_entries_deleted_meanwhile(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = make(MemoryEnv())
    fill(queues, 100)
    queues.flush()
    method = getattr(ConsumeQueue, read)

    def late(queue: ConsumeQueue, *arguments: int) -> object:
        monkeypatch.undo()
        queue.correct_min(60 * SIZE)
        queue.drop_expired()
        return method(queue, *arguments)

    monkeypatch.setattr(ConsumeQueue, read, late)
    assert queues.offset_by_time("T", 0, 80, lambda at: at // SIZE if at >= 60 * SIZE else None) == 80


def test_search_by_time_handles_empty_queues_and_unreadable_records() -> None:
    queues = times({0: 1, 1: 2, 2: 3})
    assert queues.offset_by_time("none", 0, 5, lambda at: 1) == 0
    assert queues.offset_by_time("T", 0, 5, lambda at: None) == 0
    assert queues.offset_by_time("T", 0, 3, lambda at: None if at == SIZE else at // SIZE + 1) == 1
    queues.correct_min(10_000)
    assert queues.offset_by_time("T", 0, 5, lambda at: 1) == 0


def test_a_deleted_topic_has_no_entries_but_its_offsets_continue() -> None:
    env = MemoryEnv()
    queues = make(env)
    fill(queues, 30)
    fill(queues, 2, topic="U")
    queues.next_offsets["T", 0] = 30
    queues.flush()
    fill(queues, 5, 30)
    queues.delete_topic("T")
    queues.flush()
    assert queues.get("T", 0) is None
    assert env.listdir("consumequeue") == ["U"]
    assert queues.units == 2
    assert queues.next_offset("T", 0) == 30
    assert make(env.power_cut()).units == 2


def test_a_flush_in_another_thread_loses_nothing() -> None:
    env = MemoryEnv()
    queues = make(env, tail_bytes=400)
    stop = threading.Event()
    failures: list[BaseException] = []

    def flush() -> None:
        try:
            while not stop.is_set():
                queues.flush()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for number in range(0, 4000, 8):
            queue = fill(queues, 8, number)
            start = max(number - 30, 0)
            assert [entry[0] for entry in ENTRY.iter_unpack(queue.entries(start, 100))] == [
                one * SIZE for one in range(start, number + 8)
            ]
    finally:
        stop.set()
        thread.join()
    assert not failures
    queues.flush()
    found = make(env.power_cut()).get("T", 0)
    assert found is not None
    assert content(found) == expected(0, 4000)


def test_entries_stay_in_memory_while_the_disk_is_full() -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("pwrite",), tear="short")
    queues = make(env, tail_bytes=100)
    env.fail_at = 1
    env.forever = True
    queue = fill(queues, 30)
    with pytest.raises(NoRoom):
        queues.flush()
    assert content(queue) == expected(0, 30)
    env.fail_at = 0
    queues.flush()
    assert content(queue) == expected(0, 30)
    found = make(env).get("T", 0)
    assert found is not None
    assert content(found) == expected(0, 30)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_poisons_the_queues(number: int) -> None:
    env = FaultEnv(MemoryEnv(), number=number, kinds=("datasync",))
    queues = make(env)
    fill(queues, 3)
    env.fail_at = 1
    with pytest.raises(QueuesPoisoned, match="Check the disk"):
        queues.flush()
    with pytest.raises(QueuesPoisoned):
        queues.flush()
    with pytest.raises(QueuesPoisoned):
        fill(queues, 1, 3)
    assert env.calls["datasync"] == 1


def many(queues: ConsumeQueues, count: int, first: int = 0, offset: int = 0) -> None:
    """Put one entry, of queue offset ``offset``, into each of ``count`` queues."""
    start = first + offset * 1_000_000
    queues.put(batch_of([("T", number, offset, (start + number) * SIZE) for number in range(count)]))


def survivors(env: MemoryEnv) -> int:
    queues = make(env.power_cut())
    return sum(queue.max_offset for queue in queues)


@pytest.mark.parametrize(("count", "flushes"), [(MANY_NEW - 1, 0), (MANY_NEW, 1)])
def test_many_new_queues_are_flushed_together(count: int, flushes: int) -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk)
    queues = make(env)
    many(queues, count)
    queues.flush()
    assert (env.calls["sync_tree"], env.calls["datasync"]) == (flushes, 0 if flushes else count)
    many(queues, count, offset=1)
    queues.flush()
    assert env.calls["sync_tree"] == flushes, "a few existing queues are flushed one by one"
    assert survivors(disk) == 2 * count


def test_very_many_existing_queues_are_flushed_together() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk)
    queues = make(env)
    for offset in range(2):
        many(queues, MANY, offset=offset)
        queues.flush()
    assert (env.calls["sync_tree"], env.calls["datasync"], env.calls["sync_dir"]) == (2, 0, 0)
    assert survivors(disk) == 2 * MANY


def test_a_failed_flush_of_all_queues_poisons_them() -> None:
    env = FaultEnv(MemoryEnv(), kinds=("sync_tree",), fail_at=1)
    queues = make(env)
    many(queues, MANY_NEW)
    with pytest.raises(QueuesPoisoned, match="flushing the consume queue consumequeue failed"):
        queues.flush()
    with pytest.raises(QueuesPoisoned):
        queues.flush()
    assert env.calls["sync_tree"] == 1


def test_new_queues_that_a_full_disk_interrupted_are_flushed_together_later() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, number=errno.ENOSPC, kinds=("pwrite",), fail_at=MANY_NEW // 2)
    queues = make(env)
    many(queues, MANY_NEW)
    with pytest.raises(NoRoom):
        queues.flush()
    assert env.calls["sync_tree"] == 0
    many(queues, 1, offset=1)
    queues.flush()
    assert (env.calls["sync_tree"], env.calls["datasync"]) == (1, 0)
    assert survivors(disk) == MANY_NEW + 1


def test_a_full_disk_is_logged_once_for_all_queues_and_once_more_when_the_last_is_written() -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, kinds=("pwrite",), fail_at=1, forever=True)
    queues = make(env, tail_bytes=20)
    with capture_logs() as logs:
        for offset in range(3):
            many(queues, 5, offset=offset)
        assert [each["event"] for each in logs] == ["queue_entries_not_written"]
        env.fail_at = 0
        many(queues, 4, offset=3)
        assert len(logs) == 1, "one queue still waits"
        queues.flush()
    assert [(each["event"], each.get("failures")) for each in logs[1:]] == [("outage_ended", 15)]


def test_without_a_flush_of_the_file_system_each_queue_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryEnv()
    monkeypatch.setattr(disk, "tree_flusher", lambda path: None)
    env = FaultEnv(disk)
    queues = make(env)
    many(queues, MANY_NEW)
    queues.flush()
    assert (env.calls["sync_tree"], env.calls["datasync"]) == (0, MANY_NEW)
    assert survivors(disk) == MANY_NEW


def test_tag_code_rules_apply_to_their_topic_only() -> None:
    queues = make(MemoryEnv())
    asked: list[tuple[int, bytes, int]] = []

    def rule(queue_id: int, properties: bytes, stored: int) -> int:
        asked.append((queue_id, properties, stored))
        return 1 << 40

    queues.tag_code_rules["ruled"] = rule
    batch = batch_of([("T", 0, 0, 0), ("ruled", 3, 0, 100), ("T", 0, 1, 200)])
    batch.properties[1], batch.store_timestamps[1] = b"K\x01v", 77
    queues.put(batch)
    ruled, other = queues.get("ruled", 3), queues.get("T", 0)
    assert ruled is not None
    assert other is not None
    assert asked == [(3, b"K\x01v", 77)]
    assert ruled.entries(0, 1) == ENTRY.pack(100, SIZE, 1 << 40)
    assert other.entries(0, 2) == ENTRY.pack(0, SIZE, 0) + ENTRY.pack(200, SIZE, -200)
    assert batch.tag_codes == [0, 1 << 40, -200], "observers of the batch see the same code"

"""The commit log: offsets, ends of files, timestamps, refused batches, fatal errors, readable ranges."""

from __future__ import annotations

import errno
import threading
from itertools import pairwise

import pytest

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.env import File
from gantrymq.kernel.errors import CorruptRange, LogPoisoned, OutOfLog
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.prefault import FOLIO_BYTES
from gantrymq.kernel.store.log.record import BadRecord, blank
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import batch_of

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
EMPTY = 91 + 1
"""The size of a record of topic T without a body."""


def make(env: MemoryEnv | FaultEnv, file_bytes: int = 1000, max_body_bytes: int = 500) -> CommitLog:
    env.mkdirs("log")
    env.mkdirs("staging")
    log = CommitLog(
        env, "log", "staging", file_bytes=file_bytes, next_offsets={}, store_host=HOST, max_body_bytes=max_body_bytes
    )
    log.open()
    log.set_end(0, 0)
    return log


def append(log: CommitLog, *bodies: bytes) -> AppendBatch:
    batch = batch_of(bodies)
    log.append(batch)
    return batch


def test_a_batch_gets_offsets_and_is_one_write() -> None:
    env = FaultEnv(MemoryEnv())
    log = make(env)
    writes = env.calls["pwrite"]
    batch = append(log, b"a", b"bb", b"ccc")
    assert env.calls["pwrite"] == writes + 1
    assert batch.offsets == [0, EMPTY + 1, 2 * EMPTY + 3]
    assert batch.sizes == [EMPTY + 1, EMPTY + 2, EMPTY + 3]
    assert batch.queue_offsets == [0, 1, 2]
    assert (batch.start, batch.end, log.end) == (0, 3 * EMPTY + 6, 3 * EMPTY + 6)
    again = append(log, b"d")
    assert (again.start, again.queue_offsets) == (batch.end, [3])
    assert [log.read_record(offset).body for offset in batch.offsets] == [b"a", b"bb", b"ccc"]
    record = log.read_record(batch.offsets[1])
    assert (record.queue_offset, record.store_timestamp, record.store_host) == (1, batch.store_timestamp, HOST)


@pytest.mark.parametrize("left", range(-3, 20))
def test_a_record_moves_to_the_next_file_unless_eight_bytes_remain_behind_it(left: int) -> None:
    log = make(MemoryEnv())
    first = append(log, b"x" * 400)
    second = append(log, b"y" * (1000 - first.end - EMPTY - left))
    third = append(log, b"z")
    if left >= 8:
        assert second.offsets == [first.end]
        assert second.end == 1000 - left
        assert bytes(log.segments.pread(second.end, 8)) == blank(left)
        assert third.offsets == [1000]
    else:
        assert second.offsets == [1000]
        assert second.start == first.end
        assert bytes(log.segments.pread(first.end, 8)) == blank(1000 - first.end)
        assert third.offsets == [second.end]
    log.flush()
    found = [body for batch in log.scan(0, log.end) for body in batch.sizes]
    assert found == [*first.sizes, *second.sizes, *third.sizes]


def test_a_batch_across_files_needs_one_write_for_each_file() -> None:
    env = FaultEnv(MemoryEnv())
    log = make(env)
    writes = env.calls["pwrite"]
    batch = append(log, *[b"x" * 200] * 8)
    assert batch.offsets == [0, 292, 584, 1000, 1292, 1584, 2000, 2292]
    assert env.calls["pwrite"] == writes + 3
    assert batch.queue_offsets == list(range(8))
    batches = list(log.scan(0, log.end))
    assert [(found.start, found.end) for found in batches] == [(0, 1000), (1000, 2000), (2000, 2584)]


def test_prepared_and_rolled_back_messages_get_no_queue_offset() -> None:
    log = make(MemoryEnv())
    batch = AppendBatch()
    for sys_flag in (0, 4, 8, 12, 0):
        batch.add("T", 0, b"", b"", sys_flag=sys_flag)
    batch.add("T", 1, b"", b"")
    log.append(batch)
    assert batch.queue_offsets == [0, 0, 1, 0, 2, 0]


def test_the_store_timestamp_never_falls() -> None:
    env = MemoryEnv()
    log = make(env)
    first = append(log, b"a").store_timestamp
    assert first == env.wall
    env.wall -= 3_600_000
    assert append(log, b"b").store_timestamp == first
    env.wall = first + 5
    assert append(log, b"c").store_timestamp == first + 5
    assert log.last_timestamp == first + 5
    log.set_end(log.end, first + 9)
    assert append(log, b"d").store_timestamp == first + 9


def test_too_large_rows_are_refused_and_the_others_stored() -> None:
    log = make(MemoryEnv(), file_bytes=1000, max_body_bytes=950)
    batch = append(log, b"a", b"x" * 951, b"x" * 920, b"b")
    assert batch.statuses == [0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert "951 bytes, more than the 950" in batch.remarks[1]
    assert "larger than a file of the log" in batch.remarks[2]
    assert (batch.offsets, batch.sizes) == ([0, -1, -1, 93], [93, 0, 0, 93])
    assert batch.queue_offsets == [0, -1, -1, 1]
    assert append(log, b"x" * 900).statuses == [0]


def test_a_batch_without_a_live_row_leaves_the_log_alone() -> None:
    log = make(MemoryEnv())
    append(log, b"a")
    batch = append(log, b"x" * 501)
    assert (batch.start, batch.end, batch.refused) == (log.end, log.end, 1)
    append(log)


def test_a_full_disk_refuses_rows_until_the_next_file_can_be_created() -> None:
    env = MemoryEnv()
    log = make(env)
    append(log, b"x" * 400)
    env.free_bytes = 900
    batch = append(log, b"1" * 300, b"2" * 300, b"3")
    assert batch.statuses == [0, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE]
    assert "Free some space" in batch.remarks[1]
    assert (batch.end, batch.queue_offsets) == (492 + 392, [1, -1, -1])
    assert not log.prepare_next()
    env.free_bytes = 1000
    again = append(log, b"2" * 300, b"3")
    assert (again.offsets, again.queue_offsets, again.refused) == ([1000, 1392], [2, 3], 0)
    assert len([1 for found in log.scan(0, log.end) for _ in found.offsets]) == 4


def test_a_full_disk_without_any_file_refuses_the_batch() -> None:
    env = MemoryEnv()
    log = make(env)
    env.free_bytes = 10
    batch = append(log, b"a", b"b")
    assert batch.statuses == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert (batch.start, batch.end, log.end) == (0, 0, 0)


@pytest.mark.parametrize("tear", ["short", "tear"])
def test_a_write_that_finds_no_space_leaves_nothing_behind(tear: str) -> None:
    env = FaultEnv(MemoryEnv(), number=errno.ENOSPC, tear=tear, kinds=("pwrite",))
    log = make(env)
    append(log, b"a")
    env.fail_at = env.count + 1
    batch = append(log, b"b" * 50, b"c" * 50)
    assert batch.statuses == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert (batch.offsets, batch.sizes, batch.queue_offsets) == ([-1, -1], [0, 0], [-1, -1])
    assert log.end == EMPTY + 1
    assert not any(log.segments.pread(log.end, 500))
    assert append(log, b"d").queue_offsets == [1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_failed_write_poisons_the_log(number: int) -> None:
    env = FaultEnv(MemoryEnv(), number=number, kinds=("pwrite",))
    log = make(env)
    append(log, b"a")
    log.flush()
    env.fail_at = env.count + 1
    with pytest.raises(LogPoisoned, match="writing to the commit log failed"):
        append(log, b"b")
    for again in (lambda: append(log, b"c"), log.flush, log.prepare_next, log.check):
        with pytest.raises(LogPoisoned, match=f"everything up to offset {EMPTY + 1} is durable"):
            again()
    assert log.end == log.durable == EMPTY + 1


def test_the_next_file_is_created_when_the_current_one_is_half_full() -> None:
    env = MemoryEnv()
    log = make(env)
    append(log, b"a")
    assert log.prepare_next()
    assert not env.exists(f"log/{1000:020d}")
    append(log, b"b" * 400)
    assert log.prepare_next()
    assert env.exists(f"log/{1000:020d}")


def test_a_next_file_that_fails_for_another_reason_poisons_the_log() -> None:
    env = FaultEnv(MemoryEnv(), kinds=("sync_dir",))
    log = make(env)
    append(log, b"a" * 500)
    env.fail_at = env.count + 1
    with pytest.raises(LogPoisoned, match="making room for the commit log"):
        log.prepare_next()


def test_a_flush_across_files_makes_everything_durable() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk)
    log = make(env)
    append(log, *[b"x" * 200] * 5)
    assert (log.durable, log.durable_mark) == (0, (0, 0))
    syncs = env.calls["datasync"]
    assert log.flush() == log.end == log.durable
    assert env.calls["datasync"] == syncs + 2
    log.flush()
    assert env.calls["datasync"] == syncs + 2
    assert log.durable_mark == (log.end, log.last_timestamp)
    append(log, b"y")
    log.flush()
    assert env.calls["datasync"] == syncs + 3
    after = disk.power_cut()
    assert after.read_bytes(f"log/{1000:020d}")[:4] == (292).to_bytes(4, "big")


def test_reads_outside_of_the_log_fail() -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"x" * 200] * 5)
    assert len(log.view(0, 584)) == 584
    for offset, size in [(-1, 1), (0, -1), (log.end, 1), (log.end - 1, 2), (584, 417), (1 << 60, 1)]:
        with pytest.raises(OutOfLog):
            log.view(offset, size)
    for offset in (1, 88, 500):
        with pytest.raises((BadRecord, OutOfLog)):
            log.read_record(offset)
    assert log.segments.delete_before(1000) == 1
    assert (log.min_offset, log.read_record(batch.offsets[4]).queue_offset) == (1000, 4)
    with pytest.raises(OutOfLog):
        log.read_record(0)


def test_quarantined_ranges_are_unreadable_and_scans_skip_them() -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"%d" % number * 200 for number in range(6)])
    log.segments.write(batch.offsets[1] + 4, b"broken")
    with pytest.raises(CorruptRange, match="no record at 292"):
        list(log.scan(0, log.end))
    log.quarantine = [(batch.offsets[1], batch.offsets[2])]
    with pytest.raises(CorruptRange, match="damaged from 292 to 584"):
        log.view(0, 293)
    assert len(log.view(0, 292)) == 292
    batches = list(log.scan(0, log.end))
    assert [offset for found in batches for offset in found.offsets] == [0, *batch.offsets[2:]]
    assert batches[0].start == 0
    assert all(one.end == other.start for one, other in pairwise(batches))
    assert [found.end for found in log.scan(0, 400)] == [292, 400]


@pytest.mark.parametrize("rows", [1, 2, 4096])
@pytest.mark.parametrize("damage", [b"broken", bytes(292)], ids=["another magic", "zeros"])
def test_a_scan_yields_the_records_before_damage(damage: bytes, rows: int) -> None:
    log = make(MemoryEnv(), file_bytes=4000)
    batch = append(log, *[b"%d" % number * 200 for number in range(6)])
    log.segments.write(batch.offsets[3] + (0 if len(damage) == 292 else 4), damage)
    found: list[int] = []

    def read() -> None:
        for each in log.scan(0, log.end, rows=rows):
            found.extend(each.offsets)

    with pytest.raises(CorruptRange, match=f"no record at {batch.offsets[3]}"):
        read()
    assert found == batch.offsets[:3]


def test_a_scan_continues_when_the_oldest_files_are_deleted_meanwhile() -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"x" * 200] * 15)
    found = log.scan(0, log.end, rows=1)
    assert next(found).offsets == batch.offsets[:1]
    log.segments.delete_before(2000)
    rest = list(found)
    assert [offset for one in rest for offset in one.offsets] == [
        offset for offset in batch.offsets if offset >= log.min_offset
    ]
    assert (rest[0].start, rest[-1].end) == (log.min_offset, log.end)


def test_a_search_for_the_next_record_skips_files_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"x" * 200] * 15)
    first = next(iter(log.segments))
    data_ranges = type(first.file).data_ranges

    def delete_first(file: File, offset: int) -> list[tuple[int, int]]:
        if log.segments.start == 0:
            log.segments.delete_before(2000)
            raise FileNotFoundError(errno.ENOENT, "deleted")
        return data_ranges(file, offset)

    monkeypatch.setattr(type(first.file), "data_ranges", delete_first)
    found = find_record(log.segments, 1)
    assert found is not None
    assert found[0] == min(offset for offset in batch.offsets if offset >= 2000)


def test_a_scan_ends_when_the_log_is_truncated_meanwhile() -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"x" * 200] * 15)
    found = log.scan(0, log.end, rows=1)
    assert next(found).offsets == batch.offsets[:1]
    log.segments.truncate(1000)
    assert [offset for one in found for offset in one.offsets] == [
        offset for offset in batch.offsets[1:] if offset < 1000
    ]


def test_a_scan_is_limited_in_rows_and_stops_between_records() -> None:
    log = make(MemoryEnv())
    batch = append(log, *[b"x" * 50] * 15)
    ends = [offset + size for offset, size in zip(batch.offsets, batch.sizes, strict=True)]

    def rows(stop: int, limit: int) -> list[DispatchBatch]:
        found = list(log.scan(0, stop, rows=limit))
        assert all(0 < len(one) <= limit or one.end % 1000 == 0 for one in found)
        return found

    for stop in range(log.end + 50):
        offsets = [offset for found in rows(stop, 4) for offset in found.offsets]
        assert offsets == [offset for offset, end in zip(batch.offsets, ends, strict=True) if end <= stop]
    assert next(log.scan(ends[3], ends[5])).offsets == batch.offsets[4:6]


def test_an_append_to_a_new_range_also_writes_the_rest_of_its_folio() -> None:
    log = make(MemoryEnv(), file_bytes=2 * FOLIO_BYTES + 1000, max_body_bytes=FOLIO_BYTES)
    append(log, b"a" * 100)
    file = log.segments.ensure(0).file
    file.pwrite(b"x" * (FOLIO_BYTES + 2000), FOLIO_BYTES - 1000)  # as a longer log left it
    written: list[tuple[int, int]] = []
    write = file.pwrite

    def record(data: bytes, offset: int, zeros: int = 0) -> None:
        written.append((len(data), zeros))
        write(data, offset, zeros)

    file.pwrite = record  # type: ignore[method-assign]
    append(log, b"b" * 100)
    assert written == [(EMPTY + 100, 0)], "the first append has written the rest of the first folio"
    second = append(log, b"c" * (FOLIO_BYTES - 100))
    rest = 2 * FOLIO_BYTES - second.end
    assert written[1:] == [(second.sizes[0], rest)]
    assert file.pread(rest + 1000, second.end) == bytes(rest) + b"x" * 1000
    third = append(log, b"d" * rest)
    assert written[2:] == [(third.sizes[0], 2 * FOLIO_BYTES + 1000 - third.end)], "no further than the file"


def test_zeros_are_written_ahead_but_never_over_a_record() -> None:
    env = FaultEnv(MemoryEnv())
    env.env.large_folios = False
    log = make(env)
    assert log.prepare_next()
    assert env.calls["pwrite"] == 0, "nobody waits for a flush"
    log.ahead.zeros = True
    assert log.prepare_next()
    append(log, b"a" * 100)
    writes = env.calls["pwrite"]
    assert log.prepare_next()
    assert env.calls["pwrite"] == writes + 1
    assert log.prepare_next()
    assert env.calls["pwrite"] == writes + 1
    batch = append(log, b"b" * 100, *[b"c" * 200] * 4)
    assert log.prepare_next()
    assert [len(log.read_record(offset).body) for offset in (0, *batch.offsets)] == [100, 100, 200, 200, 200, 200]


def test_pages_behind_the_end_are_prefaulted_once_without_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    env.large_folios = False
    log = make(env, file_bytes=1 << 20, max_body_bytes=1000)
    append(log, *[b"x" * 1000] * 100)
    asked: list[tuple[int, int]] = []
    file = log.segments.at(0)
    assert file is not None
    monkeypatch.setattr(file.file, "read_ahead", lambda offset, size: asked.append((offset, offset + size)))
    assert log.prepare_next()
    assert asked[0][0] == log.end
    assert asked[-1][1] == 3 * log.end, "twice what was appended"
    assert all(before[1] == after[0] for before, after in pairwise(asked))
    assert max(end - start for start, end in asked) <= 128 * 1024
    reached = asked[-1][1]
    append(log, *[b"x" * 1000] * 10)
    asked.clear()
    assert log.prepare_next()
    assert not asked, "they were asked for"
    append(log, *[b"x" * 1000] * 400)
    assert log.prepare_next()
    assert asked[0][0] == max(reached, log.end)
    assert asked[-1][1] == 1 << 20, "not behind the file"


@pytest.mark.parametrize("large_folios", [True, False])
def test_zeros_are_written_ahead_beside_appends(large_folios: bool) -> None:
    env = MemoryEnv()
    env.large_folios = large_folios
    log = make(env, file_bytes=1 << 20)
    log.ahead.zeros = True
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                log.prepare_next()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        offsets = [offset for _ in range(200) for offset in append(log, *[b"x" * 500] * 30).offsets]
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert all(log.read_record(offset).body == b"x" * 500 for offset in offsets)

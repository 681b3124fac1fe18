"""Queue entries that disagree with the log are corrected from it, and others stay unchanged."""

from __future__ import annotations

import errno

import attrs
import pytest
from structlog.testing import capture_logs

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.errors import OutOfLog
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.kernel.store.log.windows import LogWindows
from gantrymq.kernel.store.queues import table
from gantrymq.kernel.store.queues.consume_queue import FILLER, FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.kernel.store.queues.repair import is_right
from gantrymq.kernel.store.reading import is_wrong_entry
from gantrymq.kernel.store.store import Store
from gantrymq.testing.memory_env import MemoryEnv, MemoryFile
from gantrymq.testing.tinystore import TINY, commit, open_store, read_queue
from support.unreadable import fail_log_reads, fail_writes

MESSAGES = 60


@pytest.fixture
def store() -> Store:
    """Records of one size in two queues of ``T`` and one of ``U``, by turns; all entries are in files."""
    store, _, _ = open_store(MemoryEnv())
    for number in range(MESSAGES):
        batch = AppendBatch()
        for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
            batch.add(topic, queue_id, b"%03d" % number, b"TAGS\x01A")
        store.append(batch)
    commit(store)
    store.flush_queues()
    return store


def queue_of(store: Store, topic: str = "T", queue_id: int = 0) -> ConsumeQueue:
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    return queue


def machine(store: Store) -> MemoryEnv:
    env = store._env
    assert isinstance(env, MemoryEnv)
    return env


def damage(queue: ConsumeQueue, place: int, data: bytes) -> None:
    queue._segments.write(place * UNIT, data)


def pack(at: int, size: int) -> bytes:
    return ENTRY.pack(at, size, 0)


def right(store: Store, queue: ConsumeQueue, place: int) -> bool:
    at, size, _ = ENTRY.unpack(queue.entries(place, 1))
    return is_right(store.log, queue, place, at, size)


def test_only_records_decide_whether_entries_are_correct(store: Store) -> None:
    queue = queue_of(store)
    assert all(right(store, queue, place) for place in range(MESSAGES))
    at, size, _ = ENTRY.unpack(queue.entries(7, 1))
    assert not is_right(store.log, queue, 8, at, size), "another place in the queue"
    assert not is_right(store.log, queue_of(store, "T", 1), 7, at, size), "another queue"
    assert not is_right(store.log, queue_of(store, "U", 0), 7, at, size), "another topic"
    for wrong in (
        (at + 1, size),
        (at, size + 1),
        (at, 0),
        (at, -5),
        (2**63 - 1, size),
        (-(2**63), size),
        (at, 2**31 - 2),
    ):
        assert not is_right(store.log, queue, 7, *wrong)


@pytest.mark.parametrize("first", [0, 3, 19, MESSAGES - 1])
@pytest.mark.parametrize("count", [1, 2, 25])
@pytest.mark.parametrize("what", ["zeros", "far", "another record", "larger"])
def test_wrong_entries_are_corrected_and_their_neighbors_unchanged(
    store: Store, first: int, count: int, what: str
) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    count = min(count, MESSAGES - first)
    for place in range(first, first + count):
        at, size, _ = ENTRY.unpack(queue.entries(place, 1))
        damage(
            queue,
            place,
            {
                "zeros": bytes(UNIT),
                "far": pack(2**63 - 60, size),
                "another record": pack(at + size, size),
                "larger": pack(at, size + 4096),
            }[what],
        )
    generation = queue.generation
    suspect = first + count // 2
    with capture_logs() as lines:
        assert queue.suspect(suspect)
        assert queue.suspect(suspect), "until it is corrected"
        assert store.repair.is_due
        store.repair.step()
    assert [line["event"] for line in lines] == ["consume_queue_disagrees", "consume_queue_repaired"]
    assert lines[1]["entries"] == count
    assert queue.entries(0, MESSAGES) == before
    assert queue.generation > generation, "entries that somebody has read before are not those"
    assert not store.repair.is_due
    assert not queue.suspect(suspect), "it was looked at"
    assert [line["event"] for line in lines] == ["consume_queue_disagrees", "consume_queue_repaired"]
    assert len(read_queue(store)) == MESSAGES


def test_entries_without_a_record_become_fillers(store: Store) -> None:
    queue = queue_of(store)
    at, size, _ = ENTRY.unpack(queue.entries(9, 1))
    store.log.segments.write(at + 4, b"\0")  # its magic
    assert queue.suspect(9)
    store.repair.step()
    assert ENTRY.unpack(queue.entries(9, 1)) == ENTRY.unpack(FILLER)
    assert right(store, queue, 8)
    assert right(store, queue, 10)
    assert size != FILLER_SIZE


def test_entries_are_repaired_from_the_records_before_a_damaged_one(store: Store) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    at, _, _ = ENTRY.unpack(queue.entries(12, 1))
    store.log.segments.write(at + 4, b"\0")  # its magic
    for place in range(5, 16):
        damage(queue, place, bytes(UNIT))
    assert queue.suspect(5)
    store.repair.step()
    after = queue.entries(0, MESSAGES)
    changed = [place for place in range(MESSAGES) if after[place * UNIT :][:UNIT] != before[place * UNIT :][:UNIT]]
    assert changed == [12]
    assert ENTRY.unpack(queue.entries(12, 1)) == ENTRY.unpack(FILLER)


def test_unreadable_entries_are_not_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    at, _, _ = ENTRY.unpack(queue.entries(9, 1))
    damage(queue, 11, bytes(UNIT))
    pread = type(store.log.segments).pread

    def failing(segments: object, offset: int, size: int) -> bytes:
        if segments is store.log.segments and offset < at + 50 and offset + size > at:
            raise OSError(errno.EIO, "Input/output error")
        return pread(segments, offset, size)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store.log.segments), "pread", failing)
    assert queue.suspect(9)
    assert not store.repair.step()
    assert queue.entries(9, 1) == before[9 * UNIT : 10 * UNIT]
    assert queue.suspect(11)
    assert store.repair.step()
    machine(store).advance(5010)
    assert not store.repair.step()
    monkeypatch.undo()
    assert queue.entries(0, MESSAGES) == before


def fail_record_reads(patch: pytest.MonkeyPatch, store: Store, place: int, number: int = errno.EIO) -> None:
    """Let the disk fail to read the record of a queue offset of ``T``, until ``patch`` is undone."""
    at, size, _ = ENTRY.unpack(queue_of(store).entries(place, 1))
    fail_log_reads(patch, at, size, number)


FAR = pack(2**62, 100)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("what", [FAR, bytes(UNIT)])
def test_no_filler_replaces_an_entry_whose_record_cannot_be_read_now(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: bytes, number: int
) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    with monkeypatch.context() as patch, capture_logs() as lines:
        fail_record_reads(patch, store, 9, number)
        damage(queue, 9, what)
        assert queue.suspect(9)
        assert not store.repair.step()
        assert queue.entries(9, 1) == what
        assert queue.suspect(9), "readers must wait for it"
    assert lines[-1]["event"] == "consume_queue_repair_failed"
    machine(store).advance(6000)  # until unreadable places are read again
    assert store.repair.step()
    assert queue.entries(0, MESSAGES) == before


def test_entries_are_repaired_although_a_record_between_them_cannot_be_read_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    fail_record_reads(monkeypatch, store, 24)
    for place in range(5, 45):
        damage(queue, place, FAR)
    for place in (5, 24, 44):
        assert queue.suspect(place)
    assert [store.repair.step() for _ in range(3)] == [True, False, True]
    wrong = [place for place in range(MESSAGES) if queue.entries(place, 1) != before[place * UNIT :][:UNIT]]
    assert 24 in wrong
    assert 5 < min(wrong) <= max(wrong) < 44
    assert {queue.entries(place, 1) for place in wrong} == {FAR}


def test_a_reader_without_a_descriptor_does_not_know_whether_an_entry_is_wrong(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(store)
    at, size, _ = ENTRY.unpack(queue.entries(9, 1))
    with monkeypatch.context() as patch:
        fail_record_reads(patch, store, 9, errno.EMFILE)
        with pytest.raises(OSError, match="EMFILE"):
            is_wrong_entry(store.log, queue, 9, at, size)
    fail_record_reads(monkeypatch, store, 10)
    at, size, _ = ENTRY.unpack(queue.entries(10, 1))
    assert not is_wrong_entry(store.log, queue, 10, at, size), "the disk is damaged"


def test_an_entry_whose_record_is_quarantined_becomes_a_filler(store: Store) -> None:
    queue = queue_of(store)
    at, size, _ = ENTRY.unpack(queue.entries(9, 1))
    store.log.quarantine_range(at, at + size)
    damage(queue, 9, FAR)
    assert queue.suspect(9)
    assert store.repair.step()
    assert queue.entries(9, 1) == FILLER


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_an_entry_stays_suspect_until_its_repair_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    queue = queue_of(store)
    before = queue.entries(0, MESSAGES)
    damage(queue, 9, bytes(UNIT))
    with monkeypatch.context() as patch, capture_logs() as lines:
        fail_writes(patch, queue.folder, number)
        assert queue.suspect(9)
        for pause in (5, 10, 20, 40, 80, 120, 120):
            assert not store.repair.step()
            assert queue.suspect(9), "readers must wait for it"
            machine(store).advance(pause * 1000 - 10)
            assert not store.repair.is_due
            machine(store).advance(20)
            assert store.repair.is_due
    assert {line["event"] for line in lines} == {"consume_queue_disagrees", "consume_queue_repair_failed"}
    assert lines[1]["reason"].endswith(errno.errorcode[number])
    assert store.repair.step()
    assert queue.entries(0, MESSAGES) == before
    assert not store.repair.is_due


def test_a_failed_repair_does_not_stop_those_of_other_queues(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = queue_of(store), queue_of(store, "U")
    before = good.entries(0, MESSAGES)
    for queue in (bad, good):
        damage(queue, 9, bytes(UNIT))
        assert queue.suspect(9)
    fail_writes(monkeypatch, bad.folder)
    assert [store.repair.step() for _ in range(3)] == [False, True, False]
    assert good.entries(0, MESSAGES) == before


def test_a_new_suspect_entry_takes_the_place_of_one_that_cannot_be_repaired(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "SUSPECTS_MAX", 2)
    bad, good = queue_of(store), queue_of(store, "U")
    before = good.entries(0, MESSAGES)
    for place in (9, 30):
        damage(bad, place, bytes(UNIT))
        assert bad.suspect(place)
    damage(good, 9, bytes(UNIT))
    fail_writes(monkeypatch, bad.folder)
    for _ in range(8):
        good.suspect(9)
        while store.repair.is_due:
            store.repair.step()
        machine(store).advance(121_000)
    assert good.entries(0, MESSAGES) == before


def test_a_suspect_entry_of_a_deleted_topic_is_forgotten(store: Store) -> None:
    queue = queue_of(store)
    damage(queue, 9, bytes(UNIT))
    assert queue.suspect(9)
    store.queues.delete_topic("T")
    assert store.repair.step()
    assert not store.repair.is_due


def test_entries_of_this_run_and_light_queues_are_not_verified(store: Store) -> None:
    batch = AppendBatch()
    batch.add("T", 0, b"new", b"")
    batch.add("%LMQ%x", 0, b"light", b"")
    store.append(batch)
    commit(store)
    assert not queue_of(store).suspect(MESSAGES), "it came from the log just now"
    store.flush_queues()
    assert queue_of(store).suspect(MESSAGES)
    assert not queue_of(store, "%LMQ%x").suspect(0)


@pytest.mark.parametrize("place", [0, 1, 29, 30, 31, MESSAGES - 1])
@pytest.mark.parametrize("at", [-(2**63), -1, 0, 1, 2**62])
def test_one_wrong_entry_does_not_hide_others_from_readers(store: Store, place: int, at: int) -> None:
    queue = queue_of(store)
    keep = 24
    log_min, size, _ = ENTRY.unpack(queue.entries(keep, 1))
    damage(queue, place, pack(at, size))
    queue.correct_min(0)
    assert queue.min_offset == 0
    queue.correct_min(log_min)
    assert keep - 2 <= queue.min_offset <= keep


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("entry", [(2**62, 100), (5, 2**31 - 2)])
def test_a_last_entry_with_a_wrong_size_does_not_hide_later_records(
    store: Store, clean: bool, entry: tuple[int, int]
) -> None:
    queue = queue_of(store)
    env = store._env
    assert isinstance(env, MemoryEnv)
    damage(queue, MESSAGES - 1, pack(*entry))
    queue._segments.sync()
    if clean:
        store.close()
    else:
        env = env.kill()
    again, _, _ = open_store(env)
    batch = AppendBatch()
    batch.add("T", 0, b"later", b"")
    again.append(batch)
    commit(again)
    while again.repair.is_due:
        again.repair.step()
    found = read_queue(again)
    assert (len(found), found[MESSAGES]) == (MESSAGES + 1, b"later")


def test_an_unreadable_queue_file_is_rebuilt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    env = store._env
    assert isinstance(env, MemoryEnv)
    store.close()
    last = max(path for path in env.files if "/T/0/" in path)
    bad = env.files[last]
    pread = MemoryFile.pread

    def failing(file: MemoryFile, size: int, offset: int) -> bytes:
        if file._inode is bad:
            raise OSError(errno.EIO, "Input/output error")
        return pread(file, size, offset)

    monkeypatch.setattr(MemoryFile, "pread", failing)
    again, _, _ = open_store(env)
    assert len(read_queue(again)) == MESSAGES
    assert env.files[last] is not bad


def test_a_damaged_entry_size_is_not_used_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry's size, or four bytes of a body that are taken for one, may say half a gigabyte."""
    config = attrs.evolve(TINY, commit_log_file_bytes=1 << 20, max_message_bytes=1 << 19)
    store, _, _ = open_store(MemoryEnv(), config=config)
    batch = AppendBatch()
    batch.add("T", 0, (300_000).to_bytes(4, "big") * 100, b"")
    for number in range(3):
        batch.add("T", 0, b"%d" % number * 200_000, b"")
    store.append(batch)
    commit(store)
    store.flush_queues()
    queue = queue_of(store)
    at, size, _ = ENTRY.unpack(queue.entries(0, 1))
    read: list[int] = []
    pread, peek = MemoryFile.pread, MemoryFile.peek_into
    monkeypatch.setattr(MemoryFile, "pread", lambda file, size, offset: read.append(size) or pread(file, size, offset))
    monkeypatch.setattr(
        MemoryFile, "peek_into", lambda file, buffer, offset: read.append(len(buffer)) or peek(file, buffer, offset)
    )
    windows = LogWindows(store._env, store.log)
    with pytest.raises(BadRecord):
        store.log.read_record(at + 88)  # in the body of the first
    assert windows.span(at, size + 262_144) is None
    with pytest.raises(OutOfLog):
        windows.record(at, size + 262_144, wait=True)
    assert not windows.holds_damaged(at, size + 262_144, ("T", 0, 0))
    assert max(read) <= 64 * 1024
    large, size, _ = ENTRY.unpack(queue.entries(2, 1))
    assert windows.span(large, size) is not None
    assert len(windows.record(large, size, wait=True)) >= size
    assert store.log.read_record(large).body == b"1" * 200_000

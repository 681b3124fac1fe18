"""Recovery: the tail rule, quarantine, rebuilt files, and stores of RocketMQ's broker."""

from __future__ import annotations

import contextlib
import struct
from itertools import pairwise

import attrs
import pytest

from gantrymq.kernel.errors import CorruptRange, LogPoisoned, StartError
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.kernel.store.recovery.recovery import RecoveryReport
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_all, read_queue

SIZE = 92 + 100
"""The size of each record here: topic T, a body of 100 bytes. 21 fit into a file."""
FILE = TINY.commit_log_file_bytes


def body(number: int) -> bytes:
    return b"%03d" % number + b"x" * 97


def append(store: Store, first: int, end: int) -> list[int]:
    batch = batch_of([body(number) for number in range(first, end)])
    store.append(batch)
    return batch.offsets


def numbers(store: Store) -> list[int]:
    return [int(found[:3]) for found in read_queue(store).values()]


def safe_store(count: int = 50) -> tuple[MemoryEnv, Store, list[int]]:
    """A store of which everything is below both watermarks, not stopped; the records' offsets."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    offsets = append(store, 0, count)
    commit(store)
    store.flush_queues()
    return env, store, offsets


def damage(env: MemoryEnv, offset: int, data: bytes) -> None:
    env.open(f"store/commitlog/{offset - offset % FILE:020d}").pwrite(data, offset % FILE)


def as_rocketmq_left_it(env: MemoryEnv) -> MemoryEnv:
    """The same store without what RocketMQ's broker does not write."""
    env = env.kill()
    env.unlink("store/gantrymq.watermark")
    env.rmtree("store/lost+found")
    env.rmtree("store/staging")
    return env


# ------------------------------------------------------------------------------------------------- stop, kill, cut


def test_a_start_after_a_clean_stop_reads_no_record_of_the_log() -> None:
    env, store, _ = safe_store()
    append(store, 50, 60)
    store.close()
    assert not env.exists("store/abort")
    store, report, replayed = open_store(env)
    assert (report.clean, report.foreign, report.scanned_bytes, replayed) == (True, False, 0, [])
    assert numbers(store) == list(range(60))
    assert env.exists("store/abort")


def test_recovery_after_a_kill_reads_the_log_behind_the_watermark_only() -> None:
    env, store, _ = safe_store()
    offsets = append(store, 50, 60)
    commit(store)
    append(store, 60, 63)
    store, report, replayed = open_store(env.kill())
    assert (report.clean, report.dispatched, report.cut_bytes) == (False, 13, 0)
    assert replayed[0].start == offsets[0]
    assert all(batch.replay for batch in replayed)
    assert numbers(store) == list(range(63))
    assert store.dispatched == report.end == store.log.durable


def test_messages_dispatched_by_recovery_are_durable() -> None:
    env, store, _ = safe_store()
    append(store, 50, 60)
    after = env.kill()
    store, _, _ = open_store(after)
    assert numbers(store) == list(range(60))
    store, _, _ = open_store(after.power_cut())
    assert numbers(store) == list(range(60))


def test_a_second_recovery_has_nothing_to_do() -> None:
    env, store, _ = safe_store()
    append(store, 50, 60)
    after = env.kill()
    open_store(after)
    _, report, _ = open_store(after.kill())
    assert report.dispatched == 0


def test_a_recovery_killed_at_any_call_has_the_same_result() -> None:
    moment = 0
    while True:
        moment += 1
        disk, store, offsets = safe_store()
        append(store, 50, 60)
        damage(disk, store.log.end - SIZE, b"torn")
        disk = disk.kill()
        env = FaultEnv(disk, moment, forever=True, tear="short")
        with contextlib.suppress(LogPoisoned, StartError):
            open_store(env)
        store, report, _ = open_store(disk.kill())
        assert numbers(store) == list(range(59))
        assert report.end == offsets[-1] + SIZE * 10
        if not env.failed:
            break
    assert moment > 15


def test_plugins_may_request_an_earlier_replay() -> None:
    env, store, offsets = safe_store()
    store.close()
    for replay_from, first in [(offsets[30], 30), (0, 0), (offsets[30] + 1, 21), (offsets[49] + SIZE, 50)]:
        store, report, replayed = open_store(env, replay_from=replay_from)
        found = [offset for batch in replayed for offset in batch.offsets]
        assert found == offsets[first:]
        assert numbers(store) == list(range(50))
        assert report.dispatched == 50 - first
        store.close()


def test_replayed_batches_are_contiguous() -> None:
    env, store, _ = safe_store()
    store.close()
    _, report, replayed = open_store(env, replay_from=0)
    assert replayed[0].start == 0
    assert all(one.end == other.start for one, other in pairwise(replayed))
    assert replayed[-1].end == report.end


# ------------------------------------------------------------------------------------------------------ above, below


def test_a_hole_above_the_watermark_truncates_the_log_and_the_tail_is_saved() -> None:
    env, store, _ = safe_store()
    offsets = append(store, 50, 60)
    damage(env, offsets[3], bytes(SIZE))
    after = env.kill()
    store, report, _ = open_store(after)
    assert (report.end, report.cut_bytes) == (offsets[3], SIZE * 7 - 2)
    assert numbers(store) == list(range(53))
    (kept,) = report.kept
    assert kept == f"store/lost+found/commitlog-{offsets[3]:020d}.1"
    # The two bytes that are missing are zeros, the length of no properties.
    assert after.read_bytes(kept)[SIZE : SIZE + 4] == SIZE.to_bytes(4, "big")
    append(store, 70, 72)
    commit(store)
    assert numbers(store) == [*range(53), 70, 71]


def test_a_truncated_tail_of_several_files_is_saved_file_by_file() -> None:
    env, store, _ = safe_store()
    offsets = append(store, 50, 100)
    damage(env, offsets[2], b"torn")
    after = env.kill()
    store, report, _ = open_store(after)
    assert len(report.kept) == 3
    assert sum(len(after.read_bytes(path)) for path in report.kept) == report.cut_bytes
    assert [name for name in after.listdir("store/commitlog") if int(name) > report.end] == []
    append(store, 100, 150)
    commit(store)
    assert numbers(store) == [*range(52), *range(100, 150)]


def test_damage_below_the_watermark_is_quarantined_and_later_records_remain() -> None:
    env, store, offsets = safe_store()
    append(store, 50, 60)
    damage(env, offsets[30] + 90, b"flip")
    after = env.kill()
    # The damage lies below what was dispatched: only a full replay meets it.
    store, report, _ = open_store(after, replay_from=0)
    assert report.corrupt == ((offsets[30], offsets[31]),)
    assert report.cut_bytes == 0
    assert report.end == offsets[49] + SIZE * 11
    with pytest.raises(CorruptRange):
        store.log.read_record(offsets[30])
    assert store.log.read_record(offsets[31]).body == body(31)
    store.close()
    store, report, replayed = open_store(after)
    assert report.corrupt == ((offsets[30], offsets[31]),)
    assert replayed == []
    with pytest.raises(CorruptRange):
        store.log.view(offsets[29], 2 * SIZE)
    _, report, replayed = open_store(after.kill(), replay_from=0)
    assert sum(map(len, replayed)) == 59
    assert len(report.corrupt) == 1


def test_damage_between_the_watermarks_keeps_later_queue_offsets() -> None:
    env, store, _ = safe_store()
    offsets = append(store, 50, 60)
    store.flush()
    # The log is known to be durable, the queues are not flushed yet.
    files = store._files
    assert files.marks is not None
    timestamp = store.log.last_timestamp
    files.save(attrs.evolve(files.marks, durable=store.log.durable), timestamp, timestamp, 0)
    damage(env, offsets[4], b"\xff" * 2 * SIZE)
    store, report, _ = open_store(env.kill())
    assert report.corrupt == ((offsets[4], offsets[6]),)
    found = read_queue(store)
    assert [int(one[:3]) for one in found.values()] == [*range(54), *range(56, 60)]
    assert list(found) == [*range(54), *range(56, 60)]
    append(store, 60, 61)
    commit(store)
    assert read_queue(store)[60] == body(60)


def test_damage_that_ends_at_the_watermark_is_quarantined_up_to_it() -> None:
    env, store, offsets = safe_store()
    damage(env, offsets[48], bytes(2 * SIZE))
    store, report, _ = open_store(env.kill(), replay_from=0)
    assert report.corrupt == ((offsets[48], offsets[49] + SIZE),)
    assert report.end == offsets[49] + SIZE
    batch = batch_of([b"next"])
    store.append(batch)
    assert batch.offsets == [report.end]
    assert batch.queue_offsets == [50]


def test_an_entirely_damaged_file_below_the_watermark_is_quarantined() -> None:
    env, _, offsets = safe_store(80)
    damage(env, FILE, bytes(FILE))
    _, report, _ = open_store(env.kill(), replay_from=0)
    assert report.corrupt == ((FILE, 2 * FILE),)
    assert report.end == offsets[79] + SIZE


def test_torn_properties_are_distinguished_from_zeros() -> None:
    env, store, _ = safe_store()
    batch = batch_of([b"a", b"b"], properties=b"KEYS\x01" + b"k" * 50)
    store.append(batch)
    damage(env, store.log.end - 20, bytes(20))
    _, report, _ = open_store(env.kill())
    assert report.end == batch.offsets[1]


def test_an_unreadable_list_of_quarantined_ranges_is_rebuilt() -> None:
    env, _, offsets = safe_store()
    damage(env, offsets[30], b"flip")
    env.replace("store/gantrymq.quarantine", b"{]")
    _, report, _ = open_store(env.kill(), replay_from=0)
    assert report.corrupt == ((offsets[30], offsets[31]),)


# ---------------------------------------------------------------------------------------------------- missing things


def test_a_missing_file_of_the_log_refuses_the_start_and_changes_nothing() -> None:
    for missing, reason in [(FILE, "no file between offset 4096 and 8192"), (2 * FILE, "was acknowledged")]:
        env, store, _ = safe_store()
        store.close()
        env.unlink(f"store/commitlog/{missing:020d}")
        before = {path: bytes(inode.data) for path, inode in env.files.items() if "commitlog" in path}
        with pytest.raises(StoreDamaged, match=reason):
            open_store(env)
        assert {path: bytes(inode.data) for path, inode in env.files.items() if "commitlog" in path} == before


def test_a_crash_is_detected_without_the_abort_file() -> None:
    env, store, _ = safe_store()
    append(store, 50, 60)
    after = env.kill()
    after.unlink("store/abort")
    store, report, _ = open_store(after)
    assert not report.clean
    assert numbers(store) == list(range(60))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["store/consumequeue/T/0", "store/consumequeue/T", "store/consumequeue", "one file"])
def test_lost_consume_queues_are_rebuilt(clean: bool, lost: str) -> None:
    env, store, _ = safe_store()
    before = read_all(store)
    if clean:
        store.close()
    after = env.kill()
    if lost == "one file":
        after.unlink(f"store/consumequeue/T/0/{400:020d}")
    else:
        after.rmtree(lost)
    store, report, _ = open_store(after)
    assert read_all(store) == before
    assert report.dispatched == 50
    assert batch_numbers(store) == [50]


def batch_numbers(store: Store) -> list[int]:
    batch = batch_of([b"next"])
    store.append(batch)
    return batch.queue_offsets


@pytest.mark.parametrize("clean", [True, False])
def test_a_consume_queue_ahead_of_the_log_is_truncated(clean: bool) -> None:
    env, store, offsets = safe_store()
    if clean:
        store.close()
    after = env.kill()
    file = after.open(f"store/consumequeue/T/0/{800:020d}")
    file.pwrite(ENTRY.pack(offsets[49] + SIZE, SIZE, 0) + ENTRY.pack(1 << 40, SIZE, 0), 200)
    store, _, _ = open_store(after)
    assert numbers(store) == list(range(50))
    assert batch_numbers(store) == [50]


def test_queue_offsets_of_lost_last_messages_are_not_assigned_again() -> None:
    env, store, offsets = safe_store()
    queue = store.queues.get("T", 0)
    assert queue is not None
    for offset in offsets[48:]:
        store.log.segments.write(offset + 4, b"\0")  # its magic
    assert queue.suspect(49)
    assert store.repair.step()
    store.append(batch_of([b"u"], topic="U"))
    commit(store)
    store.flush_queues()
    store, report, _ = open_store(env.kill())
    assert numbers(store) == list(range(48))
    assert batch_numbers(store) == [50]
    assert report.dispatched == 0, "no record is missing in the queues"


def test_queue_offsets_continue_after_all_messages_expired() -> None:
    env, store, _ = safe_store(80)
    store.append(batch_of([b"u"], topic="U"))
    commit(store)
    store.flush_queues()
    append(store, 80, 130)
    commit(store)
    store.log.segments.delete_before(4 * FILE)
    store.flush_queues()
    for clean in (False, True):
        if clean:
            store.close()
        env = env.kill()
        store, _, _ = open_store(env)
        assert store.queues.next_offset("U", 0) == 1
        assert store.queues.next_offset("T", 0) == 130
        assert numbers(store) == list(range(83, 130))
        queue = store.queues.get("U", 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (1, 1)


# ----------------------------------------------------------------------------------------------- RocketMQ's own stores


def test_a_store_stopped_by_rocketmq_is_opened() -> None:
    env, store, _ = safe_store()
    store.close()
    env = as_rocketmq_left_it(env)
    store, report, _ = open_store(env)
    assert (report.clean, report.foreign, report.cut_bytes, report.corrupt) == (True, True, 0, ())
    assert numbers(store) == list(range(50))
    assert batch_numbers(store) == [50]
    assert report.scanned_bytes < FILE
    store.close()
    _, report, _ = open_store(env)
    assert not report.foreign


def test_damage_in_a_store_stopped_by_rocketmq_is_quarantined_and_its_stale_tail_truncated() -> None:
    env, store, offsets = safe_store()
    store.close()
    env = as_rocketmq_left_it(env)
    damage(env, offsets[45], b"flip")
    # A tail that RocketMQ's recovery cut by moving its end only: records stored before, at their places.
    stale = bytearray(env.read_bytes(f"store/commitlog/{2 * FILE:020d}")[: SIZE * 2])
    end = offsets[49] + SIZE
    for at in range(2):
        struct.pack_into(">q", stale, at * SIZE + 28, end + 10 + at * SIZE)
    damage(env, end + 10, bytes(stale))
    store, report, _ = open_store(env)
    assert report.corrupt == ((offsets[45], offsets[46]),)
    assert (report.end, report.cut_bytes > 0) == (end, True)
    assert numbers_without(store, 45) == [*range(45), *range(46, 50)]


def test_a_damaged_last_record_of_a_store_stopped_by_rocketmq_costs_none_behind_an_earlier_damage() -> None:
    env, store, offsets = safe_store()
    store.close()
    env = as_rocketmq_left_it(env)
    damage(env, offsets[45], b"flip")
    damage(env, offsets[49], b"flip" * 8)
    store, report, _ = open_store(env)
    assert report.corrupt == ((offsets[45], offsets[46]),)
    assert report.end == offsets[49]
    assert numbers_without(store, 45) == [*range(45), *range(46, 49)]


def numbers_without(store: Store, missing: int) -> list[int]:
    queue = store.queues.get("T", 0)
    assert queue is not None
    entries = list(ENTRY.iter_unpack(queue.entries(0, 1000)))
    return [int(store.log.read_record(entry[0]).body[:3]) for at, entry in enumerate(entries) if at != missing]


def crashed_rocketmq(flushed: int, count: int) -> tuple[MemoryEnv, list[int]]:
    """``count`` records stored ten seconds apart; the checkpoint is of number ``flushed``."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    offsets, stamps = [], []
    for number in range(count):
        env.advance(10_000)
        offsets += append(store, number, number + 1)
        stamps.append(env.wall)
    commit(store)
    store.flush_queues()
    env = as_rocketmq_left_it(env)
    env.open("store/checkpoint").pwrite(struct.pack(">3q", stamps[flushed], stamps[flushed], 0), 0)
    return env, offsets


def test_a_store_that_crashed_under_rocketmq_is_read_from_a_file_before_the_checkpoint() -> None:
    env, _ = crashed_rocketmq(50, 70)
    queue_file = env.open(f"store/consumequeue/T/0/{1200:020d}")
    queue_file.pwrite(bytes(60), 40)
    store, report, _ = open_store(env)
    assert (report.clean, report.foreign, report.corrupt, report.cut_bytes) == (False, True, (), 0)
    assert report.dispatched == 70 - 42
    assert numbers(store) == list(range(70))
    assert batch_numbers(store) == [70]


def report_after_damage(number: int, flushed: int = 50) -> tuple[RecoveryReport, list[int], list[int]]:
    env, offsets = crashed_rocketmq(flushed, 70)
    damage(env, offsets[number], b"flip")
    store, report, _ = open_store(env)
    return report, offsets, numbers(store)


def test_a_crash_of_rocketmq_quarantines_damage_before_the_checkpoint_and_truncates_after_it() -> None:
    report, offsets, found = report_after_damage(45)
    assert report.corrupt == ((offsets[45], offsets[46]),)
    assert found == [*range(45), *range(46, 70)]
    report, offsets, found = report_after_damage(60)
    assert (report.corrupt, report.end) == ((), offsets[60])
    assert found == list(range(60))


def test_recovery_without_a_checkpoint_reads_the_whole_log() -> None:
    env, _ = crashed_rocketmq(50, 70)
    env.unlink("store/checkpoint")
    store, report, _ = open_store(env)
    assert report.dispatched == 70
    assert numbers(store) == list(range(70))


def test_our_watermark_is_ignored_after_rocketmq_wrote_to_the_store() -> None:
    env, store, _ = safe_store()
    store.close()
    ours = env.read_bytes("store/gantrymq.watermark")
    # RocketMQ's broker appends, dispatches, and stops: the checkpoint moves, our file does not know.
    foreign = env.kill()
    foreign.unlink("store/gantrymq.watermark")
    other, _, _ = open_store(foreign)
    foreign.advance(60_000)
    append(other, 50, 55)
    other.close()
    foreign.rename("store/gantrymq.watermark", "store/thrown away")
    foreign.open("store/gantrymq.watermark", create=True).pwrite(ours, 0)
    store, report, _ = open_store(foreign)
    assert report.foreign
    assert numbers(store) == list(range(55))


@pytest.mark.parametrize(("clean", "kept"), [(True, 50), (False, 42)], ids=["stopped", "crashed"])
def test_entries_of_rocketmqs_light_queues_survive_recovery(clean: bool, kept: int) -> None:
    """They name records of another topic and queue. After a crash, those of the log that is read again are lost."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    batch = batch_of([body(number) for number in range(50)], queue_id=3)
    store.append(batch)
    commit(store)
    store.flush_queues()
    env = as_rocketmq_left_it(env)
    folder, units = "store/consumequeue/%LMQ%x/0", TINY.queue_file_units
    env.mkdirs(folder)
    for start in range(0, 50, units):
        file = env.open(f"{folder}/{start * ENTRY.size:020d}", create=True)
        file.truncate(units * ENTRY.size)
        file.pwrite(b"".join(ENTRY.pack(offset, SIZE, 0) for offset in batch.offsets[start : start + units]), 0)
    if clean:
        env.unlink("store/abort")
    env.open("store/checkpoint").pwrite(struct.pack(">3q", env.wall + 5000, env.wall + 5000, 0), 0)
    env.advance(60_000)
    store, report, _ = open_store(env)
    assert (report.clean, report.foreign) == (clean, True)
    light, own = store.queues.get("%LMQ%x", 0), store.queues.get("T", 3)
    assert light is not None
    assert own is not None
    assert (light.max_offset, own.max_offset) == (kept, 50)


def test_an_empty_store_has_no_previous_writer() -> None:
    _, report, _ = open_store(MemoryEnv())
    assert (report.clean, report.foreign, report.end) == (True, False, 0)

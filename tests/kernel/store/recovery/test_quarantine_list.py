"""A quarantined range behind a cut of the log does not hide records that are appended later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import pytest

from gantrymq.kernel.errors import LogPoisoned, StartError
from gantrymq.kernel.store.store import Store
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store

LIST = "store/gantrymq.quarantine"
FILE = TINY.commit_log_file_bytes
BEFORE, FIRST, SECOND = 5, 30, 40
"""Numbers of the damaged records. Each file has 21 records."""
STORE_TIMESTAMP_AT = 56
"""Its place in a record."""


def damaged_store() -> tuple[MemoryEnv, list[int]]:
    """A stopped store of 100 records in five files, three of them damaged and quarantined; all offsets."""
    env = MemoryEnv()
    store, _, _ = open_store(env)
    batch = batch_of([b"%03d" % number + b"x" * 97 for number in range(100)])
    store.append(batch)
    commit(store)
    store.close()
    for number in (BEFORE, FIRST, SECOND):
        offset = batch.offsets[number]
        env.open(f"store/commitlog/{offset - offset % FILE:020d}").pwrite(b"\xff" * 8, offset % FILE)
    quarantine(env, [(batch.offsets[number], batch.offsets[number + 1]) for number in (BEFORE, FIRST, SECOND)])
    return env, batch.offsets


def quarantine(env: MemoryEnv, ranges: Sequence[tuple[int, int]]) -> None:
    env.replace(LIST, json.dumps(ranges).encode())


def listed(env: MemoryEnv) -> list[tuple[int, int]]:
    return [(start, end) for start, end in json.loads(env.read_bytes(LIST))]


def cut(env: MemoryEnv | FaultEnv, offset: int) -> None:
    store = Store(env, "store", TINY)
    store.open()
    try:
        store.cut(offset)
    finally:
        store.abandon()


def check_records(env: MemoryEnv, offsets: list[int], end: int) -> MemoryEnv:
    """Start the store and append: every intact record below ``end``, and every new one, is readable, now and after a
    crash, and no damage is left that a scan does not skip. Returns the disk after that."""
    store, _, _ = open_store(env)
    assert store.log.end >= end
    batch = batch_of([b"new%03d" % number + b"y" * 94 for number in range(70)])
    store.append(batch)
    commit(store)
    assert batch.statuses == [0] * 70
    expected = {offset: b"%03d" % number for number, offset in enumerate(offsets) if offset < end}
    del expected[offsets[BEFORE]]
    expected |= {offset: b"new%03d" % number for number, offset in enumerate(batch.offsets)}
    for _ in range(2):
        assert {offset: store.log.read_record(offset).body[: len(body)] for offset, body in expected.items()} == (
            expected
        )
        scanned = {offset for found in store.log.scan(0, store.log.end) for offset in found.offsets}
        assert scanned.issuperset(expected)
        store.abandon()
        env = env.kill()
        store, _, _ = open_store(env)
    return env


@pytest.mark.parametrize("at", [FIRST, FIRST - 1, BEFORE + 1, 21, SECOND + 1])
def test_records_appended_behind_a_cut_are_readable(at: int) -> None:
    """Cut at a damaged record, as ``store check --cut`` does, or at an intact one, as a slave does."""
    env, offsets = damaged_store()
    cut(env, offsets[at])
    assert all(end <= offsets[at] for _, end in listed(env))
    store, report, _ = open_store(env)
    assert report.end == offsets[at]
    store.abandon()
    check_records(env.kill(), offsets, min(offsets[at], offsets[FIRST]))


def test_a_range_around_a_cut_ends_at_the_cut() -> None:
    env, offsets = damaged_store()
    quarantine(env, [(offsets[FIRST], offsets[SECOND + 1])])
    cut(env, offsets[SECOND])
    assert listed(env) == [(offsets[FIRST], offsets[SECOND])]
    _, report, _ = open_store(env)
    assert report.end == offsets[SECOND]


def test_a_log_is_appendable_after_a_cut_below_a_range_of_several_files() -> None:
    env, offsets = damaged_store()
    quarantine(env, [(offsets[FIRST], offsets[90])])
    cut(env, offsets[FIRST])
    store, report, _ = open_store(env)
    assert report.end == offsets[FIRST]
    batch = batch_of([b"new"])
    store.append(batch)
    assert batch.offsets == [offsets[FIRST]]


def test_a_log_is_appendable_if_a_listed_range_reaches_beyond_its_files() -> None:
    """The list belongs to another version of the log, for example in a store that was put together by hand."""
    env, offsets = damaged_store()
    cut(env, offsets[FIRST])
    before = (offsets[BEFORE], offsets[BEFORE + 1])
    quarantine(env, [before, (offsets[FIRST], offsets[90])])
    store, report, _ = open_store(env)
    assert report.end == 2 * FILE
    assert listed(env) == [before, (offsets[FIRST], 2 * FILE)]
    batch = batch_of([b"new"])
    store.append(batch)
    assert batch.statuses == [0]
    assert store.log.read_record(batch.offsets[0]).body == b"new"


@pytest.mark.parametrize("has_power", [True, False], ids=["kill", "power cut"])
@pytest.mark.parametrize("repeated", [False, True], ids=["not repeated", "repeated"])
def test_a_cut_interrupted_at_any_call_leaves_a_usable_store(repeated: bool, has_power: bool) -> None:
    """A slave repeats its cut at the next start; after ``store check --cut``, the broker may start instead."""
    moment = 0
    while True:
        moment += 1
        disk, offsets = damaged_store()
        env = FaultEnv(disk, moment, forever=True, tear="short")
        with contextlib.suppress(OSError, StartError, LogPoisoned):
            cut(env, offsets[FIRST])
        disk = disk.kill() if has_power else disk.power_cut()
        if repeated:
            cut(disk, offsets[FIRST])
        check_records(disk, offsets, offsets[FIRST])
        if not env.failed:
            break
    assert moment > 12


def test_recovery_drops_ranges_behind_the_end_of_the_log() -> None:
    """A list of another version of the log, for example a restored one, has such ranges."""
    env, offsets = damaged_store()
    cut(env, offsets[FIRST])
    quarantine(env, [(offsets[BEFORE], offsets[BEFORE + 1]), (offsets[FIRST] + 500, offsets[SECOND])])
    _, report, _ = open_store(env.kill())
    assert report.end == offsets[FIRST]
    assert report.corrupt == ((offsets[BEFORE], offsets[BEFORE + 1]),)
    env = check_records(env.kill(), offsets, offsets[FIRST])
    assert listed(env) == [(offsets[BEFORE], offsets[BEFORE + 1])]


def rocketmq_appends(env: MemoryEnv, offsets: list[int], sizes: Sequence[int]) -> tuple[MemoryEnv, list[int]]:
    """RocketMQ opens ``env``, cuts the log at record FIRST by moving its end only, appends bodies of ``sizes``, and is
    stopped; the offsets of the new records."""
    before, after = env.kill(), env.kill()
    cut(after, offsets[FIRST])
    after.advance(60_000)
    store, _, _ = open_store(after)
    batch = batch_of([b"n" * size for size in sizes])
    store.append(batch)
    commit(store)
    end = store.log.end
    store.close()
    for path in [name for name in before.files if name.startswith("store/c")]:
        if not after.exists(path):
            if "commitlog" in path:
                before.unlink(path)  # the files behind the cut
            continue
        old, new = bytearray(before.read_bytes(path)), after.read_bytes(path)
        base = int(path.rpartition("/")[2]) if "commitlog" in path else 0
        stop = min(max(end - base, 0), len(new)) if "commitlog" in path else len(new.rstrip(b"\0"))
        old[:stop] = new[:stop]
        before.open(path).pwrite(bytes(old), 0)
    for path in [name for name in after.files if name.startswith("store/c") and not before.exists(name)]:
        before.open(path, create=True).pwrite(after.read_bytes(path), 0)
    before.unlink("store/gantrymq.watermark")
    before.advance(120_000)
    return before, batch.offsets


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("size", [100, 77], ids=["the old records' size", "another size"])
def test_ranges_that_rocketmq_wrote_over_are_forgotten(size: int, crashed: bool) -> None:
    env, offsets = damaged_store()
    env, new = rocketmq_appends(env, offsets, [size] * 70)
    if crashed:
        env.open("store/abort", create=True)
    store, report, _ = open_store(env)
    before = (offsets[BEFORE], offsets[BEFORE + 1])
    assert report.corrupt == (before,)
    assert listed(env) == [before]
    assert [store.log.read_record(offset).body for offset in new] == [b"n" * size] * 70


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_records_that_rocketmq_cut_off_do_not_come_back_behind_its_new_ones(crashed: bool) -> None:
    """One shorter record is where a damaged one was; the intact old ones behind it, and their entries, still exist."""
    env, offsets = damaged_store()
    env, new = rocketmq_appends(env, offsets, [60])
    if crashed:
        env.open("store/abort", create=True)
    store, report, _ = open_store(env)
    assert new == [offsets[FIRST]]
    assert report.corrupt == ((offsets[BEFORE], offsets[BEFORE + 1]),)
    assert (report.end, report.cut_bytes > 0) == (new[0] + 92 + 60, True)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == FIRST + 1


def test_records_behind_damage_stay_if_rocketmqs_clock_went_back_to_the_right_time() -> None:
    """Its broker does not keep store timestamps from falling, as ours does."""
    env, offsets = damaged_store()
    env, new = rocketmq_appends(env, offsets, [100] * 70)
    for offset in new[20:58]:
        file, at = env.open(f"store/commitlog/{offset - offset % FILE:020d}"), offset % FILE + STORE_TIMESTAMP_AT
        file.pwrite((int.from_bytes(file.pread(8, at)) + 5000).to_bytes(8), at)
    damaged = new[-9]
    env.open(f"store/commitlog/{damaged - damaged % FILE:020d}").pwrite(b"\xff" * 8, damaged % FILE)
    store, report, _ = open_store(env)
    assert report.corrupt == ((offsets[BEFORE], offsets[BEFORE + 1]), (damaged, new[-8]))
    assert report.cut_bytes == 0
    assert store.log.read_record(new[-1]).body == b"n" * 100


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_ranges_that_rocketmq_left_remain_quarantined(crashed: bool) -> None:
    """Its recovery reads the last files only."""
    env, offsets = damaged_store()
    env = env.kill()
    env.unlink("store/gantrymq.watermark")
    if crashed:
        env.open("store/abort", create=True)
    _, report, _ = open_store(env)
    assert report.corrupt == tuple((offsets[number], offsets[number + 1]) for number in (BEFORE, FIRST, SECOND))
    assert report.end > offsets[99]

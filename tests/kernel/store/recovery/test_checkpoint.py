"""RocketMQ's checkpoint and our watermark: round trips, every cut, every flipped bit, and mismatches."""

from __future__ import annotations

import errno
import struct
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.errors import NoRoom
from gantrymq.kernel.store.recovery.checkpoint import (
    Checkpoint,
    MarkFiles,
    Marks,
    corrected_marks,
    decode_checkpoint,
    decode_marks,
)
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv

positions = st.integers(0, (1 << 63) - 1)
BELONGS = Checkpoint(10_000, 20_000, 5)
MARKS = Marks(500, 400, 7, clean=False)


def slots(one: bytes = b"", two: bytes = b"") -> bytes:
    return one.ljust(512, b"\0") + two.ljust(512, b"\0")


@given(positions, positions, positions)
def test_a_checkpoint_has_three_timestamps(log: int, queue: int, index: int) -> None:
    checkpoint = Checkpoint(log, queue, index)
    assert checkpoint.encode() == struct.pack(">3q", log, queue, index)
    assert decode_checkpoint(checkpoint.encode() + bytes(4072)) == checkpoint


def test_a_short_or_negative_checkpoint_is_ignored() -> None:
    for size in range(24):
        assert decode_checkpoint(BELONGS.encode()[:size]) == Checkpoint()
    assert decode_checkpoint(struct.pack(">3q", -1, 5, -9)) == Checkpoint(0, 5, 0)


def test_the_safe_time_is_three_seconds_before_the_older_timestamp() -> None:
    assert BELONGS.safe_timestamp == 7000
    assert Checkpoint(2000, 9000).safe_timestamp == 0


@given(positions, positions, positions, st.booleans(), st.integers(1, 1 << 40))
def test_marks_round_trip(durable: int, dispatched: int, units: int, clean: bool, sequence: int) -> None:
    marks = Marks(max(durable, dispatched), min(durable, dispatched), units, clean)
    data = marks.encode(sequence, BELONGS)
    for both in (slots(data), slots(b"", data)):
        assert decode_marks(both, BELONGS) == (marks, sequence)
        assert decode_marks(both + b"rest", BELONGS) == (marks, sequence)


def test_the_newer_intact_slot_is_used() -> None:
    newer = Marks(900, 900, 9, clean=True)
    one, two = MARKS.encode(4, BELONGS), newer.encode(5, BELONGS)
    assert decode_marks(slots(one, two), BELONGS) == (newer, 5)
    assert decode_marks(slots(two, one), BELONGS) == (newer, 5)
    for size in range(len(two)):
        assert decode_marks(slots(one, two[:size]), BELONGS) == (MARKS, 4)
        assert decode_marks(slots(two[:size]), BELONGS) == (None, 0)
    for bit in range(len(two) * 8):
        flipped = bytearray(two)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_marks(slots(one, bytes(flipped)), BELONGS) == (MARKS, 4)
    for size in range(1024):
        assert decode_marks(slots(one, two)[:size], BELONGS)[0] in (None, MARKS, newer)


def test_marks_of_another_checkpoint_are_ignored() -> None:
    data = slots(MARKS.encode(4, BELONGS))
    assert decode_marks(data, Checkpoint(10_001, 20_000, 5)) == (None, 4)


def test_inconsistent_marks_are_ignored() -> None:
    for marks in (Marks(5, 6, 0, True), Marks(-1, -1, 0, True), Marks(5, 5, -1, True)):
        assert decode_marks(slots(marks.encode(1, BELONGS)), BELONGS)[0] is None


@given(st.binary(max_size=1100))
def test_marks_are_parsed_from_any_bytes(data: bytes) -> None:
    assert decode_marks(data, BELONGS)[0] is None
    decode_checkpoint(data)


def test_saved_marks_survive_a_crash_at_any_call() -> None:
    moment = 0
    while True:
        moment += 1
        disk = MemoryEnv()
        disk.mkdirs("m")
        files = MarkFiles(disk, "m")
        files.save(Marks(1, 1, 1, False), 100, 100, 0)
        disk.sync_dir("m")
        env = FaultEnv(disk, moment, tear="short")
        saved = 1
        try:
            files = MarkFiles(env, "m")
            for number in (2, 3):
                files.save(Marks(number, number, number, False), number * 100, 100, 0)
                saved = number
            files.close()
        except OSError:
            assert saved < 3
        for after in (disk.kill(), *(disk.power_cut(seed) for seed in range(4))):
            found = MarkFiles(after, "m").marks
            assert found is not None
            assert found.durable in (saved, saved + 1)
        if not env.failed:
            break
    assert moment > 6


@pytest.mark.parametrize("full_at", [1, 2], ids=["marks", "checkpoint"])
@pytest.mark.parametrize("restarts", [False, True])
def test_marks_survive_a_crash_during_the_save_after_one_that_found_no_room(full_at: int, restarts: bool) -> None:
    moment = 0
    while True:
        moment += 1
        disk = MemoryEnv()
        disk.mkdirs("m")
        MarkFiles(disk, "m").save(Marks(1, 1, 1, False), 100, 100, 0)
        disk.sync_dir("m")
        env = FaultEnv(disk, full_at, number=errno.ENOSPC, kinds=("pwrite",))
        files = MarkFiles(env, "m")
        with pytest.raises(NoRoom):
            files.save(Marks(2, 2, 2, False), 200, 100, 0)
        if restarts:
            disk = disk.kill()
            env = FaultEnv(disk)
            files = MarkFiles(env, "m")
        env.number, env.kinds = errno.EIO, FaultEnv.KINDS
        env.fail_at, env.forever, env.count, env.failed = moment, True, 0, 0
        with suppress(OSError):
            files.save(Marks(3, 3, 3, False), 300, 100, 0)
        for after in (disk.kill(), *(disk.power_cut(seed) for seed in range(4))):
            found = MarkFiles(after, "m").marks
            assert found is not None
            assert found.durable in (1, 3)
        if not env.failed:
            break
    assert moment > 4


@pytest.mark.parametrize("sequence", [1, 2])
def test_corrected_marks_leave_the_slot_of_the_checkpoint_on_the_disk(sequence: int) -> None:
    """After a save that could not write its checkpoint, the other slot has a higher number."""
    other = Checkpoint(9, 9, 9)
    belongs, newer = MARKS.encode(sequence, BELONGS), MARKS.encode(sequence + 1, other)
    for before in (slots(belongs, newer), slots(newer, belongs)):
        changed = corrected_marks(before, BELONGS, other)
        assert changed is not None
        assert decode_marks(changed, BELONGS)[0] == decode_marks(changed, other)[0] == MARKS


def test_checkpoint_files_have_rocketmqs_size_and_keep_unknown_bytes() -> None:
    env = MemoryEnv()
    env.mkdirs("m")
    file = env.open("m/checkpoint", create=True)
    file.pwrite(struct.pack(">5q", 1, 2, 3, 4, 5) + bytes(4056), 0)
    files = MarkFiles(env, "m")
    assert files.marks is None
    files.save(MARKS, 11, 12, 13)
    assert env.read_bytes("m/checkpoint") == struct.pack(">5q", 11, 12, 13, 4, 5) + bytes(4056)
    assert len(env.read_bytes("m/gantrymq.watermark")) == 4096

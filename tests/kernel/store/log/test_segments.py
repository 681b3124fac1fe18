"""A sequence of files: creation, reopening, refused inconsistencies, truncation and deletion at both ends."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gantrymq.kernel.env.system import SystemEnv, SystemFile
from gantrymq.kernel.errors import NoRoom
from gantrymq.kernel.store.log.segments import Segments, StoreDamaged
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv


def make(env: MemoryEnv | FaultEnv, *, sparse: bool = False) -> Segments:
    env.mkdirs("log")
    env.mkdirs("staging")
    segments = Segments(env, "log", 100, "staging", sparse=sparse)
    segments.load()
    return segments


def name(base: int) -> str:
    return f"log/{base:020d}"


def test_a_file_is_named_by_its_first_offset_and_has_its_full_size_at_once() -> None:
    env = MemoryEnv()
    segments = make(env)
    assert (segments.start, segments.end, len(segments), segments.at(0)) == (0, 0, 0, None)
    segments.ensure(250)
    segments.ensure(300)
    assert env.listdir("log") == [f"{200:020d}", f"{300:020d}"]
    assert (segments.start, segments.end) == (200, 400)
    assert env.read_bytes(name(300)) == bytes(100)
    assert env.listdir("staging") == []
    with pytest.raises(ValueError, match="would leave a gap"):
        segments.ensure(500)


def test_a_new_file_is_complete_or_absent_after_a_power_cut() -> None:
    for sparse in (False, True):
        env = MemoryEnv()
        make(env, sparse=sparse).ensure(0)
        after = env.power_cut()
        assert [len(after.read_bytes(f"log/{file}")) for file in after.listdir("log")] == ([] if sparse else [100])


def test_written_files_are_found_after_a_restart() -> None:
    env = MemoryEnv()
    segments = make(env)
    segments.ensure(0)
    segments.ensure(100)
    segments.write(90, b"0123456789")
    segments.write(100, b"abc")
    assert segments.pread(95, 50) == b"56789"
    assert segments.pread(100, 3) == b"abc"
    assert segments.pread(200, 1) == b""
    for offset in (195, 200):
        with pytest.raises(ValueError, match="not within one file"):
            segments.write(offset, b"123456")
    segments.sync()
    segments.close()
    again = make(env.power_cut())
    assert again.pread(90, 10) == b"0123456789"
    assert (again.start, again.end) == (0, 200)


@pytest.mark.parametrize(
    ("path", "size", "reason"),
    [
        (name(100), 99, "has 99 bytes where 100 are configured"),
        (name(300), 100, "no file between offset 200 and 300"),
        ("log/stray", 100, "does not belong"),
        ("log/" + "1" * 19, 100, "does not belong"),
    ],
)
def test_files_that_contradict_each_other_are_refused_and_left_alone(path: str, size: int, reason: str) -> None:
    env = MemoryEnv()
    segments = make(env)
    segments.ensure(0)
    segments.ensure(100)
    env.open(path, create=True).truncate(size)
    before = env.listdir("log")
    with pytest.raises(StoreDamaged, match=reason):
        make(env)
    assert env.listdir("log") == before


def test_an_empty_last_file_is_dropped() -> None:
    env = MemoryEnv()
    make(env).ensure(0)
    env.open(name(100), create=True)
    assert make(env).end == 100
    assert env.listdir("log") == [f"{0:020d}"]


def test_the_next_file_is_created_in_advance() -> None:
    env = FaultEnv(MemoryEnv())
    segments = make(env)
    assert segments.prepare_next()
    assert env.listdir("log") == []
    segments.ensure(0)
    thread = threading.Thread(target=segments.prepare_next)
    thread.start()
    thread.join()
    assert len(env.listdir("log")) == 2
    assert segments.end == 100
    made = env.calls["preallocate"]
    assert segments.prepare_next()
    segments.ensure(100)
    assert env.calls["preallocate"] == made
    assert segments.end == 200
    segments.close()


def test_a_file_that_finds_no_space_is_removed_and_a_retry_succeeds() -> None:
    env = MemoryEnv()
    segments = make(env)
    segments.ensure(0)
    env.free_bytes = 50
    with capture_logs() as logs:
        for _ in range(3):
            assert not segments.prepare_next()
    assert [line["event"] for line in logs] == ["next_file_not_prepared"], "once for the outage"
    with pytest.raises(NoRoom, match="Free some space"):
        segments.ensure(100)
    assert (env.listdir("log"), env.listdir("staging")) == ([f"{0:020d}"], [])
    env.free_bytes = 500
    with capture_logs() as logs:
        assert segments.prepare_next()
    assert [(line["event"], line["of"], line["failures"]) for line in logs] == [
        ("outage_ended", "next_file_not_prepared", 3)
    ]
    assert segments.ensure(100).base == 100


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, NoRoom), (errno.EIO, OSError)])
def test_other_failures_are_distinguished_from_a_full_disk(number: int, kind: type[Exception]) -> None:
    env = FaultEnv(MemoryEnv(), number=number)
    segments = make(env)
    env.fail_at = env.count + 1
    with pytest.raises(kind):
        segments.ensure(0)


def test_truncation_writes_zeros_and_deletes_later_files() -> None:
    env = MemoryEnv()
    segments = make(env)
    for base in (0, 100, 200):
        segments.ensure(base)
        segments.write(base, b"x" * 100)
    segments.prepare_next()
    assert segments.last_nonzero(150) == 300
    segments.truncate(150)
    assert segments.last_nonzero(150) == 150
    assert (segments.end, env.listdir("log")) == (200, [f"{0:020d}", f"{100:020d}"])
    after = make(env.power_cut())
    assert after.pread(100, 100) == b"x" * 50 + bytes(50)
    after.truncate(0)
    assert (after.end, after.last_nonzero(0)) == (100, 0)
    after.truncate(0)


def test_files_are_deleted_from_the_front_but_never_the_last() -> None:
    env = MemoryEnv()
    segments = make(env)
    for base in (0, 100, 200):
        segments.ensure(base)
    assert segments.delete_before(99) == 0
    assert segments.delete_before(200) == 2
    assert (segments.start, segments.delete_before(1000)) == (200, 0)
    assert env.power_cut().listdir("log") == [f"{200:020d}"]


def test_a_file_that_cannot_be_deleted_is_tried_again_before_younger_files() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, kinds=("unlink",))
    segments = make(env)
    for base in range(0, 600, 100):
        segments.ensure(base)
    env.fail_at = 2
    with pytest.raises(OSError, match="injected"):
        segments.delete_before(300)
    assert [segment.base for segment in segments.undeleted] == [100, 200]
    env.fail_at = env.count + 1
    with pytest.raises(OSError, match="injected"):
        segments.delete_before(400)
    assert segments.start == 300, "no others are removed meanwhile"
    assert disk.listdir("log") == [f"{base:020d}" for base in range(100, 600, 100)]
    assert segments.delete_before(500) == 2
    assert segments.undeleted == []
    assert make(disk.power_cut()).start == 500


def test_files_that_were_detached_earlier_are_deleted_first() -> None:
    env = MemoryEnv()
    segments = make(env)
    for base in range(0, 400, 100):
        segments.ensure(base)
    segments.detach_before(100)  # as by a task that was then cancelled
    segments.discard(segments.detach_before(200))
    assert env.listdir("log") == [f"{200:020d}", f"{300:020d}"]


def test_two_threads_that_delete_the_same_files_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    segments = make(env)
    for base in range(0, 400, 100):
        segments.ensure(base)
    detached = segments.detach_before(300)
    other = threading.Thread(target=segments.discard, args=(detached,))
    unlink, deleted = env.unlink, list[str]()

    def slowly(path: str) -> None:
        deleted.append(path)
        if len(deleted) == 1:
            other.start()
            other.join(0.05)
        unlink(path)

    monkeypatch.setattr(env, "unlink", slowly)
    segments.discard(detached)
    other.join()
    assert deleted == [name(0), name(100), name(200)]


def test_a_missing_file_counts_as_deleted() -> None:
    env = MemoryEnv()
    segments = make(env)
    for base in (0, 100, 200):
        segments.ensure(base)
    env.unlink(name(0))
    assert segments.delete_before(200) == 2
    assert env.listdir("log") == [f"{200:020d}"]


@pytest.mark.parametrize("read", ["pread", "peek"])
def test_a_read_of_a_file_deleted_meanwhile_finds_nothing(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(SystemEnv(), str(tmp_path), 4096, str(tmp_path))
    for base in (0, 4096):
        segments.ensure(base)
    method = getattr(SystemFile, read)

    def late(file: SystemFile, *arguments: int) -> object:
        for segment in segments.detach_before(4096):
            segment.close()
        return method(file, *arguments)

    monkeypatch.setattr(SystemFile, read, late)
    assert not getattr(segments, read)(0, 100)
    held = segments.at(4096)
    assert held is not None
    held.file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        getattr(segments, read)(4096, 100)


def test_derived_files_are_sparse_and_their_directory_is_synced_late() -> None:
    env = MemoryEnv()
    segments = make(env, sparse=True)
    env.free_bytes = 0
    segments.ensure(0)
    segments.write(0, b"x")
    assert len(env.read_bytes(name(0))) == 100
    segments.sync()
    assert env.power_cut().read_bytes(name(0)) == b"x" + bytes(99)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_directory_sync_without_a_descriptor_is_retried(sparse: bool) -> None:
    env = FaultEnv(MemoryEnv(), number=errno.EMFILE, kinds=("sync_dir",))
    segments = make(env, sparse=sparse)

    def write() -> None:
        segments.ensure(0)
        segments.write(0, b"x")
        segments.sync()

    env.fail_at = env.count + 1
    with pytest.raises(NoRoom, match="open files"):
        write()
    write()
    assert segments.pread(0, 1) == b"x"
    assert env.calls["sync_dir"] == 2, "the names are on the disk in the end"


def test_a_failed_directory_sync_is_not_retried() -> None:
    env = FaultEnv(MemoryEnv(), number=errno.EIO, kinds=("sync_dir",), fail_at=1)
    segments = make(env, sparse=True)
    segments.ensure(0)
    with pytest.raises(OSError, match="injected"):
        segments.sync()

"""The real environment and the one in memory have the same behavior: files, the lock, the clock, faults."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from select import select
from types import SimpleNamespace

import pytest

from gantrymq.kernel.env import Env, system
from gantrymq.kernel.env.system import STEP_BYTES, EventWaker, ReadOnlyEnv, SystemEnv
from gantrymq.kernel.errors import LockNotRegular, NoRoom, StartError, StoreInUse, StoreNotWritable, blame
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv


@pytest.fixture(params=["system", "memory", "fault"])
def env(request: pytest.FixtureRequest) -> Env:
    if request.param == "system":
        return SystemEnv()
    return MemoryEnv() if request.param == "memory" else FaultEnv(MemoryEnv())


@pytest.fixture
def root(env: Env, tmp_path: Path) -> str:
    env.mkdirs(f"{tmp_path}/a/b")
    return f"{tmp_path}/a/b"


def test_a_file_returns_the_written_bytes(env: Env, root: str) -> None:
    file = env.open(f"{root}/f", create=True)
    file.preallocate(1000)
    assert file.size() == 1000
    assert file.pread(2000, 990) == bytes(10)
    file.pwrite(b"hello", 100)
    file.pwrite(memoryview(b"world"), 105)
    file.pwrite(b"behind it", 110)
    file.pwrite(b"d", 109, 5)
    file.datasync()
    assert file.pread(19, 100) == b"helloworld" + bytes(5) + b"d it"
    buffer = bytearray(50)
    assert file.peek_into(memoryview(buffer), 995) == 5
    assert file.peek_into(memoryview(buffer)[:5], 100) == 5
    assert buffer == b"hello" + bytes(45)
    assert [(start, end) for start, end in file.data_ranges(100) if end > 110] == [(100, 1000)]
    assert file.data_ranges(1000) == []
    file.truncate(103)
    assert file.pread(10, 100) == b"hel"
    file.close()
    assert env.read_bytes(f"{root}/f")[100:] == b"hel"


def test_a_shared_handle_survives_the_close_of_the_other_one(env: Env, root: str) -> None:
    file = env.open(f"{root}/f", create=True)
    file.pwrite(b"x" * 5000, 0)
    shared = file.share()
    file.close()
    env.unlink(f"{root}/f")
    shared.datasync()
    assert shared.pread(10, 4990) == b"x" * 10
    shared.close()


def test_a_started_read_never_reads_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = SystemEnv()
    first = env.open(f"{tmp_path}/first", create=True)
    first.pwrite(b"first", 0)
    pread = os.pread
    opened = []

    def closed_meanwhile(descriptor: int, size: int, offset: int) -> bytes:
        monkeypatch.undo()
        first.close()
        opened.append(env.open(f"{tmp_path}/second", create=True))
        opened[0].pwrite(b"other", 0)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", closed_meanwhile)
    assert first.pread(5, 0) == b"first"
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.pread(5, 0)
    assert Path(f"/proc/self/fd/{opened[0].fileno()}").resolve().name != "first"


def test_a_missing_file_is_created_only_on_request(env: Env, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        env.open(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        env.read_bytes(f"{root}/none")
    assert env.listdir(f"{root}/none") == []
    assert not env.exists(f"{root}/none")


def test_replace_keeps_the_previous_content_as_a_backup(env: Env, root: str) -> None:
    env.replace(f"{root}/t.json", b"one")
    assert env.listdir(root) == ["t.json"]
    env.replace(f"{root}/t.json", b"two")
    env.replace(f"{root}/t.json", b"three")
    assert env.read_bytes(f"{root}/t.json") == b"three"
    assert env.read_bytes(f"{root}/t.json.bak") == b"two"
    assert env.listdir(root) == ["t.json", "t.json.bak"]


def test_files_are_renamed(env: Env, root: str) -> None:
    env.open(f"{root}/one", create=True).pwrite(b"1", 0)
    env.open(f"{root}/two", create=True).pwrite(b"2", 0)
    env.rename(f"{root}/one", f"{root}/two")
    assert env.listdir(root) == ["two"]
    assert env.read_bytes(f"{root}/two") == b"1"
    env.unlink(f"{root}/two")
    env.mkdirs(f"{root}/deep/er")
    env.open(f"{root}/deep/er/f", create=True).close()
    env.sync_dir(f"{root}/deep/er")
    assert env.is_dir(f"{root}/deep")
    env.rmtree(f"{root}/deep")
    env.rmtree(f"{root}/deep")
    assert env.listdir(root) == []


def test_folders_are_renamed_with_their_content(env: Env, root: str) -> None:
    env.mkdirs(f"{root}/deep/er")
    env.open(f"{root}/deep/er/f", create=True).pwrite(b"data", 0)
    env.mkdirs(f"{root}/deeper")
    env.mkdirs(f"{root}/other/deep")
    env.rename(f"{root}/deep", f"{root}/other/deep")  # an empty folder is replaced
    assert env.listdir(root) == ["deeper", "other"]
    assert env.read_bytes(f"{root}/other/deep/er/f") == b"data"
    with pytest.raises(OSError, match="not empty"):
        env.rename(f"{root}/deeper", f"{root}/other")
    with pytest.raises(NotADirectoryError):
        env.rename(f"{root}/deeper", f"{root}/other/deep/er/f")
    with pytest.raises(IsADirectoryError):
        env.rename(f"{root}/other/deep/er/f", f"{root}/deeper")
    with pytest.raises(FileNotFoundError):
        env.rename(f"{root}/deep", f"{root}/new")


def test_a_folder_is_flushed_as_a_whole(env: Env, root: str) -> None:
    flusher = env.tree_flusher(root)
    if flusher is None:
        pytest.skip("the file system of the tests has no such flush")
    env.mkdirs(f"{root}/deep/er", durable=False)
    env.open(f"{root}/deep/er/f", create=True).pwrite(b"data", 0)
    flusher.flush()
    if isinstance(env, MemoryEnv):
        assert env.power_cut().read_bytes(f"{root}/deep/er/f") == b"data"
    flusher.close()
    flusher.close()


@pytest.mark.parametrize(
    ("release", "kind", "has_flush"),
    [
        ("6.1.0-18-amd64", "ext4", True), ("5.8.0", "xfs", True), ("5.7.19", "ext4", False),
        ("4.18.0-513.el8", "xfs", False),
        ("6.1.0", "overlay", False), ("6.1.0", "fuse.sshfs", False), ("6.1.0", "", False),
    ],
)  # fmt: skip
def test_a_flush_of_the_file_system_is_used_only_where_it_reports_failures(
    release: str, kind: str, has_flush: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system.os, "uname", lambda: SimpleNamespace(release=release))
    monkeypatch.setattr(system, "_file_system", lambda path: kind)
    flusher = SystemEnv().tree_flusher(str(tmp_path))
    assert (flusher is not None) == has_flush
    if flusher is not None:
        flusher.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            flusher.flush()


@pytest.mark.parametrize("system_writes", [1, 5, 8, 12])
def test_a_short_write_is_continued_also_in_its_zeros(
    system_writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SystemEnv().open(str(tmp_path / "f"), create=True)
    file.pwrite(b"x" * 20, 0)
    real = os.pwrite
    first = lambda number, parts, offset: real(number, b"".join(parts)[:system_writes], offset)  # noqa: E731
    monkeypatch.setattr(system.os, "pwritev", first)
    monkeypatch.setattr(system.os, "pwrite", lambda number, data, offset: real(number, bytes(data[:3]), offset))
    file.pwrite(b"12345678", 2, 4)
    assert file.pread(20, 0) == b"xx12345678" + bytes(4) + b"xxxxxx"


@pytest.mark.parametrize(
    ("kind", "release", "has_them"),
    [
        ("ext4", "6.16.0", True),
        ("ext4", "6.8.0-45-generic", False),
        ("xfs", "6.8.0-45-generic", True),
        ("xfs", "5.10", False),
        ("btrfs", "6.18", False),
    ],
)
def test_large_folios_are_known_by_file_system_and_version(
    kind: str, release: str, has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system.os, "uname", lambda: SimpleNamespace(release=release))
    monkeypatch.setattr(system, "_file_system", lambda path: kind)
    assert SystemEnv().has_large_folios("/") is has_them


def test_the_type_of_a_file_system_is_found() -> None:
    assert system._file_system("/proc") == "proc"
    assert system._file_system("/dev/shm") in ("tmpfs", "")


def test_a_second_store_in_this_process_is_refused(env: Env, root: str) -> None:
    lock = env.lock(f"{root}/lock")
    with pytest.raises(StoreInUse, match=rf"another broker( \(process \d+\))? holds {root}/lock"):
        env.lock(f"{root}/lock")
    lock.close()
    lock.close()
    assert env.read_bytes(f"{root}/lock") == b"lock"
    env.lock(f"{root}/lock").close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; from gantrymq.kernel.env.system import SystemEnv; from gantrymq.kernel.errors import StoreInUse\n"
        "try: SystemEnv().lock(sys.argv[1])\n"
        "except StoreInUse as error: print(error)"
    )
    lock = SystemEnv().lock(f"{tmp_path}/lock")
    command = [sys.executable, "-c", script, f"{tmp_path}/lock"]
    held = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"another broker (process {os.getpid()}) holds" in held.stdout
    lock.close()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
@pytest.mark.parametrize("environment", [SystemEnv, ReadOnlyEnv])
def test_a_lock_that_is_no_regular_file_is_refused(
    tmp_path: Path, make: Callable[[str], None], environment: type[SystemEnv]
) -> None:
    path = f"{tmp_path}/lock"
    make(path)
    with pytest.raises(LockNotRegular, match=rf"{path} is not a regular file.*Remove it"):
        environment().lock(path)
    assert not (tmp_path / "elsewhere").exists()
    (os.rmdir if os.path.isdir(path) else os.unlink)(path)
    SystemEnv().lock(path).close()


def test_readers_share_the_lock_and_exclude_a_broker(tmp_path: Path) -> None:
    read = (
        "import sys; from gantrymq.kernel.env.system import *; from gantrymq.kernel.errors import StoreInUse\n"
        "try: ReadOnlyEnv().lock(sys.argv[1]); print('shared')\n"
        "except StoreInUse as error: print(error)"
    )
    path = f"{tmp_path}/lock"

    def other(script: str) -> str:
        return subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stdout

    assert other(read) == "shared\n", "no broker has ever started here"
    assert not os.path.exists(path)
    broker = SystemEnv().lock(path)
    assert f"another broker (process {os.getpid()}) holds" in other(read)
    broker.close()
    reader = ReadOnlyEnv().lock(path)
    assert other(read) == "shared\n"
    assert f"(process {os.getpid()})" in other(read.replace("ReadOnlyEnv", "SystemEnv"))
    reader.close()


def test_a_reader_writes_nothing_and_opens_only_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"kept")
    os.mkfifo(tmp_path / "pipe")
    env = ReadOnlyEnv()
    file = env.open(f"{tmp_path}/f")
    assert file.pread(10, 0) == b"kept"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite(b"lost", 0)
    with pytest.raises(IsADirectoryError):
        env.open(str(tmp_path))
    with pytest.raises(OSError, match="Illegal seek"):
        env.open(f"{tmp_path}/pipe").pread(1, 0)  # and the opening does not wait for a writer


def test_the_lock_is_a_record_lock_on_the_first_byte(tmp_path: Path) -> None:
    lock = SystemEnv().lock(f"{tmp_path}/lock")
    inode = os.stat(f"{tmp_path}/lock").st_ino
    ours = [line.split() for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    assert [(line[1], line[3], line[6], line[7]) for line in ours] == [("POSIX", "WRITE", "0", "0")]
    lock.close()


def test_a_lock_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreNotWritable, match="Give the broker's user the right"):
        SystemEnv().lock(f"{tmp_path}/lock")


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, NoRoom, "Free some space"),
        (errno.EDQUOT, NoRoom, "Free some space"),
        (errno.EROFS, StoreNotWritable, "choose another data folder"),
        (errno.EACCES, StoreNotWritable, "choose another data folder"),
        (errno.EIO, StartError, "Check the disk"),
    ],
)
def test_an_error_of_the_disk_says_what_to_do(number: int, kind: type[StartError], advice: str) -> None:
    error = blame("/data/x", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert "/data/x" in str(error)
    assert advice in str(error)


def test_files_and_folders_are_for_this_user_alone(tmp_path: Path) -> None:
    env = SystemEnv()
    env.mkdirs(f"{tmp_path}/store/x")
    env.open(f"{tmp_path}/store/f", create=True).close()
    env.replace(f"{tmp_path}/store/g", b"")
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store/x").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store/f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "store/g").stat().st_mode & 0o777 == 0o600


def test_symbolic_links_are_not_followed_when_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        SystemEnv().open(f"{tmp_path}/link", create=True)


def test_the_clock_does_not_follow_a_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SystemEnv()
    before = env.wall_ms()
    assert abs(before - time.time_ns() // 1_000_000) < 1000
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert env.wall_ms() >= before
    assert env.monotonic() <= env.monotonic()


def test_a_waker_wakes_from_another_thread_and_is_drained() -> None:
    waker = EventWaker()
    assert select([waker], [], [], 0)[0] == []
    for _ in range(2):
        thread = threading.Thread(target=waker.wake)
        thread.start()
        thread.join()
    assert select([waker], [], [], 0)[0] == [waker]
    waker.drain()
    waker.drain()
    assert select([waker], [], [], 0)[0] == []
    waker.close()
    waker.close()
    waker.wake()


def test_random_numbers_and_free_space_are_plausible(env: Env, root: str) -> None:
    assert {env.random_int(3) for _ in range(200)} == {0, 1, 2}
    usage = env.disk_usage(root)
    assert 0 < usage.free <= usage.total


def test_a_power_cut_drops_data_that_was_not_synced() -> None:
    env = MemoryEnv()
    env.mkdirs("d")
    file = env.open("d/f", create=True)
    file.pwrite(b"a" * 600, 0)
    file.datasync()
    assert not env.power_cut().exists("d/f")
    env = MemoryEnv()
    env.mkdirs("d")
    file = env.open("d/f", create=True)
    file.pwrite(b"a" * 600, 0)
    file.datasync()
    env.sync_dir("d")
    file.pwrite(b"b" * 10, 595)
    env.rename("d/f", "d/g")
    after = env.power_cut()
    assert after.listdir("d") == ["f"]
    assert after.read_bytes("d/f") == b"a" * 600
    with pytest.raises(OSError, match="switched off"):
        file.pread(1, 0)


def test_a_power_cut_with_a_seed_keeps_some_blocks_and_is_repeatable() -> None:
    def disk() -> MemoryEnv:
        env = MemoryEnv()
        file = env.open("f", create=True)
        file.preallocate(512 * 20)
        file.datasync()
        env.sync_dir(".")
        file.pwrite(b"x" * 512 * 20, 0)
        return env

    contents = {disk().power_cut(seed).read_bytes("f") for seed in range(10)}
    assert len(contents) == 10
    for content in contents:
        assert {content[start : start + 512] for start in range(0, len(content), 512)} == {bytes(512), b"x" * 512}
    assert disk().power_cut(3).read_bytes("f") == disk().power_cut(3).read_bytes("f")


def test_data_written_by_a_killed_process_remains() -> None:
    env = MemoryEnv()
    env.lock("lock")
    env.open("f", create=True).pwrite(b"x", 0)
    after = env.kill()
    assert after.read_bytes("f") == b"x"
    after.lock("lock")
    assert not after.power_cut().exists("f")


def test_a_disk_in_memory_has_limited_space() -> None:
    env = MemoryEnv()
    env.free_bytes = 100
    file = env.open("f", create=True)
    with pytest.raises(OSError, match="No space left"):
        file.preallocate(101)
    file.preallocate(100)
    with pytest.raises(OSError, match="No space left"):
        env.replace("g", b"x")
    env.unlink("f")
    env.replace("g", b"x")


def test_calls_fail_as_configured() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, 2, number=errno.ENOSPC, kinds=("pwrite",), tear="short")
    file = env.open("f", create=True)
    file.pwrite(b"aaaa", 0)
    with pytest.raises(OSError, match=r"injected failure of pwrite, call 2") as caught:
        file.pwrite(b"bbbb", 0)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_bytes("f") == b"bbaa"
    file.pwrite(b"cccc", 0)
    env.fail_at, env.tear, env.forever = 4, "tear", True
    for _ in range(2):
        with pytest.raises(OSError, match="injected"):
            file.pwrite(b"dddd", 0)
    assert disk.read_bytes("f") == b"ccdd"
    assert env.calls["pwrite"] == 5
    assert env.failed == 3


def test_a_file_reports_which_ranges_are_not_cached(tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    file = SystemEnv().open(path, create=True)
    file.pwrite(b"x" * 300_000, 0)
    file.datasync()
    assert file.peek(5, 100_000) == b"xxxxx"
    looks: list[tuple[Callable[[], object], object]] = [
        (lambda: file.peek(300_000, 0), None),
        (lambda: file.peek(5, 200_000), None),
        (lambda: file.peek_into(memoryview(bytearray(5)), 200_000), 0),
    ]
    for look, missing in looks:
        deadline = time.monotonic() + 5
        while (
            found := look()
        ):  # the system keeps pages that are in use, as by the read-ahead that the look before began
            if time.monotonic() > deadline:
                pytest.skip("this file system keeps files in memory, or cannot tell")
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
            time.sleep(0.01)
        assert found == missing
    file.read_ahead(0, 300_000)
    assert file.pread(300_000, 0) == b"x" * 300_000
    assert file.peek_into(memoryview(bytearray(5)), 299_998) == 2
    assert file.peek(5, 299_995) == b"xxxxx"
    file.close()


def test_files_in_memory_are_always_cached(tmp_path: Path) -> None:
    env = MemoryEnv()
    env.mkdirs("a")
    file = env.open("a/f", create=True)
    file.pwrite(b"hello", 0)
    file.read_ahead(0, 5)
    assert file.peek(3, 1) == b"ell"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of five steps and a bit in ``folder``, beside ``staging``."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "staging").mkdir()
    path = tmp_path / "folder" / "large"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(5 * STEP_BYTES)
        file.write(b"e")
    return path


def delete_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> list[int]:
    """Delete the file, and stop at the pause after so many steps; returns the sizes of what is left in ``staging``."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == steps:
            raise KeyboardInterrupt

    staging = path.parent.parent / "staging"
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(time, "sleep", pause)
        SystemEnv().delete_large(str(path), str(staging))
    assert not path.exists()
    return [left.stat().st_size for left in staging.iterdir()]


def test_a_large_file_is_deleted_in_steps_and_no_part_of_it_stays_in_its_folder(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert delete_interrupted(large, monkeypatch, steps=2) == [3 * STEP_BYTES + 1]


def test_nothing_is_left_of_a_deleted_file(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert delete_interrupted(large, monkeypatch, steps=99) == []


def test_a_backup_by_hard_links_keeps_a_deleted_file(large: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.hardlink_to(large)
    SystemEnv().delete_large(str(large), str(tmp_path / "staging"))
    assert not large.exists()
    assert backup.stat().st_size == 5 * STEP_BYTES + 1
    assert backup.read_bytes()[:5] == b"begin"


def test_a_reader_of_a_deleted_file_reads_it_to_its_end(large: Path, tmp_path: Path) -> None:
    with large.open("rb") as reader:
        SystemEnv().delete_large(str(large), str(tmp_path / "staging"))
        reader.seek(5 * STEP_BYTES)
        assert reader.read() == b"e"
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_large_file_that_cannot_move_to_staging_is_deleted_in_its_folder(large: Path, tmp_path: Path) -> None:
    SystemEnv().delete_large(str(large), str(tmp_path / "no such folder"))
    assert not large.exists()


def test_a_file_of_one_step_is_deleted_without_a_detour(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(10))
    SystemEnv().delete_large(str(path), str(tmp_path / "no such folder"))
    assert not path.exists()

"""Both twins of the flusher make appended bytes durable in order, and nothing more after a failure."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv, SystemFile
from gantrymq.kernel.fast import plain_flusher
from gantrymq.kernel.fast.durations import BOUNDS_S
from gantrymq.kernel.fast.plain_flusher import FAST_FLUSHES_MAX

pytestmark = pytest.mark.once  # it runs both twins

TWINS: dict[str, type[plain_flusher.Flusher]] = {"plain": plain_flusher.Flusher}
try:
    from gantrymq.kernel.fast import _flusher

    TWINS["compiled"] = _flusher.Flusher  # type: ignore[assignment]
except ImportError:
    TWINS["compiled"] = None  # type: ignore[assignment]


@pytest.fixture(params=TWINS)
def flusher(request: pytest.FixtureRequest) -> plain_flusher.Flusher:
    twin = TWINS[request.param]
    if twin is None:
        pytest.skip("the extension is not built")
    return twin()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[File]]:
    opened = [SystemEnv().open(f"{tmp_path}/{number}", create=True) for number in range(9)]
    yield opened
    for file in opened:
        file.close()


@pytest.fixture
def unsyncable() -> Iterator[File]:
    """A file that the system refuses to sync (EINVAL): the end of a pipe."""
    read, write = os.pipe()
    file = SystemFile(read)
    yield file
    file.close()
    os.close(write)


@attrs.define
class Life:
    """A flusher whose thread runs, until :meth:`end`."""

    flusher: plain_flusher.Flusher
    waker: Any = attrs.field(factory=lambda: SystemEnv().waker())
    error: OSError | None = None
    thread: threading.Thread | None = None

    def begin(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.flusher.run(self.waker)
        except OSError as error:
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        """Looks again each time the flusher has woken us."""
        while not condition():
            os.set_blocking(self.waker.fileno(), True)
            os.eventfd_read(self.waker.fileno())

    def end(self) -> None:
        self.flusher.stop()
        self.joined()

    def joined(self) -> None:
        assert self.thread is not None
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.waker.close()


def test_appended_bytes_are_durable_after_a_flush(flusher: plain_flusher.Flusher, files: list[File]) -> None:
    flusher.start_at(100, 7)
    assert (flusher.durable, flusher.durable_mark, flusher.flush()) == (100, (100, 7), 100)
    flusher.follow(files[0])
    flusher.appended(250, 9)
    assert flusher.durable == 100
    assert flusher.flush() == 250
    assert (flusher.durable, flusher.durable_mark) == (250, (250, 9))


def test_a_flush_at_once_makes_durable_what_was_appended(flusher: plain_flusher.Flusher, files: list[File]) -> None:
    flusher.follow(files[0])
    flusher.appended(10, 1)
    assert flusher.flush_at_once()
    assert flusher.durable_mark == (10, 1)


def test_a_flush_at_once_that_fails_makes_nothing_durable_and_the_thread_raises_its_error(
    flusher: plain_flusher.Flusher, unsyncable: File
) -> None:
    flusher.follow(unsyncable)
    flusher.appended(10, 1)
    assert not flusher.flush_at_once()
    assert flusher.durable == 0
    flusher.ask()
    with pytest.raises(OSError, match="Invalid argument"):
        flusher.run(SystemEnv().waker())


class BlockedFile:
    """A file whose sync, in the plain twin, blocks until ``may_finish`` is set."""

    def __init__(self) -> None:
        self.entered, self.may_finish = threading.Event(), threading.Event()

    def share(self) -> BlockedFile:
        return self

    def datasync(self) -> None:
        self.entered.set()
        assert self.may_finish.wait(10)


def test_a_flush_at_once_does_not_wait_for_another_flush() -> None:
    flusher, file = plain_flusher.Flusher(), BlockedFile()
    flusher.follow(file)  # type: ignore[arg-type]
    flusher.appended(10, 1)
    thread = threading.Thread(target=flusher.flush)
    thread.start()
    assert file.entered.wait(10)
    assert not flusher.flush_at_once()
    file.may_finish.set()
    thread.join(10)
    assert flusher.flush_at_once()
    assert flusher.durable == 10


def test_every_file_with_new_bytes_is_synced(
    flusher: plain_flusher.Flusher, files: list[File], unsyncable: File
) -> None:
    for file in files:
        flusher.follow(file)
    flusher.appended(10, 1)
    assert flusher.flush() == 10
    flusher.follow(unsyncable)
    for file in files:
        flusher.follow(file)
    flusher.appended(20, 2)
    with pytest.raises(OSError, match="Invalid argument"):
        flusher.flush()
    assert flusher.durable_mark == (10, 1)


def test_a_completed_file_is_synced_once(flusher: plain_flusher.Flusher, files: list[File], tmp_path: Path) -> None:
    flusher.follow(files[0])
    flusher.appended(10, 1)
    flusher.follow(files[1])
    flusher.appended(20, 2)
    flusher.flush()
    read, write = os.pipe()
    left = files[0].fileno()
    os.dup2(read, left)  # to sync what is there now would fail
    flusher.appended(30, 3)
    assert flusher.flush() == 30
    os.close(read)
    os.close(write)


def test_a_file_deleted_meanwhile_is_synced_and_closed(
    flusher: plain_flusher.Flusher, files: list[File], tmp_path: Path
) -> None:
    """This happens when the disk is so full that the oldest log files are deleted at once."""

    def is_open(name: str) -> bool:
        paths = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
        return any(path.startswith(f"{tmp_path}/{name}") for path in paths)

    flusher.follow(files[0])
    flusher.appended(10, 1)
    flusher.follow(files[1])
    flusher.appended(20, 2)
    SystemEnv().unlink(f"{tmp_path}/0")
    files[0].close()
    read, write = os.pipe()
    other = SystemFile(read)  # which would get the number of a file that is closed, and cannot be synced
    assert flusher.flush() == 20
    flusher.appended(30, 3)
    flusher.ask()
    assert not is_open("0")
    files[1].close()
    assert is_open("1")
    assert flusher.flush() == 30
    flusher.start_at(30, 3)
    assert not is_open("1")
    other.close()
    os.close(write)


def test_a_failed_flush_is_not_retried_and_nothing_becomes_durable(
    flusher: plain_flusher.Flusher, files: list[File], unsyncable: File
) -> None:
    flusher.follow(files[0])
    with pytest.raises(OSError, match="Invalid argument"):
        flusher.sync(unsyncable)
    flusher.appended(10, 1)
    for call in (flusher.flush, lambda: flusher.sync(files[0]), lambda: flusher.run(SystemEnv().waker())):
        flusher.ask()
        with pytest.raises(OSError, match="Invalid argument") as caught:
            call()
        assert caught.value.errno == errno.EINVAL
    assert flusher.durable == 0


def test_the_flush_thread_flushes_on_request_and_wakes_the_loop(
    flusher: plain_flusher.Flusher, files: list[File]
) -> None:
    life = Life(flusher)
    flusher.follow(files[0])
    life.begin()
    for end in range(10, 1000, 10):
        flusher.appended(end, end)
        flusher.ask()
        life.until(lambda wanted=end: flusher.durable == wanted)  # type: ignore[misc]
    life.end()
    assert life.error is None


def test_the_last_round_of_the_flush_thread_covers_everything(
    flusher: plain_flusher.Flusher, files: list[File]
) -> None:
    life = Life(flusher)
    flusher.follow(files[0])
    life.begin()
    flusher.appended(10, 1)
    life.end()
    assert (life.error, flusher.durable) == (None, 10)


def test_a_failure_elsewhere_ends_the_thread(flusher: plain_flusher.Flusher, files: list[File]) -> None:
    life = Life(flusher)
    flusher.follow(files[0])
    life.begin()
    flusher.appended(10, 1)
    flusher.fail(OSError(errno.ENOSPC, "full"))
    life.joined()
    assert life.error is not None
    assert (life.error.errno, flusher.durable) == (errno.ENOSPC, 0)


def test_a_failed_flush_ends_the_thread(flusher: plain_flusher.Flusher, unsyncable: File) -> None:
    life = Life(flusher)
    flusher.follow(unsyncable)
    life.begin()
    flusher.appended(10, 1)
    flusher.ask()
    life.joined()
    assert life.error is not None
    assert (life.error.errno, flusher.durable) == (errno.EINVAL, 0)


def test_flushes_are_timed(flusher: plain_flusher.Flusher, files: list[File]) -> None:
    assert flusher.sync_times == ([0] * (len(BOUNDS_S) + 1), 0.0)
    for number in range(1, 4):
        flusher.follow(files[number])
        flusher.appended(number, 0)
        flusher.flush()
    flusher.sync(files[0])
    counts, seconds = flusher.sync_times
    assert sum(counts) == 1 + 2 + 2 + 1, "a flush syncs the last file of the one before it again, and its own"
    longest = max(place for place, count in enumerate(counts) if count)
    assert ([0.0, *BOUNDS_S][longest]) <= seconds < 60.0


@pytest.mark.parametrize("twin", TWINS)
def test_fast_flushes_are_counted(twin: str, files: list[File]) -> None:
    if TWINS[twin] is None:
        pytest.skip("the extension is not built")
    always, never = TWINS[twin](60.0), TWINS[twin](-1.0)
    for flusher in always, never:
        flusher.follow(files[0])
        for number in range(1, 4):
            flusher.appended(number, 0)
            flusher.flush()
            flusher.flush()  # there is nothing to flush, which shows nothing
        flusher.appended(4, 0)
        assert flusher.flush_at_once()
        flusher.sync(files[0])
    assert (always.fast_flushes, never.fast_flushes) == (4, 0)


def test_a_slow_flush_takes_away_one_fast_flush_for_each_unit_that_it_took(
    flusher: plain_flusher.Flusher, files: list[File]
) -> None:
    ends = itertools.count(1)

    def flush() -> tuple[float, float]:
        """Flush and return a lower and an upper bound of its duration in seconds."""
        synced, began = flusher.sync_times[1], time.monotonic()
        flusher.appended(next(ends), 0)
        flusher.flush()
        return flusher.sync_times[1] - synced, time.monotonic() - began

    flusher.follow(files[0])
    flusher.fast_s = 60.0
    took = [flush()[1] for _ in range(FAST_FLUSHES_MAX + 20)]
    assert flusher.fast_flushes == FAST_FLUSHES_MAX, "many do not outweigh a slow one"
    flusher.fast_s = min(took) / 8
    least, most = (int(seconds / flusher.fast_s) for seconds in flush())
    assert max(FAST_FLUSHES_MAX - most, 0) <= flusher.fast_flushes <= max(FAST_FLUSHES_MAX - least, 0)
    flusher.fast_s = 1e-12
    flush()
    assert flusher.fast_flushes == 0


def test_a_flush_that_fails_is_timed_too(flusher: plain_flusher.Flusher, unsyncable: File) -> None:
    flusher.follow(unsyncable)
    flusher.appended(1, 0)
    with pytest.raises(OSError, match="Invalid argument"):
        flusher.flush()
    assert sum(flusher.sync_times[0]) == 1

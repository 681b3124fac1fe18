"""With more queues than descriptors, the least recently used are closed and opened again on use."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import attrs

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.queues.open_files import OpenFiles
from gantrymq.kernel.store.queues.table import ConsumeQueues
from support.badblocks import BadBlocksEnv


@attrs.define(eq=False)
class User:
    busy: bool = False
    closed: int = 0

    def close_files(self) -> bool:
        self.closed += not self.busy
        return not self.busy


def descriptors_below(folder: Path) -> int:
    """How many descriptors of this process are files in ``folder``; others may close at any time, as garbage does."""
    links = [entry.path for entry in os.scandir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(f"{folder}/") for link in links if os.path.lexists(link))


def test_the_least_recently_used_file_is_closed() -> None:
    files = OpenFiles(2)
    first, second, third = User(), User(), User()
    for user in (first, second, first, third):
        files.use(user)
    assert [user.closed for user in (first, second, third)] == [0, 1, 0]
    files.use(second)
    assert [user.closed for user in (first, second, third)] == [1, 1, 0]
    assert len(files) == 2


def test_busy_files_are_closed_later() -> None:
    files = OpenFiles(1)
    busy, other = User(busy=True), User()
    files.use(busy)
    files.use(other)
    assert (busy.closed, len(files)) == (0, 2)
    busy.busy = False
    files.use(other)
    assert (busy.closed, other.closed, len(files)) == (1, 0, 1)


def test_a_forgotten_file_is_not_closed_twice() -> None:
    files = OpenFiles(1)
    gone = User()
    files.use(gone)
    files.forget(gone)
    files.forget(gone)
    files.use(User())
    assert gone.closed == 0


def entries(count: int, log_offset: int) -> DispatchBatch:
    """One record in each of ``count`` queues."""
    zeros = [0] * count
    return DispatchBatch(
        log_offset, log_offset + 100 * count, [log_offset + 100 * row for row in range(count)], [100] * count,
        ["T"] * count, list(range(count)), [log_offset // (100 * count)] * count, [1] * count, zeros, zeros,
        [b""] * count, zeros,
    )  # fmt: skip


def test_many_queues_work_with_few_descriptors(tmp_path: Path) -> None:
    count = 200
    (tmp_path / "staging").mkdir()
    queues = ConsumeQueues(SystemEnv(), f"{tmp_path}/queues", f"{tmp_path}/staging", file_units=100, tail_bytes=65536)
    queues.open_files = OpenFiles(20)
    for turn in range(3):
        queues.put(entries(count, turn * count * 100))
        queues.flush()
        assert descriptors_below(tmp_path) <= 20
        for queue in queues:
            assert len(queue.entries(0, 10)) == 20 * (turn + 1)
    assert descriptors_below(tmp_path) <= 20
    queues.close()
    assert descriptors_below(tmp_path) == 0


def test_a_file_that_waits_for_its_sync_is_not_closed(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    queues = ConsumeQueues(SystemEnv(), f"{tmp_path}/queues", f"{tmp_path}/staging", file_units=100, tail_bytes=1)
    queues.put(entries(1, 0))
    (queue,) = queues
    assert not queue.close_files()
    queues.flush()
    assert queue.close_files()
    assert len(queue.entries(0, 1)) == 20
    queues.close()


class WaitingEnv(BadBlocksEnv):
    """Reads of queues' files wait until the test goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.go_on = Event(), Event()

    def check(self, path: str, start: int, end: int) -> None:
        self.reading.set()
        assert self.go_on.wait(10)


def test_a_deleted_queue_closes_its_files_after_a_read_in_another_thread(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    env = WaitingEnv()
    queues = ConsumeQueues(env, f"{tmp_path}/queues", f"{tmp_path}/staging", file_units=100, tail_bytes=1)
    queues.put(entries(1, 0))
    (queue,) = queues
    with ThreadPoolExecutor() as threads:
        read = threads.submit(queue.entries, 0, 1)
        assert env.reading.wait(10)
        deleted = threads.submit(queue.discard)
        assert not wait([deleted], timeout=0.2).done
        env.go_on.set()
        assert len(read.result()) == 20
        deleted.result()
    assert descriptors_below(tmp_path) == 0

"""After any end of the broker the index finds all messages of the log; verified files are reused."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from gantrymq.kernel.errors import LogPoisoned, StartError
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.index.layout import ENTRY, Shape, decode_header
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY

SMALL = Shape(slots=5, entries=8)


def fill(indexed, first: int, last: int) -> None:
    for number in range(first, last):
        indexed.send([f"k{number}", "all"])


def stop(indexed) -> None:
    indexed.save(settle=True)
    indexed.store.close()
    indexed.index.close()


def test_after_an_orderly_stop_nothing_is_built_again(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    again = open_indexed(env, SMALL)
    assert again.index.position == again.store.log.end
    assert again.check_whole() == 10
    fill(again, 10, 20)
    stop(again)
    assert open_indexed(env, SMALL).check_whole() == 20


def test_after_a_kill_only_what_came_after_the_last_save_is_built_again(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    indexed.save()
    saved = indexed.index.position
    fill(indexed, 10, 13)
    indexed.index.write()
    again = open_indexed(env.kill(), SMALL)
    assert again.index.position == saved
    assert again.level() > 0
    assert again.check_whole() == 13


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.slow
def test_any_crash_leaves_an_index_that_becomes_whole(open_indexed: Callable, settle: bool) -> None:
    """Every call that changes the disk is the last one once, then the process is killed or the power is cut."""
    moment = 0
    while True:
        moment += 1
        disk = MemoryEnv()
        env = FaultEnv(disk, moment, tear="short", forever=True)
        try:
            indexed = open_indexed(env, SMALL)
            for step in range(6):
                fill(indexed, 3 * step, 3 * step + 3)
                indexed.index.write()
                if step % 2:
                    indexed.save(settle=settle)
            stop(indexed)
        except (OSError, StartError, LogPoisoned):
            assert env.failed
        for after in (disk.kill(), *(disk.power_cut(seed) for seed in range(3))):
            again = open_indexed(after, SMALL)
            again.level()
            again.check_whole()
            fill(again, 100, 104)
            stop(again)
            last = open_indexed(after, SMALL)
            assert last.level() == 0
            assert last.check_whole() >= 4
        if not env.failed:
            break
    assert moment > 40


def test_without_files_the_index_is_built_from_the_log(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    env.rmtree("store/index")
    again = open_indexed(env, SMALL)
    assert again.level() == again.store.log.end
    assert again.check_whole() == 10


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_file_that_is_missing_is_built_again_with_those_behind_it(open_indexed: Callable, which: int) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    kept = env.listdir("store/index")
    env.unlink(f"store/index/{kept[which]}")
    again = open_indexed(env, SMALL)
    assert [file.name for file in again.index.files] == kept[:which]
    again.level()
    assert again.check_whole() == 10


def test_an_index_of_another_shape_is_built_again(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    again = open_indexed(env, Shape(slots=3, entries=50))
    assert again.level() == again.store.log.end
    assert again.check_whole() == 10
    assert {len(env.read_bytes(file.path)) for file in again.index.files if file.waiting_bytes == 0} <= {40 + 12 + 1000}


@pytest.mark.parametrize("text", [b"", b"{}", b"\0" * 100])
def test_without_readable_marks_an_orderly_left_index_is_taken_as_it_is(open_indexed: Callable, text: bytes) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    env.replace("store/gantrymq.index", text)
    again = open_indexed(env, SMALL)
    assert len(again.index.files) == 3
    assert again.level() == 0
    assert again.check_whole() == 10


def test_only_entries_covered_by_the_checkpoint_are_used_after_a_crash_without_marks(
    open_indexed: Callable,
) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 4)
    env.advance(5000)
    fill(indexed, 4, 10)
    indexed.save(settle=True)
    indexed.store.index_timestamp = indexed.index.files[0].header.end_timestamp
    env.advance(5000)
    fill(indexed, 10, 12)
    indexed.store.flush_queues()
    env.unlink("store/gantrymq.index")
    first = indexed.index.files[0].name
    again = open_indexed(env.kill(), SMALL)
    assert [file.name for file in again.index.files] == [first]
    again.level()
    assert again.check_whole() == 12


def test_a_file_that_ends_between_two_keys_is_followed_by_the_other_keys(open_indexed: Callable) -> None:
    env = MemoryEnv()
    shape = Shape(slots=5, entries=6)
    indexed = open_indexed(env, shape)
    indexed.send(["a", "b", "c"], ["d", "e", "f"], [f"k{number}" for number in range(12)], ["z"])
    stop(indexed)
    whole = [env.read_bytes(f"store/index/{name}") for name in env.listdir("store/index")]
    assert len(whole) == 4
    for kept in range(4):
        for name in env.listdir("store/index")[kept:]:
            env.unlink(f"store/index/{name}")
        again = open_indexed(env, shape)
        again.level()
        stop(again)
        assert [env.read_bytes(f"store/index/{name}") for name in env.listdir("store/index")] == whole


def test_entries_that_contradict_each_other_are_built_again(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, Shape(slots=5, entries=50))
    fill(indexed, 0, 10)
    indexed.save()
    (file,) = indexed.index.files
    env.open(file.path).pwrite(bytes(ENTRY.size), file.shape.entries_at + 7 * ENTRY.size)
    again = open_indexed(env.kill(), Shape(slots=5, entries=50))
    assert again.index.files == []
    again.level()
    assert again.check_whole() == 10


def test_a_file_that_another_broker_went_on_with_is_taken_after_its_orderly_stop(open_indexed: Callable) -> None:
    env = MemoryEnv()
    shape = Shape(slots=5, entries=50)
    indexed = open_indexed(env, shape)
    fill(indexed, 0, 4)
    stop(indexed)
    marks = env.read_bytes("store/gantrymq.index")
    indexed = open_indexed(env, shape)
    fill(indexed, 4, 8)
    stop(indexed)
    env.replace("store/gantrymq.index", marks)
    again = open_indexed(env, shape)
    assert again.level() == 0
    assert again.check_whole() == 8


@pytest.mark.parametrize("settled", [0, 2])
def test_a_file_in_which_another_broker_left_a_hole_is_built_again(open_indexed: Callable, settled: int) -> None:
    """After a kill, RocketMQ goes on with the file as its header says, but indexes only its last log file again. The
    header on the disk covers what a stop before has settled."""
    env = MemoryEnv()
    shape = Shape(slots=5, entries=50)
    indexed = open_indexed(env, shape)
    fill(indexed, 0, settled)
    indexed.save(settle=True)
    fill(indexed, settled, 8)
    indexed.save()
    (file,) = indexed.index.files
    log = indexed.store.log
    offsets = [offset for batch in log.scan(0, log.end) for offset in batch.offsets]
    (batch,) = log.scan(offsets[4], log.end)
    env = env.kill()
    env.unlink("store/abort")
    env.unlink("store/gantrymq.watermark")
    other = IndexFile(env, file.path, shape, decode_header(env.read_bytes(file.path)[:40]), ())
    other.load_slots()
    other.put(batch, 0, 0)
    other.write_tail()
    other.write_head()
    again = open_indexed(env, shape)
    again.level()
    assert again.check_whole() == 8


def test_a_log_that_was_taken_away_takes_its_index_with_it(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 10)
    stop(indexed)
    for name in ("commitlog", "consumequeue"):
        env.rmtree(f"store/{name}")
    for name in ("gantrymq.watermark", "checkpoint"):
        env.unlink(f"store/{name}")
    again = open_indexed(env, SMALL)
    assert again.index.files == []
    fill(again, 0, 3)
    assert again.check_whole() == 3


def test_foreign_files_in_the_index_folder_are_kept(open_indexed: Callable) -> None:
    env = MemoryEnv()
    env.mkdirs("store/index/20260101000000000")
    env.replace("store/index/notes.txt", b"mine")
    indexed = open_indexed(env, SMALL)
    fill(indexed, 0, 3)
    stop(indexed)
    again = open_indexed(env, SMALL)
    assert again.check_whole() == 3
    assert env.read_bytes("store/index/notes.txt") == b"mine"
    assert env.is_dir("store/index/20260101000000000")


def test_marks_never_cover_index_entries_beyond_the_durable_log(open_indexed: Callable) -> None:
    disk = MemoryEnv()
    indexed = open_indexed(FaultEnv(disk, number=errno.EIO), SMALL)
    batch_end = indexed.store.log.end
    indexed.send(["a"])
    indexed.save()
    assert indexed.index.position > batch_end
    for seed in range(5):
        assert open_indexed(disk.power_cut(seed), SMALL).check_whole() == 1


def test_marks_behind_the_end_of_a_cut_log_do_not_count_when_it_has_grown(open_indexed: Callable) -> None:
    env = MemoryEnv()
    indexed = open_indexed(env)
    fill(indexed, 0, 3)
    end = indexed.store.log.end
    indexed.send([])  # without a key, so no file shows that it was indexed
    indexed.save()
    indexed.store.close()
    store = Store(env, "store", TINY)
    store.open()
    store.cut(end)
    store.recover(lambda batch: None)
    store.close()
    fill(open_indexed(env), 3, 10)
    again = open_indexed(env.kill())
    again.level()
    assert again.check_whole() == 10

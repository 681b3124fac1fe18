"""A log with buffered writes: buffered bytes are neither readable nor flushed, and are written in large steps."""

from __future__ import annotations

import errno

import pytest

from gantrymq.kernel.env import Waker
from gantrymq.kernel.errors import LogPoisoned, OutOfLog
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.prefault import FOLIO_BYTES
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, open_store, read_queue


class Wakes:
    """A waker that counts."""

    count = 0

    def fileno(self) -> int:
        return -1

    def wake(self) -> None:
        self.count += 1

    def drain(self) -> None:
        raise AssertionError("the sweep's business")

    def close(self) -> None:
        raise AssertionError("the sweep's business")


def make(env: MemoryEnv | FaultEnv, waker: Waker) -> CommitLog:
    env.mkdirs("log")
    env.mkdirs("staging")
    log = CommitLog(env, "log", "staging", file_bytes=1000, next_offsets={}, store_host=bytes(8), max_body_bytes=500)
    log.open()
    log.set_end(0, 0)
    log.write_behind(waker)
    return log


def test_buffered_bytes_are_neither_readable_nor_durable() -> None:
    wakes = Wakes()
    log = make(MemoryEnv(), wakes)
    batch = batch_of([b"a"])
    log.append(batch)
    assert (log.end, log.written, log.durable, wakes.count) == (batch.end, 0, 0, 0)
    with pytest.raises(OutOfLog):
        log.view(0, 4)
    assert list(log.scan(0, log.end)) == []
    assert log.flush() == log.written == batch.end
    assert wakes.count == 1
    assert log.read_record(0).body == b"a"


def test_many_batches_need_one_write_for_each_file() -> None:
    env = FaultEnv(MemoryEnv())
    log = make(env, Wakes())
    bodies = [b"%02d" % number * 20 for number in range(20)]
    for body in bodies:
        log.append(batch_of([body]))
    assert env.calls["pwrite"] == 0
    log.flush()
    assert env.calls["pwrite"] == len(log.segments) == 3
    found = [bytes(log.read_record(offset).body) for batch in log.scan(0, log.end) for offset in batch.offsets]
    assert found == bodies


def test_a_buffered_write_includes_the_rest_of_its_folio() -> None:
    env = MemoryEnv()
    env.mkdirs("log")
    env.mkdirs("staging")
    log = CommitLog(
        env, "log", "staging", file_bytes=2 * FOLIO_BYTES, next_offsets={}, store_host=bytes(8), max_body_bytes=1000
    )
    log.open()
    log.set_end(0, 0)
    log.write_behind(Wakes())
    log.append(batch_of([b"a"]))
    segment = log.segments.at(0)
    assert segment is not None
    segment.file.pwrite(b"x" * FOLIO_BYTES, FOLIO_BYTES // 2)
    bodies = [b"%04d" % number * 20 for number in range(500)]
    for body in bodies:
        log.append(batch_of([body]))
    assert FOLIO_BYTES < log.end < 3 * FOLIO_BYTES // 2
    log.flush()
    assert not segment.file.pread(FOLIO_BYTES, log.end).strip(b"\0")
    found = [bytes(log.read_record(offset).body) for batch in log.scan(0, log.end) for offset in batch.offsets]
    assert found == [b"a", *bodies]


def test_a_failed_buffered_write_poisons_the_log_and_is_not_retried() -> None:
    env = FaultEnv(MemoryEnv(), fail_at=1, number=errno.EIO, kinds=("pwrite",))
    wakes = Wakes()
    log = make(env, wakes)
    log.append(batch_of([b"a"]))
    for _ in range(2):
        with pytest.raises(LogPoisoned, match="writing to the commit log failed"):
            log.flush()
    with pytest.raises(LogPoisoned):
        log.append(batch_of([b"b"]))
    assert (log.written, log.durable, env.calls["pwrite"], wakes.count) == (0, 0, 1, 0)


def test_zeros_written_ahead_do_not_overwrite_buffered_bytes() -> None:
    log = make(MemoryEnv(), Wakes())
    log.append(batch_of([b"a" * 300]))
    assert log.prepare_next()
    log.flush()
    assert log.read_record(0).body == b"a" * 300
    assert log.prepare_next()
    assert log.read_record(0).body == b"a" * 300


def test_closing_a_store_writes_all_buffered_bytes() -> None:
    env = MemoryEnv()
    store = open_store(env, config=TINY)[0]
    store.log.write_behind(Wakes())
    store.append(batch_of([b"1", b"2"]))
    store.close()
    assert read_queue(open_store(env)[0]) == {0: b"1", 1: b"2"}

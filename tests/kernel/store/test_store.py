"""The store as a whole, on a real disk and in memory: life cycle, dispatch, memory limits, errors for users."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
import structlog

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.env import File
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import LogPoisoned, NoRoom, StartError, StoreInUse, StoreNotWritable
from gantrymq.kernel.fast import new_batch
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY, batch_of, commit, open_store, read_all, read_queue
from support.columns import columns_of


def bodies(first: int, end: int) -> list[bytes]:
    return [b"%d" % number + b"x" * 80 for number in range(first, end)]


def test_a_store_works_on_a_real_disk(tmp_path: Path) -> None:
    root = f"{tmp_path}/deep/store"
    store, _, _ = open_store(SystemEnv(), root)
    for turn in range(20):
        store.append(batch_of(bodies(turn * 10, turn * 10 + 10), queue_id=turn % 3))
        commit(store)
        store.prepare_next()
        store.flush_queues()
    before = read_all(store)
    assert sum(map(len, before.values())) == 200
    assert sorted(os.listdir(root)) == [
        "abort", "checkpoint", "commitlog", "config", "consumequeue", "gantrymq.deleted", "gantrymq.watermark", "lock",
        "lost+found", "staging",
    ]  # fmt: skip
    assert {path.stat().st_size for path in Path(root, "commitlog").iterdir()} == {4096}
    assert {path.stat().st_size for path in Path(root, "consumequeue").glob("T/*/*")} == {400}
    assert Path(root).stat().st_mode & 0o777 == 0o700
    store.close()
    assert not Path(root, "abort").exists()
    store, report, _ = open_store(SystemEnv(), root)
    assert report.clean
    assert read_all(store) == before
    store.append(batch_of([b"more"]))
    store.flush()
    store.abandon()
    store, report, _ = open_store(SystemEnv(), root)
    assert (report.clean, report.dispatched) == (False, 1)
    store.close()
    store.close()


def test_the_checkpoint_says_what_was_flushed() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    env.advance(1000)
    first = batch_of([b"a"])
    store.append(first)
    commit(store)
    env.advance(1000)
    second = batch_of([b"b"])
    store.append(second)
    store.flush()
    store.flush_queues()
    data = env.read_bytes("store/checkpoint")
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16)] == [
        second.store_timestamp,
        first.store_timestamp,
        0,
    ]


def test_a_second_broker_on_a_store_is_refused_without_effect_on_the_first() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    with pytest.raises(StoreInUse, match="give this one a data folder of its own"):
        Store(env, "store", TINY).open()
    store.append(batch_of([b"a"]))
    commit(store)
    store.close()
    open_store(env)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if not os.access(folder, os.X_OK):
            pytest.skip("the temporary folder is private")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for folder in list(tmp_path.parents)[:-2]:
                os.chmod(folder, folder.stat().st_mode | 0o055)
            os.setuid(65534)
            Store(SystemEnv(), f"{tmp_path}/store", TINY).open()
        except StoreNotWritable as error:
            status = 0 if "Give the broker's user the right" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class ForeignLostAndFound(MemoryEnv):
    """A store at the root of an ext4 disk, whose ``lost+found`` belongs to root."""

    def open(self, path: str, create: bool = False) -> File:
        if "/lost+found/" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().open(path, create)


def test_a_lost_and_found_that_cannot_be_written_is_named_at_the_start() -> None:
    """The broker reports it at the start, not only when a crash leaves files to save there."""
    with pytest.raises(StoreNotWritable, match=r"cannot write store/lost\+found/.*Give the broker's user the right"):
        open_store(ForeignLostAndFound())


def test_a_full_disk_is_reported_at_the_start() -> None:
    env = MemoryEnv()
    env.free_bytes = 100
    with pytest.raises(NoRoom, match="Free some space"):
        open_store(env)
    env.free_bytes = None
    open_store(env)


def test_an_empty_store_needs_room_for_the_first_file_of_the_log() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    env.free_bytes = 4095
    with pytest.raises(StartError, match="has 0 MiB free, and the first file of the log needs"):
        store.check_room()
    env.free_bytes = 1 << 20
    store.check_room()
    store.append(batch_of(bodies(0, 1)))
    env.free_bytes = 0
    store.check_room()  # it has messages to serve


def test_a_failed_start_releases_everything() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.append(batch_of(bodies(0, 200)))
    store.close()
    env.unlink(f"store/commitlog/{4096:020d}")
    for _ in range(2):
        with pytest.raises(StartError, match="no file between offset 4096 and 8192"):
            open_store(env)
    assert not env.locks


def test_a_closed_store_raises() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        Store(MemoryEnv(), "store").recover(lambda batch: None)


def test_the_defaults_are_rocketmqs() -> None:
    config = StoreConfig()
    assert (config.commit_log_file_bytes, config.queue_file_units) == (1 << 30, 300_000)
    assert config.max_message_bytes == 1 << 22


def test_records_have_the_brokers_address() -> None:
    host = bytes(range(20))
    store, _, _ = open_store(MemoryEnv(), config=attrs.evolve(TINY, store_host=host))
    batch = batch_of([b"a"])
    store.append(batch)
    record = store.log.read_record(0)
    assert (record.store_host, record.sys_flag) == (host, 0x20)


# ------------------------------------------------------------------------------------------------------------ dispatch


def test_nothing_is_dispatched_before_it_is_committed() -> None:
    store, _, _ = open_store(MemoryEnv())
    first, second = batch_of(bodies(0, 3)), batch_of(bodies(3, 6))
    store.append(first)
    store.append(second)
    assert list(store.dispatch(0)) == []
    assert list(store.dispatch(first.end - 1))[0].offsets == first.offsets[:2]  # noqa: RUF015
    assert store.dispatched == first.offsets[2]
    (rest,) = store.dispatch(first.end)
    assert (rest.start, rest.end, rest.offsets) == (first.offsets[2], first.end, first.offsets[2:])
    (whole,) = store.dispatch(second.end + 10_000)
    assert whole.offsets == second.offsets
    assert list(store.dispatch(second.end)) == []
    assert len(read_queue(store)) == 6


def test_dispatch_from_memory_equals_dispatch_from_the_log() -> None:
    def rows() -> AppendBatch:
        batch = AppendBatch()
        for number in range(40):
            batch.add(
                f"T{number % 3}",
                number % 2,
                b"x" * number,
                b"" if number % 4 else b"TAGS\x01t%d" % number,
                sys_flag=(0, 4, 8, 12)[number % 4],
                prepared_offset=number,
                born_host=bytes(20) if number % 5 == 0 else bytes(8),
            )
        batch.refuse(7, 13, "no")
        batch.bodies[9] = b"x" * 5000
        return batch

    from_memory, _, _ = open_store(MemoryEnv())
    from_log, _, _ = open_store(MemoryEnv(), config=attrs.evolve(TINY, backlog_bytes=0))
    found = []
    for store in (from_memory, from_log):
        for _ in range(3):
            batch = rows()
            store.append(batch)
            # Statuses that acknowledgments change must not affect dispatch.
            batch.statuses[0] = 10
        columns: dict[str, list[object]] = {}
        batches = commit(store)
        assert all(one.end == other.start for one, other in pairwise(batches))
        for one in batches:
            for name, column in columns_of(one).items():
                columns.setdefault(name, []).extend(column)
        found.append((columns, batches[0].start, batches[-1].end, read_all(store)))
    assert found[0] == found[1]
    assert len(found[0][0]["offsets"]) == 38 * 3


def test_dispatched_batches_have_a_limited_number_of_rows() -> None:
    for backlog_bytes in (1 << 20, 0):
        config = attrs.evolve(TINY, dispatch_rows=10, backlog_bytes=backlog_bytes)
        store, _, _ = open_store(MemoryEnv(), config=config)
        for turn in range(12):
            store.append(batch_of(bodies(turn * 4, turn * 4 + 4)))
        sizes = [len(batch) for batch in commit(store)]
        assert sum(sizes) == 48
        assert max(sizes) <= 10 + 3
        assert len(sizes) >= 4


def test_rows_left_by_a_caller_are_returned_by_the_next_call() -> None:
    store, _, _ = open_store(MemoryEnv(), config=attrs.evolve(TINY, dispatch_rows=5))
    store.append(batch_of(bodies(0, 5)))
    store.append(batch_of(bodies(5, 10)))
    durable = store.flush()
    first = next(store.dispatch(durable))
    assert len(read_queue(store)) == len(first) == 5
    assert len(commit(store)[0]) == 5


def test_a_large_backlog_is_dispatched_from_the_log_and_then_from_memory_again() -> None:
    store, _, _ = open_store(MemoryEnv(), config=attrs.evolve(TINY, backlog_bytes=2000))
    for turn in range(30):
        store.append(batch_of(bodies(turn * 5, turn * 5 + 5)))
    assert len(store._backlog) < 5
    assert sum(map(len, commit(store))) == 150
    store.append(batch_of(bodies(150, 153)))
    assert len(commit(store)[0]) == 3
    assert list(read_queue(store).values()) == bodies(0, 153)


def test_refused_rows_are_not_dispatched() -> None:
    store, _, _ = open_store(MemoryEnv())
    batch = batch_of([b"a", b"x" * 2049, b"b"])
    store.append(batch)
    store.append(batch_of([b"y" * 2049]))
    assert [one.offsets for one in commit(store)] == [[batch.offsets[0], batch.offsets[2]]]


# ----------------------------------------------------------------------------------------------------------- failures


def test_a_full_disk_delays_queue_files_and_marks_without_loss() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    fault = FaultEnv(env)
    store.append(batch_of(bodies(0, 10)))
    commit(store)
    env.free_bytes = 0
    with structlog.testing.capture_logs():
        store.append(batch_of(bodies(10, 100)))
        commit(store)
        store.flush_queues()
    env.free_bytes = 1 << 20
    batch = batch_of([b"again"])
    store.append(batch)
    commit(store)
    assert batch.refused == 0
    stored = list(read_queue(store).values())
    store.flush_queues()
    assert fault.failed == 0
    after, _, _ = open_store(env.power_cut())
    assert list(read_queue(after).values()) == stored


def test_a_store_whose_queues_cannot_be_flushed_stops_unclean_without_loss() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, number=28, kinds=("pwrite", "truncate", "open"))
    store, _, _ = open_store(env)
    store.append(batch_of(bodies(0, 4)))
    commit(store)
    env.fail_at, env.forever = env.count + 1, True
    with structlog.testing.capture_logs() as logs:
        store.close()
    assert any(line["event"] == "consume_queues_not_flushed" for line in logs)
    after, report, _ = open_store(disk)
    assert (report.clean, len(read_queue(after))) == (False, 4)


def test_a_poisoned_store_closes_with_the_reason_and_releases_its_lock() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, kinds=("datasync",))
    store, _, _ = open_store(env)
    store.append(batch_of([b"a"]))
    env.fail_at = env.count + 1
    with pytest.raises(LogPoisoned):
        store.flush()
    with pytest.raises(LogPoisoned, match="flushing the commit log failed"):
        store.close()
    assert disk.exists("store/abort")
    open_store(disk)


def test_flushes_in_worker_threads_beside_appends(tmp_path: Path) -> None:
    store, _, _ = open_store(SystemEnv(), f"{tmp_path}/store")
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                store.flush()
                store.prepare_next()
                store.flush_queues()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for turn in range(150):
            store.append(batch_of(bodies(turn * 8, turn * 8 + 8), queue_id=turn % 2))
            for _ in store.dispatch(store.log.durable):
                pass
    finally:
        stop.set()
        thread.join()
    assert not failures
    store.flush()
    store.abandon()
    store, _, _ = open_store(SystemEnv(), f"{tmp_path}/store")
    assert sum(len(read_queue(store, queue_id=queue_id)) for queue_id in (0, 1)) == 1200
    store.close()


def test_a_deleted_topic_stays_deleted_after_a_crash() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.append(batch_of(bodies(0, 10)))
    commit(store)
    store.queues.delete_topic("T")
    batch = batch_of([b"new"])
    store.append(batch)
    commit(store)
    assert batch.queue_offsets == [10]
    assert read_queue(store) == {10: b"new"}
    store.flush_queues()
    store, _, _ = open_store(env.power_cut())
    assert read_queue(store) == {10: b"new"}


def test_a_deletion_up_to_an_offset_keeps_a_topic_with_later_messages() -> None:
    env = MemoryEnv()
    store, _, _ = open_store(env)
    store.append(batch_of(bodies(0, 3)))
    commit(store)
    asked_at = store.log.end
    store.append(batch_of([b"new"]))
    commit(store)
    store.delete_topic("T", asked_at)
    assert len(read_queue(store)) == 4
    store.delete_topic("T", store.log.end)
    assert store.queues.get("T", 0) is None
    store.append(batch_of([b"newer"]))
    commit(store)
    assert list(read_queue(store).values()) == [b"newer"]
    store.abandon()
    env.rmtree("store/consumequeue")
    store, _, _ = open_store(env)
    assert list(read_queue(store).values()) == [b"newer"]


def test_the_index_timestamp_is_stored_in_the_checkpoint() -> None:
    env = MemoryEnv()
    store = Store(env, "s")
    store.open()
    store.recover(lambda batch: None)
    store.index_timestamp = 77
    store.close()
    again = Store(env, "s")
    again.open()
    assert again.index_timestamp == 77
    assert again.recovered is None
    report = again.recover(lambda batch: None)
    assert again.recovered is report
    again.close()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_row_without_a_queue_entry_keeps_its_given_queue_offset(compiled: bool) -> None:
    store, _, _ = open_store(MemoryEnv())
    batch = new_batch(lambda batch: None, Source.CLIENT) if compiled else AppendBatch()
    for body, sys_flag in [(b"kept", 4), (b"given back", 12), (b"ordinary", 0), (b"not given", 4)]:
        batch.add("T", 0, body, b"", sys_flag=sys_flag)
    batch.own_queue_offsets.update({0: 41, 1: 42, 2: 43})
    store.append(batch)
    [dispatched] = commit(store)
    assert dispatched.queue_offsets == batch.queue_offsets == [41, 42, 0, 0]
    assert [store.log.read_record(offset).queue_offset for offset in batch.offsets] == [41, 42, 0, 0]
    assert read_queue(store) == {0: b"ordinary"}
    assert dispatched.sys_flag_bits == 12
    store.abandon()

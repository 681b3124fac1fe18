"""The strategy ``state_table`` restarts after a clean stop, a crash, damage, and on RocketMQ's store."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import structlog.testing

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.transaction.state_table.strategy import StateTableStrategy
from gantrymq.plugins.transaction.state_table.table import ROW, UNIT
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY
from gantrymq.testing.transacted import COMMIT, ROLLBACK, Half, TransactedStore

TABLE = "store/transaction/statetable/00000000000000000000"
REDO = "store/transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/00000000000000000000"
MARKS = "store/gantrymq.transaction"
NAMES = [b"open", b"done", b"undone", b"later"]
MOVED = "state_files_moved_to_lost_and_found"


def strategy_of(world: TransactedStore) -> StateTableStrategy:
    assert isinstance(world.plugin.strategy, StateTableStrategy)
    return world.plugin.strategy


def start(env: MemoryEnv, **settings: Any) -> tuple[TransactedStore, dict[str, Any], list[str]]:
    """The store; what was logged of the loading; the events that are errors."""
    with structlog.testing.capture_logs() as lines:
        world = TransactedStore(env, "state_table", **settings)
    [loaded] = [line for line in lines if line["event"] == "state_table_loaded"]
    return world, dict(loaded), [line["event"] for line in lines if line["log_level"] == "error"]


def lived(env: MemoryEnv, config: StoreConfig | None = None) -> tuple[TransactedStore, dict[bytes, Half]]:
    """A store with four transactions, of which one was committed and one rolled back."""
    world = TransactedStore(env, "state_table", **({} if config is None else {"config": config}))
    halves = {name: world.half(name) for name in NAMES}
    world.commit()
    world.end_now(halves[b"done"], COMMIT)
    world.end_now(halves[b"undone"], ROLLBACK)
    return world, halves


def check(world: TransactedStore, halves: dict[bytes, Half]) -> None:
    """All is as :func:`lived` left it, and can go on."""
    assert world.bodies() == [b"done"]
    assert world.plugin.strategy.open_count == 2
    assert world.end_now(halves[b"done"], COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(halves[b"undone"], ROLLBACK) == ResponseCode.SUCCESS
    assert world.end_now(halves[b"open"], COMMIT) == ResponseCode.SUCCESS
    more = world.half(b"more")
    assert more.queue_offset == 4
    world.commit()
    assert world.end_now(more, COMMIT) == world.end_now(halves[b"later"], ROLLBACK) == ResponseCode.SUCCESS
    assert world.bodies() == [b"done", b"open", b"more"]
    assert world.plugin.strategy.open_count == 0


def states(env: MemoryEnv, count: int) -> list[tuple[int, int]]:
    data = env.read_bytes(TABLE)[: count * UNIT]
    return [(offset, state) for offset, _, _, _, state in ROW.iter_unpack(data)]


def test_the_files_are_those_of_rocketmq_3() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    offsets = [halves[name].offset for name in NAMES]
    assert states(env, 5) == [*zip(offsets, (4, 8, 12, 4), strict=True), (0, 0)]
    assert [half.queue_offset for half in halves.values()] == [0, 1, 2, 3]
    entries = list(struct.iter_unpack(">qiq", env.read_bytes(REDO)[: 7 * 20]))
    assert [entry[2] for entry in entries] == [-1, -1, -1, -1, offsets[1], offsets[2], 0]
    ends = [world.log.read_record(entry[0]) for entry in entries[4:6]]
    assert [(end.sys_flag & 12, end.body, end.prepared_offset) for end in ends] == [
        (8, b"done", offsets[1]),
        (12, b"", offsets[2]),
    ]
    assert [end.queue_offset for end in ends] == [0, 2]
    first = world.log.read_record(offsets[0])
    assert (first.topic, first.sys_flag & 12, first.queue_offset, first.prepared_offset) == ("T", 4, 0, 0)
    assert env.listdir("store/consumequeue") == ["T"]


def test_after_a_clean_stop_the_table_is_taken_as_it_is_and_the_log_is_not_read() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    before = env.read_bytes(TABLE)
    world, loaded, errors = start(env)
    assert (loaded["rebuilt"], loaded["open"], errors) == (False, 2, [])
    assert env.read_bytes(TABLE) == before
    check(world, halves)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("cut", [None, 0, 1, 2])
def test_after_a_crash_the_table_is_built_again_and_rows_keep_their_numbers(flushed: bool, cut: int | None) -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    if flushed:
        world.persist()
        world.persist()
    world, loaded, errors = start(env.kill() if cut is None else env.power_cut(cut or None))
    assert (loaded["rebuilt"], loaded["open"], loaded["rows"], errors) == (True, 2, 4, [])
    check(world, halves)


def test_after_a_crash_the_log_is_read_from_the_marks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.persist()
    marked = world.store.dispatched
    late = world.half(b"late")
    world.commit()
    starts: list[int] = []
    real = CommitLog.scan

    def scan(self: CommitLog, start: int, stop: int, **others: Any) -> Any:
        starts.append(start)
        return real(self, start, stop, **others)

    monkeypatch.setattr(CommitLog, "scan", scan)
    world, loaded, _ = start(env.kill())
    assert (starts[0], loaded["open"]) == (marked, 3)
    world.end_now(late, COMMIT)
    assert world.bodies() == [b"done", b"late"]
    world.end_now(halves[b"open"], COMMIT)
    assert world.plugin.strategy.open_count == 1


def cut(world: TransactedStore, end: int) -> MemoryEnv:
    """Stop, and cut the log as at the return of a former master. Returns the disk."""
    world.close()
    assert isinstance(world.env, MemoryEnv)
    store = Store(world.env, "store", TINY)
    store.open()
    try:
        store.cut(end)
    finally:
        store.abandon()
    return world.env


def start_cut(world: TransactedStore, end: int, *, killed: bool) -> tuple[TransactedStore, dict[str, Any], list[str]]:
    """Call :func:`start` after :func:`cut`; with ``killed`` a second time, after a kill."""
    env = cut(world, end)
    if killed:
        start(env)
        env = env.kill()
    return start(env)


@pytest.mark.parametrize("killed", [False, True])
def test_a_transaction_whose_end_was_cut_off_is_open_again(killed: bool) -> None:
    world = TransactedStore(MemoryEnv(), "state_table")
    first, second = world.half(b"first"), world.half(b"second")
    world.commit()
    end = world.log.end
    world.end_now(first, COMMIT)
    world.end_now(second, COMMIT)
    world, loaded, errors = start_cut(world, end, killed=killed)
    assert (loaded["open"], loaded["rows"], errors, world.bodies()) == (2, 2, [], [])
    assert world.end_now(first, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"first"]
    assert world.plugin.strategy.open_count == 1


@pytest.mark.parametrize("killed", [False, True])
def test_rows_that_were_cut_off_are_used_again(killed: bool) -> None:
    world = TransactedStore(MemoryEnv(), "state_table")
    world.half(b"kept")
    world.commit()
    end = world.log.end
    world.half(b"cut off")
    world, loaded, errors = start_cut(world, end, killed=killed)
    assert (loaded["open"], loaded["rows"], errors) == (1, 1, [])
    other = world.half(b"other")
    assert other.queue_offset == 1
    world.commit()
    assert world.end_now(other, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"other"]


@pytest.mark.parametrize("settled", [False, True])
def test_another_strategy_is_refused_while_a_transaction_is_open_whose_end_was_cut_off(settled: bool) -> None:
    env = MemoryEnv()
    world = TransactedStore(env, "state_table")
    first = world.half(b"first")
    world.commit()
    end = world.log.end
    world.end_now(first, COMMIT)
    if settled:
        world.close()
        world = TransactedStore(env, "half")
    env = cut(world, end)
    with pytest.raises(StartError, match="1 transactions of the strategy"):
        TransactedStore(env, "half")


def damaged(path: str, at: int, data: bytes) -> Any:
    def damage(env: MemoryEnv) -> None:
        env.open(path).pwrite(data, at)

    return damage


DAMAGE = {
    "a row that cannot be": (damaged(TABLE, 2 * UNIT + 20, b"\xff"), MOVED),
    "a table cut short": (lambda env: env.open(TABLE).truncate(100), MOVED),
    "a table that is missing": (lambda env: env.rmtree("store/transaction/statetable"), MOVED),
    "a redo log cut short": (lambda env: env.open(REDO).truncate(100), MOVED),
    "a redo log that ends early": (damaged(REDO, 60, bytes(100)), MOVED),
    "a redo log that is missing": (lambda env: env.rmtree("store/transaction/redolog"), MOVED),
    "all of it missing": (lambda env: env.rmtree("store/transaction"), MOVED),
    "marks that cannot be read": (lambda env: env.replace(MARKS, b"{}"), "state_marks_unreadable"),
    "marks that are no numbers": (
        lambda env: env.replace(MARKS, json.dumps(dict.fromkeys(["offset", "entries", "rows"], "x")).encode()),
        "state_marks_unreadable",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_table_files_are_saved_and_rebuilt(name: str, clean: bool) -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    if clean:
        world.close()
    else:
        world.persist()
        world.persist()
        env = env.kill()
    damage, event = DAMAGE[name]
    damage(env)
    world, loaded, errors = start(env)
    is_table = "table" in name or "row" in name
    if clean or not is_table:  # after a crash nobody looks at the table
        assert event in errors
    assert (loaded["rebuilt"], loaded["open"]) == (True, 2)
    check(world, halves)
    world.close()
    world, loaded, errors = start(env)
    assert (loaded["rebuilt"], loaded["open"], errors) == (False, 0, [])


def test_files_saved_repeatedly_do_not_overwrite_each_other() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    for number in (1, 2):
        env.open(REDO).truncate(100)
        world, loaded, _ = start(env)
        assert loaded["open"] == 2
        assert env.exists(f"store/lost+found/transaction.{number}/{REDO.removeprefix('store/transaction/')}")
        world.close()
    check(start(env)[0], halves)


def test_entries_in_the_wrong_order_are_found_when_the_table_is_built_from_them() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.persist()
    world.persist()
    env = env.kill()
    damaged(REDO, 20, struct.pack(">qiq", 10**6, 50, -1))(env)
    world, loaded, errors = start(env)
    assert errors == [MOVED]
    assert env.exists(f"store/lost+found/transaction.1/{REDO.removeprefix('store/transaction/')}")
    assert loaded["open"] == 2
    check(world, halves)


def test_a_clean_store_of_rocketmq_3_is_continued() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    env.unlink(MARKS)
    world, loaded, errors = start(env)
    assert (loaded["rebuilt"], loaded["open"], errors) == (True, 2, [])
    check(world, halves)


def test_a_store_that_rocketmq_3_did_not_stop_cleanly_is_read_completely() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.persist()
    env = env.kill()
    env.unlink(MARKS)
    world, loaded, errors = start(env)
    assert (loaded["rebuilt"], loaded["open"], errors) == (True, 2, [MOVED])
    check(world, halves)


def test_a_copied_log_alone_is_enough() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    copied = MemoryEnv()
    copied.mkdirs("store/commitlog")
    for name in env.listdir("store/commitlog"):
        copied.replace(f"store/commitlog/{name}", env.read_bytes(f"store/commitlog/{name}"))
    world, loaded, errors = start(copied)
    assert (loaded["open"], errors) == (2, [])
    check(world, halves)


def test_a_log_that_lost_its_end_takes_its_rows_along() -> None:
    """Acknowledged before it was durable (flush mode async), and the power went."""
    env = MemoryEnv()
    world, halves = lived(env)
    world.persist()
    world.persist()
    marks = json.loads(env.read_bytes(MARKS))
    env = env.kill()
    end = halves[b"undone"].offset
    env.replace(MARKS, json.dumps({**marks, "offset": marks["offset"] + 10_000, "entries": 99, "rows": 4}).encode())
    world, loaded, _ = start(env)
    assert loaded["open"] == 2
    assert end < world.log.end
    now = json.loads(env.read_bytes(MARKS))
    assert (now["offset"], now["entries"], now["clean"]) == (world.log.end, 6, False), "the old ones would be believed"
    check(world, halves)


def test_the_store_of_another_strategy_is_looked_at_without_the_table() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.persist()
    world.persist()
    late = world.half(b"late")
    world.commit()
    env = env.kill()
    with pytest.raises(StartError, match="3 transactions of the strategy 'state_table' are open"):
        TransactedStore(env, "half")
    env = env.kill()
    world = TransactedStore(env, "state_table")
    for half in (halves[b"open"], halves[b"later"], late):
        world.end_now(half, ROLLBACK)
    world = TransactedStore(env.kill(), "half")
    settled = json.loads(world.env.read_bytes(MARKS))["settled"]
    assert settled == world.store.dispatched
    half = world.half(b"of the other kind")
    world.commit()
    world.end_now(half, COMMIT)
    world.close()
    machine: Any = world.env
    world, loaded, errors = start(machine)
    assert (loaded["open"], loaded["rows"], errors) == (0, 5, [])
    assert world.bodies() == [b"done", b"of the other kind"]


def test_rows_of_lost_records_are_dropped_and_logged() -> None:
    env = MemoryEnv()
    world = TransactedStore(env, "state_table")
    first = world.half(b"first" + b"x" * 1000)
    filler = AppendBatch()
    for _ in range(5):
        filler.add("U", 0, b"x" * 1500, b"")
    world.append(filler)
    world.commit()
    last = world.half(b"last")
    world.commit()
    world.persist()
    world.persist()
    assert world.plugin.strategy.floor() == first.offset
    world.store.discard(world.log.detach_before(4096))
    world, loaded, errors = start(env.kill())
    assert (loaded["open"], loaded["rows"], errors) == (1, 2, ["prepared_record_lost"])
    assert world.end_now(first, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert world.end_now(last, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"last"]


def test_a_changed_file_size_rebuilds_both_files() -> None:
    env = MemoryEnv()
    world, halves = lived(env)
    world.close()
    world, loaded, errors = start(env, file_rows=128)
    assert (loaded["rebuilt"], loaded["open"], errors) == (True, 2, [MOVED])
    check(world, halves)

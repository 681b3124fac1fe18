"""The redo log: RocketMQ 3.x's bytes and folder, open transactions, ends, and damage."""

from __future__ import annotations

import struct

import pytest

from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.plugins.transaction.state_table.redo import PREPARED_MARK, RedoLog
from gantrymq.testing.memory_env import MemoryEnv

FOLDER = "redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0"
FIRST = f"{FOLDER}/00000000000000000000"


def make(env: MemoryEnv) -> RedoLog:
    env.mkdirs("staging")
    redo = RedoLog(env, "redolog", "staging", file_entries=20)
    redo.load()
    return redo


def put_pairs(redo: RedoLog, first: int, end: int) -> None:
    """Prepared records each 100 bytes, and for every even one its commit 50 bytes behind."""
    for number in range(first, end):
        place = number * 100
        redo.put([place], [50], [PREPARED_MARK])
        if number % 2 == 0:
            redo.put([place + 50], [50], [place])


def test_entries_are_those_of_a_consume_queue_of_rocketmqs_topic() -> None:
    env = MemoryEnv()
    redo = make(env)
    redo.put([3780, 3975], [195, 195], [PREPARED_MARK, 3780])
    redo.flush()
    data = env.read_bytes(FIRST)
    assert data[:40] == struct.pack(">qiqqiq", 3780, 195, -1, 3975, 195, 3780)
    assert len(data) == 20 * 20
    assert not any(data[40:])


def test_prepared_transactions_without_an_end_are_open() -> None:
    env = MemoryEnv()
    redo = make(env)
    put_pairs(redo, 0, 40)
    redo.flush()
    for seen in (redo, make(env)):
        found = seen.find_open(0)
        assert found.open == {number * 100: 50 for number in range(1, 40, 2)}
        assert (found.newest, found.end) == (3900, 3950)
        assert seen.find_open(3600).open == {3700: 50, 3900: 50}
        assert seen.find_open(10**9).open == {}
        assert seen.find_open(0, 5).open == {100: 50}
    assert make(MemoryEnv()).find_open(0).newest is None


def test_entries_behind_a_log_offset_are_dropped_and_added_again() -> None:
    env = MemoryEnv()
    redo = make(env)
    put_pairs(redo, 0, 20)
    redo.flush()
    before = redo.end
    redo.truncate(1000, lambda offset, size: True)
    assert redo.end == 15
    put_pairs(redo, 10, 20)
    assert redo.end == before
    assert redo.find_open(0).open == {number * 100: 50 for number in range(1, 20, 2)}


def test_last_entries_that_point_nowhere_are_dropped() -> None:
    redo = make(MemoryEnv())
    put_pairs(redo, 0, 4)
    redo.truncate(10**6, lambda offset, size: offset < 200)
    assert redo.end == 3


def test_entries_of_records_that_are_gone_go_with_their_files() -> None:
    env = MemoryEnv()
    redo = make(env)
    put_pairs(redo, 0, 40)
    redo.flush()
    redo.expire(2000)
    redo.drop_expired()
    assert (redo.start, env.listdir(FOLDER)[0]) == (30, f"{20 * 20:020d}")
    assert redo.find_open(0).open == {number * 100: 50 for number in range(21, 40, 2)}


@pytest.mark.parametrize("entry", [(100, 50, -1), (10**6, 50, -1), (250, -1, -1), (250, 50, 250)])
def test_entries_out_of_order_are_damage(entry: tuple[int, int, int]) -> None:
    env = MemoryEnv()
    redo = make(env)
    put_pairs(redo, 0, 10)
    redo.flush()
    env.open(FIRST).pwrite(struct.pack(">qiq", *entry), 4 * 20)
    with pytest.raises(StoreDamaged, match="cannot be right"):
        make(env).find_open(0)


def test_a_file_of_another_size_is_damage_and_stays() -> None:
    env = MemoryEnv()
    redo = make(env)
    put_pairs(redo, 0, 4)
    redo.flush()
    env.open(FIRST).truncate(100)
    with pytest.raises(StoreDamaged, match="100 bytes where 400"):
        make(env)
    assert env.exists(FIRST)

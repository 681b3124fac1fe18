"""The state table's files: RocketMQ 3.x's bytes, changes in place, gaps, ends, and a full disk."""

from __future__ import annotations

import errno

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.plugins.transaction.state_table.table import ENDS, PREPARED, UNIT, StateRow, StateTable
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.memory_env import MemoryEnv

COMMIT, ROLLBACK = ENDS
FILE_ROWS = 16


def make(env: MemoryEnv | FaultEnv, file_rows: int = FILE_ROWS) -> StateTable:
    env.mkdirs("staging")
    return StateTable(env, "table", "staging", file_rows=file_rows)


def reopened(env: MemoryEnv) -> StateTable:
    table = make(env)
    table.load()
    return table


def row(number: int) -> StateRow:
    return StateRow(log_offset=number * 100, size=100, seconds=1_700_000_000 + number, group_hash=-7)


def rows(first: int, end: int) -> list[tuple[int, StateRow]]:
    return [(number, row(number)) for number in range(first, end)]


def open_numbers(table: StateTable) -> list[int]:
    return [number for number, found in table.open_rows() if found is not None]


def test_a_row_has_the_bytes_of_rocketmq_3() -> None:
    env = MemoryEnv()
    table = make(env)
    table.append([(0, StateRow(3780, 195, 1_404_354_477, 1_119_945_399))])
    table.finish({0: (3780, COMMIT)})
    data = env.read_bytes("table/00000000000000000000")
    assert len(data) == FILE_ROWS * 24
    assert data[:24] == bytes.fromhex("0000000000000ec4 000000c3 53b4bfad 42c102b7 00000008")
    assert not any(data[24:])


def test_files_follow_each_other_and_rows_change_in_place_across_them() -> None:
    env = MemoryEnv()
    table = make(env)
    table.append(rows(0, 40))
    assert env.listdir("table") == [f"{base * UNIT:020d}" for base in (0, 16, 32)]
    table.finish({number: (number * 100, COMMIT if number % 2 else ROLLBACK) for number in (3, 15, 16, 17, 39)})
    again = reopened(env)
    assert (again.start, again.end, again.open_count) == (0, 40, 35)
    assert {number: again.get(number).state for number in (3, 15, 16, 17, 39)} == {  # type: ignore[union-attr]
        3: COMMIT, 15: COMMIT, 16: ROLLBACK, 17: COMMIT, 39: COMMIT,
    }  # fmt: skip
    assert open_numbers(again) == [number for number in range(40) if number not in (3, 15, 16, 17, 39)]
    assert again.get(40) is None
    assert again.get(-1) is None


def test_the_first_end_counts_and_must_name_the_right_record() -> None:
    table = make(MemoryEnv())
    table.append(rows(0, 3))
    table.finish({0: (0, COMMIT), 1: (999, COMMIT), 7: (700, COMMIT)})
    table.finish({0: (0, ROLLBACK)})
    assert [table.get(number).state for number in range(3)] == [COMMIT, PREPARED, PREPARED]  # type: ignore[union-attr]
    assert table.open_count == 2


def test_a_gap_is_filled_with_rows_that_have_ended() -> None:
    env = MemoryEnv()
    table = make(env)
    table.append([(0, row(0)), (20, row(20)), (20, row(21))])
    again = reopened(env)
    assert (again.end, again.open_count, open_numbers(again)) == (21, 2, [0, 20])
    filler = again.get(19)
    assert filler == StateRow(2000, 100, row(20).seconds, 0, ROLLBACK)
    again.finish({19: (2000, COMMIT)})
    assert again.get(19) == filler


def test_an_empty_table_may_begin_anywhere() -> None:
    env = MemoryEnv()
    table = make(env)
    table.append(rows(35, 37))
    assert env.listdir("table") == [f"{32 * UNIT:020d}"]
    again = reopened(env)
    assert (again.start, again.end, open_numbers(again)) == (32, 37, [35, 36])


@pytest.mark.parametrize(
    "damage",
    [
        (0, b"\x80"),  # a negative log offset
        (8, b"\0\0\0\0"),  # no size
        (8, b"\x80"),
        (20, b"\x01"),
        (23, b"\x05"),
        (0, bytes(24)),
    ],
)
def test_an_invalid_row_ends_the_table(damage: tuple[int, bytes]) -> None:
    env = MemoryEnv()
    make(env).append(rows(0, 20))
    at, data = damage
    env.open("table/00000000000000000000").pwrite(data, 5 * UNIT + at)
    assert reopened(env).end == 5


def test_a_size_whose_last_byte_is_zero_is_one() -> None:
    env = MemoryEnv()
    make(env).append([(0, StateRow(0, 256, 1, 1)), (1, row(1))])
    assert reopened(env).end == 2


def test_files_of_another_size_are_damaged() -> None:
    env = MemoryEnv()
    make(env, 20).append(rows(0, 5))
    with pytest.raises(StoreDamaged, match="480 bytes where 384"):
        reopened(env)


def test_files_at_the_front_go_when_all_their_rows_have_ended_but_never_the_last() -> None:
    env = MemoryEnv()
    table = make(env)
    table.append(rows(0, 48))
    table.finish({number: (number * 100, COMMIT) for number in range(48) if number != 20})
    table.discard(table.detach_finished())
    assert (table.start, env.listdir("table")) == (16, [f"{base * UNIT:020d}" for base in (16, 32)])
    assert (table.first_open(), table.get(15)) == ((20, row(20)), None)
    table.finish({20: (2000, ROLLBACK)})
    table.discard(table.detach_finished())
    assert (table.start, env.listdir("table")) == (32, [f"{32 * UNIT:020d}"])
    table.append(rows(48, 49))
    assert open_numbers(table) == [48]
    assert (reopened(env).start, reopened(env).end) == (32, 49)


def test_rows_stay_in_memory_while_the_disk_has_no_room() -> None:
    env = FaultEnv(MemoryEnv(), 1, number=errno.ENOSPC, forever=True, kinds=("pwrite",))
    table = make(env)
    table.append(rows(0, 3))
    kept = table.unwritten
    table.finish({1: (100, COMMIT)})
    assert [table.get(number).state for number in range(3)] == [PREPARED, COMMIT, PREPARED]  # type: ignore[union-attr]
    assert open_numbers(table) == [0, 2]
    table.write_rest()
    env.fail_at = 0
    table.write_rest()
    assert (kept, table.unwritten) == (True, False)
    again = make(env)
    again.load()
    assert open_numbers(again) == [0, 2]


def test_a_failing_disk_is_no_full_one() -> None:
    table = make(FaultEnv(MemoryEnv(), 1, number=errno.EIO, kinds=("pwrite",)))
    with pytest.raises(OSError, match="injected failure of pwrite"):
        table.append(rows(0, 3))


@given(st.data())
def test_a_table_is_what_was_put_into_it(data: st.DataObject) -> None:
    env = MemoryEnv()
    table = make(env)
    model: dict[int, StateRow] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        end = table.end + data.draw(st.sampled_from([0, 0, 1, 40]))
        new = [(end + at, row(end + at)) for at in range(data.draw(st.integers(0, 20)))]
        table.append(new)
        model.update(new)
        chosen = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []
        state = data.draw(st.sampled_from(ENDS))
        table.finish({number: (number * 100, state) for number in chosen})
        for number in chosen:
            if model[number].state == PREPARED:
                found = model[number]
                model[number] = StateRow(found.log_offset, found.size, found.seconds, found.group_hash, state)
    for seen in (table, reopened(env)):
        assert {number: seen.get(number) for number in model} == model
        assert open_numbers(seen) == [number for number in sorted(model) if model[number].state == PREPARED]
        assert seen.open_count == len(open_numbers(seen))

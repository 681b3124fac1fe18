"""The table of open half messages, compared with a plain set of offsets."""

from __future__ import annotations

import random

from gantrymq.plugins.transaction.half import table as halftable
from gantrymq.plugins.transaction.half.table import CHUNK_OPS, COMMITTED, GONE, OPEN, REMEMBERED, ROLLED_BACK, HalfTable


def test_the_table_has_the_same_open_messages_as_a_set() -> None:
    chance = random.Random(5)
    for _ in range(50):
        end = begin = chance.randrange(100)
        table = HalfTable(begin, lambda: end)  # noqa: B023 - the table asks again and again
        is_open: set[int] = set()
        for _ in range(200):
            more = chance.randrange(4)
            is_open.update(range(end, end + more))
            end += more
            offset = chance.randrange(begin - 2, end + 2)
            table.close(offset, chance.choice((COMMITTED, ROLLED_BACK, GONE)))
            is_open.discard(offset)
            assert table.open_count == len(is_open)
            assert table.base == min(is_open, default=end)
            assert table.next_open(0, end) == min(is_open, default=None)
            assert (table.state(offset) == OPEN) == (offset in is_open)


def test_the_outcomes_of_the_latest_transactions_are_remembered() -> None:
    count = 3 * REMEMBERED
    table = HalfTable(0, lambda: count)
    for offset in range(count):
        table.close(offset, COMMITTED)
    assert table.state(count - 1) == table.state(count - REMEMBERED) == COMMITTED
    assert table.state(0) == GONE
    assert table.base == count
    assert len(table._states) < 2 * REMEMBERED
    assert table.open_count == 0


def test_rocketmqs_copies_are_forgotten_with_how_they_ended() -> None:
    count = 3 * REMEMBERED
    table = HalfTable(0, lambda: count)
    table.copies = {b"long ago": 5, b"goes on": 7, b"new": count - 1}
    table.moved[7] = count - 2
    for offset in range(count):
        table.close(offset, COMMITTED)
    assert table.copies == {b"goes on": 7, b"new": count - 1}


def test_the_queue_of_ends_is_done_with_up_to_the_first_that_is_needed() -> None:
    table = HalfTable(0, lambda: 10)
    assert table.ops_done() is None
    for op, half in enumerate((3, 0, 1)):
        table.close(half, COMMITTED)
        table.noted(op, half)
    assert table.ops_done() == 0, "the first note is of a half message behind an open one"
    table.close(2, COMMITTED)
    table.noted(3, 2)
    assert table.base == 4
    assert table.ops_done() == 4


def test_progress_in_the_queue_of_ends_takes_little_memory() -> None:
    count = 5 * CHUNK_OPS
    table = HalfTable(0, lambda: count + 1)
    for offset in range(1, count):
        table.close(offset, COMMITTED)
        table.noted(offset - 1, offset)
    assert len(table._ops) == 5
    assert table.ops_done() == 0
    table.close(0, COMMITTED)
    table.noted(count - 1, 0)
    assert table.base == count
    assert table.ops_done() == count
    assert count < halftable.REMEMBERED

"""Sizes of reads from the log, and blocks that stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.log.block_cache import BLOCK_BYTES
from gantrymq.kernel.store.log.windows import LogWindows
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.testing.tinystore import commit


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A log of 2 MiB: half of it is further from its end than what is kept at once."""
    store = Store(SystemEnv(), str(tmp_path / "store"), StoreConfig(commit_log_file_bytes=4 << 20))
    store.open()
    store.recover(lambda batch: None)
    append(store, 2048)
    yield store
    store.close()


def append(store: Store, messages: int) -> None:
    batch = AppendBatch()
    for _ in range(messages):
        batch.add("T", 0, b"x" * 1000, b"")
    store.append(batch)
    commit(store)


def windows_of(store: Store) -> LogWindows:
    return LogWindows(SystemEnv(), store.log)


def part(found: tuple[int, memoryview] | None) -> tuple[int, int]:
    """The offset and the length of a part of the log."""
    assert found is not None
    return found[0], len(found[1])


def test_a_single_read_of_old_data_reads_no_more_than_that(store: Store) -> None:
    assert part(windows_of(store).span(1000, 500)) == (1000, 500)


def test_the_second_read_of_a_block_reads_all_of_it(store: Store) -> None:
    windows = windows_of(store)
    windows.span(1000, 500)
    assert part(windows.span(3000, 500)) == (0, BLOCK_BYTES)


def test_a_read_that_goes_on_reads_its_block_at_once(store: Store) -> None:
    windows = windows_of(store)
    assert part(windows.span(1000, 500, goes_on=True)) == (0, BLOCK_BYTES)
    assert part(windows.span(BLOCK_BYTES + 1000, 500)) == (BLOCK_BYTES + 1000, 500)


def test_the_last_block_grows_with_the_log_and_what_was_given_stays_as_it_is(store: Store) -> None:
    windows = windows_of(store)
    end = store.log.end
    begin = end - end % BLOCK_BYTES
    before = windows.span(begin, 100)
    assert part(before) == (begin, end - begin)
    assert windows.span(end, 100) is None
    append(store, 1)
    after = windows.span(end, 100)
    assert part(after) == (begin, store.log.end - begin)
    assert before is not None
    assert after is not None
    assert before[1] == after[1][: end - begin] == store.log.view(begin, end - begin)

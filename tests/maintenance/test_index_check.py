"""The check of the index against the log after retention has deleted the log's oldest files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.plugins.index.layout import HEADER_BYTES, SLOT_BYTES, Shape
from support.stores import make_store

pytestmark = pytest.mark.timeout(120)

LOG_FILE = 64 * 1024
SETTINGS = {
    "store.commit_log_file_bytes": "64 KiB",
    "store.queue_file_units": "40",
    "plugin.index.slots": "64",
    "plugin.index.entries": "200",
}
SHAPE = Shape(64, 200)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several log files and several index files, which begin at other offsets."""
    return make_store(tmp_path_factory.mktemp("sample") / "store", SETTINGS, 4, 400, 400)


@pytest.fixture
def store(sample: Path, tmp_path: Path) -> Path:
    """The store after retention has deleted the two oldest log files and cut the queues, but nothing of the index."""
    root = shutil.copytree(sample, tmp_path / "store")
    store = opened(root)
    store.discard(store.log.detach_before(2 * LOG_FILE))
    store.queues.correct_min(store.log.min_offset)
    store.close()
    return root


def opened(root: Path) -> Store:
    store = Store(SystemEnv(), str(root), StoreConfig(commit_log_file_bytes=LOG_FILE, queue_file_units=40))
    store.open()
    store.recover(lambda batch: None)
    return store


def examine(root: Path) -> StoreReport:
    return StoreCheck(SystemEnv(), str(root), SHAPE, deep=True).run()


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def test_entries_of_deleted_messages_are_no_damage(sample: Path, store: Path) -> None:
    before, after = examine(sample), examine(store)
    assert before.ok
    assert (after.log_start, after.index, after.ok) == (2 * LOG_FILE, [], True)
    assert 0 < after.index_entries < before.index_entries


def test_an_index_file_of_deleted_messages_may_be_missing_as_after_a_kill_before_the_marks_are_written(
    store: Path,
) -> None:
    index_files(store)[0].unlink()
    assert (examine(store).index, examine(store).ok) == ([], True)


def test_an_index_file_with_an_entry_of_a_message_in_the_log_is_missed(store: Path) -> None:
    *_, needed, _ = index_files(store)
    needed.unlink()
    problems = [(each.path, each.reason) for each in examine(store).index]
    assert (str(needed), "the file is missing") in problems


def test_the_index_may_begin_at_a_recorded_start_whose_log_files_a_killed_broker_had_not_deleted(
    sample: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(sample, tmp_path / "store")
    store = opened(root)
    store.discard(store.log.detach_before(2 * LOG_FILE))
    store.close()
    for base in (0, LOG_FILE):
        shutil.copy(sample / "commitlog" / f"{base:020d}", root / "commitlog")
    index_files(root)[0].unlink()
    report = examine(root)
    assert (report.log_start, report.index) == (0, [])


def test_a_damaged_entry_of_a_message_in_the_log_is_found(store: Path) -> None:
    full = index_files(store)[-2]
    data = bytearray(full.read_bytes())
    data[HEADER_BYTES + 64 * SLOT_BYTES + 20 * 150 + 2] ^= 0xFF  # the key hash of an entry
    full.write_bytes(data)
    assert [problem.path for problem in examine(store).index] == [str(full)]

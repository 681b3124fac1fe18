"""Backups of stores that the kernel writes, without a broker: where the log ends, what a restore gives queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance import store_backup
from gantrymq.maintenance.backup_targets import FolderTarget
from gantrymq.maintenance.store_backup import back_up, restore
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.maintenance.store_repair import quarantine
from gantrymq.plugins.index.layout import Shape
from support.stores import log_records

LOG_FILE = 16 * 1024
CONFIG = StoreConfig(commit_log_file_bytes=LOG_FILE, queue_file_units=40)
BODY = b"x" * 400


class Clock(SystemEnv):
    """The real disk, with a clock that a test sets."""

    def __init__(self, ms: int) -> None:
        super().__init__()
        self.ms = ms

    def wall_ms(self) -> int:
        return self.ms


def opened(root: Path, env: SystemEnv | None = None) -> Store:
    store = Store(env or SystemEnv(), str(root), CONFIG)
    store.open()
    store.recover(lambda batch: None)
    return store


def put(store: Store, topic: str, count: int) -> None:
    for _ in range(count):
        batch = AppendBatch()
        batch.add(topic, 0, BODY, b"")
        store.append(batch)
    for _ in store.dispatch(store.flush()):
        pass


def examine(root: Path) -> StoreReport:
    return StoreCheck(SystemEnv(), str(root), Shape(64, 200)).run()


def copy(store: Path) -> Path:
    """Back up the store, and restore the backup."""
    target, restored = FolderTarget(store.parent / "backup"), store.parent / "restored"
    back_up(SystemEnv(), str(store), target)
    restore(SystemEnv(), target, str(restored))
    return restored


def flip(root: Path, offset: int) -> None:
    """Damage the body of the record at a log offset."""
    base = offset - offset % LOG_FILE
    path = root / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(BODY, offset - base)] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------------------------------------ the log's end


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A store as RocketMQ's broker leaves it: without GantryMQ's watermark."""
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    store.close()
    (root / "gantrymq.watermark").unlink()
    return root


def offset_of(root: Path, number: int) -> int:
    return list(log_records(root))[number][0].offset


def test_a_backup_without_a_watermark_is_refused_where_intact_records_are_behind_a_damaged_one(foreign: Path) -> None:
    at = offset_of(foreign, 90)
    flip(foreign, at)
    with pytest.raises(StartError, match=f"no record at offset {at} .* check the store first"):
        back_up(SystemEnv(), str(foreign), FolderTarget(foreign.parent / "backup"))


def test_a_quarantined_range_without_a_watermark_costs_only_the_messages_in_it(foreign: Path) -> None:
    flip(foreign, offset_of(foreign, 90))
    quarantine(SystemEnv(), str(foreign), examine(foreign))
    assert examine(copy(foreign)).records == 99


def test_a_record_that_the_running_broker_completes_meanwhile_is_read_again(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = offset_of(foreign, 90)
    intact = foreign / "commitlog" / f"{at - at % LOG_FILE:020d}"
    whole = intact.read_bytes()
    flip(foreign, at)
    find = store_backup.find_record

    def complete_and_find(segments: Segments, start: int) -> tuple[int, int] | None:
        intact.write_bytes(whole)
        return find(segments, start)

    monkeypatch.setattr(store_backup, "find_record", complete_and_find)
    assert examine(copy(foreign)).records == 100


def test_older_records_behind_the_end_are_a_remainder_and_not_in_the_backup(tmp_path: Path) -> None:
    files = []
    for name, ms, count in (("older", 10**12, 20), ("store", 2 * 10**12, 10)):
        store = opened(tmp_path / name, Clock(ms))
        put(store, "orders", count)
        end = store.log.end
        store.close()
        (tmp_path / name / "gantrymq.watermark").unlink()
        files.append(tmp_path / name / "commitlog" / f"{0:020d}")
    older, newer = (file.read_bytes() for file in files)
    files[1].write_bytes(newer[:end] + bytes(8) + older[end + 8 :])
    assert examine(copy(tmp_path / "store")).records == 10

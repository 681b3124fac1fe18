"""Backups of stores without a broker: the end of the log, restored queues, and failed backups."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError, StoreNotWritable
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.reading import read_messages
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.maintenance import store_backup, store_repair, store_restore
from gantrymq.maintenance.backup_manifest import BadBackup, decode_manifest, list_backups, read_backup
from gantrymq.maintenance.backup_targets import FolderTarget
from gantrymq.maintenance.store_backup import back_up
from gantrymq.maintenance.store_check import StoreCheck, StoreReport
from gantrymq.maintenance.store_files import FileProblem, LogRun
from gantrymq.maintenance.store_repair import cut, quarantine, repair
from gantrymq.maintenance.store_restore import restore
from gantrymq.plugins.index.layout import Shape
from gantrymq.testing.tinystore import batch_of
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
    with pytest.raises(StartError, match=rf"no record at offset {at} .* check the store first"):
        back_up(SystemEnv(), str(foreign), FolderTarget(foreign.parent / "backup"))


def test_a_quarantined_range_without_a_watermark_costs_only_the_messages_in_it(foreign: Path) -> None:
    flip(foreign, offset_of(foreign, 90))
    quarantine(SystemEnv(), str(foreign), examine(foreign))
    assert examine(copy(foreign)).records == 99


def test_a_backup_leaves_out_ranges_and_deletions_from_before_the_broker_of_rocketmq_wrote_the_store(
    foreign: Path,
) -> None:
    at = [record.offset for record, _ in log_records(foreign)]
    damaged, end = [at[80], at[81]], at[95]
    flip(foreign, at[80])
    (foreign / "gantrymq.quarantine").write_text(json.dumps([damaged, [at[90], end]]))
    (foreign / "gantrymq.deleted").write_text(json.dumps(["orders", end]) + "\n")
    restored = copy(foreign)
    assert json.loads((restored / "gantrymq.quarantine").read_text()) == [damaged]
    store = opened(restored)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 100)
    assert store.log.read_record(at[92]).queue_offset == 92
    store.close()
    assert examine(restored).records == 99


def test_a_backup_ends_where_the_log_of_rocketmqs_broker_ends_inside_an_obsolete_range(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for folder, ms, count in ((tmp_path / "older", 10**12, 20), (root, 2 * 10**12, 10)):
        store = opened(folder, Clock(ms))
        put(store, "orders", count)
        store.close()
    (root / "gantrymq.watermark").unlink()
    end, behind = offset_of(tmp_path / "older", 10), offset_of(tmp_path / "older", 11)
    path = root / "commitlog" / f"{0:020d}"
    older = (tmp_path / "older" / "commitlog" / path.name).read_bytes()
    path.write_bytes(path.read_bytes()[:end] + bytes(behind - end) + older[behind:])
    (root / "gantrymq.quarantine").write_text(json.dumps([[offset_of(root, 5), behind]]))
    assert examine(copy(root)).records == 10


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


@pytest.mark.parametrize("is_first", [False, True])
def test_a_log_whose_newest_or_oldest_files_are_missing_is_not_backed_up(tmp_path: Path, is_first: bool) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    end = store.log.end
    store.close()
    for path in sorted((root / "commitlog").iterdir()):
        if (int(path.name) == 0) if is_first else (int(path.name) + LOG_FILE >= end):
            path.unlink()
    with pytest.raises(StartError, match=r"check the store first \(gantrymq store check\)"):
        copy(root)
    assert objects(FolderTarget(tmp_path / "backup")) == set()


def test_a_file_that_the_running_broker_adds_meanwhile_does_not_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 20)
    find = store_backup.log_runs

    def find_and_add(env: Env, root: str) -> tuple[list[LogRun], list[FileProblem]]:
        found = find(env, root)
        put(store, "orders", 100)
        store.flush_queues()
        return found

    monkeypatch.setattr(store_backup, "log_runs", find_and_add)
    assert examine(copy(root)).records >= 20
    store.close()


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


# ----------------------------------------------------------------------------------- queues without messages


@pytest.fixture
def expired(tmp_path: Path) -> Path:
    """A store in which all 100 messages of the queue ``idle`` have expired, and the first ones of ``busy``."""
    root = tmp_path / "store"
    store = opened(root)
    put(store, "idle", 100)
    put(store, "busy", 100)
    store.discard(store.log.detach_before(store.log.end // 2 + LOG_FILE))
    store.queues.correct_min(store.log.min_offset)
    assert ends(store)["idle"] == (100, 100)
    store.close()
    return root


def ends(store: Store) -> dict[str, tuple[int, int]]:
    """The first queue offset and the end of each topic's queue."""
    return {queue.topic: (queue.min_offset, queue.max_offset) for queue in store.queues}


def test_a_restored_queue_goes_on_where_it_ended_although_its_messages_have_expired(expired: Path) -> None:
    restored = copy(expired)
    assert examine(restored).ok
    before, after = opened(expired), opened(restored)
    assert ends(after) == ends(before)
    put(after, "idle", 1)
    queue = after.queues.get("idle", 0)
    assert queue is not None
    (last,) = [record for record, _ in log_records(restored) if record.topic == "idle"]
    assert (last.queue_offset, queue.entry(100)[0], queue.min_offset) == (100, last.offset, 100)
    after.abandon()  # as a crash does
    again = opened(restored)
    assert ends(again)["idle"] == (100, 101)
    again.close()
    before.close()


def test_the_end_of_a_restored_queue_without_messages_survives_a_crash_without_new_ones(expired: Path) -> None:
    restored = copy(expired)
    for _ in range(2):
        store = opened(restored)
        assert ends(store)["idle"] == (100, 100)
        store.abandon()
    (restored / "gantrymq.watermark").unlink()  # as if RocketMQ's broker had crashed
    store = opened(restored)
    assert ends(store)["idle"] == (100, 100)
    store.close()


def test_a_restored_queue_ends_behind_its_last_message_although_that_is_damaged(expired: Path) -> None:
    *_, last = [record for record, _ in log_records(expired)]
    flip(expired, last.offset)
    store = opened(copy(expired))
    assert ends(store)["busy"][1] == 100
    store.close()


class ForeignLostAndFound(SystemEnv):
    """A new ext4 disk, whose ``lost+found`` only root may list."""

    def listdir(self, path: str) -> list[str]:
        if path.endswith("/lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().listdir(path)


def test_a_backup_can_be_restored_at_the_root_of_a_new_disk(expired: Path) -> None:
    target, disk = FolderTarget(expired.parent / "backup"), expired.parent / "disk"
    back_up(SystemEnv(), str(expired), target)
    lost = disk / "lost+found"
    lost.mkdir(parents=True)
    with pytest.raises(StoreNotWritable, match=r"lost\+found: Permission denied. Give the broker's user the right"):
        restore(ForeignLostAndFound(), target, str(disk))
    (lost / "#12").touch()
    with pytest.raises(StartError, match="is not empty"):
        restore(SystemEnv(), target, str(disk))
    (lost / "#12").unlink()
    restore(SystemEnv(), target, str(disk))
    assert examine(disk).records == examine(expired).records


def test_a_backup_without_the_ends_of_queues_can_be_restored(expired: Path) -> None:
    target = FolderTarget(expired.parent / "backup")
    name = back_up(SystemEnv(), str(expired), target).name
    tree = json.loads(target.read(f"backups/{name}.json", 1 << 20))
    assert ["idle", 0, 100] in tree.pop("queues")
    target.write(f"backups/{name}.json", json.dumps(tree).encode())
    assert restore(SystemEnv(), target, str(expired.parent / "restored")).queues == ()


def test_a_backup_of_a_log_that_is_cut_at_its_first_offset_can_be_restored(expired: Path) -> None:
    first, *_ = [record for record, _ in log_records(expired)]
    start = first.offset
    assert start > 0
    path = expired / "commitlog" / f"{start:020d}"
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    env = SystemEnv()
    lock = env.lock(f"{expired}/lock")
    try:
        cut(env, str(expired), examine(expired), start, lock)
    finally:
        lock.close()
    (expired / "config").mkdir(exist_ok=True)
    (expired / "config" / "topics.json").write_text("{}")
    restored = copy(expired)
    assert (restored / "config" / "topics.json").read_text() == "{}"
    assert examine(restored).ok
    store = opened(restored)
    assert (store.log.min_offset, store.log.end, ends(store)["idle"]) == (start, start, (100, 100))
    put(store, "idle", 1)
    assert ends(store)["idle"] == (100, 101)
    store.close()


@pytest.mark.parametrize("start", [-1, "x", 0.5])
def test_a_manifest_of_an_empty_log_names_an_offset(expired: Path, start: object) -> None:
    target = FolderTarget(expired.parent / "backup")
    name = back_up(SystemEnv(), str(expired), target).name
    tree = json.loads(target.read(f"backups/{name}.json", 1 << 20)) | {"log": [], "start": start, "end": start}
    with pytest.raises(BadBackup, match="no log begins at"):
        decode_manifest(json.dumps(tree).encode())


@pytest.mark.parametrize("end", [["../x", 0, 1], ["x", -1, 1], ["x", 2**31, 1], ["x", 0, 2**60], ["x", 0], [1, 0, 1]])
def test_a_manifest_cannot_name_queues_elsewhere(expired: Path, end: list[object]) -> None:
    target = FolderTarget(expired.parent / "backup")
    name = back_up(SystemEnv(), str(expired), target).name
    tree = json.loads(target.read(f"backups/{name}.json", 1 << 20))
    with pytest.raises(BadBackup):
        decode_manifest(json.dumps({**tree, "queues": [end]}).encode())


@pytest.mark.parametrize("is_log_damaged", [False, True])
def test_a_repaired_queue_goes_on_where_it_ended_although_its_messages_have_expired(
    expired: Path, is_log_damaged: bool
) -> None:
    env, folder = SystemEnv(), f"{expired}/consumequeue/idle/0"
    Path(folder, f"{40 * 20 * 5:020d}").write_bytes(b"short")
    if is_log_damaged:
        flip(expired, [record for record, _ in log_records(expired) if record.topic == "busy"][20].offset)
    lock = env.lock(f"{expired}/lock")
    try:
        if is_log_damaged:
            left = repair(env, str(expired), examine(expired), lock)
            assert (left.queues_left, left.queues_to_rebuild, left.moved) == ([folder], [], [])
            quarantine(env, str(expired), examine(expired))
        done = repair(env, str(expired), examine(expired), lock)
    finally:
        lock.close()
    assert (done.queues_rebuilt, done.queues_left) == ([folder], [])
    report = examine(expired)
    assert (report.files, report.wrong_entry_count, len(report.damage)) == ([], 0, int(is_log_damaged))
    store = opened(expired)
    assert ends(store)["idle"] == (100, 100)
    store.close()


def test_a_repair_that_moves_all_queues_away_builds_them_with_the_same_file_size(expired: Path) -> None:
    for topic in ("idle", "busy"):
        (expired / "consumequeue" / topic / "0" / f"{40 * 20 * 5:020d}").write_bytes(b"short")
    env = SystemEnv()
    lock = env.lock(f"{expired}/lock")
    try:
        done = repair(env, str(expired), examine(expired), lock)
    finally:
        lock.close()
    assert len(done.queues_rebuilt) == 2
    assert {path.stat().st_size for path in (expired / "consumequeue").rglob("*0") if path.is_file()} == {40 * 20}
    store = opened(expired)
    assert ends(store)["idle"] == (100, 100)
    store.close()


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_queue_takes_the_messages_that_the_log_has_lost_again_from_another_log(
    tmp_path: Path, is_restored: bool
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "x", 10)
    store.flush_queues()
    kept = store.log.end
    for _ in range(10):
        store.append(batch_of([BODY], "x"))
    for _ in store.dispatch(store.log.end):
        pass
    store.queues.flush()
    lost = store.log.view(kept, store.log.end - kept)
    store.abandon()
    path = root / "commitlog" / f"{0:020d}"
    torn = path.read_bytes()[: kept + 20]  # a power cut, after which the queue has more
    path.write_bytes(torn + bytes(LOG_FILE - len(torn)))
    if is_restored:
        root = copy(root)
    else:
        (root / "consumequeue" / "x" / "0" / f"{40 * 20 * 5:020d}").write_bytes(b"short")
        env = SystemEnv()
        lock = env.lock(f"{root}/lock")
        try:
            assert repair(env, str(root), examine(root), lock).queues_to_rebuild
        finally:
            lock.close()
    store = opened(root)
    assert ends(store)["x"] == (0, 10)
    assert store.append_encoded(kept, lost) == len(lost)
    for _ in store.dispatch(store.flush()):
        pass
    assert [record.queue_offset for record in read_messages(store, "x", 0, 0).records] == list(range(20))
    store.close()


def test_a_truncated_queue_file_is_found_although_the_rest_of_its_queue_has_that_size(expired: Path) -> None:
    store = opened(expired)
    put(store, "aaa", 10)
    store.close()
    queues = expired / "consumequeue"
    cut = queues / "aaa" / "0" / f"{0:020d}"
    os.truncate(cut, 15 * 20)
    others = {path: path.stat().st_ino for topic in ("busy", "idle") for path in (queues / topic).rglob("*")}
    report = examine(expired)
    assert [(each.path, each.reason) for each in report.files] == [(str(cut), "has 300 bytes instead of 800")]
    target = FolderTarget(expired.parent / "backup")
    back_up(SystemEnv(), str(expired), target)
    assert read_backup(target).queue_units == 40
    env = SystemEnv()
    lock = env.lock(f"{expired}/lock")
    try:
        done = repair(env, str(expired), report, lock)
    finally:
        lock.close()
    assert done.queues_rebuilt == [f"{queues}/aaa/0"]
    assert examine(expired).ok
    assert {path: path.stat().st_ino for path in others} == others
    store = opened(expired)
    assert (ends(store)["aaa"], ends(store)["idle"]) == ((0, 10), (100, 100))
    store.close()


def test_a_queue_whose_only_file_is_truncated_goes_on_where_its_entries_end(expired: Path) -> None:
    folder = expired / "consumequeue" / "idle" / "0"
    last = max(folder.iterdir())
    for path in folder.iterdir():
        if path != last:
            path.unlink()
    os.truncate(last, 30 * 20)
    env = SystemEnv()
    lock = env.lock(f"{expired}/lock")
    try:
        repair(env, str(expired), examine(expired), lock)
    finally:
        lock.close()
    store = opened(expired)
    assert ends(store)["idle"] == (100, 100)
    store.close()


def test_a_store_without_a_whole_queue_file_can_be_checked_and_repaired(expired: Path) -> None:
    for path in (expired / "consumequeue").rglob("*0"):
        if path.is_file():
            os.truncate(path, 5)
    env = SystemEnv()
    lock = env.lock(f"{expired}/lock")
    try:
        repair(env, str(expired), examine(expired), lock)
    finally:
        lock.close()
    assert examine(expired).ok


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("then", ["repair", "start", "backup"])
def test_a_repair_that_is_killed_before_it_builds_the_queues_remembers_where_they_ended(
    expired: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    env = SystemEnv()
    (expired / "consumequeue" / "idle" / "0" / f"{40 * 20 * 5:020d}").write_bytes(b"short")
    lock = env.lock(f"{expired}/lock")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(store_repair, "build_queues", killed)
            with pytest.raises(Killed):
                repair(env, str(expired), examine(expired), lock)
        assert [(each.path, each.reason) for each in examine(expired).files] == [
            (f"{expired}/gantrymq.ends", "is of a repair that has not finished: repair again, or start the broker")
        ]
        if then == "repair":
            done = repair(env, str(expired), examine(expired), lock)
            assert done.queues_rebuilt == [f"{expired}/consumequeue/idle/0"]
            assert examine(expired).ok
    finally:
        lock.close()
    root = copy(expired) if then == "backup" else expired
    for _ in range(2):
        store = opened(root)
        assert ends(store)["idle"] == (100, 100)
        store.close()
        assert examine(root).ok


@pytest.mark.parametrize("content", [b"?", b"[1]", b'[["idle",0]]', b'[["../x",0,5]]', b'[["idle",-1,5]]'])
def test_a_damaged_list_of_queue_ends_is_dropped(expired: Path, content: bytes) -> None:
    (expired / "gantrymq.ends").write_bytes(content)
    opened(expired).close()
    assert examine(expired).ok


def test_a_repair_keeps_the_quarantine_list_that_replaced_a_damaged_one(expired: Path) -> None:
    (expired / "gantrymq.quarantine").write_bytes(b"[[5, 3]]")
    flip(expired, [record for record, _ in log_records(expired) if record.topic == "busy"][20].offset)
    env, root = SystemEnv(), str(expired)
    report = StoreCheck(env, root, Shape(64, 200), deep=True).run()
    ranges = quarantine(env, root, report)
    lock = env.lock(f"{root}/lock")
    try:
        repair(env, root, report, lock)
    finally:
        lock.close()
    assert json.loads((expired / "gantrymq.quarantine").read_bytes()) == [list(each) for each in ranges]
    assert (expired / "lost+found" / "gantrymq.quarantine.1").read_bytes() == b"[[5, 3]]"


@pytest.mark.parametrize("is_short", [False, True])
def test_a_log_file_that_is_missing_or_short_costs_only_its_messages(tmp_path: Path, is_short: bool) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    store.close()
    count = sum(not LOG_FILE <= record.offset < 2 * LOG_FILE for record, _ in log_records(root))
    path = root / "commitlog" / f"{LOG_FILE:020d}"
    short = path.read_bytes()[:5000]
    path.unlink()
    if is_short:
        path.write_bytes(short)
    assert quarantine(SystemEnv(), str(root), examine(root)) == [(LOG_FILE, 2 * LOG_FILE)]
    assert (root / "commitlog" / path.name).read_bytes() == bytes(LOG_FILE)
    assert [each.read_bytes() for each in root.glob("lost+found/*")] == ([short] if is_short else [])
    store = opened(root)
    put(store, "orders", 1)
    assert ends(store) == {"orders": (0, 101)}
    store.close()
    report = examine(root)
    assert (report.files, report.records) == ([], count + 1)
    shutil.rmtree(root / "consumequeue")  # so that the next start reads the whole log
    store = opened(root)
    assert ends(store) == {"orders": (0, 101)}
    store.close()


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_quarantining_replaces_missing_files_at_the_ends_of_the_log(
    tmp_path: Path, is_first: bool, is_killed: bool
) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    end = store.log.end
    store.close()
    if is_killed or is_first:  # after a clean stop, a broker starts without the oldest files
        (root / "abort").touch()
    bases = [int(path.name) for path in sorted((root / "commitlog").iterdir()) if int(path.name) < end]
    lost = bases[:2] if is_first else bases[-2:]
    count = sum(record.offset - record.offset % LOG_FILE not in lost for record, _ in log_records(root))
    for base in lost:
        (root / "commitlog" / f"{base:020d}").unlink()
    if not is_first and is_killed:
        (root / "commitlog" / f"{lost[0]:020d}").touch()  # as a broker that is interrupted leaves it
    places = (lost[0], lost[1] + LOG_FILE if is_first else end)
    assert quarantine(SystemEnv(), str(root), examine(root)) == [places]
    assert examine(root).files == []
    assert (examine(root).damage[0].start, examine(root).damage[-1].end) == places
    assert {(root / "commitlog" / f"{base:020d}").read_bytes() for base in lost} == {bytes(LOG_FILE)}
    store = opened(root)
    put(store, "orders", 1)
    assert ends(store)["orders"][1] == 101
    store.close()
    report = examine(root)
    assert (report.files, report.records) == ([], count + 1)


def test_oldest_files_that_are_missing_after_a_clean_stop_are_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    store.close()
    first = root / "commitlog" / f"{0:020d}"
    first.unlink()
    quarantine(SystemEnv(), str(root), examine(root))
    assert not first.exists()
    opened(root).close()
    assert examine(root).ok


@pytest.mark.parametrize("left", [0, 1])
def test_missing_files_of_unknown_size_are_not_replaced(tmp_path: Path, left: int) -> None:
    root = tmp_path / "store"
    store = opened(root)
    put(store, "orders", 100)
    store.close()
    for path in sorted((root / "commitlog").iterdir())[left:]:
        path.unlink()
    with pytest.raises(StartError, match=f"has {left} files, too few to tell the size of the missing ones"):
        quarantine(SystemEnv(), str(root), examine(root))
    assert not (root / "gantrymq.quarantine").exists()


def test_a_restore_that_ends_before_the_queues_are_built_leaves_a_folder_that_brokers_refuse(
    expired: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_restore, "build_queues", killed)
    with pytest.raises(KeyboardInterrupt):
        copy(expired)
    restored = expired.parent / "restored"
    for use in (opened, examine):
        with pytest.raises(StartError, match=r"restore into .* has not finished"):
            use(restored)


# ------------------------------------------------------------------------------------- backups that did not end


class SmallPlace(FolderTarget):
    """A folder with room for so many objects of the log."""

    room = 10**6

    def write(self, name: str, data: bytes) -> None:
        if name.startswith("log/") and len(self.names("log")) >= self.room:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        super().write(name, data)


def objects(place: FolderTarget) -> set[str]:
    return {f"{folder}/{name}" for folder in ("log", "state") for name in place.names(folder)}


def test_a_backup_that_fails_deletes_its_objects_and_leaves_those_of_others(expired: Path) -> None:
    place = SmallPlace(expired.parent / "backup")
    first = back_up(SystemEnv(), str(expired), place)
    before = objects(place)
    place.room = len(place.names("log")) + 2
    with pytest.raises(OSError, match="No space left"):
        back_up(SystemEnv(), str(expired), place, full=True)
    assert objects(place) == before
    assert (list_backups(place), place.names("running")) == ([first.name], [])
    restore(SystemEnv(), place, str(expired.parent / "restored"))


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_an_object_that_cannot_be_stored_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    place = FolderTarget(tmp_path)
    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), fail)
    (tmp_path / "log").mkdir()
    with pytest.raises(OSError, match="quota"):
        place.write("log/1", b"data")
    assert list((tmp_path / "log").iterdir()) == []


def leave_remains(place: FolderTarget, folder: Path) -> None:
    """Leave the objects of a killed backup: one without a manifest, and one that is incomplete."""
    place.write(f"log/{0:020d}-0123456789abcdef-deadbeef", b"x")
    for name in ("log/.00.part", "state/.00.part", "backups/.00.json.part"):
        (folder / name).write_bytes(b"x")


def test_the_next_backup_deletes_what_a_killed_one_began_to_write_unless_another_one_runs(expired: Path) -> None:
    folder = expired.parent / "backup"
    place = FolderTarget(folder)
    back_up(SystemEnv(), str(expired), place)
    leave_remains(place, folder)
    place.write("running/00000001", b"%d" % SystemEnv().wall_ms())
    back_up(SystemEnv(), str(expired), place)
    assert len(list(folder.rglob(".*.part"))) == 3
    place.delete("running/00000001")
    back_up(SystemEnv(), str(expired), place)
    assert list(folder.rglob(".*.part")) == []


def test_a_backup_that_fails_for_want_of_room_deletes_the_objects_of_a_killed_one(expired: Path) -> None:
    folder = expired.parent / "backup"
    place = SmallPlace(folder)
    back_up(SystemEnv(), str(expired), place)
    before = objects(place)
    leave_remains(place, folder)
    place.room = len(place.names("log")) + 1
    with pytest.raises(OSError, match="No space left"):
        back_up(SystemEnv(), str(expired), place, full=True, keep=1)
    assert objects(place) == before
    assert list(folder.rglob(".*.part")) == []

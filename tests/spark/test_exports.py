"""Exports without Spark: the files of a run, additions of the next one, and a stop at any step."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from gantrymq.cli.__main__ import run
from gantrymq.exporter import worker
from gantrymq.exporter.job import Job, Report
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.spark import (
    BrokenRecord,
    DataLoss,
    ExportDamaged,
    ExportFenced,
    ExportProgress,
    FolderInUse,
    SparkError,
    Unreachable,
    WrongOption,
    compact_export,
    export,
    export_files,
    export_status,
)
from gantrymq.spark.exports import disk, parquet_output
from gantrymq.spark.exports.engines import run_here
from gantrymq.spark.exports.folder import ExportFolder
from gantrymq.spark.exports.folder_destination import FolderDestination
from gantrymq.spark.exports.manifest import Plan, Written
from gantrymq.spark.exports.planning import Sizes
from gantrymq.spark.exports.run import export_with
from gantrymq.spark.exports.writing import Task, run_task
from gantrymq.spark.options import SourceOptions, read_addresses

if TYPE_CHECKING:
    import pyarrow as pa
    from conftest import FakeCluster

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

DAY = 86_400_000
BORN_MILLIS = 1_700_000_000_123
"""The birth time of the cluster's records, which are stored one second later."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


def go(cluster: FakeCluster, folder: Path, topic: str = "orders", **options: Any) -> Any:
    options["options"] = {"retrySeconds": "0"} | options.get("options", {})
    return export(topic, folder, cluster.address, engine="local", **options)


def rows(files: list[Path]) -> Counter[tuple[str, int, int]]:
    import pyarrow.parquet as pq

    found: Counter[tuple[str, int, int]] = Counter()
    for file in files:
        topic = file.parent.parent.name.removeprefix("topic=")
        table = pq.ParquetFile(file).read(columns=["queueId", "queueOffset"]).to_pylist()
        found.update((topic, row["queueId"], row["queueOffset"]) for row in table)
    return found


def visible(folder: Path) -> list[Path]:
    """The files that a reader without manifests finds."""
    return sorted(folder.glob("topic=*/date=*/*.parquet"))


def _export_command(cluster: FakeCluster, folder: Path) -> list[str]:
    where = ["--to", str(folder), "--nameserver", cluster.address]
    return ["export", "--topic", "orders", *where, "--engine", "local"]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_named_by_their_messages_and_partitioned_by_topic_and_date(orders: FakeCluster, folder: Path) -> None:
    import pyarrow.parquet as pq

    result = go(orders, folder)
    assert names(folder) == [
        "_gantrymq/lock",
        "_gantrymq/manifest-00000001.json",
        "topic=orders/date=2023-11-14/broker-a-0-0-9.parquet",
        "topic=orders/date=2023-11-14/broker-a-1-0-9.parquet",
    ]
    assert (result.rows, result.files, result.number, result.lost, result.resumed) == (20, 2, 1, 0, False)
    assert result.bytes == sum(path.stat().st_size for path in visible(folder))
    footer = pq.read_metadata(visible(folder)[0])
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert footer.metadata[b"gantrymq.topic"] == b"orders"
    table = pq.read_table(folder)  # a plain reader adds topic and date from the names
    assert sorted(table.column("body").to_pylist()) == sorted(b"body %d" % number for number in range(20))
    assert set(table.column("topic").to_pylist()) == {"orders"}


def test_the_next_run_writes_new_messages_only(orders: FakeCluster, folder: Path) -> None:
    go(orders, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    result = go(orders, folder)
    assert (result.rows, result.files, result.number) == (0, 0, 1)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    orders.fill(5)
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    assert go(orders, folder, "orders,refunds").rows == 6
    assert rows(export_files(folder)) == orders.everything("orders") + orders.everything("refunds")
    assert visible(folder) == sorted(export_files(folder))


def test_the_plan_is_durable_before_messages_are_read_and_files_before_their_manifest(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    fsync, link = os.fsync, os.link

    def note(step: str, path: Path) -> None:
        if path.is_relative_to(folder):  # not a file of a broker in this process
            happened.append(f"{step} {path.relative_to(folder)}")

    def sync(descriptor: int) -> None:
        note("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def create(source: str | Path, target: str | Path) -> None:
        note("create", Path(target))
        link(source, target)

    def script(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            happened.append("pull")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", create)
    orders.script = script
    go(orders, folder)
    plan = happened.index("create _gantrymq/plan-00000001.json")
    assert happened[plan - 1].startswith("sync _gantrymq/.plan-00000001.json.")
    assert happened[plan + 1] == "sync _gantrymq"
    assert happened.index("pull") > plan + 1
    manifest = happened.index("create _gantrymq/manifest-00000001.json")
    assert len([step for step in happened[:manifest] if step.endswith(".partial")]) == 2  # the contents of both files
    assert [step for step in happened[:manifest] if step.startswith("sync topic=orders/date=")]  # their names
    assert happened[manifest - 1].startswith("sync _gantrymq/.manifest-00000001.json.")
    assert happened[manifest + 1] == "sync _gantrymq"


def test_messages_that_arrive_after_the_start_are_left_to_the_next_run(orders: FakeCluster, folder: Path) -> None:
    def script(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            orders.put("orders", 0, b"late")

    orders.script = script
    assert go(orders, folder).rows == 20
    orders.script = lambda request: None
    go(orders, folder)
    assert rows(visible(folder)) == orders.everything("orders")


def test_files_are_split_by_messages_bytes_and_day(orders: FakeCluster, folder: Path) -> None:
    orders.add_topic("days")
    for number in range(6):
        orders.put("days", 0, b"x" * 100, store_timestamp=1_700_000_000_000 + number // 3 * DAY)
    go(orders, folder, "days", file_bytes=200)
    assert [path.name for path in visible(folder)] == [
        "broker-a-0-0-1.parquet", "broker-a-0-2-2.parquet", "broker-a-0-3-4.parquet", "broker-a-0-5-5.parquet",
    ]  # fmt: skip
    assert [path.parent.name for path in visible(folder)] == ["date=2023-11-14"] * 2 + ["date=2023-11-15"] * 2
    go(orders, folder, file_rows=4)
    assert [path.name for path in visible(folder / ".") if "orders" in str(path)][:3] == [
        "broker-a-0-0-3.parquet", "broker-a-0-4-7.parquet", "broker-a-0-8-9.parquet",
    ]  # fmt: skip
    assert rows(visible(folder)) == orders.everything("orders") + orders.everything("days")


def test_a_topic_with_percent_signs_and_a_time_out_of_range_have_a_partition(
    cluster: FakeCluster, folder: Path
) -> None:
    cluster.add_topic("%RETRY%group")
    cluster.put("%RETRY%group", 0, b"x", store_timestamp=2**62)
    go(cluster, folder, "%RETRY%group")
    assert names(folder)[-1] == "topic=%25RETRY%25group/date=__HIVE_DEFAULT_PARTITION__/broker-a-0-0-0.parquet"


def test_an_empty_topic_makes_an_export_without_files(cluster: FakeCluster, folder: Path) -> None:
    cluster.add_topic("orders")
    assert go(cluster, folder).number == 1
    assert go(cluster, folder).number == 1
    assert export_files(folder) == []
    cluster.put("orders", 0, b"x")
    assert go(cluster, folder).rows == 1


def test_overwrite_replaces_the_topic_alone(orders: FakeCluster, folder: Path) -> None:
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    go(orders, folder, "orders,refunds")
    orders.queues["orders", 0].records.clear()
    orders.queues["orders", 0].max_offset = 0
    orders.put("orders", 0, b"of the new topic")
    with pytest.raises(WrongOption, match=r"exported up to offset 10, but ends at 1: .* Overwrite the export"):
        go(orders, folder)
    assert go(orders, folder, overwrite=True).rows == 11
    assert (
        rows(visible(folder))
        == rows(export_files(folder))
        == orders.everything("orders") + orders.everything("refunds")
    )
    assert [path.name for path in visible(folder)] == [
        "broker-a-0-0-0-r2.parquet", "broker-a-1-0-9-r2.parquet", "broker-a-0-0-0.parquet",
    ]  # fmt: skip
    assert not [name for name in names(folder) if "work" in name or "plan" in name]
    orders.fill(2)
    assert go(orders, folder).rows == 2
    assert rows(visible(folder)) == orders.everything("orders") + orders.everything("refunds")


def test_messages_that_expired_before_they_were_exported_are_counted(orders: FakeCluster, folder: Path) -> None:
    go(orders, folder)
    orders.fill(10)
    queue = orders.queues["orders", 0]
    queue.min_offset = 13
    for offset in range(13):
        queue.records.pop(offset)
    with pytest.raises(DataLoss, match=r"offset 10 is wanted.*\(3 of them"):
        go(orders, folder)
    result = go(orders, folder, fail_on_data_loss=False)
    assert (result.rows, result.lost) == (7, 3)
    assert [queue.lost for queue in export_status(folder).queues] == [3, 0]
    assert go(orders, folder).rows == 0


def test_messages_that_expire_during_a_run_are_counted_and_their_files_are_contiguous(
    orders: FakeCluster, folder: Path
) -> None:
    del orders.queues["orders", 0].records[4]
    with pytest.raises(DataLoss, match=r"\(1 of them"):
        go(orders, folder)
    result = go(orders, folder, fail_on_data_loss=False)
    assert (result.rows, result.lost, result.resumed) == (19, 1, True)
    assert [path.name for path in visible(folder)] == [
        "broker-a-0-0-3.parquet", "broker-a-0-5-9.parquet", "broker-a-1-0-9.parquet",
    ]  # fmt: skip


def test_a_failed_run_publishes_nothing_and_the_next_run_completes_it(orders: FakeCluster, folder: Path) -> None:
    def script(request: Command) -> bytes | None:
        lost = request.code == RequestCode.PULL_MESSAGE and (request.ext or {}).get("queueId") == "1"
        return b"" if lost else None

    orders.script = script
    with pytest.raises(Unreachable):
        go(orders, folder)
    assert visible(folder) == export_files(folder) == []
    assert export_status(folder).unfinished
    orders.script = lambda request: None
    orders.requests.clear()
    orders.fill(2)
    result = go(orders, folder)
    assert (result.rows, result.number, result.resumed) == (22, 2, True)
    first = {(request.ext or {}).get("queueOffset") for request in orders.requests if request.code == 11}
    assert "0" in first, "of queue 1"
    queue0 = [r.ext["queueOffset"] for r in orders.requests if r.code == 11 and r.ext and r.ext["queueId"] == "0"]
    assert queue0 == ["10"], "what was written before the failure is not read again"
    assert rows(visible(folder)) == orders.everything("orders")


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_messages_that_a_slave_has_not_copied_are_exported_once_the_master_is_back(
    orders: FakeCluster, folder: Path, fail_on_data_loss: bool
) -> None:
    orders.script = lambda request: b"" if request.code == RequestCode.PULL_MESSAGE else None
    with pytest.raises(Unreachable):
        go(orders, folder)
    orders.script = lambda request: None
    orders.broker_ids, orders.queues["orders", 0].max_offset = (1,), 7
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 up to offset 7 only"):
        go(orders, folder, fail_on_data_loss=fail_on_data_loss)
    orders.broker_ids, orders.queues["orders", 0].max_offset = (0,), 10
    result = go(orders, folder, fail_on_data_loss=fail_on_data_loss)
    assert (result.rows, result.lost, result.resumed) == (20, 0, True)
    assert rows(export_files(folder)) == orders.everything("orders")


def test_a_slave_that_ends_before_the_export_is_waited_for(orders: FakeCluster, folder: Path) -> None:
    go(orders, folder)
    orders.broker_ids, orders.queues["orders", 0].max_offset = (1,), 7
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 up to offset 7 only"):
        go(orders, folder)
    orders.queues["orders", 0].max_offset = 10
    orders.fill(2)
    assert go(orders, folder).rows == 2, "a slave that has caught up serves the export"
    orders.broker_ids, orders.queues["orders", 0].max_offset = (0,), 7
    with pytest.raises(WrongOption, match="exported up to offset 11, but ends at 7: the topic was deleted and"):
        go(orders, folder)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_messages_before_the_beginning_of_a_slave_are_exported_once_the_master_is_back(
    orders: FakeCluster, folder: Path, fail_on_data_loss: bool
) -> None:
    queue = orders.queues["orders", 0]
    orders.broker_ids, queue.min_offset = (1,), 4
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 from offset 4 on only"):
        go(orders, folder, fail_on_data_loss=fail_on_data_loss)
    orders.broker_ids, queue.min_offset = (0,), 0
    go(orders, folder)
    orders.fill(10)
    orders.broker_ids, queue.min_offset = (1,), 12
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 from offset 12 on only"):
        go(orders, folder, fail_on_data_loss=fail_on_data_loss)
    orders.broker_ids, queue.min_offset = (0,), 0
    result = go(orders, folder, fail_on_data_loss=fail_on_data_loss)
    assert (result.rows, result.lost) == (10, 0)
    assert rows(export_files(folder)) == orders.everything("orders")


def test_an_export_from_a_time_before_the_beginning_of_a_slave_waits_for_the_master(
    orders: FakeCluster, folder: Path
) -> None:
    """The master may have older messages that were stored since that time."""
    options = {"startingTimestamp": str(BORN_MILLIS)}
    queue = orders.queues["orders", 0]
    orders.broker_ids, queue.min_offset = (1,), 4
    with pytest.raises(Unreachable, match="a slave, has orders broker-a queue 0 from offset 4 on only"):
        go(orders, folder, fail_on_data_loss=False, options=options)
    orders.broker_ids, queue.min_offset = (0,), 0
    go(orders, folder, options=options)
    assert rows(export_files(folder)) == orders.everything("orders")


def test_an_export_from_a_time_that_a_slave_has_begins_there(orders: FakeCluster, folder: Path) -> None:
    orders.fill(10, store_timestamp=BORN_MILLIS + DAY)
    orders.broker_ids, orders.queues["orders", 0].min_offset = (1,), 4
    assert go(orders, folder, options={"startingTimestamp": str(BORN_MILLIS + DAY)}).rows == 10


def test_the_plan_of_a_failed_run_can_be_discarded(orders: FakeCluster, folder: Path) -> None:
    orders.script = lambda request: b"" if request.code == RequestCode.PULL_MESSAGE else None
    with pytest.raises(Unreachable):
        go(orders, folder)
    orders.script = lambda request: None
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    assert (go(orders, folder, "refunds", discard_plan=True).rows, export_status(folder).number) == (1, 1)


def test_a_task_of_a_discarded_plan_that_ends_late_replaces_no_result(orders: FakeCluster, folder: Path) -> None:
    """Spark's executors may outlive their driver in this way."""
    options = SourceOptions(read_addresses(orders.address), ("orders",))
    late: list[Task] = []

    def die(tasks: Sequence[Task], report: object) -> None:
        late.extend(tasks)
        raise Killed

    def run_late_tasks_last(tasks: Sequence[Task], report: Callable[[int], None] | None) -> None:
        run_here(tasks, report)
        for task in late:
            run_task(task)

    with pytest.raises(Killed):
        export_with(options, folder, die, Sizes())
    orders.fill(6)
    result = export_with(options, folder, run_late_tasks_last, Sizes(), discard_plan=True)
    assert (result.rows, result.lost) == (26, 0)
    assert rows(visible(folder)) == rows(export_files(folder)) == orders.everything("orders")
    assert not [name for name in names(folder) if "work" in name]


@pytest.mark.parametrize("change", ["first", "last", "lost", "twice"])
def test_a_result_that_has_not_exactly_the_messages_of_its_task_is_never_published(
    orders: FakeCluster, folder: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del orders.queues["orders", 1].records[4]
    write = FolderDestination.write_result

    def damage(self: FolderDestination, plan: Plan, task: int, written: Written) -> None:
        if task == 1:
            files = written.files
            changed = {"first": files[1:], "last": files[:-1], "twice": [*files, files[0]]}
            written = Written(changed.get(change, files), [] if change == "lost" else written.lost)
        write(self, plan, task, written)

    monkeypatch.setattr(FolderDestination, "write_result", damage)
    says = "task 1 of the run has not exactly the offsets 0 to 9 of orders broker-a queue 1: .* discard the plan"
    with pytest.raises(ExportDamaged, match=says):
        go(orders, folder, fail_on_data_loss=False)
    assert visible(folder) == export_files(folder) == []
    monkeypatch.setattr(FolderDestination, "write_result", write)
    assert go(orders, folder, fail_on_data_loss=False, discard_plan=True).rows == 19


def test_start_offsets_apply_to_queues_without_an_export(orders: FakeCluster, folder: Path) -> None:
    bounds = {
        "starting_offsets": '{"orders": {"broker-a": {"0": 7}}}',
        "ending_offsets": '{"orders": {"broker-a": {"1": 4}}}',
    }
    assert go(orders, folder, **bounds).rows == 3 + 4
    with pytest.raises(WrongOption, match=r"queue 0 is exported up to offset 10; it cannot start at 7"):
        go(orders, folder, **bounds)
    assert go(orders, folder).rows == 6


def test_a_second_writer_is_refused(orders: FakeCluster, folder: Path) -> None:
    go(orders, folder)
    with ExportFolder(folder).lock(), pytest.raises(FolderInUse, match="another export is writing to"):
        go(orders, folder)
    assert go(orders, folder).rows == 0


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_is_fenced_and_leaves_no_file(
    orders: FakeCluster, folder: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock does not hold across machines: the second one published while the first was writing."""
    go(orders, folder)
    orders.fill(4)
    create = disk.create_durably

    def be_late(path: Path, data: bytes) -> None:
        if path.name == "manifest-00000002.json":
            monkeypatch.setattr(disk, "create_durably", create)
            other = json.loads((folder / "_gantrymq" / "manifest-00000001.json").read_bytes())
            create(path, json.dumps(other | {"number": 2, "plan": "another", "added": []}).encode())
        create(path, data)

    monkeypatch.setattr(disk, "create_durably", be_late)
    with pytest.raises(ExportFenced, match="has published manifest 2"):
        go(orders, folder, overwrite=overwrite)
    assert visible(folder) == sorted(export_files(folder))
    assert go(orders, folder).rows == 4
    assert rows(visible(folder)) == orders.everything("orders")


def test_a_damaged_export_is_reported(orders: FakeCluster, folder: Path, tmp_path: Path) -> None:
    go(orders, folder)
    orders.fill(2)
    go(orders, folder)
    first = folder / "_gantrymq" / "manifest-00000001.json"
    text = first.read_bytes()
    first.write_bytes(text[:-10])
    with pytest.raises(ExportDamaged, match=r"manifest-00000001\.json cannot be read"):
        go(orders, folder)
    first.write_bytes(text.replace(b'"format":1', b'"format":2'))
    with pytest.raises(ExportDamaged, match="by a later version"):
        export_status(folder)
    first.unlink()
    with pytest.raises(ExportDamaged, match=r"manifest-00000001\.json is missing"):
        export_files(folder)
    with pytest.raises(ExportDamaged, match="has no export"):
        export_status(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ([], "cannot be read"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "has not exactly the offsets 0 to 9"),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], "has not exactly the offsets 0 to 9"),
        ([0, 1, 2, 3, 5, 6, 7, 8, 9], "has not exactly the offsets 0 to 9"),
        ([0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9], "has not exactly the offsets 0 to 9"),
    ],
)
def test_a_file_with_unexpected_content_is_never_published(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: list[int], says: str
) -> None:
    import pyarrow.parquet as pq

    write = disk.write_durably

    def damage(path: Path, data: bytes) -> None:
        if path.name.startswith("task-"):
            for file in path.parent.glob("topic=*/date=*/*-1-*.parquet"):
                if kept:
                    pq.write_table(pq.ParquetFile(file).read().take(kept), file)
                else:
                    os.truncate(file, 100)
        write(path, data)

    monkeypatch.setattr(disk, "write_durably", damage)
    with pytest.raises(ExportDamaged, match=rf"broker-a-1-0-9\.parquet {says}"):
        go(orders, folder)
    assert visible(folder) == []
    monkeypatch.setattr(disk, "write_durably", write)
    assert go(orders, folder, discard_plan=True).rows == 20


def test_many_runs_are_read_from_the_last_complete_manifest(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.spark.exports.folder.COMPLETE_EVERY", 3)
    for _ in range(7):
        orders.put("orders", 0, b"x")
        go(orders, folder)
    for number in range(1, 6):
        (folder / "_gantrymq" / f"manifest-{number:08}.json").unlink()
    assert rows(export_files(folder)) == orders.everything("orders")
    orders.put("orders", 0, b"x")
    assert go(orders, folder).number == 8


class Killed(BaseException):
    """Stands for kill -9: nothing that handles errors may run code for it."""


STEPS = (
    "create_durably", "write_durably", "move", "exchange", "move_away", "remove", "sync_folder", "sync_folders",
    "check_file",
)  # fmt: skip


def stop_at(step: int, patch: Callable[[str, str, Any], None]) -> list[str]:
    """Let the ``step``-th change to the disk, counted from 0, and all later ones not happen. Returns what did."""
    from gantrymq.spark.exports import folder_destination

    happened: list[str] = []

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if len(happened) >= step:
                raise Killed
            happened.append(name)
            return work(*arguments)

        return call

    for name in STEPS:
        module = folder_destination if name == "check_file" else disk
        patch(f"{module.__name__}.{name}", name, counted(name, getattr(module, name)))
    return happened


@pytest.mark.slow
@pytest.mark.parametrize("act", ["begin", "continue", "replace", "replace by renames"])
def test_a_run_stopped_at_any_step_is_completed_by_the_next(
    orders: FakeCluster, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if act == "replace by renames":  # as on NFS
        monkeypatch.setattr(disk, "_exchange_at_once", lambda one, other: False)
    overwrite, step = act.startswith("replace"), 0
    while True:
        folder = tmp_path / f"stopped-{step}"
        orders.add_topic("orders", queues=2)  # empty again
        first: Counter[tuple[str, int, int]] = Counter()
        if act != "begin":
            orders.fill(4)
            first = orders.everything("orders")
            go(orders, folder)
        orders.fill(6)
        everything = orders.everything("orders")
        with pytest.MonkeyPatch.context() as patch:
            happened = stop_at(step, lambda path, name, work, patch=patch: patch.setattr(path, work))
            try:
                go(orders, folder, overwrite=overwrite)
            except Killed:
                pass
            else:
                break
        assert rows(export_files(folder)) in (first, everything), happened
        shown = rows(visible(folder))
        if overwrite:
            missing = [Counter()] if act == "replace by renames" else []
            assert shown in (first, everything, *missing), happened
        else:
            assert shown >= first, happened
        assert max(shown.values(), default=1) == 1, happened
        orders.fill(1)
        go(orders, folder)
        assert rows(visible(folder)) == rows(export_files(folder)) == orders.everything("orders"), happened
        assert {name.partition("-")[0].partition("=")[0] for name in names(folder)} == {
            "_gantrymq/lock", "_gantrymq/manifest", "topic",
        }, happened  # fmt: skip
        step += 1
    assert step > 12


def test_a_topic_that_is_empty_now_is_replaced_by_nothing(orders: FakeCluster, folder: Path) -> None:
    go(orders, folder)
    orders.add_topic("orders", queues=2)  # empty again
    assert go(orders, folder, overwrite=True).rows == 0
    assert visible(folder) == export_files(folder) == []
    assert [name.partition("-")[0] for name in names(folder)] == ["_gantrymq/lock", *["_gantrymq/manifest"] * 2]


CHILD = """
import sys
import pyarrow.compute, pyarrow.parquet
from gantrymq.spark import SparkError, export
sys.stdin.readline()
try:
    while True:
        export("orders", sys.argv[1], sys.argv[2], engine="local", file_rows=7,
               overwrite=sys.stdin.readline() == "1\\n")
        assert "pyspark" not in sys.modules
except SparkError as error:
    print(error, flush=True)
"""
KILLS_A_FOLDER = 25
RUN_S = 0.8
"""About as long as the runs that a child is killed in: a few of them."""


def test_compaction_merges_files_that_follow_each_other(orders: FakeCluster, folder: Path) -> None:
    for day in (0, 1):
        for _ in range(3):
            orders.fill(4, store_timestamp=1_700_000_000_000 + day * DAY)
            go(orders, folder)
    before = rows(visible(folder))
    result = compact_export(folder)
    assert (result.before, result.after, result.rows) == (12, 4, 44)
    assert [str(path.relative_to(folder)) for path in visible(folder)] == [
        "topic=orders/date=2023-11-14/broker-a-0-0-15-c7.parquet",
        "topic=orders/date=2023-11-14/broker-a-1-0-15-c7.parquet",
        "topic=orders/date=2023-11-15/broker-a-0-16-21-c7.parquet",
        "topic=orders/date=2023-11-15/broker-a-1-16-21-c7.parquet",
    ]
    assert rows(visible(folder)) == rows(export_files(folder)) == before
    assert names(folder)[0:2] == ["_gantrymq/lock", "_gantrymq/manifest-00000001.json"]
    assert not [name for name in names(folder) if "work" in name or "staged" in name]
    again = compact_export(folder)
    assert (again.before, again.after, export_status(folder).number) == (4, 4, 7)
    orders.fill(2)
    go(orders, folder)
    assert rows(visible(folder)) == orders.everything("orders")


def test_compaction_keeps_gaps_and_full_files(orders: FakeCluster, folder: Path) -> None:
    import pyarrow.parquet as pq

    del orders.queues["orders", 0].records[4]
    go(orders, folder, fail_on_data_loss=False, file_rows=2)
    original = {path: pq.ParquetFile(path).read() for path in visible(folder)}
    assert compact_export(folder, file_rows=4).after < len(original)
    assert rows(visible(folder)) == rows(export_files(folder)) == orders.everything("orders")
    kept = [path for path in visible(folder) if path in original]
    assert kept, "a file with no neighbor to merge with"
    assert [path.name for path in visible(folder)][:3] == [
        "broker-a-0-0-3-c2.parquet", "broker-a-0-5-7-c2.parquet", "broker-a-0-8-9.parquet",
    ]  # fmt: skip
    merged = pq.ParquetFile(visible(folder)[0]).read().to_pylist()
    parts = [
        original[path].to_pylist() for path in sorted(original) if "-0-0-1." in path.name or "-0-2-3." in path.name
    ]
    assert merged == [row for part in parts for row in part]
    assert compact_export(folder, file_bytes=1).rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_a_compaction_stopped_at_any_step_is_completed_or_discarded(
    orders: FakeCluster, tmp_path: Path, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(disk, "_exchange_at_once", lambda one, other: False)
    step = 0
    while True:
        folder = tmp_path / f"stopped-{step}"
        orders.add_topic("orders", queues=2)
        for _ in range(2):
            orders.fill(4)
            go(orders, folder)
        orders.fill(2, store_timestamp=1_700_000_000_000 + DAY)
        go(orders, folder)
        with pytest.MonkeyPatch.context() as patch:
            happened = stop_at(step, lambda path, name, work, patch=patch: patch.setattr(path, work))
            try:
                compact_export(folder)
            except Killed:
                pass
            else:
                break
        assert rows(export_files(folder)) == orders.everything("orders"), happened
        shown, everything = rows(visible(folder)), orders.everything("orders")
        assert shown == everything or (not at_once and happened[-1] == "move_away" and shown < everything), happened
        orders.fill(1)
        go(orders, folder)
        assert rows(visible(folder)) == rows(export_files(folder)) == orders.everything("orders"), happened
        assert not [name for name in names(folder) if "work" in name or "plan" in name or "staged" in name], happened
        step += 1
    assert step > 10


def test_no_compaction_starts_during_a_run(orders: FakeCluster, folder: Path) -> None:
    orders.script = lambda request: b"" if request.code == RequestCode.PULL_MESSAGE else None
    with pytest.raises(Unreachable):
        go(orders, folder)
    with pytest.raises(SparkError, match="was stopped: wait until it ends, or export again"):
        compact_export(folder)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_killed_runs_neither_lose_nor_duplicate_messages(orders: FakeCluster, tmp_path: Path) -> None:
    """GANTRYMQ_EXPORT_KILLS sets how many; at random moments, a quarter of them in replacements."""
    kills = int(os.environ.get("GANTRYMQ_EXPORT_KILLS", "4"))
    chance = random.Random(19)
    found: Counter[str] = Counter()
    for first in range(0, kills, KILLS_A_FOLDER):
        folder = tmp_path / str(first)
        orders.add_topic("orders", queues=2)  # empty again
        for number in range(first, min(first + KILLS_A_FOLDER, kills)):
            orders.fill(12)
            _kill_a_run(orders, folder, chance.uniform(0, RUN_S), overwrite=number % 4 == 3)
            assert max(rows(visible(folder)).values(), default=1) == 1
            left = sorted(path.name.partition("-")[0] for path in (folder / "_gantrymq").glob("[psw]*-*"))
            found["+".join(left) or ("between runs" if folder.exists() else "before the first")] += 1
        go(orders, folder)
        assert rows(visible(folder)) == rows(export_files(folder)) == orders.everything("orders")
    print(f"{kills} kills; what they left: {dict(found)}")


def _kill_a_run(cluster: FakeCluster, folder: Path, after: float, *, overwrite: bool) -> None:
    asked = 0
    began = threading.Event()

    def script(request: Command) -> None:
        nonlocal asked
        began.set()
        asked += 1
        if asked % 10 == 0:
            cluster.fill(3)

    arguments = [sys.executable, "-c", CHILD, str(folder), cluster.address]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        cluster.script = script
        child.stdin.write(f"go\n{int(overwrite)}\n" + "0\n" * 10_000)
        child.stdin.flush()
        assert began.wait(60)
        time.sleep(after)
        child.send_signal(signal.SIGKILL)
        assert child.stdout is not None
        output = child.stdout.read()
        assert child.wait(60) == -signal.SIGKILL, output
    cluster.script = lambda request: None


def test_the_command_exports_without_spark_and_shows_the_status(
    orders: FakeCluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--to", str(folder), "--nameserver", orders.address]
    assert run(["export", "--topic", "orders", "--engine", "local", *where]) == 0
    assert capsys.readouterr().out.startswith("20 messages of orders in 2 Parquet files, ")
    orders.fill(3)
    assert run(["export", "status", str(folder), "--nameserver", orders.address]) == 0
    printed = capsys.readouterr().out
    assert "manifest 1, " in printed
    assert "orders broker-a queue 0: 10 messages in 1 file, " in printed
    assert "continues at 10, lag 2" in printed
    orders.queues["orders", 2] = attrs.evolve(orders.queues["orders", 0], records={}, min_offset=4, max_offset=9)
    added = export_status(folder, orders.address).queues[2]
    assert (added.queue_id, added.next_offset, added.rows, added.lag) == (2, 4, 0, 5)
    assert len(export_status(folder).queues) == 2
    del orders.queues["orders", 2]
    assert run(["export", "status", str(folder), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["number"], status["unfinished"], status["queues"][1]["rows"]) == (1, False, 10)
    assert run(["export", "status", str(folder / "nowhere")]) == 1
    assert "has no export" in capsys.readouterr().err
    assert run(["export", "--topic", "orders", "--engine", "local", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert run(["export", "compact", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("4 files became 2: ")


def test_the_status_has_no_lag_for_a_deleted_topic(orders: FakeCluster, folder: Path) -> None:
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    go(orders, folder, "orders,refunds")
    for number in range(2):
        del orders.queues["orders", number]
    orders.put("refunds", 0, b"x")
    queues = export_status(folder, orders.address).queues
    assert [(q.topic, q.rows, q.lag) for q in queues] == [("orders", 10, None), ("orders", 10, None), ("refunds", 1, 1)]


def test_times_say_where_an_export_begins_and_ends(cluster: FakeCluster, folder: Path) -> None:
    cluster.add_topic("orders")
    for number in range(10):
        cluster.put("orders", 0, b"x", store_timestamp=BORN_MILLIS + number * 1000)
    since, until = (datetime.fromtimestamp((BORN_MILLIS + at) / 1000, UTC) for at in (3000, 7000))
    arguments = [
        "export",
        "--topic",
        "orders",
        "--to",
        str(folder),
        "--nameserver",
        cluster.address,
        "--engine",
        "local",
    ]
    assert run([*arguments, "--since", since.isoformat(), "--until", until.replace(tzinfo=None).isoformat()]) == 0
    assert sorted(rows(export_files(folder))) == [("orders", 0, offset) for offset in range(3, 7)]
    assert run([*arguments, "--since", "1"]) == 0  # a queue that the export has continues
    assert sorted(rows(export_files(folder))) == [("orders", 0, offset) for offset in range(3, 10)]
    assert run([*arguments, "--since", "yesterday"]) == 2


def test_times_may_be_given_for_single_queues(orders: FakeCluster, folder: Path) -> None:
    late = BORN_MILLIS + 1000 + 1
    times = json.dumps({"orders": {"broker-a": {"1": late}}})
    go(orders, folder, options={"startingOffsetsByTimestamp": times})
    assert {queue_id for _, queue_id, _ in rows(export_files(folder))} == {0}
    wrong = json.dumps({"orders": {"broker-b": {"1": late}}})
    with pytest.raises(WrongOption, match="startingOffsetsByTimestamp: orders has no queue 1 on 'broker-b'"):
        go(orders, folder, options={"startingOffsetsByTimestamp": wrong})


def test_a_run_waits_for_its_broker_and_pulls_for_its_group(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.spark.reader.RETRY_PAUSE_SECONDS", 0.01)
    groups: list[str | None] = []

    def script(request: Command) -> bytes | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return None
        groups.append((request.ext or {}).get("consumerGroup"))
        return b"" if len(groups) < 3 else None

    orders.script = script
    result = go(orders, folder, options={"groupId": "exports", "retrySeconds": "60"})
    assert (result.rows, result.resumed) == (20, False)
    assert set(groups) == {"exports"}


@pytest.mark.parametrize("name", ["minPartitions", "MAXRECORDSPERPARTITION", "maxBytesPerPartition"])
@pytest.mark.parametrize("file_format", ["parquet", "delta"])
def test_options_about_partitions_are_refused(orders: FakeCluster, folder: Path, name: str, file_format: str) -> None:
    with pytest.raises(WrongOption, match=f"{name} is not for exports"):
        go(orders, folder, file_format=file_format, options={name: "2"})
    assert not folder.exists()


def test_a_pattern_of_topics_is_refused_for_parquet(orders: FakeCluster, folder: Path) -> None:
    with pytest.raises(WrongOption, match="topicPattern is not for exports to Parquet: name the topics"):
        go(orders, folder, topic="", options={"topicPattern": "order.*"})
    assert not folder.exists()


def test_bodies_that_cannot_be_read_end_a_run_or_are_null(
    orders: FakeCluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    orders.put("orders", 0, b"not zlib", sys_flag=1)
    with pytest.raises(BrokenRecord, match="Set badBodies to null to read the message without its body"):
        go(orders, folder)
    assert run([*_export_command(orders, folder), "--bad-bodies", "null"]) == 0
    assert re.findall(r'"queue_offset": (\d+).*"event": "(\w+)"', capsys.readouterr().err) == [
        ("10", "body_not_readable")
    ]
    assert rows(visible(folder)) == orders.everything("orders"), "the stopped run was finished"
    bodies = pq.ParquetFile(visible(folder)[0]).read()["body"].to_pylist()
    assert bodies == [b"body %d" % number for number in range(0, 20, 2)] + [None]


def test_the_exporter_of_a_broker_exports_null_for_bad_bodies_if_it_is_set_to(
    orders: FakeCluster, folder: Path
) -> None:
    orders.put("orders", 0, b"not zlib", sys_flag=1)
    job = Job(
        "broker-a", orders.address, {"orders": 2}, str(folder), "parquet", "local", 100, 1 << 20, True, {}, 0, 1, "1g",
    )  # fmt: skip
    reports: list[Report] = []
    worker.run(job, reports.append)
    assert "a zlib body cannot be unpacked" in reports[-1].error
    worker.run(attrs.evolve(job, null_bad_bodies=True), reports.append)
    assert (reports[-1].rows, reports[-1].error) == (21, "")
    assert rows(export_files(folder)) == orders.everything("orders")


@pytest.mark.parametrize(("bad", "good"), [("a", "z"), ("z", "a")])
def test_a_topic_that_fails_does_not_keep_the_others_from_being_exported(
    cluster: FakeCluster, folder: Path, bad: str, good: str
) -> None:
    for topic in (bad, good):
        cluster.add_topic(topic)
    cluster.put(bad, 0, b"not zlib", sys_flag=1)
    job = Job(
        "broker-a", cluster.address, {"a": 2, "z": 2}, str(folder), "parquet", "local", 100, 1 << 20, True, {}, 0, 1,
        "1g",
    )  # fmt: skip
    for _ in range(2):
        cluster.put(good, 0, b"x")
        reports: list[Report] = []
        worker.run(job, reports.append)
        ended = {report.topic: report for report in reports if report.ended}
        assert (ended[good].rows, ended[good].error) == (1, "")
        assert "a zlib body cannot be unpacked" in ended[bad].error
        assert rows(export_files(folder)) == cluster.everything(good)
    worker.run(attrs.evolve(job, null_bad_bodies=True), reports.append)
    assert rows(export_files(folder)) == cluster.everything(bad) + cluster.everything(good)


@pytest.mark.parametrize(("bad", "good"), [("a", "z"), ("z", "a")])
def test_a_topic_whose_export_ended_the_process_comes_after_the_others(
    cluster: FakeCluster, folder: Path, bad: str, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_with_bad(tasks: Sequence[Task], report: Callable[[int], None] | None) -> None:
        if any(task.span.topic == bad for task in tasks):
            raise KeyboardInterrupt
        run_here(tasks, report)

    for topic in (bad, good):
        cluster.add_topic(topic)
    cluster.put(bad, 0, b"x")
    monkeypatch.setattr(worker, "_find_engine", lambda job: end_with_bad)
    job = Job(
        "broker-a", cluster.address, {"a": 2, "z": 2}, str(folder), "parquet", "spark", 100, 1 << 20, True, {}, 0, 1,
        "1g",
    )  # fmt: skip
    for last in ("", bad):
        cluster.put(good, 0, b"x")
        reports: list[Report] = []
        with pytest.raises(KeyboardInterrupt):
            worker.run(attrs.evolve(job, last=last), reports.append)
    assert [(report.topic, report.error) for report in reports if report.ended] == [(good, "")]
    assert rows(export_files(folder)) == cluster.everything(good)


def test_messages_that_arrive_are_no_progress_of_a_run_that_hangs(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a run that reports nothing for ``plugin.exporter.timeout``."""
    monkeypatch.setattr("gantrymq.spark.exports.measuring.LAG_SECONDS", 0.0)

    def hang(tasks: Sequence[Task], report: Callable[[int], None] | None) -> None:
        assert report is not None
        for _ in range(3):
            orders.put("orders", 0, b"x")
            report(0)
        run_here(tasks, None)

    monkeypatch.setattr(worker, "_find_engine", lambda job: hang)
    job = Job(
        "broker-a", orders.address, {"orders": 2}, str(folder), "parquet", "spark", 100, 1 << 20, True, {}, 0, 1, "1g",
    )  # fmt: skip
    reports: list[Report] = []
    worker.run(job, reports.append)
    first, *others = [(report.rows, report.ended) for report in reports]
    assert first == (0, False), "before anything of the topic is exported"
    assert others == [(0, False), (20, False), (20, True)]


def test_row_groups_are_bounded_by_properties_as_well(
    cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("gantrymq.spark.exports.parquet_output.GROUP_BYTES", 100_000)
    monkeypatch.setattr("gantrymq.spark.reader.BATCH_BYTES", 20_000)
    cluster.add_topic("orders")
    for _ in range(40):
        cluster.put("orders", 0, b"", properties={"p": "x" * 10_000})
    go(cluster, folder)
    (file,) = visible(folder)
    footer = pq.read_metadata(file)
    assert {footer.row_group(number).num_rows for number in range(footer.num_row_groups)} == {10}


def test_a_compaction_reads_one_row_group_at_a_time(
    cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are merged by their size on disk, and bodies may be a hundred times as large."""
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet_output, "GROUP_BYTES", 100_000)
    monkeypatch.setattr("gantrymq.spark.reader.BATCH_BYTES", 20_000)
    batches: list[int] = []
    add = parquet_output.FolderOutput.add

    def note(self: parquet_output.FolderOutput, batch: pa.RecordBatch) -> None:
        batches.append(batch.nbytes)
        add(self, batch)

    cluster.add_topic("orders")
    for _ in range(3):
        for _ in range(3):
            for _ in range(30):
                cluster.put("orders", 0, b"x" * 10_000)
            go(cluster, folder)
        with monkeypatch.context() as patch:
            patch.setattr(parquet_output.FolderOutput, "add", note)
            compact_export(folder)
        (file,) = visible(folder)
        with pq.ParquetFile(file) as opened:
            groups = [opened.read_row_group(number).nbytes for number in range(opened.num_row_groups)]
        assert max(groups) < 200_000
    assert rows(visible(folder)) == cluster.everything("orders")
    assert batches
    assert max(batches) < 200_000


def test_large_messages_make_more_tasks(cluster: FakeCluster, folder: Path) -> None:
    cluster.add_topic("orders")
    for _ in range(100):
        cluster.put("orders", 0, bytes(1000))
    seen: list[ExportProgress] = []
    go(cluster, folder, file_bytes=20_000, progress=seen.append)
    assert 5 <= seen[-1].tasks_total <= 10  # of about 20 messages each
    assert rows(visible(folder)) == cluster.everything("orders")


def test_progress_reports_messages_bytes_and_lag_within_tasks(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.spark.reader.BATCH_ROWS", 3)
    monkeypatch.setattr("gantrymq.spark.exports.measuring.LAG_SECONDS", 0.0)
    seen: list[ExportProgress] = []

    def take(now: ExportProgress) -> None:
        if not seen:
            orders.fill(4)
        seen.append(now)

    result = go(orders, folder, progress=take)
    assert [now.rows for now in seen] == [0, 3, 6, 9, 10, 13, 16, 19, 20, 20]
    assert {(now.rows_total, now.tasks_total) for now in seen} == {(20, 2)}
    assert [now.lag for now in seen] == [20, 21, 18, 15, 14, 11, 8, 5, 4, 4], "with the four that came"
    assert (seen[0].bytes, seen[-1].bytes, seen[-1].tasks) == (0, result.bytes, 2)
    assert [now.bytes for now in seen[4:6]] == [0, visible(folder)[0].stat().st_size], "of finished files"


def test_progress_of_a_completed_plan_includes_what_was_written_before(orders: FakeCluster, folder: Path) -> None:
    orders.script = lambda request: (
        b"" if request.code == RequestCode.PULL_MESSAGE and (request.ext or {})["queueId"] == "1" else None
    )
    with pytest.raises(Unreachable):
        go(orders, folder)
    orders.script = lambda request: None
    seen: list[ExportProgress] = []
    go(orders, folder, progress=seen.append)
    assert [(now.rows, now.rows_total, now.tasks) for now in (seen[0], seen[-1])] == [(10, 20, 1), (20, 20, 2)]


def test_the_command_shows_messages_bytes_lag_and_remaining_time_in_a_terminal(
    orders: FakeCluster, folder: Path
) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 160))
    try:
        command = [sys.executable, "-m", "gantrymq.cli", *_export_command(orders, folder)]
        environ = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=follower, env=environ, check=True, timeout=120)
    finally:
        os.close(follower)
    shown = b""
    with suppress(OSError):  # EIO is a terminal's end
        while piece := os.read(leader, 65536):
            shown += piece
    os.close(leader)
    assert done.stdout.startswith(b"20 messages of orders in 2 Parquet files, ")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"exporting .* 20/20 messages, [\d.]+ k?B(ytes)?, lag 0 +\d:\d\d:\d\d", text), text


def test_the_start_of_a_queue_counts_also_if_it_has_nothing_to_write(orders: FakeCluster, folder: Path) -> None:
    assert go(orders, folder, starting_offsets='{"orders": {"broker-a": {"1": 10}}}').rows == 10
    assert go(orders, folder).rows == 0
    orders.add_topic("refunds", queues=2)
    orders.fill(4, "refunds")
    starts = '{"refunds": {"broker-a": {"0": 2, "1": 2}}}'
    first = go(orders, folder, "refunds", starting_offsets=starts)
    again = go(orders, folder, "refunds")
    assert (first.rows, again.rows, again.number) == (0, 0, first.number)
    orders.fill(2, "refunds")
    assert go(orders, folder, "refunds").rows == 2


def test_following_exports_what_comes_until_it_is_stopped(
    orders: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    compaction = ExitStack()
    create_plan = FolderDestination.create_plan
    restarting: dict[int, Callable[[Command], Any]] = {
        2: lambda request: b"",
        3: lambda request: request.answer(ResponseCode.TOPIC_NOT_EXIST, "no route"),
    }

    def be_overtaken(self: FolderDestination, plan: Plan) -> None:
        raise ExportFenced(f"another writer uses {self.name}: run the export again")

    def wait(_sleep: object, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            raise KeyboardInterrupt
        if len(pauses) == 1:
            orders.fill(4)
        if len(pauses) == 4:
            orders.fill(3)
            compaction.enter_context(ExportFolder(folder).lock())
        if len(pauses) == 5:
            compaction.close()
            monkeypatch.setattr(FolderDestination, "create_plan", be_overtaken)
        if len(pauses) == 6:
            monkeypatch.setattr(FolderDestination, "create_plan", create_plan)
        orders.script = restarting.get(len(pauses), lambda request: None)

    monkeypatch.setattr("trio.run", wait)
    arguments = _export_command(orders, folder)
    starts = ["--starting-offsets", '{"orders": {"broker-a": {"0": 0}}}']
    assert run([*arguments, *starts, "--follow", "--every", "7", "--json"]) == 130
    printed = capsys.readouterr()
    found = [json.loads(line)["rows"] for line in printed.out.splitlines()]
    assert (found, pauses) == ([20, 4, 3], [7.0] * 7)
    assert printed.err.count("the next run tries again") == 4
    assert printed.err.count("another export is writing to") == 1
    assert rows(export_files(folder)) == orders.everything("orders")
    assert run([*arguments, "--follow", "--overwrite"]) == 2
    orders.script = restarting[2]
    assert run([*arguments, "--follow"]) == 1, "the first run fails at once"
    orders.script = lambda request: None
    with ExportFolder(folder).lock():
        assert run([*arguments, "--follow"]) == 1, "the first run fails at once"
    monkeypatch.setattr("trio.run", lambda _sleep, seconds: (folder / "notes.txt").write_text("not an export's"))
    assert run([*arguments, "--follow"]) == 1, "a file that no export wrote ends it"

"""Exports through a real Spark; test_exports.py has what does not depend on it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from gantrymq.cli.__main__ import run
from gantrymq.exporter import worker
from gantrymq.exporter.job import Job, Report
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.spark import (
    ExportProgress,
    FolderInUse,
    SparkError,
    UnknownTopic,
    Unreachable,
    WrongOption,
    export,
    export_files,
    read_export,
)

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    cluster.add_topic("orders", queues=2)
    for number in range(20):
        cluster.put("orders", number % 2, b"body %d" % number, properties={"TAGS": f"t{number % 3}"})
    return cluster


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if not item.name.endswith(".crc"))


def test_an_export_has_every_message_and_the_next_run_adds_new_ones(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    result = export("orders", tmp_path / "out", orders.address, spark=spark)
    files = export_files(tmp_path / "out")
    assert (result.rows, result.files, result.folder) == (20, 2, tmp_path / "out")
    assert result.bytes == sum(file.stat().st_size for file in files)
    assert result.seconds > 0
    assert str(pq.read_schema(files[0]).field("bornTimestamp").type) == "timestamp[us, tz=UTC]"
    orders.put("orders", 0, b"one more")
    assert export("orders", tmp_path / "out", orders.address, spark=spark).rows == 1
    options = {"nameserver": orders.address, "topic": "orders"}
    source = spark.read.format("gantrymq").options(**options).load()
    exported = read_export(tmp_path / "out", spark)
    key = lambda row: (row.queueId, row.queueOffset)  # noqa: E731
    assert sorted(exported.drop("date").collect(), key=key) == sorted(source.collect(), key=key)
    assert exported.dtypes == [*source.dtypes, ("date", "date")]
    plain = spark.read.parquet(str(tmp_path / "out"))
    assert (plain.count(), set(plain.columns)) == (21, set(exported.columns))


def test_a_topic_whose_name_is_a_number_stays_text(spark: SparkSession, cluster: FakeCluster, tmp_path: Path) -> None:
    for topic in ("007", "%DLQ%g"):
        cluster.add_topic(topic)
        cluster.put(topic, 0, b"x", store_timestamp=2**62)
    export("007,%DLQ%g", tmp_path, cluster.address, engine="local")
    rows = read_export(tmp_path, spark).collect()
    assert sorted((row.topic, row.date) for row in rows) == [("%DLQ%g", None), ("007", None)]


def test_an_export_without_files_has_its_columns(spark: SparkSession, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.add_topic("orders")
    assert export("orders", tmp_path, cluster.address, spark=spark).rows == 0
    frame = read_export(tmp_path, spark)
    assert (frame.count(), len(frame.columns)) == (0, 17)


def test_files_of_an_interrupted_replacement_are_found(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    export("orders,refunds", tmp_path, orders.address, engine="local")
    orders.put("orders", 0, b"one more")

    def stop(one: Path, other: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gantrymq.spark.exports.disk.exchange", stop)
    with pytest.raises(KeyboardInterrupt):
        export("orders", tmp_path, orders.address, engine="local", overwrite=True)
    counts = read_export(tmp_path, spark).groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"orders": 21, "refunds": 1}


@pytest.mark.parametrize(
    "name", ["my exports", "données", "date=2026-11-22", "a[1]", "a{b,c}", "a*?", "a%20b", "x:y", "back\\slash", "_x"]
)
def test_every_legal_folder_name_works(spark: SparkSession, orders: FakeCluster, tmp_path: Path, name: str) -> None:
    uri = f"file://{tmp_path}/uri/{name}"
    for to, folder in ((str(tmp_path / name), tmp_path / name), (uri, tmp_path / "uri" / name)):
        assert export("orders", to, orders.address, engine="local").rows == 20
        assert len(list(folder.glob("topic=*/*/*.parquet"))) == 2
    assert read_export(uri, spark).count() == 20
    assert names(tmp_path) == sorted([name, "uri"])


def test_a_folder_is_read_where_the_cluster_has_another_file_system(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    export("orders", tmp_path, orders.address, engine="local")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    default = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs-of-a-cluster://names")
    try:
        assert read_export(tmp_path, spark).count() == 20
    finally:
        settings.set("fs.defaultFS", default)


@pytest.mark.parametrize("to", ["hdfs://host/orders", "s3n://bucket/x", "file://host/x"])
def test_a_missing_folder_is_refused_before_anything_starts(to: str) -> None:
    with pytest.raises(WrongOption, match=r"^cannot export to .*(is mounted here|three slashes)"):
        export("orders", to, "127.0.0.1:1")


def test_foreign_files_are_never_changed(tmp_path: Path, orders: FakeCluster) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="ascii")
    for overwrite in (False, True):
        with pytest.raises(FolderInUse, match=r"has 'thesis\.tex', which no export wrote"):
            export("orders", tmp_path, orders.address, overwrite=overwrite)
    with pytest.raises(FolderInUse, match="is a file"):
        export("orders", tmp_path / "thesis.tex", orders.address)
    assert names(tmp_path) == ["thesis.tex"]
    (tmp_path / "other" / "topic=x").mkdir(parents=True)
    with pytest.raises(FolderInUse, match="has 'topic=x' but no _gantrymq"):
        export("orders", tmp_path / "other", orders.address)


def test_a_task_whose_broker_does_not_answer_raises_unreachable(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    """So that ``gantrymq export --follow`` goes on with the next run."""
    orders.script = lambda request: b"" if request.code == RequestCode.PULL_MESSAGE else None
    with pytest.raises(Unreachable, match=r"^no answer from 127\S+: [^\n]+$"):
        export("orders", tmp_path, orders.address, spark=spark, options={"retrySeconds": "0"})


def test_a_failed_task_is_reported_and_the_next_run_completes_the_plan(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    orders.script = lambda request: (
        request.answer(ResponseCode.NO_PERMISSION, "closed") if request.code == RequestCode.PULL_MESSAGE else None
    )
    with pytest.raises(SparkError, match=r"^127\S+ refused a pull of orders broker-a queue . at 0: \[16\] closed$"):
        export("orders", tmp_path, orders.address, spark=spark)
    assert names(tmp_path) == ["_gantrymq"]
    orders.script = lambda request: None
    result = export("orders", tmp_path, orders.address, engine="local")
    assert (result.rows, result.resumed) == (20, True), "one engine completes what the other has begun"
    assert read_export(tmp_path, spark).count() == 20


@pytest.mark.parametrize(
    ("topic", "options", "kind"),
    [("nope", {}, UnknownTopic), ("orders", {"starting_offsets": "latest"}, WrongOption)],
)
def test_wrong_arguments_are_reported_before_spark_starts_and_no_folder_is_created(
    orders: FakeCluster, tmp_path: Path, topic: str, options: dict[str, str], kind: type[SparkError]
) -> None:
    with pytest.raises(kind):
        export(topic, tmp_path / "out", orders.address, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_created_is_reported(orders: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SparkError, match=r"cannot (read|write to) .*file/out"):
        export("orders", tmp_path / "file" / "out", orders.address)


def test_a_run_of_the_exporter_writes_with_spark(spark: SparkSession, orders: FakeCluster, tmp_path: Path) -> None:
    """The program of the plugin; tests/crash/test_exporter_kill.py runs it as a process with a JVM of its own."""
    orders.add_topic("refunds")
    orders.put("refunds", 0, b"x")
    job = Job(
        "broker-a", orders.address, {"orders": 2, "refunds": 1}, str(tmp_path / "out"), "parquet", "spark",
        5, 1 << 20, True, {}, 0, 1, "1g",
    )  # fmt: skip
    reports: list[Report] = []
    worker.run(job, reports.append)
    ended = {report.topic: report for report in reports if report.ended}
    assert {topic: (report.rows, report.files, report.error) for topic, report in ended.items()} == {
        "orders": (20, 4, ""),
        "refunds": (1, 1, ""),
    }
    assert ended["orders"].ends == {0: 10, 1: 10}
    assert read_export(tmp_path / "out", spark).count() == 21
    reports.clear()
    orders.put("orders", 0, b"one more")
    worker.run(job, reports.append)
    assert [report.rows for report in reports if report.ended] == [1, 0]


def test_progress_counts_what_finished_tasks_wrote(spark: SparkSession, orders: FakeCluster, tmp_path: Path) -> None:
    seen: list[ExportProgress] = []
    result = export("orders", tmp_path, orders.address, spark=spark, progress=seen.append)
    assert attrs.astuple(seen[0])[:5] == (0, 2, 0, 20, 0)
    assert attrs.astuple(seen[-1]) == (2, 2, 20, 20, result.bytes, 0)
    assert len(set(seen)) == len(seen), "a task that hangs must not look like one that goes on"


def test_an_interrupted_export_is_cancelled_and_completed_by_the_next(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    released = threading.Event()

    def script(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            released.wait(60)

    def interrupt(now: ExportProgress) -> None:
        raise KeyboardInterrupt

    orders.script = script
    with pytest.raises(KeyboardInterrupt):
        export("orders", tmp_path / "out", orders.address, spark=spark, progress=interrupt)
    assert names(tmp_path / "out") == ["_gantrymq"]
    released.set()
    assert export("orders", tmp_path / "out", orders.address, spark=spark).rows == 20
    assert read_export(tmp_path / "out", spark).count() == 20


def test_the_command_exports(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "date=2026-11-22 my données a[1] a%20b x:y"
    arguments = ["export", "--topic", "orders", "--to", str(folder), "--nameserver", orders.address]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["topic"], result["rows"], result["files"]) == ("orders", 20, 2)
    assert run([*arguments, "--overwrite"]) == 0
    assert capsys.readouterr().out.startswith("20 messages of orders in 2 Parquet files, ")
    assert len(list(folder.glob("topic=orders/date=*/*.parquet"))) == 2
    assert names(tmp_path) == [folder.name]


def test_following_uses_one_session_and_a_compacted_export_is_read(
    spark: SparkSession,
    orders: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pauses = 0

    def wait(_sleep: object, seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            raise KeyboardInterrupt
        orders.put("orders", 0, b"one more")

    monkeypatch.setattr("trio.run", wait)
    to = str(tmp_path / "out")
    arguments = ["export", "--topic", "orders", "--to", to, "--nameserver", orders.address]
    assert run([*arguments, "--follow", "--json"]) == 130
    assert [json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()] == [20, 1]
    before = sorted((row.queueId, row.queueOffset) for row in read_export(to, spark).collect())
    assert run(["export", "compact", to]) == 0
    assert capsys.readouterr().out.startswith("3 files became 2")
    assert sorted((row.queueId, row.queueOffset) for row in read_export(to, spark).collect()) == before
    assert len(before) == 21

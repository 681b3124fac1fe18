from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gantrymq.cli.__main__ import run
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.spark import FolderInUse, SparkError, UnknownTopic, WrongOption, export

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


def test_an_export_holds_every_message_and_counts_what_it_wrote(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    result = export("orders", tmp_path / "out", orders.address, spark=spark)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert (result.rows, result.files, result.folder) == (20, 2, tmp_path / "out")
    assert result.bytes == sum(file.stat().st_size for file in files)
    assert result.seconds > 0
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(row["body"] for row in rows) == sorted(b"body %d" % number for number in range(20))
    footer = pq.read_metadata(files[0])
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert str(pq.read_schema(files[0]).field("bornTimestamp").type) == "timestamp[us, tz=UTC]"
    assert names(tmp_path / "out")[0] == "_SUCCESS"


def test_what_comes_after_the_start_is_left_out(spark: SparkSession, orders: FakeCluster, tmp_path: Path) -> None:
    def script(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            orders.put("orders", 0, b"late")

    orders.script = script
    assert export("orders", tmp_path, orders.address, spark=spark).rows == 20


def test_offsets_bound_an_export(spark: SparkSession, orders: FakeCluster, tmp_path: Path) -> None:
    result = export(
        "orders",
        tmp_path,
        orders.address,
        starting_offsets='{"orders": {"broker-a": {"0": 7}}}',
        ending_offsets='{"orders": {"broker-a": {"1": 4}}}',
        spark=spark,
    )
    assert result.rows == 3 + 4


def test_an_empty_topic_gives_an_empty_export_with_its_columns(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add_topic("orders")
    assert export("orders", tmp_path, cluster.address, spark=spark).rows == 0
    frame = spark.read.parquet(str(tmp_path))
    assert (frame.count(), len(frame.columns)) == (0, 16)


@pytest.mark.parametrize(
    "name", ["my exports", "données", "date=2026-11-22", "a[1]", "a{b,c}", "a*?", "a%20b", "x:y", "back\\slash", "file"]
)
def test_every_legal_folder_name_works(spark: SparkSession, orders: FakeCluster, tmp_path: Path, name: str) -> None:
    import pyarrow.parquet as pq

    for to, folder in (
        (str(tmp_path / name), tmp_path / name),
        (f"file://{tmp_path}/uri/{name}", tmp_path / "uri" / name),
    ):
        assert export("orders", to, orders.address, spark=spark).rows == 20
        assert sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet")) == 20
    assert names(tmp_path) == sorted([name, "uri"])


@pytest.mark.parametrize("to", ["s3a://bucket/orders", "hdfs://host/orders", "S3://bucket/x", "file://host/x"])
def test_a_folder_that_is_not_mounted_is_refused_before_anything_starts(to: str) -> None:
    with pytest.raises(WrongOption, match=r"^cannot export to .*(is mounted here|three slashes)"):
        export("orders", to, "127.0.0.1:1")


def test_what_a_killed_export_left_does_not_block_the_next(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    (tmp_path / ".partial-of-an-export-that-was-killed").mkdir()
    assert export("orders", tmp_path, orders.address, spark=spark).rows == 20
    assert not list(tmp_path.glob(".partial-*"))


def test_a_folder_in_use_is_not_overwritten_unless_told(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    export("orders", tmp_path, orders.address, spark=spark)
    before = names(tmp_path)
    with pytest.raises(FolderInUse, match="is not empty"):
        export("orders", tmp_path, orders.address, spark=spark)
    assert names(tmp_path) == before
    orders.put("orders", 0, b"one more")
    (tmp_path / ".partial-of-an-export-that-was-killed").mkdir()
    assert export("orders", tmp_path, orders.address, spark=spark, overwrite=True).rows == 21
    assert len(names(tmp_path)) == len(before)
    assert spark.read.parquet(str(tmp_path)).count() == 21


def test_files_that_no_export_wrote_are_never_overwritten(tmp_path: Path, orders: FakeCluster) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="ascii")
    with pytest.raises(FolderInUse, match=r"holds 'thesis\.tex', which no export wrote"):
        export("orders", tmp_path, orders.address, overwrite=True)
    with pytest.raises(FolderInUse, match="is a file"):
        export("orders", tmp_path / "thesis.tex", orders.address)
    assert names(tmp_path) == ["thesis.tex"]


def test_a_failed_export_leaves_nothing_and_keeps_the_earlier_one(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    export("orders", kept, orders.address, spark=spark)
    before = sorted(kept.iterdir())
    orders.script = lambda request: (
        request.answer(ResponseCode.NO_PERMISSION, "closed") if request.code == RequestCode.PULL_MESSAGE else None
    )
    for folder in (tmp_path / "new", kept):
        with pytest.raises(SparkError, match=r"^127\S+ refused a pull of orders broker-a queue . at 0: \[16\] closed$"):
            export("orders", folder, orders.address, spark=spark, overwrite=True)
    assert sorted(kept.iterdir()) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("topic", "options", "kind"),
    [("nope", {}, UnknownTopic), ("orders", {"starting_offsets": "latest"}, WrongOption)],
)
def test_what_is_wrong_is_told_before_spark_starts_and_no_folder_is_made(
    orders: FakeCluster, tmp_path: Path, topic: str, options: dict[str, str], kind: type[SparkError]
) -> None:
    with pytest.raises(kind):
        export(topic, tmp_path / "out", orders.address, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_told(orders: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SparkError, match=r"cannot (read|write to) .*file/out"):
        export("orders", tmp_path / "file" / "out", orders.address)


def test_progress_counts_files(spark: SparkSession, orders: FakeCluster, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    export("orders", tmp_path, orders.address, spark=spark, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)


def test_an_interrupted_export_is_cancelled_and_leaves_nothing(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path
) -> None:
    released = threading.Event()

    def script(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            released.wait(60)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    orders.script = script
    with pytest.raises(KeyboardInterrupt):
        export("orders", tmp_path / "out", orders.address, spark=spark, progress=interrupt)
    assert not (tmp_path / "out").exists()
    released.set()
    assert export("orders", tmp_path / "out", orders.address, spark=spark).rows == 20


def test_the_command_exports(
    spark: SparkSession, orders: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", "--topic", "orders", "--to", str(tmp_path / "out"), "--nameserver", orders.address]
    assert run([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["topic"], result["rows"], result["files"]) == ("orders", 20, 2)
    assert run(arguments) == 1
    assert "is not empty" in capsys.readouterr().err
    assert run([*arguments, "--overwrite"]) == 0
    assert capsys.readouterr().out.startswith("20 messages of orders in 2 Parquet files, ")

"""Exports to tables of Delta Lake and Iceberg: commits, stopped runs, concurrent writers, object stores."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.cli.__main__ import run
from gantrymq.remoting.codes import RequestCode
from gantrymq.spark import (
    DataLoss,
    ExportFenced,
    ExportProgress,
    FolderInUse,
    SparkError,
    SparkMissing,
    Unreachable,
    WrongOption,
    export,
    export_status,
)  # fmt: skip
from gantrymq.spark.exports.table_formats import find_table

if TYPE_CHECKING:
    from conftest import FakeCluster

for package in ("pyarrow", "deltalake", "pyiceberg"):
    pytest.importorskip(package, reason="pip install 'gantrymq[spark,delta,iceberg]'")

DAY = 86_400_000
DELTA_KILLS = int(os.environ.get("GANTRYMQ_EXPORT_KILLS", "2"))


class Place:
    """The location of a test's table, in one of the formats."""

    def __init__(self, file_format: str, to: str) -> None:
        self.file_format, self.to = file_format, to

    def export(self, cluster: FakeCluster, topic: str = "orders", **options: Any) -> Any:
        return export(topic, self.to, cluster.address, file_format=self.file_format, **options)

    def table(self) -> Any:
        """All rows, by the library alone."""
        if self.file_format == "delta":
            from deltalake import DeltaTable

            return DeltaTable(self.to).to_pyarrow_table()
        from pyiceberg.catalog import load_catalog

        catalog, _, identifier = self.to.partition(".")
        return load_catalog(catalog).load_table(identifier).scan().to_arrow()

    def rows(self) -> Counter[tuple[str, int, int]]:
        found = self.table().select(["topic", "queueId", "queueOffset"]).to_pylist()
        return Counter((row["topic"], row["queueId"], row["queueOffset"]) for row in found)

    def status(self, nameserver: str | None = None) -> Any:
        return export_status(self.to, nameserver, file_format=self.file_format)


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "delta":
        return Place("delta", str(tmp_path / "my täble"))
    set_catalog(monkeypatch, catalog_settings(tmp_path))
    return Place("iceberg", "local.logs.messages")


def catalog_settings(folder: Path) -> dict[str, str]:
    """The variables by which pyiceberg finds a catalog in a folder."""
    prefix = "PYICEBERG_CATALOG__LOCAL__"
    return {
        f"{prefix}TYPE": "sql", f"{prefix}URI": f"sqlite:///{folder}/catalog.db", f"{prefix}WAREHOUSE": f"file://{folder}",
    }  # fmt: skip


def set_catalog(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Set variables, and let pyiceberg read them as it does when it is imported."""
    from pyiceberg.utils.config import Config

    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def test_each_run_adds_what_is_new(orders: FakeCluster, place: Place) -> None:
    result = place.export(orders)
    assert (result.rows, result.files, result.lost) == (20, 1, 0)
    assert result.bytes > 0
    row = min(place.table().to_pylist(), key=lambda row: (row["queueId"], row["queueOffset"]))
    assert (row["topic"], str(row["date"]), row["body"], row["broker"]) == (
        "orders",
        "2023-11-14",
        b"body 0",
        "broker-a",
    )
    again = place.export(orders)
    assert (again.rows, again.files, again.number) == (0, 0, result.number)
    orders.add_topic("%RETRY%g", queues=2)
    orders.fill(3, "%RETRY%g", store_timestamp=2**62, properties={"TAGS": "a", "k": "v"})
    orders.fill(4)
    assert place.export(orders, "orders,%RETRY%g").rows == 7
    assert place.rows() == orders.everything()
    retried = [row for row in place.table().to_pylist() if row["topic"] != "orders"]
    assert {(row["date"], row["tags"], dict(row["properties"])["k"]) for row in retried} == {(None, "a", "v")}
    orders.fill(1)
    orders.queues["orders", 2] = type(orders.queues["orders", 0])(min_offset=4, max_offset=9)
    status = place.status(orders.address)
    assert [(q.topic, q.queue_id, q.next_offset, q.rows, q.lost, q.lag) for q in status.queues] == [
        ("%RETRY%g", 0, 2, 2, 0, 0), ("%RETRY%g", 1, 1, 1, 0, 0),
        ("orders", 0, 12, 12, 0, 1), ("orders", 1, 12, 12, 0, 0), ("orders", 2, 4, 0, 0, 5),
    ]  # fmt: skip


def test_a_table_may_have_the_topics_of_a_pattern(orders: FakeCluster, place: Place) -> None:
    options = {"topicPattern": "order.*"}
    assert place.export(orders, topic="", options=options).rows == 20
    orders.add_topic("orders-eu")
    orders.put("orders-eu", 0, b"x")
    assert place.export(orders, topic="", options=options).rows == 1
    assert place.rows() == orders.everything()


def test_a_run_makes_a_commit_for_each_full_file_and_a_failure_keeps_them(
    orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.script = lambda request: (
        b"" if request.code == RequestCode.PULL_MESSAGE and (request.ext or {})["queueId"] == "1" else None
    )
    with pytest.raises(Unreachable):
        place.export(orders, file_rows=10, options={"retrySeconds": "0"})
    orders.script = lambda request: None
    assert place.rows() == Counter({("orders", 0, offset): 1 for offset in range(10)})
    monkeypatch.setattr("gantrymq.spark.exports.measuring.LAG_SECONDS", 0.0)
    seen: list[ExportProgress] = []

    def take(now: ExportProgress) -> None:
        if not seen:
            orders.fill(4)
        seen.append(now)

    result = place.export(orders, progress=take)
    assert result.rows == 10
    assert (seen[0].rows, seen[0].lag, seen[-1].rows, seen[-1].lag, seen[-1].bytes) == (0, 10, 10, 4, result.bytes)
    place.export(orders)
    assert place.rows() == orders.everything()


def test_a_commit_is_bounded_by_what_is_read_not_by_the_first_messages(
    cluster: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first messages of the queue are small, and the others are compressed. One of these is gone."""
    monkeypatch.setattr("gantrymq.spark.reader.BATCH_BYTES", 200_000)
    cluster.add_topic("orders")
    cluster.pull_rows = 8
    for _ in range(40):
        cluster.put("orders", 0, b"small")
    for _ in range(40):
        cluster.put("orders", 0, zlib.compress(bytes(100_000)), sys_flag=1)
    del cluster.queues["orders", 0].records[50]
    commits: list[tuple[int, int, int]] = []
    table = type(find_table(place.file_format, place.to))
    append = table.append

    def note(self: Any, rows: Any, queues: Any) -> Any:
        (queue,) = queues.values()
        commits.append((rows.nbytes, queue.next_offset, queue.lost))
        return append(self, rows, queues)

    monkeypatch.setattr(table, "append", note)
    sizes = {"file_bytes": 1_000_000, "options": {"retrySeconds": "0"}}
    with pytest.raises(DataLoss, match=r"\(1 of them"):
        place.export(cluster, **sizes)
    cluster.script = lambda request: (
        b"" if request.code == RequestCode.PULL_MESSAGE and int((request.ext or {})["queueOffset"]) > 66 else None
    )
    with pytest.raises(Unreachable):
        place.export(cluster, fail_on_data_loss=False, **sizes)
    cluster.script = lambda request: None
    kept = commits[-1][1]
    assert kept > 50, "a run that fails keeps what it has committed of its span"
    result = place.export(cluster, fail_on_data_loss=False, **sizes)
    assert (result.rows, place.rows()) == (80 - kept, cluster.everything())
    assert len(commits) >= 4
    assert max(size for size, _, _ in commits) <= 1_300_000
    assert [end for _, end, _ in commits] == sorted({end for _, end, _ in commits})
    assert {lost for _, end, lost in commits if end > 50} == {1}, "counted once"


def test_messages_that_are_gone_are_counted(orders: FakeCluster, place: Place) -> None:
    place.export(orders)
    orders.fill(10)
    queue = orders.queues["orders", 0]
    queue.min_offset = 13
    for offset in (*range(13), 14):
        queue.records.pop(offset)
    with pytest.raises(DataLoss, match=r"offset 10 is wanted.*\(3 of them"):
        place.export(orders)
    result = place.export(orders, fail_on_data_loss=False)
    assert (result.rows, result.lost) == (6, 4)
    assert [(q.next_offset, q.rows, q.lost) for q in place.status().queues] == [(15, 11, 4), (15, 15, 0)]
    queue.records.clear()
    queue.min_offset = queue.max_offset = 20
    result = place.export(orders, fail_on_data_loss=False)
    assert (result.rows, result.lost) == (0, 5), "also without a message to write"
    assert [(q.next_offset, q.lost) for q in place.status().queues] == [(20, 9), (15, 0)]
    assert place.export(orders).lost == 0
    queue.min_offset = queue.max_offset = 25
    for lost in (5, 0):
        orders.put("orders", 1, b"x")
        result = place.export(orders, fail_on_data_loss=False)
        assert (result.rows, result.lost) == (1, lost), "once, also if the queue has no message to write"
    assert [(q.next_offset, q.lost) for q in place.status().queues] == [(25, 14), (17, 0)]
    assert place.export(orders).rows == 0


def test_the_start_of_a_queue_counts_also_if_it_has_nothing_to_write(orders: FakeCluster, place: Place) -> None:
    assert place.export(orders, starting_offsets='{"orders": {"broker-a": {"1": 10}}}').rows == 10
    assert place.export(orders).rows == 0
    orders.add_topic("refunds", queues=2)
    orders.fill(4, "refunds")
    result = place.export(orders, "refunds", starting_offsets='{"refunds": {"broker-a": {"0": 2, "1": 2}}}')
    assert (result.rows, result.lost) == (0, 0)
    assert place.export(orders, "refunds").rows == 0
    orders.fill(2, "refunds")
    assert place.export(orders, "refunds").rows == 2
    assert [(q.topic, q.next_offset, q.rows, q.lost) for q in place.status().queues] == [
        ("orders", 10, 10, 0), ("orders", 10, 0, 0), ("refunds", 3, 1, 0), ("refunds", 3, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("exists", [True, False])
def test_a_second_writer_is_fenced(
    orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """Another run commits, and makes a table that does not exist, between the plan and the first commit of this one."""
    if exists:
        place.export(orders)
        orders.fill(4)
    table = find_table(place.file_format, place.to)
    read = type(table).read_state

    def be_late(self: Any, wanted: Any) -> Any:
        state = read(self, wanted)
        monkeypatch.setattr(type(table), "read_state", read)
        assert place.export(orders).rows == (4 if exists else 20)
        return state

    monkeypatch.setattr(type(table), "read_state", be_late)
    with pytest.raises(ExportFenced, match="another writer has"):
        place.export(orders)
    assert place.rows() == orders.everything()
    assert place.export(orders).rows == 0


def test_a_writer_is_fenced_at_a_later_commit(
    orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first commit is of a queue that the other run did not write, so there it meets no conflict."""
    place.export(orders)
    orders.fill(4)
    table = find_table(place.file_format, place.to)
    append = type(table).append

    def be_late(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(type(table), "append", append)
        assert place.export(orders, ending_offsets='{"orders": {"broker-a": {"0": 10}}}').rows == 2
        return append(self, *arguments)

    monkeypatch.setattr(type(table), "append", be_late)
    with pytest.raises(ExportFenced, match="another writer has committed to"):
        place.export(orders, file_rows=2)
    assert place.rows() == orders.everything()


def test_writers_of_other_queues_share_the_table(
    orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins and commits its first queues between the plan and the commit of the first one."""
    place.export(orders)
    for topic in ("refunds", "returns"):
        orders.add_topic(topic, queues=2)
        orders.fill(6, topic)
    table = find_table(place.file_format, place.to)
    append = type(table).append

    def be_late(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(type(table), "append", append)
        assert place.export(orders, "refunds").rows == 6
        return append(self, *arguments)

    monkeypatch.setattr(type(table), "append", be_late)
    assert place.export(orders, "returns").rows == 6
    assert {q.topic: q.next_offset for q in place.status().queues} == {"orders": 10, "refunds": 3, "returns": 3}
    for topic in ("orders", "refunds", "returns"):
        assert place.export(orders, topic).rows == 0
    assert place.rows() == orders.everything()


def test_other_changes_of_the_table_do_no_harm(
    orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction between the plan and the commit of a run, and before the next one."""
    place.export(orders)
    orders.fill(4)
    table = find_table(place.file_format, place.to)
    append = type(table).append

    def be_late(self: Any, *arguments: Any) -> Any:
        change_otherwise(place)
        return append(self, *arguments)

    monkeypatch.setattr(type(table), "append", be_late)
    assert place.export(orders).rows == 4
    monkeypatch.setattr(type(table), "append", append)
    change_otherwise(place)
    assert place.export(orders).rows == 0
    assert place.rows() == orders.everything()


def change_otherwise(place: Place) -> None:
    if place.file_format == "delta":
        from deltalake import DeltaTable

        DeltaTable(place.to).optimize.compact()
        return
    from pyiceberg.catalog import load_catalog

    catalog, _, identifier = place.to.partition(".")
    table = load_catalog(catalog).load_table(identifier)
    table.overwrite(table.scan().to_arrow())


def test_a_foreign_table_is_never_changed(orders: FakeCluster, place: Place, tmp_path: Path) -> None:
    import pyarrow as pa

    if place.file_format == "delta":
        from deltalake import write_deltalake

        write_deltalake(place.to, pa.table({"a": [1]}))
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("local")
        catalog.create_namespace("logs")
        catalog.create_table("logs.messages", schema=pa.schema([("a", pa.int64())])).append(pa.table({"a": [1]}))
    with pytest.raises(FolderInUse, match="is a table that no export made"):
        place.export(orders)
    assert place.table().to_pydict() == {"a": [1]}


@pytest.mark.parametrize(
    ("file_format", "to", "options", "says"),
    [
        ("delta", "a%20b", {}, "deltalake cannot use '%' in a path"),
        ("delta", "hdfs://host/x", {}, "cannot export to 'hdfs://host/x'"),
        ("delta", "x", {"overwrite": True}, "neither overwrite nor discardPlan"),
        ("delta", "x", {"engine": "spark"}, "written with the engine local"),
        ("iceberg", "/data/x", {}, "an Iceberg table is named as catalog.namespace.table"),
        ("iceberg", "a.b", {}, "an Iceberg table is named as catalog.namespace.table"),
        ("iceberg", "nowhere.b.c", {}, "Iceberg table nowhere.b.c: URI missing"),
        ("orc", "x", {}, "the format is parquet, delta or iceberg, not 'orc'"),
    ],
)
def test_wrong_targets_are_refused(
    orders: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, to: str, options: Any,
    says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SparkError) as caught:
        Place(file_format, to).export(orders, **options)
    assert says in str(caught.value)
    assert isinstance(caught.value, WrongOption) or "URI" in says
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_refused(orders: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderInUse, match=r"has 'thesis\.tex' and no Delta table"):
        Place("delta", str(tmp_path)).export(orders)


def test_a_run_that_was_killed_while_it_made_the_table_does_not_block_the_next(
    orders: FakeCluster, tmp_path: Path
) -> None:
    place = Place("delta", str(tmp_path / "table"))
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json#1").write_text("{")  # under this name deltalake writes a commit
    assert place.export(orders).rows == 20
    assert place.rows() == orders.everything()


def test_a_missing_library_is_named(orders: FakeCluster, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "arrow" not in name else object())
    with pytest.raises(SparkMissing, match=rf"pip install 'gantrymq\[{place.file_format}\]'"):
        place.export(orders)


def test_the_command_writes_tables_and_shows_their_status(
    orders: FakeCluster, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", "--topic", "orders", "--to", place.to, "--nameserver", orders.address]
    assert run([*arguments, "--format", place.file_format]) == 0
    assert capsys.readouterr().out.startswith("20 messages of orders in 1 file of a")
    orders.fill(3)
    assert run([*arguments, "--format", place.file_format, "--json"]) == 0
    assert (answer := json.loads(capsys.readouterr().out))["rows"] == 3
    assert (answer["format"], answer["folder"]) == (place.file_format, place.to)
    assert run(["export", "status", place.to, "--format", place.file_format, "--nameserver", orders.address]) == 0
    assert "orders broker-a queue 0: 12 messages, continues at 12, lag 0" in capsys.readouterr().out
    assert run([*arguments, "--format", place.file_format, "--engine", "spark"]) == 1
    assert "engine local" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["s3://bucket/orders", "s3a://bucket/below/orders", "local.logs.messages"])
def test_tables_may_be_in_an_object_store(
    orders: FakeCluster, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The test uses the how-to guide's settings for deltalake, and pyiceberg's own for Iceberg."""
    settings = {
        "AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "PYICEBERG_CATALOG__LOCAL__S3__ENDPOINT": s3,
        "PYICEBERG_CATALOG__LOCAL__S3__ACCESS_KEY_ID": "key", "PYICEBERG_CATALOG__LOCAL__S3__REGION": "us-east-1",
        "PYICEBERG_CATALOG__LOCAL__S3__SECRET_ACCESS_KEY": "secret",
        **catalog_settings(tmp_path), "PYICEBERG_CATALOG__LOCAL__WAREHOUSE": "s3://bucket/warehouse",
    }  # fmt: skip
    set_catalog(monkeypatch, settings)
    place = Place("delta" if "/" in to else "iceberg", to)
    assert place.export(orders).rows == 20
    orders.fill(4)
    result = place.export(orders)
    assert (result.rows, str(result.folder), result.bytes > 0) == (4, to, True)
    assert place.rows() == orders.everything()
    assert [queue.next_offset for queue in place.status().queues] == [12, 12]
    assert [path.name for path in tmp_path.iterdir()] in ([], ["catalog.db"]), "nothing is written here"


CHILD = """
import sys
from gantrymq.spark import export
from gantrymq.spark.exports.table_formats import find_table
find_table(sys.argv[1], sys.argv[2]).read_state()
sys.stdin.readline()
while True:
    export("orders", sys.argv[2], sys.argv[3], file_format=sys.argv[1], file_rows=7)
"""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(7200)
def test_killed_runs_neither_lose_nor_duplicate_messages(orders: FakeCluster, place: Place) -> None:
    chance = random.Random(19)
    for _ in range(DELTA_KILLS):
        orders.fill(10)
        with child_of(orders, place) as child:
            time.sleep(chance.uniform(0, 0.6))
            child.kill()
    orders.script = lambda request: None
    place.export(orders)
    assert place.rows() == orders.everything()


@contextmanager
def child_of(cluster: FakeCluster, place: Place) -> Iterator[subprocess.Popen[str]]:
    """A process that exports again and again, from its first request on."""
    began, asked = threading.Event(), 0

    def script(request: Any) -> None:
        nonlocal asked
        began.set()
        asked += 1
        if asked % 10 == 0:
            cluster.fill(2)

    arguments = [sys.executable, "-c", CHILD, place.file_format, place.to, cluster.address]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True) as child:
        cluster.script = script
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        assert began.wait(60)
        yield child

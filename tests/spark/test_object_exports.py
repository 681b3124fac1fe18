"""Exports to object stores: an S3 on loopback, and a store in a folder that counts the steps of a run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from gantrymq.cli.__main__ import run
from gantrymq.exporter import worker
from gantrymq.exporter.job import Job, Report
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.spark import (
    DataLoss,
    ExportDamaged,
    ExportFenced,
    FolderInUse,
    SparkError,
    SparkMissing,
    Unreachable,
    WrongOption,
    compact_export,
    export,
    export_files,
    export_status,
    read_export,
)
from gantrymq.spark.exports import destinations, object_destination
from gantrymq.spark.exports.manifest import Manifest
from gantrymq.spark.exports.object_destination import ObjectDestination
from gantrymq.spark.exports.object_store import Objects, open_store
from support.exporting import published_rows

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")
pytest.importorskip("obstore", reason="pip install 'gantrymq[objectstore]'")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Objects]:
    """``s3://bucket/...`` is a folder, which obstore writes as it does a store."""
    from obstore.store import LocalStore

    def open_local(url: str) -> Objects:
        return Objects(LocalStore(tmp_path / url.removeprefix("s3://"), mkdir=True), url)

    monkeypatch.setattr(destinations, "open_store", open_local)
    return open_local


TO = "s3://bucket/out"


def go(cluster: FakeCluster, to: str = TO, topic: str = "orders", **options: Any) -> Any:
    return export(topic, to, cluster.address, engine="local", options={"retrySeconds": "0"}, **options)


def rows(objects: Objects, to: str = TO) -> Counter[tuple[str, int, int]]:
    """The content of the manifest."""
    return published_rows(objects, to)


def data_files(objects: Objects) -> list[str]:
    return sorted(name for name, _ in objects.walk("") if name.endswith(".parquet"))


def records(objects: Objects) -> list[str]:
    return sorted(name for name, _ in objects.walk("_gantrymq"))


def assert_clean(objects: Objects, to: str = TO) -> None:
    """Check that the target has only manifests and the files that they name."""
    assert data_files(objects) == sorted(str(url).removeprefix(f"{to}/") for url in export_files(to))
    assert all(name.startswith("_gantrymq/manifest-") for name in records(objects)), records(objects)


@pytest.mark.parametrize("to", ["s3://bucket/orders", "s3a://bucket/my données/a%20b[1]"])
@pytest.mark.slow
def test_an_export_in_s3_is_incremental_and_is_read_by_manifest(
    orders: FakeCluster, s3_settings: None, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    assert go(orders, to).rows == 20
    orders.fill(3)
    arguments = ["export", "--topic", "orders", "--to", to, "--nameserver", orders.address, "--engine", "local"]
    assert run([*arguments, "--json"]) == 0
    assert (answer := json.loads(capsys.readouterr().out))["rows"] == 3
    assert (answer["folder"], answer["manifest"]) == (to, 2)
    objects = open_store(to)
    before = list(objects.walk(""))
    assert go(orders, to).rows == 0
    assert list(objects.walk("")) == before
    assert rows(objects, to) == orders.everything()
    assert data_files(objects)[0].startswith("topic=orders/date=2023-11-14/broker-a-0-0-9-")
    assert run(["export", "status", to, "--nameserver", orders.address]) == 0
    assert "orders broker-a queue 0: 12 messages in 2 files" in capsys.readouterr().out
    assert run(["export", "compact", to]) == 0
    assert capsys.readouterr().out.startswith("4 files became 2")
    assert rows(objects, to) == orders.everything()
    assert go(orders, to, overwrite=True).rows == 23
    assert rows(objects, to) == orders.everything()
    assert_clean(objects, to)


def test_an_object_that_marks_an_empty_folder_is_ignored(orders: FakeCluster, s3_settings: None) -> None:
    """As the consoles of S3 and MinIO make it by "Create folder"."""
    to = "s3://bucket/made/by console"
    make_marker(f"{to}/")
    assert go(orders, to).rows == 20
    for folder in ("_gantrymq", "topic=orders", "topic=orders/date=2023-11-14"):
        make_marker(f"{to}/{folder}/")
    orders.fill(3)
    assert go(orders, to).rows == 3
    compact_export(to)
    assert export_status(to).number == 3
    assert rows(open_store(to), to) == orders.everything()


def make_marker(url: str) -> None:
    """Create an empty object whose name ends with a slash, which obstore does not do."""
    key = url.removeprefix("s3://bucket/")
    assert key.endswith("/")
    address = f"{os.environ['AWS_ENDPOINT_URL']}/bucket/{quote(key)}"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", data=b""), timeout=10).close()


def test_two_writers_of_s3_publish_each_message_once(orders: FakeCluster, s3_settings: None) -> None:
    to = "s3://bucket/fenced"
    go(orders, to)
    orders.fill(4)
    others: list[int] = []

    def run_another(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE and not others:
            others.append(0)
            others.append(go(orders, to).rows)

    orders.script = run_another
    with pytest.raises(ExportFenced, match="another writer has published manifest 2 of s3://bucket/fenced"):
        go(orders, to)
    assert others == [0, 4]
    assert rows(open_store(to), to) == orders.everything()
    assert_clean(open_store(to), to)


@pytest.fixture
def s3_in_spark(spark: SparkSession, s3_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same settings in Spark's Python workers."""
    for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ALLOW_HTTP"):
        monkeypatch.setitem(spark.sparkContext.environment, f"AWS_{name}", os.environ[f"AWS_{name}"])


@pytest.mark.spark
def test_spark_writes_and_reads_an_export_in_s3(spark: SparkSession, orders: FakeCluster, s3_in_spark: None) -> None:
    orders.add_topic("%RETRY%g")
    orders.put("%RETRY%g", 0, b"x", store_timestamp=2**62)
    to = "s3a://bucket/by spark"
    assert export("orders,%RETRY%g", to, orders.address, spark=spark).rows == 21
    options = {"nameserver": orders.address, "topic": "orders,%RETRY%g"}
    source = spark.read.format("gantrymq").options(**options).load()
    exported = read_export(to, spark)
    key = lambda row: (row.topic, row.queueId, row.queueOffset)  # noqa: E731
    assert sorted(exported.drop("date").collect(), key=key) == sorted(source.collect(), key=key)
    assert exported.dtypes == [*source.dtypes, ("date", "date")]
    assert {str(row.date) for row in exported.select("date").distinct().collect()} == {"2023-11-14", "None"}
    assert_clean(open_store(to), to)


class Killed(BaseException):
    """Stands for kill -9: nothing that handles errors may run code for it."""


def kill_at(step: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the ``step``-th change to the store, counted from 0, and all later ones not happen. Returns what did."""
    happened: list[str] = []

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Objects, *arguments: Any) -> Any:
            if len(happened) >= step:
                raise Killed
            happened.append(f"{name} {arguments[0]}")
            return work(self, *arguments)

        return call

    for name in ("create", "write", "upload", "delete"):
        patch.setattr(Objects, name, counted(name, getattr(Objects, name)))
    return happened


PROBED = 3
"""The number of changes in a first run before its plan, which check the store."""
COMPACTED = re.compile(r"-c\d+-")
"""In the names of files that a compaction wrote."""


@pytest.mark.parametrize("act", ["begin", "export", "overwrite", "discard", "compact"])
@pytest.mark.slow
def test_a_stop_at_any_step_loses_and_duplicates_nothing(
    orders: FakeCluster, local: Callable[[str], Objects], act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        to = f"{TO}-{step}"
        orders.add_topic("orders", queues=2)  # empty again
        objects = local(to)
        first: Counter[tuple[str, int, int]] = Counter()
        if act != "begin":
            orders.fill(4)
            first = orders.everything()
            go(orders, to)
        orders.fill(2)
        if act in ("compact", "discard"):
            go(orders, to)
            first = orders.everything()
        orders.fill(2)
        if act == "discard":  # of a run that was stopped before it published
            with pytest.MonkeyPatch.context() as patch:
                kill_at(3, patch)
                with pytest.raises(Killed):
                    go(orders, to)
        with pytest.MonkeyPatch.context() as patch:
            happened = kill_at(step, patch)
            try:
                if act == "compact":
                    compact_export(to)
                else:
                    go(orders, to, overwrite=act == "overwrite", discard_plan=act == "discard")
            except Killed:
                pass
            else:
                break
        if first or step > PROBED:
            assert rows(objects, to) in (first, orders.everything()), happened
        orders.fill(1)
        go(orders, to)
        assert rows(objects, to) == orders.everything(), happened
        if act == "compact":
            unnamed = set(data_files(objects)) - {str(url).removeprefix(f"{to}/") for url in export_files(to)}
            assert all(COMPACTED.search(name) for name in unnamed), happened
        if act == "compact" or (act == "begin" and 0 < step < PROBED):
            with monkeypatch.context() as patch:
                patch.setattr(object_destination, "UNREFERENCED_AGE", timedelta(0))
                compact_export(to)
        assert_clean(objects, to)
        step += 1
    assert step > 5


WRITERS = """
import os, random, signal, sys
from contextlib import suppress
import obstore, pyarrow.compute, pyarrow.parquet
from gantrymq.spark import ExportFenced, SparkError, compact_export, export

def work():
    random.seed()
    while True:
        if random.random() < 0.2:
            with suppress(SparkError):
                compact_export(sys.argv[1])
        try:
            export("orders", sys.argv[1], sys.argv[2], engine="local", file_rows=7, overwrite=random.random() < 0.2,
                   discard_plan=random.random() < 0.2)
        except ExportFenced as fenced:
            os.write(1, b"fenced\\n")

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed ones
for _ in sys.stdin:
    writer = os.fork()
    if not writer:
        try:
            work()
        finally:
            os._exit(1)
    os.write(1, b"begins %d\\n" % writer)
"""
"""Forks a writer for each line that it gets: a start with all imports would take longer than the run that is killed."""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(4 * 3600)
def test_writers_that_are_killed_publish_each_message_once(
    orders: FakeCluster, s3_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes export to one place, replace, compact, and drop each other's plans; both are killed by turns."""
    kills = int(os.environ.get("GANTRYMQ_EXPORT_KILLS", "3"))
    to, chance, asked, fenced = "s3://bucket/killed", random.Random(19), 0, 0

    def script(request: Command) -> None:
        nonlocal asked
        asked += 1
        if asked % 20 == 0:
            orders.fill(3)

    def begin() -> int:
        nonlocal fenced
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("\n")
        server.stdin.flush()
        while not (line := server.stdout.readline()).startswith("begins "):
            assert line == "fenced\n"
            fenced += 1
        return int(line.split()[1])

    orders.script = script
    running: list[int] = []
    command = [sys.executable, "-c", WRITERS, to, orders.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            running = [begin(), begin()]
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 0.8))
                os.kill(running.pop(0), signal.SIGKILL)
                running.append(begin())
        finally:
            orders.script = lambda request: None
            for writer in running:
                os.kill(writer, signal.SIGKILL)
            server.kill()
    go(orders, to)
    assert rows(open_store(to), to) == orders.everything()
    monkeypatch.setattr(object_destination, "UNREFERENCED_AGE", timedelta(0))
    compact_export(to)
    go(orders, to)
    assert rows(open_store(to), to) == orders.everything()
    assert_clean(open_store(to), to)
    exported = orders.everything()
    print(
        f"{kills} kills, {fenced} runs fenced, manifest {export_status(to).number}, "
        f"{exported.total()} messages, each once"
    )


def test_a_writer_that_is_thought_dead_publishes_or_is_fenced(
    orders: FakeCluster, local: Callable[[str], Objects]
) -> None:
    """The other run drops its plan; it goes on, publishes first, and no file of it is deleted."""
    go(orders)
    orders.fill(4)

    def drop_plan(request: Command) -> None:
        if (
            request.code == RequestCode.PULL_MESSAGE and (request.ext or {}).get("queueId") == "1"
        ):  # queue 0 is uploaded
            orders.script = fail
            with pytest.raises(Unreachable):
                go(orders, discard_plan=True)
            orders.script = lambda request: None

    def fail(request: Command) -> bytes | None:
        return b"" if request.code == RequestCode.PULL_MESSAGE else None

    orders.script = drop_plan
    assert go(orders).rows == 4
    assert rows(local(TO)) == orders.everything()
    orders.fill(1)
    go(orders)
    assert rows(local(TO)) == orders.everything()
    assert_clean(local(TO))


def act_after_upload(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Any]) -> None:
    """Call ``act`` with the number of files that a compaction has uploaded, after each of them."""
    upload, uploaded = Objects.upload, 0

    def upload_and_act(self: Objects, name: str, file: Any) -> None:
        nonlocal uploaded
        upload(self, name, file)
        if COMPACTED.search(name):
            uploaded += 1
            act(uploaded)

    monkeypatch.setattr(Objects, "upload", upload_and_act)


@pytest.mark.parametrize("every", [100, 5, 2])
def test_a_compaction_is_published_although_runs_publish_meanwhile(
    orders: FakeCluster, local: Callable[[str], Objects], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_destination, "COMPLETE_EVERY", every)
    go(orders)
    orders.fill(4)
    go(orders)

    def publish_a_run(uploaded: int) -> None:
        orders.fill(2)
        assert go(orders).rows == 2

    act_after_upload(monkeypatch, publish_a_run)
    result = compact_export(TO)
    assert (result.before, result.after, result.rows) == (4, 2, 24)
    assert export_status(TO).number == 5
    assert rows(local(TO)) == orders.everything()
    assert len([url for url in export_files(TO) if COMPACTED.search(str(url))]) == 2
    assert_clean(local(TO))


def test_a_compaction_of_files_that_were_replaced_is_refused(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(orders)
    orders.fill(4)
    go(orders)
    act_after_upload(monkeypatch, lambda uploaded: go(orders, overwrite=True) if uploaded == 2 else None)
    with pytest.raises(ExportFenced, match="another writer has replaced files of s3://bucket/out that this compaction"):
        compact_export(TO)
    assert rows(local(TO)) == orders.everything()
    assert_clean(local(TO))


def test_a_run_that_is_going_on_keeps_a_compaction_from_starting(
    orders: FakeCluster, local: Callable[[str], Objects]
) -> None:
    def compact(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            with pytest.raises(SparkError, match="a run of s3://bucket/out is going on or was stopped"):
                compact_export(TO)

    orders.script = compact
    go(orders)


def test_a_failed_run_is_completed_without_reading_again(orders: FakeCluster, local: Callable[[str], Objects]) -> None:
    def script(request: Command) -> bytes | None:
        lost = request.code == RequestCode.PULL_MESSAGE and (request.ext or {}).get("queueId") == "1"
        return b"" if lost else None

    orders.script = script
    with pytest.raises(Unreachable):
        go(orders)
    assert export_status(TO).unfinished
    orders.script = lambda request: None
    orders.requests.clear()
    result = go(orders)
    assert (result.rows, result.resumed) == (20, True)
    assert not [r for r in orders.requests if r.code == 11 and r.ext and r.ext["queueId"] == "0"]
    assert_clean(local(TO))


def test_messages_that_expired_are_counted(orders: FakeCluster, local: Callable[[str], Objects]) -> None:
    go(orders)
    orders.fill(10)
    queue = orders.queues["orders", 0]
    queue.min_offset = 13
    for offset in range(13):
        queue.records.pop(offset)
    with pytest.raises(DataLoss, match=r"offset 10 is wanted.*\(3 of them"):
        go(orders)
    result = go(orders, fail_on_data_loss=False)
    assert (result.rows, result.lost) == (7, 3)
    assert [queue.lost for queue in export_status(TO).queues] == [3, 0]


def test_a_store_that_ignores_conditions_is_refused(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objects, "create", Objects.write)
    with pytest.raises(SparkError, match="ignores If-None-Match"):
        go(orders)
    assert records(local(TO)) == data_files(local(TO)) == []


def test_a_creation_whose_answer_was_lost_is_no_other_writer(local: Callable[[str], Objects]) -> None:
    """The library repeats a request without an answer, which then meets the object that it made."""
    objects = local(TO)
    objects.create("x", b"mine")
    objects.create("x", b"mine")
    with pytest.raises(FileExistsError):
        objects.create("x", b"other")


def test_files_that_no_manifest_names_are_removed_by_compaction_when_they_are_old(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(orders)
    lost = "topic=orders/date=2023-11-14/broker-a-0-0-9--0123456789ab-0123456789ab.parquet"
    local(TO).write(lost, b"x")
    compact_export(TO)
    assert lost in data_files(local(TO))
    monkeypatch.setattr(object_destination, "UNREFERENCED_AGE", timedelta(0))
    compact_export(TO)
    assert_clean(local(TO))


def test_many_runs_are_read_from_the_last_complete_manifest(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_destination, "COMPLETE_EVERY", 3)
    for _ in range(7):
        orders.put("orders", 0, b"x")
        go(orders)
    local(TO).delete([f"_gantrymq/manifest-{number:08}.json" for number in range(1, 6)])
    assert rows(local(TO)) == orders.everything()
    local(TO).delete(["_gantrymq/manifest-00000006.json"])
    with pytest.raises(ExportDamaged, match=r"manifest-00000006\.json is missing"):
        export_files(TO)


def test_runs_list_no_manifest_before_the_last_complete_one(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_destination, "COMPLETE_EVERY", 3)
    for _ in range(7):
        orders.put("orders", 0, b"x")
        go(orders)
    listed: set[str] = set()

    def note(work: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def call(self: Objects, folder: str, *arguments: str) -> list[str]:
            found = work(self, folder, *arguments)
            listed.update(found if folder == "_gantrymq" else ())
            return found

        return call

    with monkeypatch.context() as patch:
        for name in ("names", "names_after"):
            patch.setattr(Objects, name, note(getattr(Objects, name)))
        orders.put("orders", 0, b"x")
        go(orders)
    assert {name for name in listed if name.startswith("manifest-")} == {
        "manifest-00000006.json", "manifest-00000007.json", "manifest-00000008.json", "manifest-complete.json",
    }  # fmt: skip
    assert rows(local(TO)) == orders.everything()
    local(TO).delete([f"_gantrymq/manifest-{number:08}.json" for number in range(6, 9)])  # as a copy of before them
    go(orders)
    assert export_status(TO).number == 6
    assert rows(local(TO)) == orders.everything()


@pytest.mark.parametrize("store", ["local", "s3_settings"])
def test_names_after_a_name_are_listed(store: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(store)
    objects = destinations.open_store("s3://bucket/listed")
    for name in ("r/a", "r/m-1", "r/m-2", "r/z/1", "r/z/2", "rs/n"):
        objects.write(name, b"")
    assert objects.names_after("r", "m-1") == ["m-2", "z"]
    assert objects.names_after("r", "m") == ["m-1", "m-2", "z"]
    assert objects.names_after("s", "a") == []


def test_replaced_objects_of_a_killed_overwrite_are_deleted_also_by_a_complete_manifest(
    orders: FakeCluster, local: Callable[[str], Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_destination, "COMPLETE_EVERY", 2)
    go(orders)
    clean = ObjectDestination._clean

    def be_killed(self: ObjectDestination, manifest: Manifest) -> None:
        if manifest.number == 2:
            raise SparkError("killed")
        clean(self, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectDestination, "_clean", be_killed)
        with pytest.raises(SparkError, match="killed"):
            go(orders, overwrite=True)
    assert len(data_files(local(TO))) == 4
    go(orders)
    assert rows(local(TO)) == orders.everything()
    assert_clean(local(TO))


def test_the_exporter_of_a_broker_writes_to_a_store(orders: FakeCluster, local: Callable[[str], Objects]) -> None:
    job = Job(
        "broker-a", orders.address, {"orders": 2}, TO, "parquet", "local", 100, 1 << 20, True, {}, 0, 1, "1g",
    )  # fmt: skip
    reports: list[Report] = []
    worker.run(job, reports.append)
    assert (reports[-1].rows, reports[-1].error, reports[-1].ends) == (20, "", {0: 10, 1: 10})
    assert rows(local(TO)) == orders.everything()


def test_a_place_with_other_objects_is_refused(orders: FakeCluster, local: Callable[[str], Objects]) -> None:
    local(TO).write("notes.txt", b"x")
    with pytest.raises(FolderInUse, match=r"has 'notes\.txt', which no export wrote"):
        go(orders)
    with pytest.raises(ExportDamaged, match="has no export"):
        export_status("s3://bucket/nowhere")


def test_wrong_settings_are_reported_in_one_line(orders: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(WrongOption, match=r"^cannot export to 'abfs://x/y': [^\n]+$"):
        go(orders, "abfs://x/y")


def test_a_missing_package_is_named(orders: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(SparkMissing, match=r"needs the package obstore: pip install 'gantrymq\[objectstore\]'"):
        go(orders, "s3://bucket/x")

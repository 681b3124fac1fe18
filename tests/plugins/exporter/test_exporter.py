"""The plugin ``exporter`` in a running broker: runs, held log files, commands, failures."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from gantrymq.cli.__main__ import run
from gantrymq.exporter.job import Job, Report
from gantrymq.exporter.process import RunFailed
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.message import Message
from gantrymq.plugins.exporter import runs
from gantrymq.plugins.exporter.config import ExporterConfig
from gantrymq.plugins.exporter.file_check import check_state
from gantrymq.plugins.exporter.positions import find_topics, floor_of, lag_of
from gantrymq.plugins.exporter.runs import CHECK_S, Exporter
from gantrymq.plugins.exporter.state import ExporterState, load_starts, load_state
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import TopicHeader
from gantrymq.spark import SparkError, export, export_files, export_status
from gantrymq.spark.exports.engines import find_engine
from gantrymq.spark.exports.folder_destination import FolderDestination
from gantrymq.spark.exports.planning import Sizes
from gantrymq.spark.exports.run import export_with
from gantrymq.spark.options import read_options
from gantrymq.testing.plugin_broker import PluginBroker
from support.exporting import bodies
from support.processes import wait_for
from support.unreadable import run_out_of_descriptors

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = pytest.mark.once

PATIENCE_S = 120.0
"""A run starts a Python process, which takes many seconds on a busy machine."""


class Exporting:
    """A broker whose exporter runs only at a request for it."""

    def __init__(self, folder: Path) -> None:
        self.to = folder / "out"
        settings = {
            "plugin.exporter.topics": "orders-*,exact", "plugin.exporter.to": str(self.to),
            "plugin.exporter.every": "1h", "plugin.exporter.nice": "0", "broker.persist_interval": "50ms",
        }  # fmt: skip
        self.running = PluginBroker(folder, ["exporter"], settings=settings)

    @property
    def broker(self) -> Any:
        return self.running.cluster.broker

    @property
    def exporter(self) -> Any:
        return next(info.plugin for info in self.broker.manager.plugins if info.name == "exporter")._exporter

    def send(self, topic: str, count: int, body: bytes = b"") -> None:
        """Numbers, unless there is a ``body``."""
        with self.running.client.producer("exporter-tests") as producer:
            for number in range(count):
                producer.send(Message(topic, body or b"%d" % number, keys=("k",)))

    def control(self, action: str) -> dict[str, Any]:
        from gantrymq.plugins.spark.exporter_status import ask_exporter

        return ask_exporter(self.running.address, action, {})

    def run_now(self) -> dict[str, Any]:
        """The status after one more run that had something to do."""
        before = sum(self.exporter.totals.runs.values())
        self.control("run")
        wait_for(lambda: sum(self.exporter.totals.runs.values()) > before, PATIENCE_S)
        return self.control("status")

    def back_up(self, folder: Path) -> None:
        """Write a backup that has the last run, so that a broker that starts on it has no run to make up for."""
        broker, last = self.broker, self.exporter.state.last
        wait_for(lambda: load_state(broker.env, broker.root, str(self.to)).last == last, PATIENCE_S)
        assert run(["store", "backup", str(folder), "--data", str(broker.root)]) == 0

    def compared(self) -> bool:
        """Whether the broker has noted durably that the export of ``exact`` was compared since the start."""
        starts = load_starts(self.broker.env, self.broker.root, str(self.to))
        return starts is not None and "exact" in starts.checked

    def delete_topic(self, topic: str) -> None:
        command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic).to_ext())
        self.running.client.admin.request(self.running.address, command)

    def figures(self) -> tuple[Metrics, dict[str, str]]:
        """The metrics of the exporter, and the runtime information of the broker."""
        metrics = Metrics(1000)
        for info, call in self.broker.manager.calls("collect_metrics", broker=self.broker, metrics=metrics):
            if info.name == "exporter":
                call()
        tables = self.broker.manager.hook.runtime_info(broker=self.broker)
        return metrics, {name: text for table in tables for name, text in (table or {}).items()}

    def stored(self, topic: str) -> Counter[tuple[int, int]]:
        queues = (queue for queue in self.broker.queues if queue.topic == topic)
        return Counter((queue.queue_id, offset) for queue in queues for offset in range(queue.max_offset))


def exported(folder: Path, topic: str) -> Counter[tuple[int, int]]:
    import pyarrow.parquet as pq

    found: Counter[tuple[int, int]] = Counter()
    for file in export_files(folder, topic) if folder.exists() else ():
        rows = pq.ParquetFile(file).read(columns=["queueId", "queueOffset"]).to_pylist()
        found.update((row["queueId"], row["queueOffset"]) for row in rows)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporting]:
    exporting = Exporting(tmp_path_factory.mktemp("exporter"))
    yield exporting
    exporting.running.stop()


@pytest.mark.slow
def test_each_run_adds_what_is_new_of_the_topics_that_match(place: Exporting) -> None:
    place.send("orders-1", 20)
    place.send("other", 3)
    status = place.run_now()
    assert status["last_run"]["error"] == ""
    assert exported(place.to, "orders-1") == place.stored("orders-1")
    place.send("orders-1", 5)
    assert place.exporter.lag()["orders-1"] == 5
    place.run_now()
    assert exported(place.to, "orders-1") == place.stored("orders-1")
    assert {queue.topic for queue in export_status(place.to).queues} == {"orders-1"}
    topics = place.broker.registry.get(TopicTable).names()
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in topics
    own = {place.broker.name, place.broker.cluster, f"{place.broker.cluster}_REPLY_TOPIC"}
    assert own <= set(topics)
    assert set(find_topics(place.broker, ["*"])) & {"RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%x", *own} == set()
    assert set(find_topics(place.broker, [place.broker.name])) == {place.broker.name}


@pytest.mark.slow
def test_metrics_and_runtime_information_have_lag_and_runs(place: Exporting) -> None:
    place.send("orders-figures", 4)
    place.run_now()
    place.send("orders-figures", 3)
    metrics, info = place.figures()
    lag = metrics.families["gantrymq_exporter_lag_messages"].series[("orders-figures",)]
    assert lag == 3
    assert metrics.families["gantrymq_exporter_runs_total"].series[("ok",)] >= 1
    assert metrics.families["gantrymq_exporter_messages_total"].series[()] >= 4
    assert int(info["exporterLag"]) >= 3
    assert info["exporterState"] == "waiting"
    last = place.control("status")["last_run"]
    assert info["exporterLastRun"] == f"{int(last['ended'] * 1000)},{last['rows']},"
    success = metrics.families["gantrymq_exporter_last_success_seconds"].series[()]
    assert success == pytest.approx(last["ended"])


@pytest.mark.slow
def test_the_log_is_held_from_the_first_message_that_is_not_exported(
    place: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send("orders-held", 2)
    place.run_now()
    broker, exporter = place.broker, place.exporter
    wait_for(lambda: exporter.floor() == broker.log.end, PATIENCE_S)
    begin = broker.log.end
    place.send("orders-held", 1)
    wait_for(lambda: broker.env.wall_ms() > broker.log.last_timestamp)
    place.send("orders-held", 1)
    topics = find_topics(broker, ["orders-held"])
    first = broker.log.read_record(begin)
    hold = 1 << 40
    assert floor_of(broker, topics, exporter.state.ends, hold, 0) == begin
    assert floor_of(broker, topics, exporter.state.ends, 100, 0) == broker.log.end - 100
    assert floor_of(broker, topics, exporter.state.ends, 0, 0) == broker.log.end
    assert floor_of(broker, topics, exporter.state.ends, hold, first.store_timestamp) == begin
    behind = floor_of(broker, topics, exporter.state.ends, hold, broker.log.last_timestamp)
    assert begin < behind < broker.log.end
    assert broker.log.read_record(behind).store_timestamp >= broker.log.last_timestamp
    later = broker.log.last_timestamp + 1
    assert floor_of(broker, topics, exporter.state.ends, hold, later) == broker.log.end
    with monkeypatch.context() as patch:
        run_out_of_descriptors(patch, broker.log)
        with pytest.raises(OSError, match="Too many open files"):  # the broker keeps everything then
            floor_of(broker, topics, exporter.state.ends, hold, later)


@pytest.mark.slow
def test_a_pause_lasts_over_a_restart_until_resumed_and_run_now_works_meanwhile(
    place: Exporting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "pause", "--broker", place.running.address]) == 0
    assert "paused" in capsys.readouterr().out
    place.running.restart(settings={"plugin.exporter.every": "1s"})
    place.send("exact", 2)
    time.sleep(2.5 * CHECK_S)
    assert place.exporter.next_start() < time.time(), "one would be due"
    assert place.control("status")["state"] == "paused"
    assert exported(place.to, "exact") == Counter()
    place.run_now()
    assert exported(place.to, "exact") == place.stored("exact")
    assert run(["export", "resume", "--broker", place.running.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paused"] is False
    place.send("exact", 1)
    wait_for(lambda: place.exporter.lag()["exact"] == 0, PATIENCE_S)
    assert exported(place.to, "exact") == place.stored("exact")
    assert run(["export", "status", "--broker", place.running.address]) == 0
    assert "exact: lag 0" in capsys.readouterr().out
    place.running.restart(settings={"plugin.exporter.every": "1h"})


@pytest.mark.slow
def test_a_failed_run_is_reported_and_tried_again(place: Exporting) -> None:
    place.to.mkdir(exist_ok=True)
    place.send("orders-failing", 1)
    hidden = place.to.with_name("hidden")
    place.to.rename(hidden)
    place.to.write_text("no folder")
    status = place.run_now()
    assert (status["failures"], status["lag"]["orders-failing"]) == (1, 1)
    assert "is a file, not a folder" in status["last_run"]["error"]
    assert place.exporter.next_start() < place.exporter.state.last.ended + 60
    metrics, info = place.figures()
    assert metrics.families["gantrymq_exporter_failures"].series[()] == 1
    assert metrics.families["gantrymq_exporter_runs_total"].series[("failed",)] == 1
    assert info["exporterFailures"] == "1"
    assert info["exporterLastRun"].endswith(f",0,{status['last_run']['error']}")
    place.to.unlink()
    hidden.rename(place.to)
    status = place.run_now()
    assert (status["failures"], status["lag"]["orders-failing"]) == (0, 0)
    assert exported(place.to, "orders-failing") == place.stored("orders-failing")


@pytest.mark.slow
def test_a_run_starts_when_the_log_has_grown_by_at_bytes(place: Exporting) -> None:
    if not place.exporter.state.last.ended:
        place.send("orders-size", 1)
        place.run_now()
    place.running.restart(settings={"plugin.exporter.at_bytes": "20 KiB"})
    assert place.exporter.next_start() > place.exporter.state.last.started + 3000, "none is due by time"
    place.send("orders-size", 10)
    time.sleep(2.5 * CHECK_S)
    assert sum(place.exporter.totals.runs.values()) == 0, "fewer bytes than that"
    place.send("orders-size", 200)
    wait_for(lambda: sum(place.exporter.totals.runs.values()) == 1, PATIENCE_S)
    if place.exporter.totals.rows < 210:  # that run began before all were stored
        place.run_now()
    assert exported(place.to, "orders-size") == place.stored("orders-size")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Exporting]:
    """A place for this test only, whose runs may fail."""
    exporting = Exporting(tmp_path)
    yield exporting
    exporting.running.stop()


@pytest.mark.slow
def test_a_topic_with_restarted_offsets_fails_until_its_export_is_overwritten(own: Exporting) -> None:
    own.send("exact", 20)
    own.run_now()
    own.delete_topic("exact")
    own.running.restart()
    own.running.restart(killed=True)
    own.send("exact", 15)
    for total in (15, 30):  # fewer than the export has, and more
        assert own.exporter.lag()["exact"] == total
        assert own.exporter.floor() < own.broker.log.end
        status = own.run_now()
        assert "topic was deleted and created again" in status["last_run"]["error"]
        assert (own.exporter.totals.rows, own.exporter.totals.runs["ok"]) == (0, 0)
        own.running.restart()  # the next run is due in an hour, and the cause is kept
        own.send("exact", 15)
    export("exact", own.to, own.running.nameserver, engine="local", overwrite=True)
    own.send("exact", 2)
    assert own.run_now()["failures"] == 0
    assert exported(own.to, "exact") == own.stored("exact")
    assert own.exporter.lag()["exact"] == 0


@pytest.mark.slow
def test_a_topic_that_is_deleted_and_created_again_without_a_restart_is_exported_on(own: Exporting) -> None:
    own.send("exact", 20)
    before = own.run_now()["last_run"]["rows"]
    own.delete_topic("exact")
    own.control("run")  # without the topic, there is nothing to do
    wait_for(lambda: own.exporter._last_idle > 0, PATIENCE_S)
    for _ in range(2):
        own.send("exact", 8)
        status = own.run_now()
        assert (before, status["last_run"]["rows"], status["last_run"]["error"]) == (20, 8, "")
        own.running.restart()  # each queue has messages of after the deletion
        assert own.exporter.state.ahead == {}


def restore(own: Exporting, backup: Path) -> None:
    """Start the broker on the backup instead of its store, which is lost."""
    own.running.cluster.stop_broker()
    shutil.rmtree(own.broker.root)
    assert run(["store", "restore", str(backup), "--data", str(own.broker.root)]) == 0
    own.running.restart()


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 2])
def test_an_export_that_is_ahead_of_a_restored_store_fails_until_it_is_overwritten(
    own: Exporting, tmp_path: Path, restarts: int
) -> None:
    own.send("exact", 20)
    own.run_now()
    own.back_up(tmp_path / "backup")
    own.send("exact", 10)
    own.run_now()
    restore(own, tmp_path / "backup")
    for _ in range(restarts):
        own.running.restart(killed=True)
        own.send("exact", 15)
    own.send("exact", 30)  # each queue is further than the export
    for _ in range(2):
        status = own.run_now()
        assert "the broker lost messages" in status["last_run"]["error"]
        assert (own.exporter.totals.rows, own.exporter.totals.lost) == (0, 0)
        assert own.exporter.lag() == {"exact": 50 + 15 * restarts}
        assert own.exporter.floor() == 0, "the log is kept for the export"
        own.running.restart()
    assert run(["export", "--topic", "exact", "--to", str(own.to), "--nameserver", own.running.nameserver,
                "--engine", "local", "--overwrite"]) == 0  # fmt: skip
    own.send("exact", 4)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_a_paused_exporter_accepts_what_was_exported_by_hand_after_a_start(own: Exporting) -> None:
    own.send("exact", 20)
    own.run_now()
    own.control("pause")
    own.running.restart()
    wait_for(own.compared, PATIENCE_S)
    own.send("exact", 20)
    export("exact", own.to, own.running.nameserver, engine="local")
    own.send("exact", 5)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_an_export_that_is_not_mounted_at_the_start_is_compared_by_the_first_run(
    own: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Job] = []

    async def note_the_end(job: Job, *arguments: Any) -> None:
        await run_worker(job, *arguments)
        ended.append(job)

    run_worker = runs.run_worker
    own.send("exact", 20)
    own.back_up(tmp_path / "backup")
    own.send("exact", 10)
    own.run_now()
    hidden = own.to.with_name("hidden")
    own.to.rename(hidden)
    monkeypatch.setattr(runs, "run_worker", note_the_end)
    restore(own, tmp_path / "backup")
    wait_for(lambda: bool(ended), PATIENCE_S)
    own.send("exact", 30)
    hidden.rename(own.to)
    assert "the broker lost messages" in own.run_now()["last_run"]["error"]


@pytest.mark.slow
def test_a_run_without_new_messages_compares_the_export_if_the_first_comparison_failed(
    own: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Job] = []

    async def fail(job: Job, *_: object) -> None:
        failed.append(job)
        raise RunFailed("the process was killed")

    own.send("exact", 20)
    own.run_now()
    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_worker", fail)
        own.running.restart()
        wait_for(lambda: bool(failed), PATIENCE_S)
    assert not own.compared()
    assert own.run_now()["last_run"]["error"] == ""
    assert own.compared()


@pytest.mark.slow
def test_an_export_that_is_overwritten_after_a_restore_and_before_the_first_run_goes_on(
    own: Exporting, tmp_path: Path
) -> None:
    own.send("exact", 20)
    own.back_up(tmp_path / "backup")
    own.send("exact", 10)
    own.run_now()
    restore(own, tmp_path / "backup")
    own.send("exact", 30)
    wait_for(lambda: "exact" in own.exporter.state.ahead, PATIENCE_S)
    assert own.exporter.lag() == {"exact": 50}
    export("exact", own.to, own.running.nameserver, engine="local", overwrite=True)
    own.send("exact", 5)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_lost_messages_that_a_stopped_run_has_written_are_not_published(own: Exporting, tmp_path: Path) -> None:
    def stop_after_writing(tasks: Any, report: Any) -> None:
        find_engine("local", None)(tasks, report)
        raise SparkError("the machine stopped")

    own.send("exact", 20)
    own.run_now()
    own.back_up(tmp_path / "backup")
    own.send("exact", 10, b"lost")
    options = read_options({"nameserver": own.running.nameserver, "topic": "exact"})
    with pytest.raises(SparkError, match="stopped"):
        export_with(options, own.to, stop_after_writing, Sizes())
    restore(own, tmp_path / "backup")
    own.send("exact", 20, b"new")
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")
    assert {body[:3] for body in bodies(own.to)} == {b"new", *(b"%d" % number for number in range(20))}


@pytest.mark.slow
def test_lost_messages_that_a_stopped_run_is_certain_to_publish_fail_the_run(
    own: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise SparkError("the machine stopped")

    own.send("exact", 20)
    own.run_now()
    own.back_up(tmp_path / "backup")
    own.send("exact", 10, b"lost")
    with monkeypatch.context() as patch:
        patch.setattr(FolderDestination, "place", stop)
        with pytest.raises(SparkError, match="stopped"):
            export("exact", own.to, own.running.nameserver, engine="local")
    restore(own, tmp_path / "backup")
    own.send("exact", 30, b"new")
    own.send("orders-b", 1)
    for _ in range(2):
        assert "exact: the export has offsets" in own.run_now()["last_run"]["error"]
    assert exported(own.to, "orders-b") == own.stored("orders-b")
    export("exact", own.to, own.running.nameserver, engine="local", overwrite=True)
    own.send("exact", 4)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")
    assert b"lost" not in bodies(own.to)


@pytest.mark.slow
def test_the_export_goes_on_after_a_restore_of_a_store_that_lost_no_exported_message(
    own: Exporting, tmp_path: Path
) -> None:
    own.send("exact", 20)
    own.run_now()
    own.running.restart()
    own.send("exact", 20)
    own.back_up(tmp_path / "backup")
    own.run_now()  # the first one since the start, after the backup
    restore(own, tmp_path / "backup")
    own.send("exact", 20)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_the_export_of_a_broker_that_is_killed_after_a_run_goes_on(own: Exporting) -> None:
    def is_stored() -> bool:
        state = load_state(own.broker.env, own.broker.root, str(own.to))
        return state.last_success == own.exporter.state.last_success

    for _ in range(3):
        own.send("exact", 20)
        assert own.run_now()["last_run"]["error"] == ""
        wait_for(is_stored)  # or the next start begins a run, which publishes while the files are copied
        own.running.restart(killed=True)
        own.running.restart(killed=True)  # without a run
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_messages_of_a_first_run_do_not_count_as_lost_after_a_kill(
    own: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.send("exact", 20)
    own.run_now()  # or the next start begins a run
    own.running.restart()
    own.send("exact", 20)
    copies: list[Path] = []

    async def copy_when_published(*arguments: Any) -> None:
        await run_worker(*arguments)
        copies.append(own.to.with_name("copy"))
        shutil.copytree(f"{own.broker.root}/config", copies[0])

    run_worker = runs.run_worker
    monkeypatch.setattr(runs, "run_worker", copy_when_published)
    own.run_now()
    own.running.cluster.stop_broker()
    shutil.rmtree(f"{own.broker.root}/config")
    copies[0].rename(f"{own.broker.root}/config")
    monkeypatch.undo()
    own.running.restart()
    own.send("exact", 5)
    assert own.run_now()["last_run"]["error"] == ""
    assert exported(own.to, "exact") == own.stored("exact")


@pytest.mark.slow
def test_a_kill_during_the_first_run_keeps_the_comparison_of_the_topics_that_follow(
    own: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders-a", "orders-b"):
        own.send(topic, 20)
    own.run_now()
    own.back_up(tmp_path / "backup")
    own.send("orders-b", 10)
    own.run_now()
    restore(own, tmp_path / "backup")
    for topic in ("orders-a", "orders-b"):
        own.send(topic, 30)
    copy = tmp_path / "copy"

    async def copy_after_the_first_topic(job: Job, timeout: float, on_report: Any, on_start: Any) -> None:
        async def take(report: Report) -> None:
            await on_report(report)
            if report.topic == "orders-a" and report.ended:
                shutil.copytree(f"{own.broker.root}/config", copy)

        await run_worker(job, timeout, take, on_start)

    run_worker = runs.run_worker
    monkeypatch.setattr(runs, "run_worker", copy_after_the_first_topic)
    assert "orders-b: the export has offsets" in own.run_now()["last_run"]["error"]
    own.running.cluster.stop_broker()
    shutil.rmtree(f"{own.broker.root}/config")
    copy.rename(f"{own.broker.root}/config")
    monkeypatch.undo()
    own.running.restart()
    own.send("orders-a", 5)
    error = own.run_now()["last_run"]["error"]
    assert "orders-b: the export has offsets" in error
    assert "orders-a" not in error
    assert exported(own.to, "orders-a") == own.stored("orders-a")


@pytest.mark.slow
def test_a_topic_that_a_restored_store_lacks_fails_after_restarts_without_a_run(own: Exporting, tmp_path: Path) -> None:
    own.send("exact", 1)
    own.back_up(tmp_path / "backup")
    own.send("orders-b", 10)
    own.run_now()
    restore(own, tmp_path / "backup")
    own.send("orders-b", 20)
    own.running.restart(killed=True)
    error = own.run_now()["last_run"]["error"]
    assert error.startswith("orders-b: the export has offsets")


@pytest.mark.slow
def test_a_deleted_topic_fails_although_the_stored_offsets_are_older_than_its_export(own: Exporting) -> None:
    own.send("exact", 20)
    own.run_now()
    wait_for(lambda: load_state(own.broker.env, own.broker.root, str(own.to)).last_success > 0)
    older = Path(f"{own.broker.root}/config/exporter.json").read_bytes()
    own.send("exact", 10)
    own.run_now()
    own.delete_topic("exact")
    own.running.cluster.stop_broker()
    Path(f"{own.broker.root}/config/exporter.json").write_bytes(older)
    own.running.restart()
    own.send("exact", 40)
    assert "topic was deleted and created again" in own.run_now()["last_run"]["error"]


def fill_the_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_ends_before_it_publishes_if_the_comparison_cannot_be_noted(
    own: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report_the_comparison(_job: Job, _timeout: float, on_report: Any, _on_start: Any) -> None:
        await on_report(Report("orders-a", waits=True))

    monkeypatch.setattr(runs, "run_worker", report_the_comparison)
    own.send("orders-a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "save_starts", fill_the_disk)
        error = own.run_now()["last_run"]["error"]
    assert error.endswith("exporterStarts.json: No space left on device")
    assert own.run_now()["last_run"]["error"] == ""


def test_a_full_disk_at_the_start_is_logged_and_the_comparison_made_all_the_same(
    own: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.send("orders-a", 1)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(runs, "save_starts", fill_the_disk)
        own.running.restart()
    [found] = [entry for entry in logs if entry["event"] == "export_starts_not_written"]
    assert (found["log_level"], found["reason"]) == ("warning", "No space left on device")
    own.send("orders-a", 1)
    assert own.run_now()["last_run"]["error"] == ""


def test_a_topic_whose_export_ended_the_process_is_the_last_of_the_next_run(
    own: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    async def end_with_a(job: Job, _timeout: float, on_report: Any, _on_start: Any) -> None:
        jobs.append(job)
        await on_report(Report("orders-a", total=1))
        if len(jobs) < 3:
            raise RunFailed("the process was killed")
        await on_report(Report("orders-a", ended=True))

    monkeypatch.setattr(runs, "run_worker", end_with_a)
    own.send("orders-a", 1)
    for _ in range(4):
        own.run_now()
    assert [job.last for job in jobs] == ["", "orders-a", "orders-a", ""]


def test_a_queue_that_ends_before_its_export_waits_from_its_first_message_on() -> None:
    queue = SimpleNamespace(min_offset=3, max_offset=10)
    broker: Any = SimpleNamespace(queues=SimpleNamespace(get=lambda _topic, number: None if number else queue))
    lags = [lag_of(broker, {"orders": 2}, {"orders": {0: end, 1: end}})["orders"] for end in (0, 3, 8, 10, 11)]
    assert lags == [7, 7, 2, 0, 7]


@pytest.mark.parametrize(("setting", "is_null"), [("fail", False), ("null", True)])
def test_the_setting_for_bad_bodies_is_in_the_job_of_a_run(setting: Any, is_null: bool) -> None:
    broker: Any = SimpleNamespace(name="broker-a", listening="127.0.0.1:10911")
    exporter = Exporter(broker, ExporterConfig(bad_bodies=setting), "out", ExporterState())
    assert exporter._job({"orders": 1}).null_bad_bodies is is_null


def test_a_check_of_the_files_reports_lost_messages_but_no_deleted_topic() -> None:
    notes: list[str] = []
    state = ExporterState(ends={"gone": {0: 9}, "kept": {0: 9}, "short": {0: 9}})
    store: Any = SimpleNamespace(
        read_table=lambda *_: state,
        queue_ends={("kept", 0): 9, ("short", 0): 8},
        note=lambda _path, text, _meaning: notes.append(text),
    )
    check_state(store)
    assert notes == ["topic 'short', queue 0 is exported up to 9, and the queue ends at 8"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topics": "orders"}, r"set plugin\.exporter\.topics"),
        ({"topics": "orders", "to": "x", "format": "delta", "engine": "spark"}, "'delta' needs the engine 'local'"),
        ({"topics": "orders", "to": "hdfs://names/{broker}"}, "cannot export to 'hdfs://names/broker-a'"),
    ],
)
def test_a_start_that_could_not_export_is_refused(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    with pytest.raises(StartError, match=says):
        PluginBroker(
            tmp_path, ["exporter"], settings={f"plugin.exporter.{key}": value for key, value in settings.items()}
        )


def test_the_commands_say_if_a_broker_has_no_exporter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = PluginBroker(tmp_path, [])
    try:
        assert run(["export", "run-now", "--broker", running.address]) == 1
    finally:
        running.stop()
    assert "start it with --enable exporter" in capsys.readouterr().err

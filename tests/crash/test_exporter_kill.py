"""kill -9 of a broker that exports, of the process of a run, and of both: the export has each message exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from gantrymq.message import Message
from gantrymq.plugins.spark.exporter_status import ask_exporter
from gantrymq.spark import SparkError, export_files, spark_status
from gantrymq.sync import connect
from support.processes import Child, gantrymq_child, wait_for
from support.slices import is_whole

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("GANTRYMQ_EXPORTER_KILLS", 30 if is_whole() else 3))
VICTIMS = ("process", "broker", "both")
PATIENCE_S = 240.0


class ExportingBroker:
    """``gantrymq serve`` on one store, with the exporter; the nameserver is in it."""

    def __init__(self, place: Path, engine: str) -> None:
        self.place, self.to, self.engine = place, place / "out", engine
        self.child: Child | None = None
        self.address = self.nameserver = ""

    def start(self) -> None:
        arguments = ["serve", "--data", str(self.place / "data"), "--listen", "127.0.0.1:0"]
        arguments += ["--nameserver-listen", "127.0.0.1:0", "--enable", "exporter"]
        settings = {
            "plugin.exporter.topics": "orders", "plugin.exporter.to": str(self.to), "plugin.exporter.every": "1s",
            "plugin.exporter.retry": "200ms", "plugin.exporter.nice": "0", "plugin.exporter.file_rows": "50",
            "plugin.exporter.engine": self.engine, "plugin.exporter.memory": "512m",
            "broker.persist_interval": "50ms", "plugin.http.listen": "",
        }  # fmt: skip
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        self.child = gantrymq_child(arguments, self.place / "log")
        ready = self.child.wait_line(lambda line: line.startswith("ready"))
        words = dict(word.partition("=")[::2] for word in ready.split()[1:])
        self.address, self.nameserver = words["broker"], words["nameserver"]

    def run_pid(self) -> int | None:
        with suppress(SparkError):
            return ask_exporter(self.address, "status", {})["pid"]
        return None

    def kill(self, victim: str) -> None:
        """Kill the process of a run once there is one, at a random time of its life; the broker; or both."""
        found: list[int] = []

        def runs() -> bool:
            found[:] = [pid for pid in [self.run_pid()] if pid]
            return bool(found)

        wait_for(runs, PATIENCE_S)
        time.sleep(random.random() * (2 if self.engine == "local" else 20))
        assert self.child is not None
        if victim in ("process", "both"):
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
        if victim in ("broker", "both"):
            self.child.kill()
            self.child.stop()  # closes its pipes
            wait_for(lambda: not is_alive(found[0]), PATIENCE_S)
            self.start()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody waits for the orphan in a container without an init


@pytest.mark.parametrize("engine", ["local", *(["spark"] if is_whole() else [])])
def test_every_message_is_exported_once_whatever_is_killed(tmp_path: Path, engine: str) -> None:
    """With Spark a run takes as long as the start of a JVM, so that kills hit it at all of its stages."""
    import pyarrow.parquet as pq

    if engine == "spark" and not (status := spark_status()):
        pytest.skip(f"Spark cannot run here: {status.reason}")
    broker = ExportingBroker(tmp_path, engine)
    broker.start()
    sent: Counter[tuple[int, int]] = Counter()
    try:
        for number in range(ROUNDS):
            with connect(broker.nameserver) as client, client.producer("kills") as producer:
                for result in producer.send_batch([Message("orders", b"%d" % at) for at in range(200)]):
                    sent[result.queue.queue_id, result.queue_offset] += 1
            broker.kill(VICTIMS[number % len(VICTIMS)])
        wait_for(lambda: ask_exporter(broker.address, "status", {})["lag"] == {"orders": 0}, PATIENCE_S)
        wait_for(lambda: broker.run_pid() is None, PATIENCE_S)
    finally:
        assert broker.child is not None
        broker.child.stop()
    visible: Counter[tuple[int, int]] = Counter()
    files = sorted(broker.to.glob("topic=*/date=*/*.parquet"))
    for file in files:
        for row in pq.ParquetFile(file).read(columns=["queueId", "queueOffset"]).to_pylist():
            visible[row["queueId"], row["queueOffset"]] += 1
    assert visible == sent
    assert files == sorted(export_files(broker.to))

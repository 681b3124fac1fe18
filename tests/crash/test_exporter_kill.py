"""kill -9 of an exporting broker, of an export process, or of both: the export has each message exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from gantrymq.spark import export_files, spark_status
from support.exporting import PATIENCE_S, ExportingBroker
from support.processes import wait_for
from support.slices import is_whole

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("GANTRYMQ_EXPORTER_KILLS", 30 if is_whole() else 3))
VICTIMS = ("process", "broker", "both")


def kill(broker: ExportingBroker, victim: str) -> None:
    """Kill the process of a run once there is one, at a random time of its life; the broker; or both."""
    found: list[int] = []

    def runs() -> bool:
        found[:] = [pid for pid in [broker.run_pid()] if pid]
        return bool(found)

    wait_for(runs, PATIENCE_S)
    time.sleep(random.random() * (2 if "engine" not in broker.settings else 20))
    if victim in ("process", "both"):
        with suppress(ProcessLookupError):
            os.kill(found[0], signal.SIGKILL)
    if victim in ("broker", "both"):
        broker.kill()
        wait_for(lambda: not is_alive(found[0]), PATIENCE_S)
        broker.start()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody waits for the orphan in a container without an init


@pytest.mark.parametrize("engine", ["local", *(["spark"] if is_whole() else [])])
def test_every_message_is_exported_once_whatever_is_killed(tmp_path: Path, engine: str) -> None:
    """A Spark run takes as long as the start of a JVM, so kills hit it at all of its stages."""
    import pyarrow.parquet as pq

    if engine == "spark" and not (status := spark_status()):
        pytest.skip(f"Spark cannot run here: {status.reason}")
    spark = {"engine": "spark", "memory": "512m"} if engine == "spark" else {}
    broker = ExportingBroker(tmp_path, every="1s", file_rows="50", **spark)
    broker.start()
    sent: Counter[tuple[int, int]] = Counter()
    try:
        for number in range(ROUNDS):
            sent += broker.send(200)
            kill(broker, VICTIMS[number % len(VICTIMS)])
        wait_for(lambda: broker.status()["lag"] == {"orders": 0}, PATIENCE_S)
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

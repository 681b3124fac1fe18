"""kill -9 of a Spark export at each step of a run. Only ``make soak`` has it, because each kill costs a JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gantrymq.message import Message
from gantrymq.spark import export, export_files, spark_status
from gantrymq.testing.plugin_broker import PluginBroker

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.once,
    pytest.mark.timeout(3600),
    pytest.mark.soak(0),
]

IN_TASKS = -1
"""Instead of the number of a step: while Spark's workers write."""
CHILD = """
import os, signal, sys, threading, time
from pathlib import Path
from gantrymq.spark import export, session
from gantrymq.spark.exports import disk, folder_destination

folder, nameserver, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
happened = []

def die(where):
    print("killed", where, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def counted(module, name):
    work = getattr(module, name)
    def call(*arguments):
        if len(happened) == last:
            die(f"before {name}, step {last}")
        happened.append(name)
        return work(*arguments)
    setattr(module, name, call)

for name in (
    "create_durably", "write_durably", "move", "exchange", "move_away", "remove", "sync_folder", "sync_folders"
):
    counted(disk, name)
counted(folder_destination, "check_file")

def watch():
    while not list(Path(folder, "_gantrymq").glob("work-*/*.partial")):
        time.sleep(0.01)
    die("while tasks write")

if last < 0:
    threading.Thread(target=watch, daemon=True).start()
export("orders", folder, nameserver, spark=session(cores=1, memory="512m"), file_rows=10)
"""


def find_rows(files: list[Path]) -> Counter[tuple[int, int]]:
    import pyarrow.parquet as pq

    found: Counter[tuple[int, int]] = Counter()
    for file in files:
        rows = pq.ParquetFile(file).read(columns=["queueId", "queueOffset"]).to_pylist()
        found.update((row["queueId"], row["queueOffset"]) for row in rows)
    return found


def test_a_run_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    if not (status := spark_status()):
        pytest.skip(f"Spark cannot run here: {status.reason}")
    running = PluginBroker(tmp_path / "broker", [])
    try:
        killed = _kill_at_each_step(running, tmp_path)
    finally:
        running.stop()
    print("\n".join(killed))
    assert len(killed) > 12


def _kill_at_each_step(running: PluginBroker, place: Path) -> list[str]:
    killed: list[str] = []
    sent: Counter[tuple[int, int]] = Counter()
    step = IN_TASKS
    with running.client.producer("kills") as producer:
        while True:
            folder = place / f"out-{step}"
            for result in producer.send_batch([Message("orders", b"x" * 100) for _ in range(25)]):
                sent[result.queue.queue_id, result.queue_offset] += 1
            before = Counter(sent)
            export("orders", folder, running.nameserver, engine="local", file_rows=10)
            for result in producer.send_batch([Message("orders", b"x" * 100) for _ in range(25)]):
                sent[result.queue.queue_id, result.queue_offset] += 1
            command = [sys.executable, "-c", CHILD, str(folder), running.nameserver, str(step)]
            environ = {**os.environ, "TMPDIR": str(place)}  # a killed session leaves its folder
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600, env=environ)
            if done.returncode == 0:
                return killed
            assert done.returncode == -signal.SIGKILL, done.stdout
            killed.append(done.stdout.strip())
            visible = sorted(folder.glob("topic=*/date=*/*.parquet"))
            assert find_rows(export_files(folder)) in (before, sent), killed[-1]
            assert max(find_rows(visible).values()) == 1, killed[-1]
            export("orders", folder, running.nameserver, engine="local")
            visible = sorted(folder.glob("topic=*/date=*/*.parquet"))
            assert find_rows(visible) == find_rows(export_files(folder)) == sent, killed[-1]
            step += 1

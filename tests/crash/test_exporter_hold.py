"""The broker keeps expired log files for its exporter after kills, within the limits of bytes and age."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.__main__ import run
from gantrymq.spark import export_status
from support.exporting import PATIENCE_S, ExportingBroker, bodies
from support.processes import wait_for

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(600)]

BODY = b"x" * 1000
KEEP_S = 0.5
HOLD_AGE_S = 4.0
FILE_BYTES = 64 * 1024
EXPIRES = {
    "every": "1h", "store__commit_log_file_bytes": str(FILE_BYTES), "plugin__retention__keep": f"{KEEP_S * 1000:.0f}ms",
    "plugin__retention__check_interval": "100ms", "plugin__retention__at": ";".join(map(str, range(24))),
}  # fmt: skip
"""Without the exporter, a file is deleted a second after its last message."""


def log_files(broker: ExportingBroker) -> list[int]:
    """The log files by their first offset. The broker creates the file after the current one in advance."""
    return sorted(int(path.name) for path in (broker.place / "data" / "commitlog").iterdir())


def export_now(broker: ExportingBroker) -> dict[str, Any]:
    began = time.time()
    assert run(["export", "run-now", "--broker", broker.address]) == 0

    def has_ended() -> bool:
        last = broker.status()["last_run"]
        return last is not None and last["ended"] >= began and not broker.run_pid()

    wait_for(has_ended, PATIENCE_S)
    found: dict[str, Any] = broker.status()["last_run"]
    return found


def kill_run_and_broker(broker: ExportingBroker) -> None:
    assert run(["export", "run-now", "--broker", broker.address]) == 0
    found: list[int] = []

    def runs() -> bool:
        found[:] = [pid for pid in [broker.run_pid()] if pid]
        return bool(found)

    wait_for(runs, PATIENCE_S)
    with suppress(ProcessLookupError):
        os.kill(found[0], signal.SIGKILL)
    broker.kill()


def test_log_files_are_kept_for_the_export_within_its_caps(tmp_path: Path) -> None:
    broker = ExportingBroker(tmp_path, **EXPIRES)
    broker.start()
    try:
        assert run(["export", "pause", "--broker", broker.address]) == 0  # or a start of the broker starts a run
        broker.send(200, BODY)
        time.sleep(KEEP_S + 1)
        assert log_files(broker)[0] == 0, "expired, and not exported yet"
        kill_run_and_broker(broker)
        broker.start()
        time.sleep(KEEP_S + 0.5)
        assert log_files(broker)[0] == 0, "kept by the broker that was started again"
        assert (export_now(broker)["error"], sum(bodies(broker.to).values())) == ("", 200)
        wait_for(lambda: len(log_files(broker)) <= 2)
        broker.kill()

        broker.settings["hold_age"] = f"{HOLD_AGE_S:.0f}s"
        broker.start()
        began = time.monotonic()
        broker.send(200, BODY)
        first = log_files(broker)[0]
        wait_for(lambda: log_files(broker)[0] > first)
        assert time.monotonic() - began > HOLD_AGE_S - 0.5, "not before the messages had that age"
        wait_for(lambda: len(log_files(broker)) <= 2)
        last = export_now(broker)
        assert (last["error"], last["rows"] + last["lost"]) == ("", 200)
        assert last["lost"] > 100
        broker.kill()

        del broker.settings["hold_age"]
        broker.settings["hold_bytes"] = "128 KiB"
        broker.start()
        broker.send(400, BODY)
        wait_for(lambda: len(log_files(broker)) <= 5)
        time.sleep(1)
        assert len(log_files(broker)) >= 3, "the newest 128 KiB in whole files, the current file and the next"
        lost = last["lost"]
        last = export_now(broker)
        assert (last["error"], last["rows"] + last["lost"]) == ("", 400)
        assert 100 < last["rows"] < 300
        lost += last["lost"]
    finally:
        assert broker.child is not None
        broker.child.stop()
    assert sum(queue.lost for queue in export_status(broker.to).queues) == lost
    assert sum(bodies(broker.to).values()) == 800 - lost

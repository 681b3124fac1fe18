"""Log files are kept for the export within its limits, and messages deleted nevertheless are counted exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.expiry import drop_before
from gantrymq.kernel.metrics import Metrics
from gantrymq.remoting.channel import open_channel
from gantrymq.spark import export_status
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.exporting import bodies, control, export_now, until

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = [pytest.mark.once, pytest.mark.trio]

BODY_BYTES = 1000
FILE_BYTES = 64 * 1024


async def fill(broker: Broker, count: int) -> None:
    """Messages in two queues in turn."""
    async with open_channel(broker.address) as channel:
        for number in range(count):
            command = send("orders", b"%d".ljust(BODY_BYTES) % number, queue_id=number % 2, queues=2)
            assert (await channel.call(command)).code == 0


@pytest.mark.slow
async def test_retention_keeps_what_is_not_exported_and_the_rest_is_counted(tmp_path: Path) -> None:
    to = tmp_path / "out"
    settings = {
        "plugin.exporter.topics": "orders", "plugin.exporter.to": str(to), "plugin.exporter.every": "1h",
        "plugin.exporter.nice": "0", "plugin.exporter.hold_bytes": "256 KiB",
        "store.commit_log_file_bytes": str(FILE_BYTES),
    }  # fmt: skip
    async with run_broker(make_broker(tmp_path / "store", settings=settings, enable=["exporter"])) as broker:
        await fill(broker, 100)
        assert (await export_now(broker))["last_run"]["rows"] == 100
        exported_end = broker.log.end
        await fill(broker, 100)
        expired = await drop_before(broker, broker.log.end)
        assert expired.holder == "exporter"
        assert exported_end - FILE_BYTES < broker.log.min_offset <= exported_end, "within 256 KiB all of it is kept"
        await fill(broker, 400)
        await drop_before(broker, broker.log.end)
        assert 256 * 1024 <= broker.log.end - broker.log.min_offset < 256 * 1024 + FILE_BYTES, "and no more than that"
        lowest = {queue.queue_id: queue.min_offset for queue in broker.queues if queue.topic == "orders"}
        lost = sum(lowest.values()) - 100
        assert lost > 0
        run = (await export_now(broker))["last_run"]
        assert (run["error"], run["rows"], run["lost"]) == ("", 600 - 100 - lost, lost)
        metrics = Metrics(1000)
        for info, call in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
            if info.name == "exporter":
                call()
        assert metrics.families["gantrymq_exporter_lost_messages_total"].series[()] == lost
    assert {queue.queue_id: queue.lost for queue in export_status(to).queues} == {
        queue_id: offset - 50 for queue_id, offset in lowest.items()
    }
    assert sum(bodies(to).values()) == 600 - lost


@pytest.mark.slow
async def test_a_slave_keeps_no_files_for_the_export_and_counts_them_as_lost_once_promoted(tmp_path: Path) -> None:
    settings = {
        "plugin.exporter.topics": "orders", "plugin.exporter.to": str(tmp_path / "out"), "plugin.exporter.every": "1h",
        "plugin.exporter.nice": "0", "store.commit_log_file_bytes": str(FILE_BYTES), "plugin.retention.keep": "1ms",
        "plugin.retention.check_interval": "50ms", "plugin.retention.at": ";".join(map(str, range(24))),
    }  # fmt: skip

    def make(**role: str) -> Broker:
        return make_broker(tmp_path / "store", settings=settings | role, enable=["exporter"])

    with capture_logs() as logs:
        async with run_broker(make()) as broker:
            await fill(broker, 20)
            assert (await export_now(broker))["last_run"]["rows"] == 20
            await control(broker, "pause")
            await fill(broker, 180)
            await until(lambda: any(line["event"] == "log_files_held" for line in logs))
            assert broker.log.min_offset == 0
    assert {line["plugin"] for line in logs if line["event"] == "log_files_held"} == {"exporter"}
    async with run_broker(make(**{"broker.id": "1"})) as slave:
        await until(lambda: slave.log.min_offset > 0)
    async with run_broker(make()) as promoted:
        lost = sum(queue.min_offset for queue in promoted.queues if queue.topic == "orders") - 20
        run = (await export_now(promoted))["last_run"]
    assert lost > 0
    assert (run["error"], run["rows"], run["lost"]) == ("", 180 - lost, lost)

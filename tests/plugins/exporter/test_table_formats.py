"""The plugin ``exporter`` with tables of Delta Lake and Iceberg as its target."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gantrymq.remoting.channel import open_channel
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.exporting import export_now

for package in ("pyarrow", "deltalake", "pyiceberg"):
    pytest.importorskip(package, reason="pip install 'gantrymq[spark,delta,iceberg]'")

pytestmark = [pytest.mark.once, pytest.mark.trio]


def bodies(file_format: str, to: str) -> Counter[bytes]:
    table: Any
    if file_format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(to).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        warehouse = to_catalog(to)
        table = load_catalog("local", **warehouse).load_table("logs.broker-a").scan().to_arrow()
    return Counter(table.column("body").to_pylist())


def to_catalog(folder: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


@pytest.mark.parametrize("file_format", ["delta", "iceberg"])
@pytest.mark.slow
async def test_each_run_adds_what_is_new_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    to, place = str(tmp_path / "{broker}"), str(tmp_path / "broker-a")
    if file_format == "iceberg":
        to, place = "local.logs.{broker}", str(tmp_path)
        for name, value in to_catalog(place).items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{name.upper()}", value)
    settings = {
        "plugin.exporter.topics": "orders,refunds", "plugin.exporter.to": to, "plugin.exporter.every": "1h",
        "plugin.exporter.nice": "0", "plugin.exporter.format": file_format, "broker.name": "broker-a",
    }  # fmt: skip
    sent: Counter[bytes] = Counter()
    async with run_broker(make_broker(tmp_path / "store", settings=settings, enable=["exporter"])) as broker:
        for number, topic in enumerate(("orders", "orders", "refunds")):
            async with open_channel(broker.address) as channel:
                body = b"%s %d" % (topic.encode(), number)
                assert (await channel.call(send(topic, body))).code == 0
            sent[body] += 1
            if number:
                status = await export_now(broker)
                assert (status["last_run"]["error"], sum(status["lag"].values())) == ("", 0)
                assert (status["last_run"]["rows"], status["format"]) == (2 - number // 2, file_format)
    assert bodies(file_format, place) == sent

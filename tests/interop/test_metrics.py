"""RocketMQ's broker and ours export the same metrics: names, kinds and labels after the same actions."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import gantrymq
from gantrymq import sync
from support.foreign import Java, runtime_info, start_broker, start_nameserver
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.json"
MISSING = {"message_type"}
"""Labels that only RocketMQ has."""
OF_THE_EXPORTER = {"otel_scope_name"}
Shape = dict[str, tuple[str, frozenset[str]]]
"""Kind and labels by name."""


def story(nameserver: str) -> None:
    """Send some messages, one of them delayed, which a consumer reads and acknowledges."""
    with sync.connect(nameserver) as client, client.producer("P") as producer:
        for _ in range(5):
            producer.send("metrics", b"x" * 100)
        producer.send(gantrymq.Message("metrics", b"later", delay_level=18))


def read(url: str) -> Shape:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    shape: Shape = {}
    for line in text_string_to_metric_families(text):
        for sample in line.samples:
            name = sample.name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            labels = frozenset(sample.labels) - OF_THE_EXPORTER - {"le"}
            shape[name] = (line.type, shape.get(name, ("", labels))[1] & labels)
    return {name: row for name, row in shape.items() if name.startswith("rocketmq_")}


def watched(nameserver: str, metrics: Callable[[], str]) -> Shape:
    """The page while a consumer is connected that has read everything."""
    with sync.connect(nameserver) as client, client.consumer("metrics", group="C", start="first") as consumer:
        read(metrics())
        story(nameserver)
        for message, _ in zip(consumer, range(5), strict=False):
            message.ack()
        # offsets are committed at intervals, and the group has metrics from then on
        wait_for(lambda: "rocketmq_consumer_lag_messages" in read(metrics()), 30)
        return read(metrics())


def test_metrics_pages_of_both_brokers_have_the_same_families(
    java5: Java, homes: Callable[[str], Path], tmp_path: Path
) -> None:
    (port,) = free_ports()
    names = start_nameserver(java5, homes("names"))
    try:
        theirs = start_broker(
            java5, homes("broker"), names.address, metricsExporterType="PROM", metricsPromExporterPort=str(port),
            metricsPromExporterHost="127.0.0.1",
        )  # fmt: skip
        try:
            story(names.address)
            expected = watched(names.address, lambda: f"http://127.0.0.1:{port}/metrics")
        finally:
            theirs.discard()
    finally:
        names.discard()
    arguments = [
        "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0",
        "--enable", "metrics", "--set", "plugin.metrics.listen=127.0.0.1:0",
    ]  # fmt: skip
    with gantrymq_child(arguments, tmp_path / "log") as child:
        ready = child.wait_line(lambda text: text.startswith("ready"))
        addresses = dict(part.split("=") for part in ready.split() if "=" in part)
        info = runtime_info(addresses["broker"])
        story(addresses["nameserver"])
        ours = watched(addresses["nameserver"], lambda: f"http://{info['metricsAddress']}/metrics")
    common = ours.keys() & expected.keys()
    assert len(common) >= 15, sorted(ours.keys() ^ expected.keys())
    for name in sorted(common):
        kind, labels = expected[name]  # RocketMQ's exporter tells no kind of what has a unit behind its name
        assert ours[name] == (ours[name][0] if kind == "unknown" else kind, labels - MISSING), name
    golden = {row["shown"] for row in json.loads(GOLDEN.read_text()).values()}
    assert expected.keys() <= golden, "the list in tests/golden is what RocketMQ shows"
    assert ours.keys() <= golden

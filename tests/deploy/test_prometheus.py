"""The alert rules: Prometheus accepts them, each fires, uses metrics that exist, and has a runbook."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import attrs
import pytest

import gantrymq.sync
from gantrymq.testing.harness import Cluster, cluster_in_thread
from support.debian import find_unpacked
from support.foreign import ToolMissing, cache_folder

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (gantrymq[acl])")
    (group,) = yaml.safe_load((FOLDER / "gantrymq.rules.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "gantrymq.rules.yml"), ("test", "rules", "gantrymq.test.yml")], ids=" ".join
)
def test_promtool_accepts_the_rules_and_each_one_fires(arguments: tuple[str, ...]) -> None:
    try:
        promtool = find_unpacked(cache_folder(ROOT / "tests" / "interop" / ".cache"), "promtool", "prometheus")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_is_tested_and_has_a_runbook() -> None:
    names = [rule["alert"] for rule in rules()]
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "gantrymq.test.yml").read_text())
    page = (ROOT / "docs" / "howto" / "alerts.md").read_text()
    assert tested == names
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == names


def test_the_rules_use_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    missing = page.partition("## RocketMQ's metrics that are missing")[2].partition("\n## ")[0]
    known = set(re.findall(r"`((?:gantrymq|rocketmq)_\w+)`", page)) - set(re.findall(r"`(rocketmq_\w+)`", missing))
    used = {name for rule in rules() for name in re.findall(r"(?:gantrymq|rocketmq)_\w+", rule["expr"])}
    assert used
    assert used <= known


# ----------------------------------------------------------------------------------------- a running Prometheus

PATIENCE_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@attrs.frozen
class Watched:
    """A broker, and a Prometheus that scrapes it each second with our rules."""

    cluster: Cluster
    url: str

    def api(self, path: str, **query: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    try:
        program = find_unpacked(cache_folder(ROOT / "tests" / "interop" / ".cache"), "prometheus", "prometheus")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("prometheus")
    metrics, port = free_port(), free_port()
    settings = {"plugin.metrics.listen": f"127.0.0.1:{metrics}"}
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{FOLDER / 'gantrymq.rules.yml'}]\n"
        "scrape_configs: [{job_name: gantrymq, static_configs: [{targets: ['127.0.0.1:%d']}]}]\n" % metrics
    )
    with cluster_in_thread(folder / "store", settings=settings, enable=["metrics"]) as cluster:
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
                 "--storage.tsdb.path=data"],
                cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            found = Watched(cluster, f"http://127.0.0.1:{port}")
            ends = time.monotonic() + PATIENCE_S
            while True:
                try:
                    if found.api("query", query="up == 1")["result"]:
                        break
                except OSError:
                    pass
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < ends, (folder / "log").read_text()
                time.sleep(0.2)
            yield found
        finally:
            process.terminate()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_prometheus_fires_the_alert_of_dead_letters_and_runs_all_queries_of_the_dashboard(
    watched: Watched,
) -> None:
    ends = time.monotonic() + PATIENCE_S
    with gantrymq.sync.connect(watched.cluster.nameserver) as client, client.producer() as producer:
        client.admin.create_topic("orders", 1)
        with client.consumer("orders", "billing", start="first", max_retries=0) as consumer:
            while True:
                producer.send("orders", b"bad")
                next(iter(consumer)).retry()
                firing = [
                    alert["labels"] for alert in watched.api("alerts")["alerts"]
                    if alert["state"] == "firing" and alert["labels"]["alertname"] == "GantryMQDeadLetters"
                ]  # fmt: skip
                if firing:
                    break
                assert time.monotonic() < ends, watched.api("alerts")
                time.sleep(0.5)
            assert [labels["consumer_group"] for labels in firing] == ["billing"]
            board = json.loads((ROOT / "deploy" / "grafana" / "gantrymq.json").read_text())
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    text = target["expr"].replace("$cluster", ".*").replace("$broker", ".*")
                    text = text.replace("$__rate_interval", "1m")
                    found = watched.api("query", query=text)["result"]
                    # A broker without slaves has no lag of replicas, and a new group has no retries.
                    while not found and "replica" not in text and "retried" not in text:
                        assert time.monotonic() < ends, text
                        time.sleep(0.5)  # until the next scrape
                        found = watched.api("query", query=text)["result"]

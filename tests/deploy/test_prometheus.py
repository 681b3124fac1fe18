"""The alert rules: Prometheus accepts them, each fires, uses metrics that exist, and has a runbook."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import gantrymq.sync
from gantrymq.cli.processes.exposition import merge
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication
from gantrymq.plugins.metrics import MetricsPlugin
from gantrymq.testing.harness import Cluster, cluster_in_thread, make_broker, run_broker, run_cluster
from support.debian import find_unpacked
from support.failing_task import Archive
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


def input_series() -> list[tuple[str, str]]:
    """The series of ``gantrymq.test.yml`` and their values, without ``up``, which Prometheus makes."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (gantrymq[acl])")
    (test,) = yaml.safe_load((FOLDER / "gantrymq.test.yml").read_text())["tests"]
    return [(each["series"], each["values"]) for each in test["input_series"] if not each["series"].startswith("up{")]


@pytest.mark.trio
async def test_the_rules_are_tested_with_the_labels_of_a_real_broker(tmp_path: Path) -> None:
    settings = {"plugin.metrics.listen": "127.0.0.1:0", "plugin.ha.listen": "127.0.0.1:0"}
    async with run_cluster(tmp_path / "master", settings=settings, enable=["ha", "metrics", Archive]) as cluster:
        master = cluster.broker
        (plugin,) = (each.plugin for each in master.manager.plugins if isinstance(each.plugin, MetricsPlugin))
        follow = {
            "broker.id": "1", "plugin.ha.master": master.registry.get(Replication).ha_address,
            "plugin.ha.master_broker": master.address,
        }  # fmt: skip
        async with (
            run_broker(make_broker(tmp_path / "slave", settings=follow, enable=["ha"])),
            gantrymq.connect(cluster.nameserver) as client,
            client.producer() as producer,
        ):
            await producer.send("orders", b"x")
            await producer.send("%DLQ%billing", b"x")
            async with client.consumer("orders", "billing", start="first") as consumer:
                message = await anext(consumer)
                master.registry.get(ConsumerOffsets).commit("billing", "orders", message.queue.queue_id, 0)
                names = {series.partition("{")[0] for series, _ in input_series()}
                of_unit = labels_in(merge([], {"broker-a-1": (False, 0)}, "c"))
                labels = of_unit
                with trio.fail_after(20):
                    while not names <= labels.keys():
                        labels = of_unit | await trio.to_thread.run_sync(read_labels, plugin.address)
    for series, _ in input_series():
        name, _, text = series.partition("{")
        assert set(re.findall(r"(\w+)=", text)) == labels[name], name


def read_labels(address: str) -> dict[str, set[str]]:
    """The names of the labels of each series of a broker's page."""
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return labels_in(answer.read())


def labels_in(page: bytes) -> dict[str, set[str]]:
    families = text_string_to_metric_families(page.decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


# ----------------------------------------------------------------------------------------- a running Prometheus

PATIENCE_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Receiver:
    """The receiver of Alertmanager; it also serves the series of ``gantrymq.test.yml``, for which every rule fires."""

    def __init__(self) -> None:
        self.notified: dict[str, str] = {}
        """The receiver's path by the name of the firing alert."""
        self._scrapes = 0
        self._series = [(series, float(values.split()[-1].partition("x")[0])) for series, values in input_series()]
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = own.metrics().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                firing = [each for each in sent["alerts"] if each["status"] == "firing"]
                own.notified.update({each["labels"]["alertname"]: self.path for each in firing})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def metrics(self) -> str:
        self._scrapes += 1
        rows = [(name, value * self._scrapes if "_total{" in name else value) for name, value in self._series]
        return "".join(f"{name} {value}\n" for name, value in rows)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@attrs.frozen
class Watched:
    """A broker, a Prometheus that scrapes it each second with our rules, and an Alertmanager with our routes.

    What the rules and routes wait for is shorter. One scraped address is down, and one is the receiver's.
    """

    cluster: Cluster
    url: str
    receiver: Receiver

    def api(self, path: str, **query: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]


def find_alertmanager(cache: Path) -> list[str]:
    """The command, which has its notification template at a fixed path: an unpacked one sees its own ``/usr/share``."""
    program = find_unpacked(cache, "prometheus-alertmanager", "prometheus-alertmanager")
    if not program.is_relative_to(cache):
        return [str(program)]
    share = program.parents[1] / "share"
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', share]
    found = [*map(str, command), str(program)]
    if subprocess.run([*found, "--version"], capture_output=True, check=False).returncode:
        raise ToolMissing("prometheus-alertmanager is not installed, and an unpacked one needs a mount namespace")
    return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    cache = cache_folder(ROOT / "tests" / "interop" / ".cache")
    try:
        program = find_unpacked(cache, "prometheus", "prometheus")
        start_alertmanager = find_alertmanager(cache)
    except ToolMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("prometheus")
    metrics, port, down, alerts = free_port(), free_port(), free_port(), free_port()
    (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 0s", (FOLDER / "gantrymq.rules.yml").read_text()))
    with ExitStack() as running:
        receiver = Receiver()
        running.callback(receiver.close)
        routes = (FOLDER / "alertmanager.yml").read_text().replace("127.0.0.1:9095", receiver.address)
        routes, count = re.subn(r"(group_wait|group_interval): \w+", r"\1: 1s", routes)
        assert count == 3
        (folder / "alertmanager.yml").write_text(routes)
        targets = [f"127.0.0.1:{metrics}", f"127.0.0.1:{down}", receiver.address]
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [rules.yml]\n"
            f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alerts}']}}]}}]}}\n"
            f"scrape_configs: [{{job_name: gantrymq, static_configs: [{{targets: {targets}}}]}}]\n"
        )
        settings = {"plugin.metrics.listen": f"127.0.0.1:{metrics}"}
        cluster = running.enter_context(cluster_in_thread(folder / "store", settings=settings, enable=["metrics"]))
        log = running.enter_context((folder / "log").open("wb"))
        for command in (
            [*start_alertmanager, "--config.file=alertmanager.yml", f"--web.listen-address=127.0.0.1:{alerts}",
             "--cluster.listen-address=", "--storage.path=alerts"],
            [program, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
             "--storage.tsdb.path=data"],
        ):  # fmt: skip
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
        found = Watched(cluster, f"http://127.0.0.1:{port}", receiver)
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                if len(found.api("query", query="up == 1")["result"]) == 2:
                    break
            except OSError:
                pass
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < ends, (folder / "log").read_text()
            time.sleep(0.2)
        yield found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_rule_fires_in_a_real_prometheus_and_alertmanager_notifies_the_right_receiver(watched: Watched) -> None:
    ends = time.monotonic() + PATIENCE_S
    wanted = {rule["alert"]: "/on-call" if rule["labels"]["severity"] == "critical" else "/team" for rule in rules()}
    while watched.receiver.notified != wanted:
        assert time.monotonic() < ends, watched.receiver.notified
        time.sleep(0.1)


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
                    and alert["labels"]["consumer_group"] == "billing"
                ]  # fmt: skip
                if firing:
                    break
                assert time.monotonic() < ends, watched.api("alerts")
                time.sleep(0.5)
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

"""The metrics of a broker, read by Prometheus's own parser from a real connection."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

import gantrymq
from gantrymq.kernel import hookimpl, hookspecs
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.metrics import Metrics
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication
from gantrymq.plugins.metrics import MetricsPlugin
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.fastjson import loads
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import send
from support.failing_task import Archive
from support.processes import free_ports

pytestmark = pytest.mark.trio

PLUGIN = "gantrymq.plugins.metrics:MetricsPlugin"
HA = "gantrymq.plugins.ha:HaPlugin"
ANYWHERE = {"plugin.metrics.listen": "127.0.0.1:0"}
ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "metrics.json"
"""The metrics of RocketMQ 5.3.3, made from its constants and builders: kind, and the name that a reader is shown."""
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def address_of(broker: Broker) -> str:
    return next(info.plugin.address for info in broker.manager.plugins if isinstance(info.plugin, MetricsPlugin))


async def get(broker: Broker, accept: str = "text/plain") -> tuple[str, str]:
    """The body of the page and its media type."""
    request = urllib.request.Request(f"http://{address_of(broker)}/metrics", headers={"Accept": accept})

    def read() -> tuple[str, str]:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode(), answer.headers["Content-Type"]

    return await trio.to_thread.run_sync(read)


async def scrape(broker: Broker) -> dict[str, Metric]:
    body, _ = await get(broker)
    return {family.name: family for family in parse_classic(body)}


def names_of(families: dict[str, Metric]) -> set[str]:
    return {sample.name for family in families.values() for sample in family.samples}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of that name with these labels, the common ones aside."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and {**sample.labels, **labels} == sample.labels
    ]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


async def test_sent_and_delivered_messages_are_counted(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, settings=ANYWHERE, enable=[PLUGIN]) as cluster:
        await scrape(cluster.broker)  # from now on sizes are counted
        async with gantrymq.connect(cluster.nameserver) as client, client.producer("P") as producer:
            for size in (10, 10, 2000):
                await producer.send("T", b"x" * size)
            await producer.send(gantrymq.Message("T", b"later", delay_level=18))
            offsets = cluster.broker.registry.get(ConsumerOffsets)
            for queue in cluster.broker.queues:
                if queue.topic == "T":
                    offsets.commit("G", "T", queue.queue_id, 0)
            async with client.consumer("T", group="G", start="first") as consumer:
                messages = [await anext(consumer) for _ in range(3)]
                families = await scrape(cluster.broker)
        async with gantrymq.connect(cluster.nameserver) as client, client.producer("P") as producer:
            await producer.send("T", b"nobody pulls this one")
            later = await scrape(cluster.broker)
    for page, ready in ((families, 0), (later, 1)):
        of_group = {"topic": "T", "consumer_group": "G", "is_retry": "false"}
        assert value(page, "rocketmq_consumer_inflight_messages", **of_group) == 3
        assert value(page, "rocketmq_consumer_ready_messages", **of_group) == ready
        queueing = value(page, "rocketmq_consumer_queueing_latency_milliseconds", **of_group)
        assert (0 < queueing < 60_000) if ready else queueing == 0
        assert queueing <= value(page, "rocketmq_consumer_lag_latency_milliseconds", **of_group)
    assert value(families, "rocketmq_messages_in_total", topic="T", is_system="false") == 3
    assert value(families, "rocketmq_messages_in_total", topic="SCHEDULE_TOPIC_XXXX", is_system="true") == 1
    assert value(families, "gantrymq_delayed_messages", level="18") == 1
    stored = value(families, "rocketmq_throughput_in_total", topic="T")
    assert 2020 < stored < 3000
    assert value(families, "rocketmq_messages_out_total", topic="T", consumer_group="G") == len(messages)
    assert value(families, "rocketmq_throughput_out_total", topic="T", consumer_group="G") == stored
    assert value(families, "rocketmq_message_size_bucket", topic="T", le="1024.0") == 2
    assert value(families, "rocketmq_message_size_bucket", topic="T", le="4096.0") == 3
    assert value(families, "rocketmq_message_size_bucket", topic="T", le="+Inf") == 3
    assert value(families, "rocketmq_message_size_sum", topic="T") == stored
    assert value(families, "gantrymq_put_latency_seconds_count") == 4
    assert value(families, "gantrymq_turn_latency_seconds_count") >= 4
    assert 0 < value(families, "gantrymq_turn_latency_seconds_sum") < 60
    assert value(families, "gantrymq_flush_latency_seconds_count") >= 4
    assert value(families, "gantrymq_flush_latency_seconds_sum") > 0
    assert value(families, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G", is_retry="false") == 3
    age = value(families, "rocketmq_consumer_lag_latency_milliseconds", topic="T", consumer_group="G")
    assert 0 <= age < 60_000
    assert value(families, "rocketmq_consumer_connections", consumer_group="G", consume_mode="push") == 1
    assert value(families, "rocketmq_producer_connections", language="python", version="v4_9_7") >= 1
    assert value(families, "gantrymq_metrics_failed_plugins") == 0
    for family in families.values():
        for sample in family.samples:
            assert {**sample.labels, **COMMON} == sample.labels, sample


async def test_a_group_that_has_consumed_everything_is_not_behind(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, settings=ANYWHERE, enable=[PLUGIN]) as cluster:
        async with gantrymq.connect(cluster.nameserver) as client, client.producer("P") as producer:
            result = await producer.send("T", b"x")
        offsets = cluster.broker.registry.get(ConsumerOffsets)
        offsets.commit("G", "T", result.queue.queue_id, result.queue_offset + 1)
        families = await scrape(cluster.broker)
    assert value(families, "rocketmq_consumer_lag_messages", topic="T", consumer_group="G") == 0
    assert value(families, "rocketmq_consumer_lag_latency_milliseconds", topic="T", consumer_group="G") == 0


async def test_ended_transactions_are_counted_by_topic_with_their_latency(tmp_path: Path) -> None:
    outcomes = {b"1": gantrymq.Outcome.COMMIT, b"2": gantrymq.Outcome.ROLLBACK}

    def decide(message: gantrymq.Message, _argument: object) -> gantrymq.Outcome:
        return outcomes[bytes(message.body)]

    def unknown(_message: object) -> gantrymq.Outcome:
        return gantrymq.Outcome.UNKNOWN

    async with run_cluster(tmp_path, settings=ANYWHERE, enable=[PLUGIN]) as cluster:
        async with (
            gantrymq.connect(cluster.nameserver) as client,
            client.transactional_producer("P", check=unknown, local=decide) as producer,
        ):
            for topic, body in (("T", b"1"), ("T", b"2"), ("U", b"1"), ("T", b"1")):
                await producer.send(topic, body)
            with trio.fail_after(20):
                while value(families := await scrape(cluster.broker), "rocketmq_half_messages"):
                    pass
    assert value(families, "rocketmq_commit_messages_total", topic="T") == 2
    assert value(families, "rocketmq_commit_messages_total", topic="U") == 1
    assert value(families, "rocketmq_rollback_messages_total", topic="T") == 1
    assert value(families, "rocketmq_finish_message_latency_milliseconds_bucket", topic="T", le="5.0") == 2
    assert value(families, "rocketmq_finish_message_latency_milliseconds_count", topic="U") == 1


Series = set[tuple[str, frozenset[tuple[str, str]]]]


def series_of(families: dict[str, Metric]) -> Series:
    """Name and labels of all, without those by request code: each code has its series once a request was timed."""
    families_left = [family for name, family in families.items() if name != "rocketmq_rpc_latency_milliseconds"]
    return {(sample.name, frozenset(sample.labels.items())) for family in families_left for sample in family.samples}


async def test_clients_and_slaves_that_reconnect_make_no_new_series(tmp_path: Path) -> None:
    (port,) = free_ports()
    settings = {**ANYWHERE, "plugin.ha.listen": "127.0.0.1:0"}
    async with run_cluster(tmp_path / "master", settings=settings, enable=[HA, PLUGIN]) as cluster:
        master = cluster.broker
        follow = {
            "broker.id": "1", "plugin.ha.master": master.registry.get(Replication).ha_address,
            "plugin.ha.master_broker": master.address, "broker.listen": f"127.0.0.1:{port}",
        }  # fmt: skip

        async def come_and_go() -> Series:
            """Let a slave and clients connect, work and leave; return the series that the page has meanwhile."""
            slave = make_broker(tmp_path / "slave", settings=follow, enable=[HA])
            async with (
                run_broker(slave),
                gantrymq.connect(cluster.nameserver) as client,
                client.producer("P") as producer,
            ):
                for _ in range(8):
                    await producer.send("T", b"x")
                async with client.consumer("T", group="G", start="first") as consumer:
                    for _ in range(8):
                        await (await anext(consumer)).ack()
                    with trio.fail_after(20):
                        while True:
                            families = await scrape(master)
                            if (
                                "gantrymq_replica_lag_bytes" in families
                                and "rocketmq_consumer_lag_messages" in families
                            ):
                                return series_of(families)

        # A member commits the offset of its group's retry queue only if it has got that queue before it leaves.
        master.registry.get(ConsumerOffsets).commit("G", "%RETRY%G", 0, 0)
        known = await come_and_go()
        known |= await come_and_go()
        for _ in range(4):
            assert await come_and_go() - known == set()
        assert series_of(await scrape(master)) - known == set(), "and none when all have left"


async def test_names_and_kinds_are_those_of_rocketmq(tmp_path: Path) -> None:
    golden = {row["shown"]: row["kind"] for row in json.loads(GOLDEN.read_text()).values()}
    async with run_cluster(tmp_path, settings=ANYWHERE, enable=[PLUGIN]) as cluster:
        await scrape(cluster.broker)
        async with gantrymq.connect(cluster.nameserver) as client, client.producer("P") as producer:
            await producer.send("T", b"x")
            async with client.consumer("T", group="G", start="first") as consumer:
                message = await anext(consumer)
                batch = AppendBatch()
                batch.add("%DLQ%G", 0, b"dead", b"")
                cluster.broker.append(batch)
                cluster.broker.registry.get(ConsumerOffsets).commit("G", "T", message.queue_id, 0)
                cluster.broker.log.flush()
                cluster.broker.progress()
                families = await scrape(cluster.broker)
    ours = {name: family for name, family in families.items() if name.startswith("rocketmq_")}
    assert len(ours) == 23, sorted(ours)
    for name, family in ours.items():
        shown = f"{name}_total" if family.type == "counter" else name
        assert golden.get(shown) == family.type, f"{shown}: RocketMQ has it as {golden.get(shown)}, not {family.type}"
    assert all(name.startswith(("rocketmq_", "gantrymq_", "process_")) for name in families)
    assert families["process_cpu_seconds"].samples[0].value > 0
    assert families["process_resident_memory_bytes"].samples[0].value > 1_000_000
    assert families["gantrymq_loop_lag_seconds"].type == "histogram"
    assert families["gantrymq_log_damaged_bytes"].samples[0].value == 0


async def test_the_page_lists_for_each_metric_of_rocketmq_whether_it_is_served() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    listed, _, others = text.partition("\n## RocketMQ's metrics that are missing\n")
    missing = others.partition("\n## ")[0]
    for row in json.loads(GOLDEN.read_text()).values():
        name = row["shown"]
        if not name.startswith("rocketmq_pop_"):
            assert (f"`{name}`" in listed) != (f"`{name}`" in missing), name


async def test_a_client_that_accepts_openmetrics_gets_it(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=ANYWHERE, enable=[PLUGIN])) as broker:
        body, media = await get(broker, "application/openmetrics-text; version=1.0.0")
        assert media.startswith("application/openmetrics-text")
        families = {family.name: family for family in parse_openmetrics(body)}
        assert "rocketmq_topic_number" in families
        assert "gantrymq_pulls_found" in families
        _, media = await get(broker)
        assert media.startswith("text/plain")


def slave_of(master: Broker) -> dict[str, str]:
    return {
        "broker.id": "1", "plugin.ha.master": master.registry.get(Replication).ha_address,
        "plugin.ha.master_broker": master.address, **ANYWHERE,
    }  # fmt: skip


async def test_master_and_slave_have_replication_metrics(tmp_path: Path) -> None:
    settings = {**ANYWHERE, "plugin.ha.listen": "127.0.0.1:0"}
    async with run_broker(make_broker(tmp_path / "master", settings=settings, enable=[HA, PLUGIN])) as master:
        follow = slave_of(master)
        assert value(await scrape(master), "gantrymq_replicas") == 0
        async with run_broker(make_broker(tmp_path / "slave", settings=follow, enable=[HA, PLUGIN])) as slave:
            with trio.fail_after(20):
                while value(families := await scrape(master), "gantrymq_replicas") == 0:
                    pass
                (sample,) = families["gantrymq_replica_lag_bytes"].samples
                assert sample.labels["replica"] == "127.0.0.1"
                (seconds,) = families["gantrymq_replica_lag_seconds"].samples
                assert seconds.labels["replica"] == sample.labels["replica"]
                while value(families := await scrape(slave), "gantrymq_replica_connected") == 0:
                    pass
            assert value(families, "gantrymq_replica_lag_bytes", replica=slave.address) == 0
            assert value(families, "gantrymq_replica_lag_seconds", replica=slave.address) >= 0
            assert value(families, "gantrymq_broker_info", broker_id="1") == 1


async def test_only_the_master_counts_replicated_messages_as_incoming(tmp_path: Path) -> None:
    settings = {**ANYWHERE, "plugin.ha.listen": "127.0.0.1:0"}
    async with run_broker(make_broker(tmp_path / "master", settings=settings, enable=[HA, PLUGIN])) as master:
        follow = slave_of(master)
        async with run_broker(make_broker(tmp_path / "slave", settings=follow, enable=[HA, PLUGIN])) as slave:
            for broker in (master, slave):
                await scrape(broker)  # sizes are counted from the first one on
            batch = AppendBatch()
            for topic in ("orders", "%RETRY%readers", "%DLQ%readers"):
                batch.add(topic, 0, b"x", b"")
            master.append(batch)
            master.log.flush()
            master.progress()
            async with open_channel(slave.address) as channel:
                stored = 0
                with trio.fail_after(20):
                    while stored < 3:
                        on_slave = await scrape(slave)
                        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), 10.0)
                        stored = int(loads(answer.body)["table"]["putMessageTimesTotal"])
            incoming = {
                "rocketmq_messages_in_total", "rocketmq_throughput_in_total", "rocketmq_message_size_bucket",
                "rocketmq_send_to_dlq_messages_total", "gantrymq_messages_retried_total",
            }  # fmt: skip
            assert not incoming & names_of(on_slave)
            assert incoming <= names_of(await scrape(master))


class Loud:
    """Tells a great deal, and then fails."""

    name = "loud"

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        for number in range(5000):
            metrics.gauge("loud_rooms", "Rooms", number, room=f'no. {number} "a\\b"\n')
        metrics.later(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        raise RuntimeError("no more")


def with_loud(path: Path, **settings: str) -> Broker:
    given = {"broker.data": str(path), "broker.listen": "127.0.0.1:0", "store.commit_log_file_bytes": "1 MiB"}
    sets = [f"{key}={text}" for key, text in {**given, **ANYWHERE, **settings}.items()]
    read = read_settings(sets=sets, enable=[PLUGIN, f"{__name__}:Loud"], disable=["register"])
    manager: Any = load_plugins(DEFAULT_PLUGINS, [PLUGIN], ["register"])
    manager = PluginManager([*((info.origin, info.plugin) for info in manager.plugins), ("loud", Loud())], hookspecs)
    return Broker(build_config(read, manager), manager, SystemEnv())


async def test_a_failing_plugin_omits_its_part_and_an_excessive_one_is_truncated(tmp_path: Path) -> None:
    async with run_broker(with_loud(tmp_path, **{"plugin.metrics.series_max": "200"})) as broker:
        families = await scrape(broker)
    assert value(families, "gantrymq_metrics_failed_plugins") == 2
    assert value(families, "rocketmq_topic_number") > 0, "what has one series keeps it"
    reported = len(families["loud_rooms"].samples)
    assert 100 < reported < 200
    assert value(families, "gantrymq_metrics_dropped_series") == 5000 - reported
    assert families["loud_rooms"].samples[0].labels["room"] == 'no. 0 "a\\b"\n'


class Careless:
    """Has labels that are not texts, and a value that is not a number."""

    name = "careless"

    @hookimpl
    def collect_metrics(self, metrics: Metrics) -> None:
        metrics.gauge("careless_rooms", "Rooms", 3, number=7, owner="\udcff")
        metrics.gauge("careless_doors", "Doors", None)  # type: ignore[arg-type]


async def test_a_plugin_with_wrong_labels_and_values_leaves_the_page_to_the_others(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=ANYWHERE, enable=[PLUGIN, Careless])) as broker:
        families = await scrape(broker)
    assert value(families, "careless_rooms", number="7", owner="?") == 3
    assert "careless_doors" not in families
    assert value(families, "gantrymq_metrics_failed_plugins") == 1
    assert value(families, "rocketmq_topic_number") > 0


async def test_a_failed_task_of_a_skipped_plugin_is_counted(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=ANYWHERE, enable=[PLUGIN, Archive])) as broker:
        families = await scrape(broker)
    assert value(families, "gantrymq_plugin_failed_tasks", plugin="archive") == 1
    assert len(families["gantrymq_plugin_failed_tasks"].samples) == 1


async def test_runtime_info_has_the_address_of_the_metrics(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=ANYWHERE, enable=[PLUGIN])) as broker:
        info = {key: text for part in broker.manager.hook.runtime_info(broker=broker) for key, text in part.items()}
        assert info["metricsAddress"] == address_of(broker)
        taken = make_broker(tmp_path / "two", settings={"plugin.metrics.listen": address_of(broker)}, enable=[PLUGIN])
        with pytest.raises(StartError, match="metrics cannot be served on"):
            await taken.run()


async def test_without_the_extra_the_start_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gantrymq.plugins.metrics.server", None)
    broker = make_broker(tmp_path, settings=ANYWHERE, enable=[PLUGIN])
    with pytest.raises(StartError, match=r"gantrymq\[metrics\]"):
        await broker.run()


async def test_bytes_of_a_quarantined_record_are_counted(tmp_path: Path) -> None:
    async def damaged_bytes() -> float:
        async with run_broker(make_broker(tmp_path, enable=[PLUGIN], settings=ANYWHERE)) as broker:
            async with open_channel(broker.address) as channel:
                for body in (b"first " * 20, b"second " * 20):
                    assert (await channel.call(send("T", body), 10.0)).code == 0
            return value(await scrape(broker), "gantrymq_log_damaged_bytes")

    assert await damaged_bytes() == 0
    log_file = min((tmp_path / "commitlog").iterdir())
    with log_file.open("r+b") as file:
        size = int.from_bytes(file.read(4), "big")
        file.seek(file.read(1000).index(b"first first") + 4)
        file.write(b"FIRST")
    checked = await trio.run_process(
        [sys.executable, "-m", "gantrymq.cli", "store", "check", "--data", str(tmp_path), "--quarantine"], check=False
    )
    assert checked.returncode == 1, "something was damaged"
    assert await damaged_bytes() == size > 100


async def test_times_of_hooks_are_there_only_where_they_are_wanted(tmp_path: Path) -> None:
    for wanted in ("false", "true"):
        settings = {**ANYWHERE, "plugin.metrics.hook_times": wanted}
        async with run_broker(make_broker(tmp_path / wanted, enable=[PLUGIN], settings=settings)) as broker:
            async with open_channel(broker.address) as channel:
                for _ in range(3):
                    await channel.call(send("T", b"x"), 10.0)
            assert broker.manager.activity.times.is_on == (wanted == "true")
            families = await scrape(broker)
    samples = {
        (sample.name, sample.labels["plugin"], sample.labels["hook"]): sample.value
        for sample in families["gantrymq_plugin_seconds"].samples
        if not sample.name.endswith("_bucket")
    }
    assert samples["gantrymq_plugin_seconds_count", "topics", "before_append"] == 3
    assert samples["gantrymq_plugin_seconds_sum", "topics", "before_append"] > 0


async def test_without_the_setting_no_hook_is_timed(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, enable=[PLUGIN], settings=ANYWHERE)) as broker:
        assert "gantrymq_plugin_seconds" not in await scrape(broker)

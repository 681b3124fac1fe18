"""Which brokers report the lag of consumer groups, and of which groups."""

from __future__ import annotations

from pathlib import Path

import pytest

import gantrymq
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.metrics import Metrics
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication
from gantrymq.plugins.offsets import lag
from gantrymq.remoting.epoch import read_epoch
from gantrymq.testing.harness import make_broker, run_broker, run_cluster

pytestmark = pytest.mark.trio

HA = {"plugin.ha.listen": "127.0.0.1:0"}


def lags(broker: Broker) -> set[str]:
    """The metrics of the lag of a group that has committed an offset at ``broker``."""
    broker.registry.get(ConsumerOffsets).commit("G", "T", 0, 0)
    return {name for name in scrape(broker).families if name.startswith("rocketmq_consumer_lag")}


def scrape(broker: Broker) -> Metrics:
    metrics = Metrics(1000)
    broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
    for work in metrics.work():
        work()
    return metrics


async def test_a_master_reports_the_lag_of_groups_until_it_is_fenced(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=HA, enable=["ha"])) as master:
        assert lags(master) == {"rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"}
        master.registry.get(Replication).learn_epoch(read_epoch("7-00000001"), "a test")
        assert lags(master) == set()


async def test_a_slave_reports_no_lag_of_groups(tmp_path: Path) -> None:
    settings = {**HA, "broker.id": "1", "plugin.ha.master": "127.0.0.1:1"}
    async with run_broker(make_broker(tmp_path, settings=settings, enable=["ha"])) as slave:
        assert lags(slave) == set()


async def test_beyond_the_limit_of_reads_each_group_has_a_latency_after_a_few_scrapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "READS_MAX", 1)
    async with (
        run_cluster(tmp_path) as cluster,
        gantrymq.connect(cluster.nameserver) as client,
        client.producer() as producer,
    ):
        queues = {(await producer.send("orders", b"x")).queue.queue_id for _ in range(4)}
        assert len(queues) > 1, "the groups lag in more queues than a scrape reads"
        offsets = cluster.broker.registry.get(ConsumerOffsets)
        for group in ("A", "B", "C"):
            for queue_id in queues:
                offsets.commit(group, "orders", queue_id, 0)
        found = []
        for _ in range(4):
            families = scrape(cluster.broker).families
            (left_out,) = families["gantrymq_consumer_lag_latency_left_out_groups"].series.values()
            found.append((len(families["rocketmq_consumer_lag_latency_milliseconds"].series), left_out))
    assert found == [(1, 2), (2, 2), (3, 2), (3, 2)]

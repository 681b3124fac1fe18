"""Which brokers report the lag of consumer groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.metrics import Metrics
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication
from gantrymq.remoting.epoch import read_epoch
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio

HA = {"plugin.ha.listen": "127.0.0.1:0"}


def lags(broker: Broker) -> set[str]:
    """The metrics of the lag of a group that has committed an offset at ``broker``."""
    broker.registry.get(ConsumerOffsets).commit("G", "T", 0, 0)
    metrics = Metrics(1000)
    broker.manager.hook.collect_metrics(broker=broker, metrics=metrics)
    for work in metrics.work():
        work()
    return {name for name in metrics.families if name.startswith("rocketmq_consumer_lag")}


async def test_a_master_reports_the_lag_of_groups_until_it_is_fenced(tmp_path: Path) -> None:
    async with run_broker(make_broker(tmp_path, settings=HA, enable=["ha"])) as master:
        assert lags(master) == {"rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"}
        master.registry.get(Replication).learn_epoch(read_epoch("7-00000001"), "a test")
        assert lags(master) == set()


async def test_a_slave_reports_no_lag_of_groups(tmp_path: Path) -> None:
    settings = {**HA, "broker.id": "1", "plugin.ha.master": "127.0.0.1:1"}
    async with run_broker(make_broker(tmp_path, settings=settings, enable=["ha"])) as slave:
        assert lags(slave) == set()

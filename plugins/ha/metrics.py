"""Metrics of replication. RocketMQ's brokers have none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.plugins.ha.copies import Copies
from gantrymq.plugins.ha.lag import lag_seconds

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.ha.slave import Slave

_BYTES: Final = "gantrymq_replica_lag_bytes", "How much of the master's log the replica has not got, in bytes"
_SECONDS: Final = "gantrymq_replica_lag_seconds", "For how long the replica has not had everything"


def report_master(metrics: Metrics, broker: Broker, copies: Copies) -> None:
    """Report a master's slaves by host, with the lag of each."""
    now, end = broker.env.monotonic(), broker.log.end
    metrics.gauge("gantrymq_replicas", "Slaves that are connected", len(copies))
    for copy in copies:
        metrics.gauge(*_BYTES, max(end - copy.acknowledged, 0), replica=copy.label)
        metrics.gauge(*_SECONDS, lag_seconds(copy, end, now), replica=copy.label)


def report_slave(metrics: Metrics, broker: Broker, slave: Slave) -> None:
    """Report a slave's lag behind the known end of its master's log, by the slave's address."""
    metrics.gauge("gantrymq_replica_connected", "1 while the slave follows its master", int(bool(slave.connected_to)))
    metrics.gauge(*_BYTES, max(slave.master_end - broker.store.dispatched, 0), replica=broker.address)
    metrics.gauge(*_SECONDS, slave.lag_s(), replica=broker.address)

"""Runtime information about replication, as texts by name.

``haMasterAddress`` and similar names are GantryMQ's: RocketMQ 4.9.7 reports slaves only in its logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.ha.copies import Copies
from gantrymq.plugins.ha.lag import lag_seconds

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.ha.slave import Slave


def master_info(broker: Broker, copies: Copies, address: str, role: str) -> dict[str, str]:
    """Return a master's role, and for each slave the acknowledged offset and the lag in bytes and seconds."""
    info = {"brokerRole": role.upper(), "haServerAddr": address, "haSlaves": str(len(copies))}
    now, end = broker.env.monotonic(), broker.log.end
    for number, copy in enumerate(copies):
        info[f"haSlave_{number}"] = (
            f"address={copy.address}, acknowledged={copy.acknowledged}, lagBytes={max(end - copy.acknowledged, 0)}, "
            f"lagSeconds={lag_seconds(copy, end, now):.1f}, sent={copy.sent}, start={copy.start}"
            + (f", stoppedAt={copy.stopped_at}" if copy.stopped_at >= 0 else "")
        )
    return info


def slave_info(broker: Broker, slave: Slave) -> dict[str, str]:
    """Return a slave's master, and its lag behind the known end of the master's log."""
    silent = broker.env.monotonic() - slave.heard_at if slave.heard_at else -1.0
    return {
        "brokerRole": "SLAVE",
        "haMasterAddress": slave.connected_to,
        "haMasterOffset": str(slave.master_end),
        "haOffset": str(broker.store.dispatched),
        "haLagBytes": str(max(slave.master_end - broker.store.dispatched, 0)),
        "haLagSeconds": f"{slave.lag_s():.1f}",
        "haMasterSilentSeconds": f"{silent:.1f}",
    }

"""Who is who changes while the broker runs: its number is changed, and it starts again as what it is then.

A restart in the same process, through the same stop and start as ever: what was acknowledged is on the disk, and the
log goes on behind it. RocketMQ's name of the number is ``brokerId`` (UPDATE_BROKER_CONFIG, 25); its own brokers change
roles only where DLedger or a controller says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.ha")


def change_number(broker: Broker, wanted: int, master_at: str) -> bool:
    """Start again with the number ``wanted``; False when it is that already.

    ``master_at``: the master that is followed now, empty for none.
    :class:`RemoteFault` names what stands against it.
    """
    if wanted == broker.broker_id:
        return False
    reason = fixed_number(broker)
    if reason:
        raise _refused(reason)
    if wanted == 0 and master_at:
        raise _refused(f"the master is there, at {master_at}: stop it first, or both would take messages")
    log.warning("role_changed", number=broker.broker_id, wanted=wanted)
    broker.restart()
    return True


def fixed_number(broker: Broker) -> str:
    """Why the broker's number cannot be changed while it runs; empty where it can."""
    origin, source = origin_of(broker, "broker", "id")
    if origin not in ("environment", "flag"):
        return ""
    return (
        f"broker.id is set by {origin} {source}, which stands over what is changed here: change it there "
        "and start the broker again"
    )


def origin_of(broker: Broker, section: str, key: str) -> tuple[str, str]:
    """Where a setting's value comes from: its origin, and the file, flag or variable by name."""
    row = next(row for row in broker.config.explain() if (row.section, row.key) == (section, key))
    return row.origin, row.source


def _refused(reason: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, reason)

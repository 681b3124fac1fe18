"""Change the broker's role at run time: change its id and restart it in the new role.

The restart happens in the same process, with the ordinary stop and start: acknowledged messages are on the disk, and
the log continues behind them. RocketMQ's name of the id is ``brokerId`` (UPDATE_BROKER_CONFIG, 25); RocketMQ's own
brokers change roles only by DLedger or a controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")


def change_number(broker: Broker, wanted: int, master_at: str) -> bool:
    """Restart with the id ``wanted``; False if the broker has it already.

    :class:`RemoteFault` gives the reason if the id cannot be changed. ``master_at``: the current master, empty for
    none.
    """
    if wanted == broker.broker_id:
        return False
    reason = fixed_number(broker)
    if reason:
        raise _refused(reason)
    if wanted == 0:
        refuse_beside_master(master_at)
    log.warning("role_changed", number=broker.broker_id, wanted=wanted)
    broker.restart()
    return True


def refuse_beside_master(master: str) -> None:
    """Raise :class:`RemoteFault` if there is a ``master``, a text that names it; empty for none."""
    if master:
        raise _refused(f"the current master is {master}: stop it first, or both would accept messages")


def fixed_number(broker: Broker) -> str:
    """Return why the broker's id cannot be changed at run time; empty if it can."""
    origin, source = origin_of(broker, "broker", "id")
    if origin not in ("environment", "flag"):
        return ""
    return (
        f"broker.id is set by {origin} {source}, which overrides changes at run time: change it there "
        "and start the broker again"
    )


def origin_of(broker: Broker, section: str, key: str) -> tuple[str, str]:
    """Return the origin of a setting's value, and the name of the file, flag or variable."""
    row = next(row for row in broker.config.explain() if (row.section, row.key) == (section, key))
    return row.origin, row.source


def _refused(reason: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, reason)

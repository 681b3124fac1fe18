"""Makes a promoted master that is fenced a slave again, with the id that it had as a slave.

The configuration of such a broker has the id of a slave, and a promotion has overridden it with 0 in
``config/overrides.toml``. If the configuration itself makes the broker the master, its id is not changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

RESPONSE_S: Final = 2.0
"""How long a nameserver may take to report the ids in use, in seconds."""


async def become_slave(broker: Broker, number: int, reason: str) -> None:
    """Restart as a slave with the id ``number``, or with the lowest free one; returns when the restart has begun.

    :class:`RemoteFault` if the id cannot be stored for the next start.
    """
    taken = await _numbers_in_use(broker)
    if number in taken:
        number = next(free for free in range(1, len(taken) + 2) if free not in taken)
    log.info("fenced_master_returns", number=number, reason=reason)
    broker.registry.get(LiveSettings).update(b"brokerId=%d\n" % number)


async def _numbers_in_use(broker: Broker) -> Collection[int]:
    """Return the ids of the other brokers of this name, from the first nameserver that answers; empty if none does."""
    for nameserver in broker.config.broker.nameservers:
        try:
            with trio.fail_after(RESPONSE_S):
                async with open_channel(nameserver) as channel:
                    answer = await channel.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            found = ClusterInfo.from_bytes(answer.body or b"{}").broker_addr_table.get(broker.name)
        except (ConnectError, RemoteFault, ValueError, trio.TooSlowError):
            continue
        addresses = {} if found is None else found.broker_addrs
        return {number for number, address in addresses.items() if address != broker.address}
    return ()

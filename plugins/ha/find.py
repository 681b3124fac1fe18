"""Find a slave's master through the nameservers, without a registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker


async def find_master(broker: Broker) -> str:
    """Return the client address of the master with this broker's name; empty if no nameserver reports it."""
    for nameserver in broker.config.broker.nameservers:
        try:
            async with open_channel(nameserver) as channel:
                answer = await channel.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
                if answer.code or not answer.body:
                    continue
                table = ClusterInfo.from_bytes(answer.body).broker_addr_table
        except (ConnectError, RemoteFault):
            continue
        known = table.get(broker.name)
        address = "" if known is None else known.broker_addrs.get(0, "")
        if address and address != broker.address:
            return address
    return ""

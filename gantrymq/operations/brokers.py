"""The master brokers of a cluster, and what a broker reports of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from gantrymq.client.routes import MASTER_ID
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError

if TYPE_CHECKING:
    from gantrymq.client import Client


RESPONSE_S: Final = 3.0
"""How long a broker may take to report of itself."""


async def master_addresses(client: Client) -> dict[str, str]:
    """Broker name to the address of its master, sorted by name; brokers without a master are left out."""
    info = await client.admin.cluster()
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER_ID in data.broker_addrs
    }


async def runtime_info(client: Client, address: str) -> dict[str, str]:
    """The runtime information of the broker at ``address`` (GET_BROKER_RUNTIME_INFO); empty if it does not respond."""
    with anyio.move_on_after(RESPONSE_S):
        try:
            answer = await client.admin.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            return dict(KVTable.from_bytes(answer.body).table)
        except GantryError:
            pass
    return {}

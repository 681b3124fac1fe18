"""The master brokers of a cluster, and what a broker reports of itself."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final

import anyio

from gantrymq.client.masters import check_masters, masters_in, without_master
from gantrymq.remoting.address import decode_host, format_address
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.message_ids import parse_offset_message_id

if TYPE_CHECKING:
    from gantrymq.client import Client


RESPONSE_S: Final = 3.0
"""How long a broker may take to report of itself."""


async def master_addresses(client: Client) -> dict[str, str]:
    """Broker name to the address of its master, sorted by name; brokers without a master are left out."""
    return masters_in(await client.admin.cluster())


async def brokers_without_master(client: Client, cluster: str | None = None) -> list[str]:
    """Return the names of the brokers of which only slaves are registered, sorted; of one cluster, or of all."""
    return without_master(await client.admin.cluster(), cluster)


async def require_masters(client: Client, consequence: str, brokers: Container[str] | None = None) -> None:
    """Raise :class:`NoRoute` if a broker, or one of ``brokers``, has no master; ``consequence`` ends its text."""
    check_masters(await client.admin.cluster(), consequence, brokers)


async def runtime_info(client: Client, address: str) -> dict[str, str]:
    """The runtime information of the broker at ``address`` (GET_BROKER_RUNTIME_INFO); empty if it does not respond."""
    with anyio.move_on_after(RESPONSE_S):
        try:
            answer = await client.admin.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
            return dict(KVTable.from_bytes(answer.body).table)
        except GantryError:
            pass
    return {}


async def locate(client: Client, message_id: str) -> tuple[str, int] | None:
    """The broker's address and the log offset in a broker's message id; None if it is no such id, or of no broker of
    the cluster."""
    try:
        host, offset = parse_offset_message_id(message_id)
        address = format_address(*decode_host(host))
    except ValueError:
        return None
    info = await client.admin.cluster()
    brokers = {each for data in info.broker_addr_table.values() for each in data.broker_addrs.values()}
    return (address, offset) if address in brokers else None

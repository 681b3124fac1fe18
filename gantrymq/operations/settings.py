"""Read and change the settings of running brokers and nameservers, as ``mqadmin updateBrokerConfig`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.javaproperties import read_properties, write_properties

if TYPE_CHECKING:
    from gantrymq.client import Client


async def servers(client: Client, name: str | None = None, *, nameservers: bool = False) -> dict[str, str]:
    """The address of each server and its label, in order: all brokers, or those with this name or address.

    With ``nameservers``, all nameservers.
    """
    if nameservers:
        return {address: "nameserver" for address in client.admin.nameservers if name in (None, address)}
    info = await client.admin.cluster()
    return {
        address: f"{broker} (id {number})"
        for broker, data in sorted(info.broker_addr_table.items())
        for number, address in sorted(data.broker_addrs.items())
        if name in (None, broker, address)
    }


async def read_settings(client: Client, address: str, *, nameserver: bool = False) -> dict[str, str]:
    """The settings of the server in order, under RocketMQ's names; GantryMQ's brokers also have their own names."""
    code = RequestCode.GET_NAMESRV_CONFIG if nameserver else RequestCode.GET_BROKER_CONFIG
    return dict(sorted(read_properties((await client.admin.request(address, Command(code))).body).items()))


async def change_settings(
    client: Client, address: str, changes: Mapping[str, str], *, nameserver: bool = False
) -> None:
    """Change settings of the server. :class:`BrokerError` names one that it does not change."""
    code = RequestCode.UPDATE_NAMESRV_CONFIG if nameserver else RequestCode.UPDATE_BROKER_CONFIG
    await client.admin.request(address, Command(code, body=write_properties(changes)))

"""The connected clients of a cluster, and how to disconnect one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from gantrymq.client.errors import BrokerError
from gantrymq.client.groups import connections_at, group_names
from gantrymq.operations.brokers import master_addresses
from gantrymq.operations.groups import AT_ONCE
from gantrymq.remoting.bodies.clients import ProducerTable
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.headers.groups import CloseConnectionsHeader, CloseConnectionsResponse
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.names import is_system_group

if TYPE_CHECKING:
    from gantrymq.client import Client

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of each client of RocketMQ, for messages that go back to the broker."""


@attrs.define
class ConnectedClient:
    """One client in one group, with the masters that it is connected to.

    ``kind``: ``consumer`` or ``producer``. ``address``: that of its connection to the first of the ``brokers``.
    ``last_heartbeat_ms``: ms since 1970; brokers report it of producers only.
    """

    client_id: str
    kind: str
    group: str
    address: str
    language: str
    version: int
    last_heartbeat_ms: int | None
    brokers: list[str]


@attrs.frozen
class Disconnected:
    """How many connections of the client the broker has closed; ``error``: why it could not be asked."""

    broker: str
    address: str
    closed: int
    error: str | None = None


async def connected_clients(client: Client, *, system: bool = False) -> list[ConnectedClient]:
    """Return the clients of all masters, sorted; those in RocketMQ's own groups only with ``system``.

    Errors of the masters, such as :class:`BrokerError` if one refuses to list members, are raised in a group.
    """
    found: dict[tuple[str, str, str], ConnectedClient] = {}
    names = await group_names(client.admin, system=system)
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def add_consumers(broker: str, address: str, group: str) -> None:
        async with limit:
            for each in await _consumers(client, address, group):
                _add(found, each, broker)

    masters = await master_addresses(client)
    async with anyio.create_task_group() as tasks:
        for broker, address in masters.items():
            for group in names:
                tasks.start_soon(add_consumers, broker, address, group)
    return sorted(
        [*_in_order(found), *await connected_producers(client, system=system)],
        key=lambda each: (each.client_id, each.kind, each.group),
    )


async def connected_producers(client: Client, *, system: bool = False) -> list[ConnectedClient]:
    """Return the producers of all masters, sorted, with one request to each; see :func:`connected_clients`."""
    found: dict[tuple[str, str, str], ConnectedClient] = {}
    for broker, address in (await master_addresses(client)).items():
        for each in await _producers(client, address):
            if system or not (each.group == INNER_PRODUCER or is_system_group(each.group)):
                _add(found, each, broker)
    return _in_order(found)


def _in_order(found: dict[tuple[str, str, str], ConnectedClient]) -> list[ConnectedClient]:
    for each in found.values():
        each.brokers.sort()
    return [found[key] for key in sorted(found)]


def _add(found: dict[tuple[str, str, str], ConnectedClient], each: ConnectedClient, broker: str) -> None:
    found.setdefault((each.client_id, each.kind, each.group), each).brokers.append(broker)


async def _consumers(client: Client, address: str, group: str) -> Iterable[ConnectedClient]:
    return [
        ConnectedClient(each.client_id, "consumer", group, each.client_addr, each.language, each.version, None, [])
        for each in await connections_at(client.admin, address, group)
    ]


async def _producers(client: Client, address: str) -> Iterator[ConnectedClient]:
    answer = await client.admin.request(address, Command(RequestCode.GET_ALL_PRODUCER_INFO))
    return (
        ConnectedClient(
            each.client_id,
            "producer",
            group,
            each.remote_ip.removeprefix("/"),
            each.language,
            each.version,
            each.last_update_timestamp,
            [],
        )
        for group, members in ProducerTable.from_bytes(answer.body).data.items()
        for each in members
    )


async def disconnect(client: Client, client_id: str) -> list[Disconnected]:
    """Let every broker, slaves too, close the connections of the client; it may connect again.

    Its queues go to the other members of its groups at once. Only brokers of GantryMQ can do this.
    """
    info = await client.admin.cluster()
    rows = []
    for name, data in sorted(info.broker_addr_table.items()):
        for _, address in sorted(data.broker_addrs.items()):
            rows.append(await _disconnect(client, client_id, name, address))
    return rows


async def _disconnect(client: Client, client_id: str, broker: str, address: str) -> Disconnected:
    header = CloseConnectionsHeader(client_id=client_id)
    try:
        answer = await client.admin.request(address, Command(RequestCode.CLOSE_CLIENT_CONNECTIONS, header.to_ext()))
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            reason = "it cannot close connections of clients: it is a broker of RocketMQ or an older one of GantryMQ"
            return Disconnected(broker, address, 0, reason)
        return Disconnected(broker, address, 0, str(error))
    except GantryError as error:
        return Disconnected(broker, address, 0, str(error))
    return Disconnected(broker, address, read_header(CloseConnectionsResponse, answer.ext).closed)

"""Consumer groups: members, an overview, and deletion. Source: RocketMQ 4.9.7 ``DefaultMQAdminExtImpl``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from gantrymq.client.errors import BrokerError, CallTimeout
from gantrymq.client.groups import (
    POSITION_GROUP,
    Masters,
    OffsetReset,
    QueueLag,
    connections_at,
    group_lags,
    group_names,
)
from gantrymq.client.topics import NOTHING_DELETED
from gantrymq.operations.brokers import master_addresses, require_masters
from gantrymq.remoting.bodies.clients import ClientConnection
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.groups import DeleteGroupHeader, RunningInfoHeader
from gantrymq.remoting.names import dlq_topic, is_retry_topic, retry_topic
from gantrymq.remoting.tasks import concurrent_tasks

if TYPE_CHECKING:
    from gantrymq.client import Client

AT_ONCE: Final = 16
"""Groups that are asked about at the same time."""
MEMBERS_AT_ONCE: Final = 64
"""Members that are asked at the same time: each waiting question is kept by its broker."""
MEMBERS_SECONDS: Final = 5.0
"""How long all members of a group together have for their reports."""


@attrs.frozen
class Member:
    """One consumer. ``subscriptions``: topic to expression, as the member reports; None if it did not answer."""

    client_id: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str] | None


async def group_members(
    client: Client, group: str, *, ask: bool = False, masters: Masters | None = None
) -> list[Member]:
    """Return the members that are connected, sorted by client id; with ``ask`` each is asked for its subscriptions.

    :class:`BrokerError` if a broker refuses to list them.
    """
    connections = [pair async for pair in _connections(client, group, masters)]
    reports = await _reports(client, group, connections) if ask else {}
    found: dict[str, Member] = {}
    for _, each in connections:
        report = reports.get(each.client_id)
        subscriptions = None if report is None else report.subscriptions
        member = Member(each.client_id, each.client_addr, each.language, each.version, subscriptions)
        found.setdefault(each.client_id, member)
    return [found[name] for name in sorted(found)]


async def member_reports(client: Client, group: str) -> dict[str, MemberReport | None]:
    """Return what each connected member reports of itself, by client id; None for a member that does not answer."""
    return await _reports(client, group, [pair async for pair in _connections(client, group)])


async def _reports(
    client: Client, group: str, connections: Sequence[tuple[str, ClientConnection]]
) -> dict[str, MemberReport | None]:
    """Ask all members at the same time: one that hangs delays the others by no more than its own time."""
    found: dict[str, MemberReport | None] = dict.fromkeys(each.client_id for _, each in connections)
    limit = anyio.CapacityLimiter(MEMBERS_AT_ONCE)

    async def ask(address: str, client_id: str) -> None:
        async with limit:
            report = await member_report(client, address, group, client_id)
        found[client_id] = found[client_id] or report

    with anyio.move_on_after(MEMBERS_SECONDS):
        async with concurrent_tasks() as tasks:
            for address, each in connections:
                tasks.start_soon(ask, address, each.client_id)
    return found


async def member_report(client: Client, address: str, group: str, client_id: str) -> MemberReport | None:
    """Return the report of a member that is connected to the broker at ``address``; None if it does not answer, or if
    the broker refuses to ask it."""
    header = RunningInfoHeader(consumer_group=group, client_id=client_id)
    try:
        answer = await client.admin.request(address, Command(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext()))
    except CallTimeout:
        return None  # the broker waits for the member, which hangs
    except BrokerError:
        return None  # any code: the broker passes on what the member answers
    return MemberReport.from_bytes(answer.body)


async def _connections(
    client: Client, group: str, masters: Masters | None = None
) -> AsyncIterator[tuple[str, ClientConnection]]:
    """The connections of the group's members, each with the address of its broker."""
    for address in (await master_addresses(client) if masters is None else masters).values():
        for each in await connections_at(client.admin, address, group):
            yield address, each


def differing(members: Sequence[Member]) -> bool:
    """Return whether two members subscribe to different topics or expressions, so that messages of the group get
    lost."""
    known = [member.subscriptions for member in members if member.subscriptions is not None]
    return any(subscriptions != known[0] for subscriptions in known)


@attrs.define
class Overview:
    """A group in a list."""

    group: str
    members: int = 0
    topics: int = 0
    lag: int = 0


async def overview(client: Client, names: Sequence[str], masters: Masters | None = None) -> list[Overview]:
    """Return the number of members and topics and the lag of each group."""
    rows = [Overview(name) for name in names]
    limit = anyio.CapacityLimiter(AT_ONCE)
    masters = await master_addresses(client) if masters is None else masters

    async def fill(row: Overview) -> None:
        async with limit:
            lags = await group_lags(client.admin, row.group, masters=masters)
            row.members = len(await group_members(client, row.group, masters=masters))
            row.topics = len({lag.queue.topic for lag in lags if not is_retry_topic(lag.queue.topic)})
            row.lag = sum(lag.lag for lag in lags)

    async with concurrent_tasks() as tasks:
        for row in rows:
            tasks.start_soon(fill, row)
    return rows


def flat(row: QueueLag | OffsetReset) -> dict[str, Any]:
    """Return the fields of ``row`` with the parts of its queue in place of the queue."""
    values = attrs.asdict(row, recurse=False)
    queue: MessageQueue = values.pop("queue")
    return {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, **values}


async def group_exists(client: Client, group: str) -> bool:
    """Return whether a master knows the group, its offsets or its members, or has its retry topic or dead letters."""
    if group in await group_names(client.admin, system=True):
        return True
    if {retry_topic(group), dlq_topic(group)} & set(await client.admin.topics()):
        return True
    return bool(await group_lags(client.admin, group) or await group_members(client, group))


async def delete_group(client: Client, group: str) -> None:
    """Delete the group with its offsets, its retry topic and its dead letters on every master.

    :class:`NoRoute` before any change if a broker has no master.
    """
    await require_masters(client, NOTHING_DELETED)
    for address in (await master_addresses(client)).values():
        for name in (group, POSITION_GROUP + group):
            header = DeleteGroupHeader(group_name=name, remove_offset=True, clean_offset=True)
            await client.admin.request(address, Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext()))
    for topic in (retry_topic(group), dlq_topic(group)):
        await client.admin.delete_topic(topic)

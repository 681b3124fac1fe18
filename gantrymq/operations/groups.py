"""Consumer groups: members, lag, offsets and deletion.

Source: RocketMQ 4.9.7 ``DefaultMQAdminExtImpl``, ``Broker2Client.resetOffset``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from gantrymq.client.errors import AccessDenied, BrokerError, CallTimeout, NoRoute
from gantrymq.operations.absence import ask_if_present
from gantrymq.operations.brokers import check_masters, clusters_of, master_addresses, masters_in, require_masters
from gantrymq.operations.dead_letters import POSITION_GROUP
from gantrymq.operations.topics import NOTHING_DELETED, delete_topic
from gantrymq.remoting.bodies.clients import ClientConnection, ConsumerConnections
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumeStatsReply, ConsumeTimeSpans, OrderedOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.groups import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    RunningInfoHeader,
    TopicOfGroupHeader,
)
from gantrymq.remoting.headers.offsets import ResetOffsetHeader
from gantrymq.remoting.names import dlq_topic, is_retry_topic, is_system_group, retry_topic
from gantrymq.remoting.tasks import concurrent_tasks

if TYPE_CHECKING:
    from gantrymq.client import Client

AT_ONCE: Final = 16
"""Groups that are asked about at the same time."""
MEMBERS_AT_ONCE: Final = 64
"""Members that are asked at the same time: each waiting question is kept by its broker."""
MEMBERS_SECONDS: Final = 5.0
"""How long all members of a group together have for their reports."""
FROM_END: Final = -1
"""RocketMQ's time for the end of a queue, in a reset of offsets."""
NOTHING_RESET: Final = "no offset was changed"


@attrs.frozen
class QueueLag:
    """One queue of a group. ``behind_ms``: how long the next message has waited; None if the broker does not tell."""

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    behind_ms: int | None

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return max(self.end - self.committed, 0)


@attrs.frozen
class Member:
    """One consumer. ``subscriptions``: topic to expression, as the member reports; None if it did not answer."""

    client_id: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str] | None


@attrs.frozen
class Reset:
    """The offset of one queue before (None: never committed) and after a reset."""

    topic: str
    broker: str
    queue: int
    before: int | None
    after: int


def is_brokers_group(name: str) -> bool:
    """Return whether the group is one of RocketMQ's own, or remembers what was replayed."""
    return is_system_group(name) or name.startswith(POSITION_GROUP)


Masters = Mapping[str, str]
"""Broker name to the address of its master, as :func:`master_addresses` returns; functions ask for it if it is None."""


async def group_names(client: Client, *, system: bool = False, masters: Masters | None = None) -> list[str]:
    """Return the consumer groups that the masters know, sorted; RocketMQ's own and those that remember what was
    replayed only with ``system``."""
    names: set[str] = set()
    for address in (await master_addresses(client) if masters is None else masters).values():
        answer = await client.admin.request(address, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        names |= SubscriptionGroupWrapper.from_bytes(answer.body).subscription_group_table.keys()
    return sorted(name for name in names if system or not is_brokers_group(name))


async def group_lags(
    client: Client, group: str, *, times: bool = False, masters: Masters | None = None
) -> list[QueueLag]:
    """Return each queue in which the group has a committed offset, sorted; ``times`` also asks how long messages have
    waited.

    A broker that has no group of this name adds nothing; one that refuses to answer raises :class:`BrokerError`.
    """
    lags: list[QueueLag] = []
    for address in (await master_addresses(client) if masters is None else masters).values():
        header = ConsumeStatsHeader(consumer_group=group)
        answer = await ask_if_present(client, address, RequestCode.GET_CONSUME_STATS, header.to_ext())
        table = [] if answer is None else ConsumeStatsReply.from_bytes(answer.body).offsets
        waits: dict[MessageQueue, int] = {}
        for topic in sorted({queue.topic for queue, _ in table}) if times else ():
            asked = TopicOfGroupHeader(topic=topic, group=group)
            reply = await ask_if_present(client, address, RequestCode.QUERY_CONSUME_TIME_SPAN, asked.to_ext())
            if reply is not None:
                spans = ConsumeTimeSpans.from_bytes(reply.body).consume_time_span_set
                waits |= {span.message_queue: span.delay_time for span in spans}
        for queue, offsets in table:
            waited = waits.get(queue) if offsets.broker_offset > offsets.consumer_offset else 0
            lags.append(
                QueueLag(
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    offsets.consumer_offset,
                    offsets.broker_offset,
                    waited if times else None,
                )
            )
    return sorted(lags, key=lambda lag: (lag.topic, lag.broker, lag.queue))


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
        for each in await connections_at(client, address, group):
            yield address, each


async def connections_at(client: Client, address: str, group: str) -> Sequence[ClientConnection]:
    """Return the connections of the group's members to the broker at ``address``, none if the group is unknown there.

    :class:`BrokerError` if the broker refuses to list them.
    """
    header = ConsumerGroupHeader(consumer_group=group)
    answer = await ask_if_present(client, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header.to_ext())
    return () if answer is None else ConsumerConnections.from_bytes(answer.body).connection_set


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
            lags = await group_lags(client, row.group, masters=masters)
            row.members = len(await group_members(client, row.group, masters=masters))
            row.topics = len({lag.topic for lag in lags if not is_retry_topic(lag.topic)})
            row.lag = sum(lag.lag for lag in lags)

    async with concurrent_tasks() as tasks:
        for row in rows:
            tasks.start_soon(fill, row)
    return rows


async def plan_reset(client: Client, group: str, topics: Sequence[str], to: str | int) -> list[Reset]:
    """Return what a reset changes. ``topics``: all of the group's topics if empty. ``to``: first, last, or ms since
    1970.

    :class:`NoRoute` if the group has no committed offsets and no topic is given, or if a broker of its clusters has no
    master, or one of the brokers of ``topics`` if they are given. Without ``topics``, offsets that only a broker of
    another cluster has are left out while it has no master.
    """
    info = await client.admin.cluster()
    names = list(topics)
    if not topics:
        lags = await group_lags(client, group, masters=masters_in(info))
        brokers = clusters_of(info, {lag.broker for lag in lags}) if lags else None
        check_masters(info, f"not all topics of group {group} are known; name the topics", brokers)
        names = sorted({lag.topic for lag in lags})
    names = [name for name in names if not is_retry_topic(name)]
    if not names:
        raise NoRoute(f"group {group} has committed no offsets; name a topic")
    resets = []
    for name in names:
        queues = await client.admin.queues(name)
        check_masters(info, NOTHING_RESET, {queue.broker_name for queue in queues})
        for queue in queues:
            if to == "first":
                after = await client.admin.min_offset(queue)
            elif to == "last":
                after = await client.admin.max_offset(queue)
            else:
                after = await client.admin.search_offset(queue, int(to))
            before = await client.admin.consumer_offset(group, queue)
            resets.append(Reset(name, queue.broker_name, queue.queue_id, before, after))
    return resets


async def reset_offsets(client: Client, group: str, resets: Sequence[Reset], to: str | int) -> list[Reset]:
    """Carry out what :func:`plan_reset` returned; returns what was set.

    A broker that has members of the group computes the offsets itself and sends them to the members: they may be others
    than those of the plan, and RocketMQ's brokers leave out queues that can only be read. Without members the offsets
    of the plan are stored.
    :class:`NoRoute` before any change if a broker has no master. :class:`BrokerError` if a broker refuses to notify its
    members: the topics and brokers before it, in sorted order, are reset then.
    """
    masters = await master_addresses(client)
    places = sorted({(reset.topic, reset.broker) for reset in resets})
    for _, broker in places:
        if broker not in masters:
            raise NoRoute(f"broker {broker} has no master now, so {NOTHING_RESET}")
    time_ms = {"first": 0, "last": FROM_END}.get(str(to), to)
    done: list[Reset] = []
    for topic, broker in places:
        planned = [reset for reset in resets if (reset.topic, reset.broker) == (topic, broker)]
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=int(time_ms), is_force=True)
        command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
        try:
            answer = await client.admin.request(masters[broker], command)
        except BrokerError as error:
            if not await _is_without_members(client, masters[broker], group, error):
                raise
            for reset in planned:
                await client.admin.set_consumer_offset(group, MessageQueue(topic, broker, reset.queue), reset.after)
            done += planned
        else:
            table = OrderedOffsets.from_bytes(answer.body).offsets
            offsets = {queue.queue_id: offset for queue, offset in table.items()}
            done += [attrs.evolve(each, after=offsets[each.queue]) for each in planned if each.queue in offsets]
    return done


async def _is_without_members(client: Client, address: str, group: str, error: BrokerError) -> bool:
    """Whether ``error``, the answer to a reset, is due to the broker having no member of the group.

    ``mqadmin resetOffsetByTime`` stores offsets at CONSUMER_NOT_ONLINE only. Brokers check before it that all queues of
    the topic have committed offsets, and answer SYSTEM_ERROR if not, as they do for other reasons.
    """
    if error.code != ResponseCode.SYSTEM_ERROR or isinstance(error, AccessDenied):
        return error.code == ResponseCode.CONSUMER_NOT_ONLINE
    return not await connections_at(client, address, group)


async def group_exists(client: Client, group: str) -> bool:
    """Return whether a master knows the group, its offsets or its members, or has its retry topic or dead letters."""
    if group in await group_names(client, system=True):
        return True
    if {retry_topic(group), dlq_topic(group)} & set(await client.admin.topics()):
        return True
    return bool(await group_lags(client, group) or await group_members(client, group))


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
        await delete_topic(client, topic)

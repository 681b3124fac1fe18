"""Consumer groups: their names, their lag, and the reset of their offsets.

Source: RocketMQ 4.9.7 ``DefaultMQAdminExtImpl``, ``Broker2Client.resetOffset``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.client.absence import ask_if_present
from gantrymq.client.errors import AccessDenied, BrokerError, NoRoute
from gantrymq.client.masters import check_masters, clusters_of, masters_in
from gantrymq.client.requests import reading
from gantrymq.client.routes import queues_to_subscribe
from gantrymq.remoting.bodies.clients import ClientConnection, ConsumerConnections
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumeStatsReply, ConsumeTimeSpans, OrderedOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.groups import ConsumerGroupHeader, ConsumeStatsHeader, TopicOfGroupHeader
from gantrymq.remoting.headers.offsets import ResetOffsetHeader
from gantrymq.remoting.names import is_retry_topic, is_system_group

if TYPE_CHECKING:
    from gantrymq.client.admin import Admin

POSITION_GROUP: Final = "GANTRYMQ_REPLAY-"
"""The prefix of the group whose offsets record how far the dead letters of a group were sent again."""
FROM_END: Final = -1
"""RocketMQ's time for the end of a queue, in a reset of offsets."""
NOTHING_RESET: Final = "no offset was changed"


@attrs.frozen
class QueueLag:
    """One queue of a group, as its broker knows it. Offsets are queue offsets."""

    queue: MessageQueue
    """The queue; those of the group's retry topic are among them."""
    committed: int
    """The offset at which the group continues; 0 if it has committed none in this queue."""
    end: int
    """The offset that the queue's next message gets."""
    behind_ms: int | None = None
    """How long the next message has waited, in ms; None if that was not asked for, or the broker does not tell."""

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return max(self.end - self.committed, 0)


@attrs.frozen
class GroupLag:
    """The messages that wait for a group."""

    queues: Sequence[QueueLag]
    """In order of topic, broker and id: each queue that can be read of the topics in which the group has committed an
    offset; while it has members, of those that they subscribe to."""

    @property
    def lag(self) -> int:
        """Messages that wait in all queues."""
        return sum(queue.lag for queue in self.queues)


@attrs.frozen
class OffsetReset:
    """The offset of one queue before and after a reset."""

    queue: MessageQueue
    """The queue."""
    before: int | None
    """The committed offset before; None if the group had none."""
    after: int
    """The offset at which the group continues."""


def is_brokers_group(name: str) -> bool:
    """Return whether the group is one of RocketMQ's own, or remembers what was replayed."""
    return is_system_group(name) or name.startswith(POSITION_GROUP)


Masters = Mapping[str, str]
"""Broker name to the address of its master, as :func:`masters_in` returns; functions ask for it if it is None."""


async def group_names(admin: Admin, *, system: bool = False, masters: Masters | None = None) -> list[str]:
    """Return the consumer groups that the masters know, sorted; RocketMQ's own and those that remember what was
    replayed only with ``system``."""
    names: set[str] = set()
    for address in (masters_in(await admin.cluster()) if masters is None else masters).values():
        answer = await admin.request(address, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        with reading(address):
            names |= SubscriptionGroupWrapper.from_bytes(answer.body).subscription_group_table.keys()
    return sorted(name for name in names if system or not is_brokers_group(name))


async def group_lags(
    admin: Admin, group: str, *, times: bool = False, masters: Masters | None = None
) -> list[QueueLag]:
    """Return the queues of a group as :attr:`GroupLag.queues` has them; ``times`` also asks how long messages have
    waited.

    A broker that has no group of this name adds nothing; one that refuses to answer raises :class:`BrokerError`.
    """
    lags: list[QueueLag] = []
    for address in (masters_in(await admin.cluster()) if masters is None else masters).values():
        header = ConsumeStatsHeader(consumer_group=group)
        answer = await ask_if_present(admin, address, RequestCode.GET_CONSUME_STATS, header.to_ext())
        with reading(address):
            table = [] if answer is None else ConsumeStatsReply.from_bytes(answer.body).offsets
        waits: dict[MessageQueue, int] = {}
        for topic in sorted({queue.topic for queue, _ in table}) if times else ():
            asked = TopicOfGroupHeader(topic=topic, group=group)
            reply = await ask_if_present(admin, address, RequestCode.QUERY_CONSUME_TIME_SPAN, asked.to_ext())
            if reply is not None:
                with reading(address):
                    spans = ConsumeTimeSpans.from_bytes(reply.body).consume_time_span_set
                waits |= {span.message_queue: span.delay_time for span in spans}
        for queue, offsets in table:
            waited = waits.get(queue) if offsets.broker_offset > offsets.consumer_offset else 0
            lags.append(QueueLag(queue, offsets.consumer_offset, offsets.broker_offset, waited if times else None))
    return sorted(lags, key=lambda lag: _place(lag.queue))


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


async def connections_at(admin: Admin, address: str, group: str) -> Sequence[ClientConnection]:
    """Return the connections of the group's members to the broker at ``address``, none if the group is unknown there.

    :class:`BrokerError` if the broker refuses to list them.
    """
    header = ConsumerGroupHeader(consumer_group=group)
    answer = await ask_if_present(admin, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header.to_ext())
    with reading(address):
        return () if answer is None else ConsumerConnections.from_bytes(answer.body).connection_set


async def plan_reset(admin: Admin, group: str, topics: Sequence[str], to: str | int) -> list[OffsetReset]:
    """Return what a reset changes. ``topics``: all of the group's topics if empty. ``to``: first, last, or ms since
    1970.

    :class:`NoRoute` if the group has no committed offsets and no topic is given, or if a broker of its clusters has no
    master, or one of the brokers of ``topics`` if they are given. Without ``topics``, offsets that only a broker of
    another cluster has are left out while it has no master.
    """
    info = await admin.cluster()
    names = list(topics)
    if not topics:
        lags = await group_lags(admin, group, masters=masters_in(info))
        brokers = clusters_of(info, {lag.queue.broker_name for lag in lags}) if lags else None
        check_masters(info, f"not all topics of group {group} are known; name the topics", brokers)
        names = sorted({lag.queue.topic for lag in lags})
    names = [name for name in names if not is_retry_topic(name)]
    if not names:
        raise NoRoute(f"group {group} has committed no offsets; name a topic")
    resets = []
    for name in names:
        queues = queues_to_subscribe(name, await admin.route(name))
        check_masters(info, NOTHING_RESET, {queue.broker_name for queue in queues})
        for queue in queues:
            if to == "first":
                after = await admin.min_offset(queue)
            elif to == "last":
                after = await admin.max_offset(queue)
            else:
                after = await admin.search_offset(queue, int(to))
            before = await admin.consumer_offset(group, queue)
            resets.append(OffsetReset(queue, before, after))
    return resets


async def reset_offsets(admin: Admin, group: str, resets: Sequence[OffsetReset], to: str | int) -> list[OffsetReset]:
    """Carry out what :func:`plan_reset` returned; returns what was set.

    A broker that has members of the group computes the offsets itself and sends them to the members: they may be others
    than those of the plan, and RocketMQ's brokers leave out queues that can only be read. Without members the offsets
    of the plan are stored.
    :class:`NoRoute` before any change if a broker has no master. :class:`BrokerError` if a broker refuses to notify its
    members: the topics and brokers before it, in sorted order, are reset then.
    """
    masters = masters_in(await admin.cluster())
    places = sorted({(reset.queue.topic, reset.queue.broker_name) for reset in resets})
    for _, broker in places:
        if broker not in masters:
            raise NoRoute(f"broker {broker} has no master now, so {NOTHING_RESET}")
    time_ms = {"first": 0, "last": FROM_END}.get(str(to), to)
    done: list[OffsetReset] = []
    for topic, broker in places:
        planned = [reset for reset in resets if (reset.queue.topic, reset.queue.broker_name) == (topic, broker)]
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=int(time_ms), is_force=True)
        command = Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
        try:
            answer = await admin.request(masters[broker], command)
        except BrokerError as error:
            if not await _is_without_members(admin, masters[broker], group, error):
                raise
            for reset in planned:
                await admin.set_consumer_offset(group, reset.queue, reset.after)
            done += planned
        else:
            with reading(masters[broker]):
                table = OrderedOffsets.from_bytes(answer.body).offsets
            offsets = {queue.queue_id: offset for queue, offset in table.items()}
            for reset in planned:
                if (offset := offsets.get(reset.queue.queue_id)) is not None:
                    done.append(attrs.evolve(reset, after=offset))
    return done


async def _is_without_members(admin: Admin, address: str, group: str, error: BrokerError) -> bool:
    """Whether ``error``, the answer to a reset, is due to the broker having no member of the group.

    ``mqadmin resetOffsetByTime`` stores offsets at CONSUMER_NOT_ONLINE only. Brokers check before it that all queues of
    the topic have committed offsets, and answer SYSTEM_ERROR if not, as they do for other reasons.
    """
    if error.code != ResponseCode.SYSTEM_ERROR or isinstance(error, AccessDenied):
        return error.code == ResponseCode.CONSUMER_NOT_ONLINE
    return not await connections_at(admin, address, group)

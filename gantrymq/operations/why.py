"""Why a group did not get a message, by what the brokers and the members of the group show."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.client.errors import BrokerError, NoRoute
from gantrymq.client.groups import QueueLag, group_lags
from gantrymq.client.lookup import TOOLS_GROUP
from gantrymq.operations.brokers import brokers_without_master, locate, master_addresses
from gantrymq.operations.clock import clock
from gantrymq.operations.delayed import find_waiting
from gantrymq.operations.groups import member_reports
from gantrymq.operations.traces import message_traces
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import GantryError
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from gantrymq.remoting.properties import DELAY, REAL_TOPIC, RESERVED
from gantrymq.remoting.records import decode_records

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord

_TAG: Final = "TAG"
_SUBSCRIPTION_FLAG: Final = 4
_MONTHS_BACK: Final = 2
"""Ids have the time since the start of a month; messages are rarely kept for longer than this."""
_DAY_S: Final = 86_400
CLOCKS_DIFFER_MS: Final = 1000
"""By so much the clocks of a producer and a broker may differ."""


@attrs.frozen
class Reason:
    """One finding. ``code``: one of the codes in ``docs/howto/operate.md``."""

    code: str
    text: str


async def why(client: Client, topic: str, message_id: str, group: str) -> list[Reason]:
    """The reasons that the brokers and the members show, the decisive ones first.

    ``message_id``: the producer's or the broker's. Raises :class:`ConnectError` and :class:`BrokerError`.
    """
    found = await _find(client, topic, message_id)
    masterless = await brokers_without_master(client)
    if found:
        reasons = await _undelivered(client, found[0], message_id, group, masterless)
    else:
        reasons = [await _missing(client, topic, message_id)]
    return reasons + [
        Reason("no_master", f"broker {name} has no master now, so what only it has of group {group} is missing")
        for name in masterless
    ]


async def _undelivered(
    client: Client, message: DeliveredRecord, message_id: str, group: str, masterless: Collection[str]
) -> list[Reason]:
    """The reasons for a message that is stored. ``masterless``: the brokers whose offsets of the group are unknown."""
    reports = await member_reports(client, group)
    lags = await group_lags(client.admin, group, times=True)
    copies, is_settled, waiting_at = await _copies(client, message, message_id, group, lags)
    reasons = [*copies, *await _obstacles(client, message, group, reports)]
    if copies:
        if waiting_at is not None and not is_settled:
            reasons += _holders(reports, *waiting_at, group)
        return reasons
    queue = MessageQueue(topic=message.topic, broker_name=message.broker_name, queue_id=message.queue_id)
    place = _place(lags, queue)
    where = f"queue {queue.queue_id} of {queue.broker_name}, queue offset {message.queue_offset}"
    if place is not None and place.committed > message.queue_offset:
        text = f"{where}: group {group} is at {place.committed}, so a member has acknowledged or skipped the message"
        return [*reasons, Reason("passed", text), *await _traced(client, message, group)]
    if place is None and queue.broker_name not in masterless:
        reasons.append(Reason("waiting", f"group {group} has committed no offset for {where}"))
    elif place is not None:
        text = f"{where}: {message.queue_offset - place.committed} messages are before it; "
        text += f"group {group} is at {place.committed}"
        if place.behind_ms:
            text += f" and {place.behind_ms / 1000:.0f} s behind"
        reasons.append(Reason("waiting", text))
    return [*reasons, *_holders(reports, queue, message.queue_offset, group)]


async def _find(client: Client, topic: str, message_id: str) -> list[DeliveredRecord]:
    try:
        return await client.admin.find_by_id(topic, message_id)
    except NoRoute:
        return []


def _place(lags: Sequence[QueueLag], queue: MessageQueue) -> QueueLag | None:
    return next((lag for lag in lags if lag.queue == queue), None)


# --------------------------------------------------------------------------------------- a message that is not there


async def _missing(client: Client, topic: str, message_id: str) -> Reason:
    if (waiting := await find_waiting(client, topic, message_id)) is not None:
        return Reason("delayed", f"the message is timed: it is delivered at {clock(waiting.due)}")
    for copy in await _find(client, SCHEDULE_TOPIC, message_id):
        if copy.properties.get(REAL_TOPIC) == topic and await _is_waiting(client, copy):
            return Reason("delayed", f"the message is delayed: {_delay_of(copy)}")
    if (reason := await _expired_by_offset(client, message_id)) is not None:
        return reason
    sent = sent_ms(message_id, time.time())
    oldest = await _oldest_ms(client, topic)
    if sent is not None and (oldest is None or sent < oldest - CLOCKS_DIFFER_MS):
        kept = (
            "the topic has no messages"
            if oldest is None
            else f"the oldest message of topic {topic} is of {clock(oldest)}"
        )
        return Reason(
            "expired", f"the id is of about {clock(sent)}, and {kept}: the message has expired, or was not stored"
        )
    return Reason(
        "not_found",
        f"topic {topic} has no message with this id: it was not stored, or its transaction is not committed",
    )


def sent_ms(message_id: str, now: float) -> int | None:
    """Return the time in a producer's id, in ms since 1970; None for another id.

    An id has the time since the start of the producer's month, in its time zone, which is taken for the local one.
    ``now``: seconds since 1970; the result is the latest such time up to a day after it.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    if len(raw) not in (16, 28):
        return None
    offset_s = int.from_bytes(raw[-6:-2], "big") / 1000
    today = time.localtime(now)
    for back in range(_MONTHS_BACK):
        start = time.mktime((today.tm_year, today.tm_mon - back, 1, 0, 0, 0, 0, 0, -1))
        if start + offset_s <= now + _DAY_S:
            return int((start + offset_s) * 1000)
    return None


async def _oldest_ms(client: Client, topic: str) -> int | None:
    """The store time of the oldest message of ``topic``; None without one."""
    times = []
    try:
        queues = await client.admin.queues(topic)
    except NoRoute:
        return None
    for queue in queues:
        first = await client.admin.message_at(queue, await client.admin.min_offset(queue))
        if first is not None:
            times.append(first.store_timestamp)
    return min(times, default=None)


async def _expired_by_offset(client: Client, message_id: str) -> Reason | None:
    """A reason if the id is a broker's: it has the broker's address and the offset in its log."""
    place = await locate(client, message_id)
    if place is None:
        return None
    address, offset = place
    answer = await client.admin.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = KVTable.from_bytes(answer.body).table
    first, end = (int(table.get(name, "-1")) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
    if 0 <= offset < first:
        return Reason("expired", f"the log of {address} begins at offset {first}, the message was at {offset}")
    if offset >= end:
        return Reason("not_found", f"the log of {address} ends at offset {end}, before the id's offset {offset}")
    return None


# ------------------------------------------------------------------------------------------------ copies of a message


async def _copies(
    client: Client, message: DeliveredRecord, message_id: str, group: str, lags: Sequence[QueueLag]
) -> tuple[list[Reason], bool, tuple[MessageQueue, int] | None]:
    """The reasons that dead letters and retries of the group give, as copies of a message keep the producer's id.

    The newest copy decides: a dead letter that was replayed is a retry again.
    Also: whether the group is done with it, and the queue and offset of the copy that the group gets next.
    """
    ids = dict.fromkeys((message.message_id, message_id))
    dead = [copy for each in ids for copy in await _find(client, dlq_topic(group), each)]
    died = max((copy.store_timestamp for copy in dead), default=-1)
    retries = retry_topic(group)
    for each in ids:
        delayed = [copy for copy in await _find(client, SCHEDULE_TOPIC, each)
                   if copy.store_timestamp > died and copy.properties.get(REAL_TOPIC) == retries
                   and await _is_waiting(client, copy)]  # fmt: skip
        if delayed:
            text = f"attempt {delayed[-1].reconsume_times + 1} waits: {_delay_of(delayed[-1])}"
            return [Reason("retrying", text)], False, None
        if found := [copy for copy in await _find(client, retries, each) if copy.store_timestamp > died]:
            last = found[-1]
            queue = MessageQueue(topic=retries, broker_name=last.broker_name, queue_id=last.queue_id)
            place = _place(lags, queue)
            text = f"{retries}, queue offset {last.queue_offset}: delivered again {last.reconsume_times} times"
            if place is not None and place.committed > last.queue_offset:
                text += f"; group {group} is at {place.committed}, so a member has acknowledged the last attempt"
                return [Reason("passed", text)], True, None
            return [Reason("retrying", text)], False, (queue, last.queue_offset)
    if dead:
        last = dead[-1]
        text = f"{dlq_topic(group)}, queue offset {last.queue_offset}: delivered again {last.reconsume_times} times"
        return [Reason("dead_letter", text)], True, None
    return [], False, None


async def _is_waiting(client: Client, copy: DeliveredRecord) -> bool:
    """Whether the copy in the topic of delayed messages was not delivered yet: its topic has no newer copy."""
    target = await _find(client, copy.properties[REAL_TOPIC], copy.message_id)
    return not any(each.store_timestamp >= copy.store_timestamp for each in target)


def _delay_of(copy: DeliveredRecord) -> str:
    level = copy.properties.get(DELAY) or str(copy.queue_id + 1)  # the queue of level n is n - 1
    return f"delay level {level} since {clock(copy.store_timestamp)}"


async def _traced(client: Client, message: DeliveredRecord, group: str) -> list[Reason]:
    """Which member had the message, if it traces its messages."""
    try:
        found = await message_traces(client, message.message_id)
    except (NoRoute, BrokerError):
        return []
    return [
        Reason("consumed", f"trace: {each.client} at {clock(each.time_ms or 0)}, {each.result}")
        for each in found.events
        if (each.event, each.group) == ("consumed", group)
    ][-1:]


# -------------------------------------------------------------------------------------------- members and their queues


async def _obstacles(
    client: Client, message: DeliveredRecord, group: str, reports: Mapping[str, MemberReport | None]
) -> list[Reason]:
    """What keeps members of the group from getting the message at all."""
    reasons = []
    for broker, address in (await master_addresses(client)).items():
        answer = await client.admin.request(address, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        settings = SubscriptionGroupWrapper.from_bytes(answer.body).subscription_group_table.get(group)
        if broker == message.broker_name and settings is not None and not settings.consume_enable:
            reasons.append(
                Reason("consumption_disabled", f"{broker} does not let group {group} consume (consumeEnable)")
            )
    if not reports:
        return [*reasons, Reason("no_members", f"no member of group {group} is connected to a master")]
    known = [report for report in reports.values() if report is not None]
    expressions = {
        next(
            ((each.expression_type or _TAG, each.sub_string) for each in report.subscription_set
             if each.topic == message.topic),
            None,
        )
        for report in known
    }  # fmt: skip
    if len(expressions) > 1:
        reasons.append(Reason("subscriptions_differ", f"members of group {group} subscribe to different expressions"))
    if known and expressions == {None}:
        return [*reasons, Reason("not_subscribed", f"no member of group {group} subscribes to topic {message.topic}")]
    for kind, expression in sorted(each for each in expressions if each is not None):
        if kind != _TAG:
            reasons += await _excluded_by_expression(client, message, kind, expression)
        elif expression not in ("", "*") and (message.tags or "") not in {
            each.strip() for each in expression.split("||")
        }:
            tag = repr(message.tags) if message.tags else "none"
            reasons.append(Reason("filtered", f"the subscription {expression!r} excludes the message's tag ({tag})"))
    return reasons


async def _excluded_by_expression(client: Client, message: DeliveredRecord, kind: str, expression: str) -> list[Reason]:
    """A reason if the expression excludes the message. The message's broker decides, as it does for consumers."""
    header = PullMessageHeader(
        consumer_group=TOOLS_GROUP, topic=message.topic, queue_id=message.queue_id, queue_offset=message.queue_offset,
        max_msg_nums=1, sys_flag=_SUBSCRIPTION_FLAG, commit_offset=0, suspend_timeout_millis=0,
        subscription=expression, sub_version=0, expression_type=kind,
    )  # fmt: skip
    address = (await master_addresses(client)).get(message.broker_name)
    if address is None:
        text = f"broker {message.broker_name} has no master now to evaluate the {kind} expression {expression!r}"
        return [Reason("filter_unknown", text)]
    try:
        answer = await client.admin.request(address, Command(RequestCode.PULL_MESSAGE, header.to_ext()))
        offsets = [record.queue_offset for record in decode_records(answer.body)]
    except BrokerError as error:
        if error.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return [
                Reason("filter_unknown", f"{address} does not evaluate the {kind} expression {expression!r}: {error}")
            ]
        offsets = []
    except GantryError as error:
        return [Reason("filter_unknown", f"{address} did not evaluate the {kind} expression {expression!r}: {error}")]
    if message.queue_offset in offsets:
        return []
    own = {name: value for name, value in message.properties.items() if name not in RESERVED}
    return [Reason("filtered", f"the {kind} expression {expression!r} excludes the message; its properties: {own}")]


def _holders(reports: Mapping[str, MemberReport | None], queue: MessageQueue, offset: int, group: str) -> list[Reason]:
    """What the members report about the queue in which the message waits."""
    if not reports:
        return []
    silent = [name for name, report in reports.items() if report is None]
    holders = [
        (name, report, state)
        for name, report in reports.items()
        if report is not None and (state := report.queues.get(queue)) is not None and not state.droped
    ]
    where = f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
    if not holders and silent:
        text = f"{', '.join(silent)} did not report its queues: {where} may be with a member that hangs"
        return [Reason("member_silent", text)]
    if not holders:
        members = f"{len(reports)} members" if len(reports) > 1 else "the only member"
        return [
            Reason("unassigned", f"{where} is with none of {members} of group {group}: wait for the next rebalance")
        ]
    reasons = []
    for name, report, state in holders:
        if report.is_ordered and not state.locked:
            text = (
                f"{name} consumes {where} in order and does not have its lock: another member, or one that has gone, "
            )
            reasons.append(Reason("not_locked", text + "holds it until it expires"))
        if not state.cached_msg_count:
            continue
        text = f"{name} has {state.cached_msg_count} messages of {where} that it has not acknowledged, "
        text += (
            "this one among them"
            if state.cached_msg_min_offset <= offset <= state.cached_msg_max_offset
            else "from before it"
        )
        if state.last_consume_timestamp:
            text += f"; it last finished one at {clock(state.last_consume_timestamp)}"
        if report.is_ordered:
            text += "; it consumes in order, so a message that fails stops the queue until it succeeds"
        reasons.append(Reason("in_progress", text))
    return reasons

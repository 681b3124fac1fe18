"""Why a group did not get a message: not stored, no member, not subscribed, filtered, behind, retried, dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from gantrymq.client.errors import NoRoute
from gantrymq.operations.groups import group_lags, group_members
from gantrymq.remoting.names import dlq_topic, retry_topic

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord


@attrs.frozen
class Reason:
    """One finding. ``code``: ``not_found``, ``no_members``, ``not_subscribed``, ``filtered``, ``subscriptions_differ``,
    ``waiting``, ``retrying``, ``dead_letter`` or ``passed``."""

    code: str
    text: str


async def why(client: Client, topic: str, message_id: str, group: str) -> list[Reason]:
    """The reasons that the brokers show, the decisive ones first. ``message_id``: the producer's or the broker's."""
    found = await _find(client, topic, message_id)
    if not found:
        text = f"topic {topic} has no message with this id: it was not stored, is not due yet, or has expired"
        return [Reason("not_found", text)]
    message = found[0]
    reasons = [*await _copies(client, message, message_id, group), *await _members(client, message, group)]
    lags = await group_lags(client, group)
    place = next(
        (
            lag for lag in lags
            if (lag.topic, lag.broker, lag.queue) == (topic, message.broker_name, message.queue_id)
        ),
        None,
    )  # fmt: skip
    where = f"queue {message.queue_id} of {message.broker_name}, queue offset {message.queue_offset}"
    if place is None:
        reasons.append(Reason("waiting", f"group {group} has committed no offset for {where}"))
    elif place.committed <= message.queue_offset:
        ahead = message.queue_offset - place.committed
        reasons.append(
            Reason("waiting", f"{where}: {ahead} messages are before it; group {group} is at {place.committed}")
        )
    elif not any(reason.code in ("retrying", "dead_letter") for reason in reasons):
        text = f"{where}: group {group} is at {place.committed}, so a member has acknowledged or skipped the message"
        reasons.append(Reason("passed", text))
    return reasons


async def _find(client: Client, topic: str, message_id: str) -> list[DeliveredRecord]:
    try:
        return await client.admin.find_by_id(topic, message_id)
    except NoRoute:
        return []


async def _copies(client: Client, message: DeliveredRecord, message_id: str, group: str) -> list[Reason]:
    """Copies of the message among the group's dead letters and retries; they keep the producer's id."""
    ids = dict.fromkeys((message.message_id, message_id))
    for copy_topic, code in ((dlq_topic(group), "dead_letter"), (retry_topic(group), "retrying")):
        for each in ids:
            found = await _find(client, copy_topic, each)
            if found:
                last = found[-1]
                text = f"{copy_topic}, queue offset {last.queue_offset}: delivered again {last.reconsume_times} times"
                return [Reason(code, text)]
    return []


async def _members(client: Client, message: DeliveredRecord, group: str) -> list[Reason]:
    members = await group_members(client, group, ask=True)
    if not members:
        return [Reason("no_members", f"no member of group {group} is connected")]
    known = [member for member in members if member.subscriptions is not None]
    expressions = {(member.subscriptions or {}).get(message.topic) for member in known}
    reasons = []
    if len(expressions) > 1:
        reasons.append(Reason("subscriptions_differ", f"members of group {group} subscribe to different expressions"))
    if known and expressions == {None}:
        return [Reason("not_subscribed", f"no member of group {group} subscribes to topic {message.topic}")]
    for expression in sorted(each for each in expressions if each is not None):
        tags = {tag.strip() for tag in expression.split("||")}
        if expression not in ("", "*") and not _is_sql(expression) and (message.tags or "") not in tags:
            tag = repr(message.tags) if message.tags else "none"
            reasons.append(Reason("filtered", f"the subscription {expression!r} excludes the message's tag ({tag})"))
    return reasons


def _is_sql(expression: str) -> bool:
    """Whether it can only be a SQL92 expression, whose result the brokers do not show."""
    return any(sign in expression for sign in "=<>()") or " is " in expression.lower()

"""Timed messages that wait: read them from the brokers' timer topic, and recall them.

Source: RocketMQ 5.3.3 ``TimerMessageStore``, ``RecallMessageProcessor``.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.client.errors import NoRoute
from gantrymq.client.lookup import TOOLS_GROUP
from gantrymq.client.routes import addresses_to_read
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import OffsetResponse, SearchOffsetHeader
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
from gantrymq.remoting.headers.recall import RecallMessageHeader, RecallMessageResponse
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.remoting.properties import REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY, find_property
from gantrymq.remoting.recall_handles import decode_handle, encode_handle
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.timer_times import exact

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.remoting.records import Record

STORED_MS: Final = 3 * 86_400_000
"""Waiting messages were stored within this time: a message that waits longer than two days is stored again in
between."""
BATCH: Final = 1024
BATCH_BYTES: Final = 1_048_576


@attrs.frozen
class Waiting:
    """A message that waits: when it is due (ms since 1970), for which queue, and the handle by which it is recalled."""

    due: int
    topic: str
    broker: str
    queue_id: int
    message_id: str
    handle: str
    body_bytes: int


class NotRecalled(Exception):
    """The handle is invalid, belongs to no master of the topic, or its broker refused the recall."""


@attrs.frozen
class WaitingMessages:
    """Timed messages, the next one first."""

    messages: list[Waiting]
    complete: bool = True
    """Whether the brokers that were read have no more."""
    unread: list[str] = attrs.field(factory=list)
    """The brokers without a master that have no slave to read them from."""


async def waiting_messages(client: Client, topic: str | None, most: float = math.inf) -> WaitingMessages:
    """The waiting messages of the cluster, of one topic or of all.

    A broker without a master is read from a slave, which may not have the last ones. ``most``: the reading ends at one
    more, so that the last ones stored are missing, and recalls of others.
    """
    if TIMER_TOPIC not in await client.admin.topics():
        return WaitingMessages([])
    found: list[Waiting] = []
    unread: list[str] = []
    complete = True
    for data in (await client.admin.route(TIMER_TOPIC)).broker_datas:
        for address in addresses_to_read(data):
            try:
                async with open_channel(address) as channel:
                    more, is_all = await _waiting_at(channel, data.broker_name, topic, most - len(found))
            except (RemoteFault, ConnectError):
                if 0 in data.broker_addrs:
                    raise
                continue  # slaves of RocketMQ 5 refuse pulls unless slaveReadEnable is set
            found += more
            complete = complete and is_all
            break
        else:
            unread.append(data.broker_name)
    return WaitingMessages(sorted(found, key=lambda one: one.due), complete, unread)


async def _waiting_at(channel: Channel, broker: str, topic: str | None, most: float) -> tuple[list[Waiting], bool]:
    now = time.time_ns() // 1_000_000
    found: dict[str, Waiting] = {}
    recalled: set[str] = set()
    complete = True
    async with aclosing(_timer_records(channel, now - STORED_MS)) as records:
        async for record in records:
            target = record.properties.get(TIMER_DEL_UNIQKEY)
            if target is not None:
                recalled.add(target)
                continue
            one = _waiting(record, broker)
            if one is None or one.due <= now or topic not in (None, one.topic):
                continue
            # A message that was enqueued again appears twice; its handle identifies it.
            key = one.handle or f"{record.commit_log_offset}"
            if key not in found and len(found) >= most:
                complete = False
                break
            found[key] = one
    return [one for one in found.values() if f"{one.topic}+{one.message_id}" not in recalled], complete


def _waiting(record: Record, broker: str) -> Waiting | None:
    properties = record.properties
    out, queue_id, topic = (properties.get(name, "") for name in (TIMER_OUT_MS, REAL_QID, REAL_TOPIC))
    if not out.isdecimal() or not queue_id.isdecimal() or not topic:
        return None
    unique = properties.get(UNIQ_KEY, "")
    handle = encode_handle(topic, broker, int(out) + 1, unique) if unique else ""
    due = exact(partial(find_property, record.raw_properties), record.store_timestamp, int(out))
    return Waiting(due, topic, broker, int(queue_id), unique, handle, len(record.stored_body))


async def _timer_records(channel: Channel, since: int) -> AsyncGenerator[Record]:
    """The messages of the timer topic that were stored at ``since`` (ms) or later."""
    search = SearchOffsetHeader(topic=TIMER_TOPIC, queue_id=0, timestamp=since)
    answer = await channel.call(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext()))
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteFault(answer.code, answer.remark or "")
    offset = read_header(OffsetResponse, answer.ext).offset
    while True:
        header = PullMessageHeader(
            consumer_group=TOOLS_GROUP, topic=TIMER_TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=BATCH,
            sys_flag=4, commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
            expression_type="TAG", gantrymq_max_bytes=BATCH_BYTES,
        )  # fmt: skip
        answer = await channel.call(Command(RequestCode.PULL_MESSAGE, header.to_ext()))
        if answer.code == ResponseCode.SUCCESS:
            for record in decode_records(answer.body):
                yield record
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            return
        elif answer.code not in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            raise RemoteFault(answer.code, answer.remark or "")
        following = read_header(PullMessageResponse, answer.ext)
        if following.next_begin_offset >= following.max_offset or following.next_begin_offset == offset:
            return
        offset = following.next_begin_offset


async def find_waiting(client: Client, topic: str, message_id: str) -> Waiting | None:
    """The waiting message of ``topic`` with this id, by the index of the timer topic; None if it was recalled."""
    try:
        records = await client.admin.find_by_id(TIMER_TOPIC, message_id)
    except NoRoute:
        return None
    now = time.time_ns() // 1_000_000
    found = None
    for record in records:
        recalled = record.properties.get(TIMER_DEL_UNIQKEY)
        if recalled == f"{topic}+{record.message_id}":
            return None
        one = _waiting(record, record.broker_name) if recalled is None else None
        if one is not None and one.topic == topic and one.due > now:
            found = one
    return found


async def recall_message(client: Client, topic: str, handle: str, group: str) -> str:
    """Recall the message of ``handle``; returns its id. :class:`NotRecalled` when that is impossible."""
    try:
        broker = decode_handle(handle).broker
    except ValueError as error:
        raise NotRecalled(str(error)) from None
    route = await client.admin.route(topic)
    address = next((data.broker_addrs.get(0) for data in route.broker_datas if data.broker_name == broker), None)
    if address is None:
        raise NotRecalled(f"no master of broker {broker}, to which the handle belongs, has topic {topic}")
    header = RecallMessageHeader(producer_group=group, topic=topic, recall_handle=handle)
    async with open_channel(address) as channel:
        answer = await channel.call(Command(RequestCode.RECALL_MESSAGE, header.to_ext()))
    if answer.code != ResponseCode.SUCCESS:
        raise NotRecalled(f"{address}: {answer.remark or 'refused'} (code {answer.code})")
    return read_header(RecallMessageResponse, answer.ext).msg_id

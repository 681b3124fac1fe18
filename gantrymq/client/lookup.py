"""Look for single messages, as ``mqadmin queryMsgBy...`` does: by key, by id, by place."""

from __future__ import annotations

from typing import Final

from gantrymq.client.cluster import Cluster
from gantrymq.client.connections import call
from gantrymq.client.errors import BrokerError
from gantrymq.client.requests import pull_request, reading
from gantrymq.client.routes import MASTER_ID
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.address import decode_host, format_address
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.query import UNIQUE_KEY_QUERY, QueryMessageHeader, ViewMessageHeader
from gantrymq.remoting.message_ids import parse_offset_message_id
from gantrymq.remoting.records import decode_records

FOREVER: Final = 2**63 - 1
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group of RocketMQ's tools: every broker has it."""
_NOTHING_THERE: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


async def find_by_key(
    cluster: Cluster, topic: str, key: str, limit: int, begin: int, end: int, *, unique: bool = False
) -> list[DeliveredRecord]:
    """The newest messages with ``key`` (or that unique id) of each broker that has ``topic``, by store time."""
    header = QueryMessageHeader(topic=topic, key=key, max_num=limit, begin_timestamp=begin, end_timestamp=end)
    ext = {**header.to_ext(), UNIQUE_KEY_QUERY: "true" if unique else "false"}
    found: list[DeliveredRecord] = []
    for data in (await cluster.routes.get(topic)).broker_datas:
        address = data.broker_addrs.get(MASTER_ID) or next(iter(data.broker_addrs.values()))
        try:
            answer = await call(await cluster.broker(address), Command(RequestCode.QUERY_MESSAGE, dict(ext)))
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            raise
        with reading(address):
            records = decode_records(answer.body, DeliveredRecord)
        if cluster.namespace is not None:
            cluster.namespace.restore(records)
        for record in records:
            record.broker_name = data.broker_name
            # RocketMQ's broker compares hashes only.
            if record.topic == topic and (record.message_id == key if unique else key in record.keys):
                found.append(record)
    return sorted(found, key=lambda record: record.store_timestamp)[-limit:] if limit > 0 else []


async def find_by_id(cluster: Cluster, topic: str, message_id: str) -> list[DeliveredRecord]:
    """The messages with a producer's id (a repeated send has several); else the one whose broker's id it is."""
    found = await find_by_key(cluster, topic, message_id, 32, 0, FOREVER, unique=True)
    return found or await _view(cluster, topic, message_id)


async def _view(cluster: Cluster, topic: str, message_id: str) -> list[DeliveredRecord]:
    try:
        host, offset = parse_offset_message_id(message_id)
    except ValueError:
        return []
    address = format_address(*decode_host(host))
    brokers = {data.broker_name: data.broker_addrs.values() for data in (await cluster.routes.get(topic)).broker_datas}
    name = next((name for name, addresses in brokers.items() if address in addresses), None)
    if name is None:
        return []  # an id says what it likes: no broker of this topic is there
    header = ViewMessageHeader(offset=offset)
    try:
        answer = await call(await cluster.broker(address), Command(RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext()))
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            return []
        raise
    with reading(address):
        records = decode_records(answer.body, DeliveredRecord)
    if cluster.namespace is not None:
        cluster.namespace.restore(records)
    for record in records:
        record.broker_name = name
    return records


async def message_at(cluster: Cluster, queue: MessageQueue, offset: int, address: str) -> DeliveredRecord | None:
    """The message at a queue offset, None when there is none; ``address`` is the broker's."""
    request = pull_request(
        TOOLS_GROUP, queue.topic, queue.queue_id, offset, 1, SubscriptionData.for_tags(""), suspend_millis=0
    )
    try:
        answer = await call(await cluster.broker(address), request)
    except BrokerError as error:
        if error.code in _NOTHING_THERE:
            return None
        raise
    with reading(address):
        records = decode_records(answer.body, DeliveredRecord)
    if cluster.namespace is not None:
        cluster.namespace.restore(records)
    for record in records:
        record.broker_name = queue.broker_name
        if record.queue_offset == offset:
            return record
    return None


async def first_stored_since(cluster: Cluster, queue: MessageQueue, timestamp: int, nearest: int, address: str) -> int:
    """The offset of the first message stored at or after ``timestamp`` (ms since 1970).

    ``nearest`` is the broker's answer to 29: brokers name the message stored nearest to a time, which may be the one
    before it, or any of those stored in the same millisecond.
    """

    async def is_earlier(offset: int) -> bool:
        message = await message_at(cluster, queue, offset, address)
        return message is None or message.store_timestamp < timestamp

    found = await message_at(cluster, queue, nearest, address)
    if found is None:
        return nearest
    if found.store_timestamp < timestamp:
        return nearest + 1
    first, step = nearest, 1
    while first > 0 and not await is_earlier(max(0, first - step)):
        first = max(0, first - step)
        step *= 2
    earlier = max(0, first - step) if first else -1
    while first - earlier > 1:
        middle = (first + earlier) // 2
        if await is_earlier(middle):
            earlier = middle
        else:
            first = middle
    return first

"""Dead letters: how many a group has, and how they are sent again to their group or to a topic."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio
import attrs

from gantrymq.client.errors import BrokerError, NoRoute
from gantrymq.client.groups import POSITION_GROUP
from gantrymq.client.outgoing import STATUSES
from gantrymq.client.routes import DEFAULT_TOPIC, MASTER_ID
from gantrymq.message import Message, MessageQueue
from gantrymq.operations.brokers import master_addresses
from gantrymq.operations.topics import all_queues
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import RECONSUME_UNLIMITED, SendMessageHeader
from gantrymq.remoting.names import DLQ_PREFIX, dlq_topic, retry_topic
from gantrymq.remoting.properties import (
    KEYS,
    ORIGIN_MESSAGE_ID,
    RESERVED,
    RETRY_TOPIC,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.client.producer import Producer
    from gantrymq.message import DeliveredRecord

KEPT: Final = frozenset({KEYS, TAGS, UNIQ_KEY, ORIGIN_MESSAGE_ID})
"""The properties of the system that a dead letter keeps; :data:`RESERVED` has all of them."""


@attrs.frozen
class DeadLetters:
    """The dead letters of a group: those that exist, and those that were not sent again yet."""

    group: str
    messages: int
    unreplayed: int


async def dead_letters(client: Client, group: str | None = None) -> list[DeadLetters]:
    """Return one row for each group that has a topic of dead letters, or for ``group``, also if it has none."""
    topics = (
        [dlq_topic(group)] if group else [name for name in await client.admin.topics() if name.startswith(DLQ_PREFIX)]
    )
    rows = []
    for topic in topics:
        name = topic.removeprefix(DLQ_PREFIX)
        messages = unreplayed = 0
        try:
            queues = all_queues(topic, await client.admin.route(topic))
        except NoRoute:  # no dead letter yet, or the nameservers do not know its topic yet
            queues = []
        for queue in queues:
            first, end = await client.admin.min_offset(queue), await client.admin.max_offset(queue)
            position = await client.admin.consumer_offset(POSITION_GROUP + name, queue)
            messages += end - first
            unreplayed += end - max(first, position or 0)
        rows.append(DeadLetters(name, messages, unreplayed))
    return rows


async def replay(
    client: Client,
    group: str,
    *,
    to: str | None = None,
    limit: int | None = None,
    until: float = math.inf,
    rate: float | None = None,
    again: bool = False,
    sent: Callable[[int], object] = lambda count: None,
    skipped: Callable[[str], object] = lambda broker: None,
) -> int:
    """Send the dead letters of ``group`` again; returns how many were sent.

    They go to the group's retry topic, so that only this group gets them, with its full number of attempts; with ``to``
    they go to that topic as new messages. ``until``: none is begun after this time of anyio's clock. ``rate``: messages
    per second. Each dead letter is sent once over all calls; ``again`` begins with the oldest one, and does not change
    what a later call without it sends. After an error or a kill the last one may be sent twice. ``sent`` is called with
    the count after each message. Dead letters of a broker without a master wait, as it cannot record that they were
    sent: ``skipped`` is called with its name.
    """
    count = 0
    started = anyio.current_time()
    async with AsyncExitStack() as stack:
        if to is None:
            send = await _sender_to_group(client, group)
        else:
            send = _sender_to_topic(await stack.enter_async_context(client.producer()), to)
        topic = dlq_topic(group)
        reader = client.reader(topic, group=POSITION_GROUP + group, until="end")
        await stack.enter_async_context(reader)
        queues, masters = await client.admin.queues(topic), await master_addresses(client)
        await reader.assign(queue for queue in queues if queue.broker_name in masters)
        for broker in sorted({queue.broker_name for queue in queues} - masters.keys()):
            skipped(broker)
        reached: dict[MessageQueue, int] = {}
        if again:
            await reader.seek_to_beginning()
            reached = {queue: await reader.committed(queue) or 0 for queue in reader.queues}
        while (limit is None or count < limit) and anyio.current_time() < until:
            messages = await reader.poll(max=1)
            if not messages:
                break
            (letter,) = messages
            await send(letter)
            await reader.commit({letter.queue: max(letter.queue_offset + 1, reached.get(letter.queue, 0))})
            count += 1
            sent(count)
            if rate is not None:
                await anyio.sleep(max(0.0, started + count / rate - anyio.current_time()))
    return count


def _properties(letter: DeliveredRecord) -> dict[str, str]:
    return {name: value for name, value in letter.properties.items() if name not in RESERVED or name in KEPT}


async def _sender_to_group(client: Client, group: str) -> Callable[[DeliveredRecord], Awaitable[object]]:
    topic = retry_topic(group)
    queues = await client.admin.queues(topic)  # NoRoute if the group never retried anything
    brokers = (await client.admin.route(topic)).broker_datas
    masters = {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}
    queues = [queue for queue in queues if queue.broker_name in masters]
    if not queues:
        raise NoRoute(f"no broker of topic {topic} has a master")
    turn = 0

    async def send(letter: DeliveredRecord) -> None:
        nonlocal turn
        queue = queues[turn % len(queues)]
        turn += 1
        properties = _properties(letter)
        if origin := letter.properties.get(RETRY_TOPIC):
            properties[RETRY_TOPIC] = origin
        header = SendMessageHeader(
            producer_group=POSITION_GROUP + group,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=int(time.time() * 1000),
            flag=letter.flag,
            properties=encode_properties(properties),
            reconsume_times=0,
            max_reconsume_times=RECONSUME_UNLIMITED,  # by a group's limit of 0 it would be a dead letter again at once
        )
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body=letter.body)
        try:
            await client.admin.request(masters[queue.broker_name], command)
        except BrokerError as error:
            if error.code not in STATUSES:  # otherwise sending it again would store it twice
                raise

    return send


def _sender_to_topic(producer: Producer, topic: str) -> Callable[[DeliveredRecord], Awaitable[object]]:
    async def send(letter: DeliveredRecord) -> None:
        own = {name: value for name, value in letter.properties.items() if name not in RESERVED}
        await producer.send(Message(topic, letter.body, letter.tags, letter.keys, own))

    return send

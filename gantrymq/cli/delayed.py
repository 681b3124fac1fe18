"""``gantrymq delayed``: list timed messages that wait, and recall them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.remoting.channel import Channel
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


@click.group()
def delayed() -> None:
    """List and recall waiting timed messages (not messages with a delay level)."""


@delayed.command("list")
@click.option("--topic", metavar="TOPIC", help="Show only messages for this topic.")
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="The most messages to show."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
@nameserver_option
def list_delayed(topic: str | None, limit: int, as_json: bool, nameserver: str) -> None:
    """List the waiting messages with their handles for `recall`, the next one first.

    The command reads the timer topic of the brokers, GantryMQ's or RocketMQ 5's. A million waiting messages take a
    while.
    """

    async def work(client: Client) -> list[Waiting]:
        return await waiting_messages(client, topic)

    found = with_client(nameserver, work)
    shown = found[:limit]
    if as_json:
        for one in shown:
            fields = {
                "dueTimestamp": one.due,
                "topic": one.topic,
                "broker": one.broker,
                "queueId": one.queue_id,
                "msgId": one.message_id,
                "recallHandle": one.handle,
                "bodyBytes": one.body_bytes,
            }
            click.echo(json.dumps(fields, ensure_ascii=False))
        return
    from gantrymq.cli.tables import print_table

    rows = [(_clock(one.due), one.topic, one.broker, one.queue_id, one.message_id, one.handle) for one in shown]
    print_table(("due", "topic", "broker", "queue", "id", "handle"), rows)
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more wait: --max shows them", err=True)


@delayed.command()
@click.argument("topic")
@click.argument("handle")
@click.option(
    "--group", default="gantrymq-cli", show_default=True, metavar="GROUP", help="The producer group of the request."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the id of the message.")
@nameserver_option
def recall(topic: str, handle: str, group: str, as_json: bool, nameserver: str) -> None:
    """Recall the message with this HANDLE, which the response to its send had and `list` shows.

    The broker records the recall; it does not report whether the message was still waiting.
    """

    async def work(client: Client) -> str:
        return await recall_message(client, topic, handle, group)

    message_id = with_client(nameserver, work)
    click.echo(json.dumps({"msgId": message_id}) if as_json else f"recalled {message_id}")


async def waiting_messages(client: Client, topic: str | None) -> list[Waiting]:
    """The waiting messages of the cluster's masters, the next one first; of one topic, or of all."""
    from gantrymq.remoting.channel import open_channel
    from gantrymq.remoting.names import TIMER_TOPIC

    if TIMER_TOPIC not in await client.admin.topics():
        return []
    found: list[Waiting] = []
    for data in (await client.admin.route(TIMER_TOPIC)).broker_datas:
        address = data.broker_addrs.get(0)
        if address is not None:
            async with open_channel(address) as channel:
                found += await _waiting_at(channel, data.broker_name)
    return sorted((one for one in found if topic in (None, one.topic)), key=lambda one: one.due)


async def _waiting_at(channel: Channel, broker: str) -> list[Waiting]:
    import time

    from gantrymq.remoting.properties import TIMER_DEL_UNIQKEY

    now = time.time_ns() // 1_000_000
    found: dict[str, Waiting] = {}
    recalled: set[str] = set()
    async for record in _timer_records(channel, now - STORED_MS):
        target = record.properties.get(TIMER_DEL_UNIQKEY)
        if target is not None:
            recalled.add(target)
            continue
        one = _waiting(record, broker)
        if one is not None and one.due > now:
            # A message that was enqueued again appears twice; its handle identifies it.
            found[one.handle or f"{record.commit_log_offset}"] = one
    return [one for one in found.values() if f"{one.topic}+{one.message_id}" not in recalled]


def _waiting(record: Record, broker: str) -> Waiting | None:
    from gantrymq.plugins.delay.timer.times import exact
    from gantrymq.remoting.properties import REAL_QID, REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY, find_property
    from gantrymq.remoting.recall_handles import encode_handle

    properties = record.properties
    out, queue_id, topic = (properties.get(name, "") for name in (TIMER_OUT_MS, REAL_QID, REAL_TOPIC))
    if not out.isdecimal() or not queue_id.isdecimal() or not topic:
        return None
    unique = properties.get(UNIQ_KEY, "")
    handle = encode_handle(topic, broker, int(out) + 1, unique) if unique else ""
    due = exact(partial(find_property, record.raw_properties), record.store_timestamp, int(out))
    return Waiting(due, topic, broker, int(queue_id), unique, handle, len(record.stored_body))


async def _timer_records(channel: Channel, since: int) -> AsyncIterator[Record]:
    """The messages of the timer topic that were stored at ``since`` (ms) or later."""
    from gantrymq.client.lookup import TOOLS_GROUP
    from gantrymq.remoting.codes import RequestCode, ResponseCode
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.errors import RemoteFault
    from gantrymq.remoting.headers.header import read_header
    from gantrymq.remoting.headers.offsets import OffsetResponse, SearchOffsetHeader
    from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
    from gantrymq.remoting.names import TIMER_TOPIC
    from gantrymq.remoting.records import decode_records

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


async def recall_message(client: Client, topic: str, handle: str, group: str) -> str:
    """Recall the message of ``handle``; returns its id. ``UsageError`` for a handle that does not belong to the
    topic."""
    from gantrymq.remoting.channel import open_channel
    from gantrymq.remoting.codes import RequestCode, ResponseCode
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.headers.header import read_header
    from gantrymq.remoting.headers.recall import RecallMessageHeader, RecallMessageResponse
    from gantrymq.remoting.recall_handles import decode_handle

    try:
        broker = decode_handle(handle).broker
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    route = await client.admin.route(topic)
    address = next((data.broker_addrs.get(0) for data in route.broker_datas if data.broker_name == broker), None)
    if address is None:
        raise click.ClickException(f"no master of broker {broker}, to which the handle belongs, has topic {topic}")
    header = RecallMessageHeader(producer_group=group, topic=topic, recall_handle=handle)
    async with open_channel(address) as channel:
        answer = await channel.call(Command(RequestCode.RECALL_MESSAGE, header.to_ext()))
    if answer.code != ResponseCode.SUCCESS:
        raise click.ClickException(f"{address}: {answer.remark or 'refused'} (code {answer.code})")
    return read_header(RecallMessageResponse, answer.ext).msg_id


def _clock(milliseconds: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="milliseconds")

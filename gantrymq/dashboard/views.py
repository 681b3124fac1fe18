"""What the API answers, as values for JSON: sizes in bytes, times in ms since 1970 unless the name has another unit."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import attrs

from gantrymq.client.absence import ask_if_present
from gantrymq.client.errors import BrokerError, GantryError, NoRoute
from gantrymq.client.groups import group_lags, group_names
from gantrymq.failover.brokers import REFUSING, UNREACHABLE, broker_rows
from gantrymq.operations import dead_letters, groups
from gantrymq.operations.brokers import master_addresses, runtime_info
from gantrymq.operations.clients import connected_producers
from gantrymq.operations.topics import is_brokers_topic, named_after
from gantrymq.operations.traces import message_traces
from gantrymq.operations.transactions import DISCARDED_TOPIC, open_transactions
from gantrymq.remoting.bodies.offsets import DelayOffsetSerializeWrapper
from gantrymq.remoting.bodies.queues import TopicStatsReply
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import DLQ_PREFIX, SCHEDULE_TOPIC, dlq_topic
from gantrymq.remoting.tasks import concurrent_tasks
from gantrymq.remoting.versions import version_name

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord
    from gantrymq.remoting.bodies.queues import MessageQueue

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 16
PAGE_MAX: Final = 200
MESSAGES_MAX: Final = 64
BODY_SHOWN_MAX: Final = 16 * 1024
"""The bytes of a body that are shown."""
DELAYED_MAX: Final = 100_000
"""The most timed messages that the page of waiting messages reads."""
GROUPS_SUMMED_MAX: Final = 300
"""The most groups whose lag one overview reads."""


@attrs.frozen
class Page:
    """Which rows a list shows: those whose names contain ``search``, ``size`` of them from page ``number`` (1) on."""

    search: str = ""
    number: int = 1
    size: int = 50

    def cut(self, names: Sequence[str]) -> tuple[list[str], dict[str, int]]:
        """The names of this page, and the fields that say which page it is."""
        found = [name for name in names if self.search.lower() in name.lower()]
        size = max(1, min(self.size, PAGE_MAX))
        pages = max(1, -(-len(found) // size))
        number = max(1, min(self.number, pages))
        return found[(number - 1) * size : number * size], {
            "total": len(found), "page": number, "pages": pages, "size": size
        }  # fmt: skip


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results of ``work`` for all items, in their order, of :data:`AT_ONCE` at the same time."""
    results: dict[int, R] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def one(index: int, item: T) -> None:
        async with limit:
            results[index] = await work(item)

    async with concurrent_tasks() as tasks:
        for index, item in enumerate(items):
            tasks.start_soon(one, index, item)
    return [results[index] for index in range(len(items))]


# ----------------------------------------------------------------------------------------------------------- brokers


async def brokers(client: Client) -> list[dict[str, Any]]:
    """A row for each broker, as ``gantrymq cluster status``, with its counters where it answers."""
    rows = await broker_rows(client)

    async def fill(row: dict[str, Any]) -> dict[str, Any]:
        table = {} if row["role"] == UNREACHABLE else await runtime_info(client, row["address"])
        number = int(row["id"])
        return {
            **{name: row[name] for name in ("cluster", "broker", "role", "address", "offset", "lag_seconds")},
            "id": number,
            "version": table.get("brokerVersionDesc", ""),
            "started": _whole(table.get("bootTimestamp")),
            "stored_total": _whole(table.get("msgPutTotalTodayNow")),
            "delivered_total": _whole(table.get("msgGetTotalTodayNow")),
            "disk_ratio": _number(table.get("commitLogDiskRatio")),
            "open_transactions": _whole(table.get("openTransactions")),
            "not_ready": table.get("notReady", ""),
        }

    return await each(rows, fill)


async def plugins(client: Client) -> list[dict[str, Any]]:
    """The plugins of each master with their cost, where it is one of GantryMQ."""
    rows = []
    for name, address in (await master_addresses(client)).items():
        try:
            answer = await client.admin.request(
                address, Command(RequestCode.DESCRIBE_PLUGINS, {"measureSeconds": "60"})
            )
        except GantryError:
            continue
        for plugin in json.loads(answer.body)["plugins"]:
            hooks = plugin["hooks"].values()
            rows.append(
                {
                    "broker": name,
                    "plugin": plugin["name"],
                    "version": plugin["version"],
                    "tasks": plugin["tasks"],
                    "calls": sum(hook.get("calls", 0) for hook in hooks),
                    "seconds": round(sum(hook.get("seconds", 0.0) for hook in hooks), 6),
                    "errors": sum(error["count"] for error in plugin["errors"].values()),
                }
            )
    return rows


# ------------------------------------------------------------------------------------------------------------ topics


async def topics(client: Client, page: Page, *, system: bool = False) -> dict[str, Any]:
    """One page of the topics, each with its number of queues and messages."""
    info = await client.admin.cluster()
    named = named_after(info)
    names = [name for name in await client.admin.topics() if system or not is_brokers_topic(name, named)]
    shown, place = page.cut(names)
    masters = list((await master_addresses(client)).values())

    async def row(name: str) -> dict[str, Any]:
        stats: list[dict[str, Any]] = []
        for address in masters:
            with suppress(BrokerError):  # the topic's own page has the reason
                stats += await topic_stats(client, address, name)
        return {
            "topic": name,
            "queues": len(stats),
            "messages": sum(entry["messages"] for entry in stats),
            "last_stored": max((entry["last_stored"] for entry in stats), default=0),
        }

    return {"topics": await each(shown, row), **place}


async def topic_stats(client: Client, address: str, topic: str) -> list[dict[str, Any]]:
    """The queues of a topic at one broker; empty if it does not have the topic. :class:`BrokerError` if it refuses."""
    answer = await ask_if_present(client.admin, address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    if answer is None:
        return []
    return [
        {
            "broker": queue.broker_name, "queue": queue.queue_id, "min": offsets.min_offset, "max": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset, "last_stored": offsets.last_update_timestamp,
        }
        for queue, offsets in TopicStatsReply.from_bytes(answer.body).offsets
    ]  # fmt: skip


async def topic(client: Client, name: str) -> dict[str, Any]:
    """One topic with its queues and the groups that consume it. :class:`NoRoute` if it does not exist."""
    await client.admin.route(name)
    rows: list[dict[str, Any]] = []
    readers: set[str] = set()
    for address in (await master_addresses(client)).values():
        rows += await topic_stats(client, address, name)
        try:
            answer = await client.admin.request(
                address, Command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
            )
            readers |= set(json.loads(answer.body)["groupList"])
        except (BrokerError, KeyError, ValueError):
            continue
    rows.sort(key=lambda row: (row["broker"], row["queue"]))
    return {"topic": name, "queues": rows, "groups": sorted(readers), "messages": sum(row["messages"] for row in rows)}


# ------------------------------------------------------------------------------------------------------------ groups


async def group_page(client: Client, page: Page, *, system: bool = False) -> dict[str, Any]:
    """One page of the groups with members, topics and lag."""
    shown, place = page.cut(await group_names(client.admin, system=system))
    return {"groups": [attrs.asdict(row) for row in await groups.overview(client, shown)], **place}


async def group(client: Client, name: str) -> dict[str, Any]:
    """One group: its queues with their lag, and its members."""
    lags = await group_lags(client.admin, name, times=True)
    members = await groups.group_members(client, name, ask=True)
    return {
        "group": name,
        "lag": sum(lag.lag for lag in lags),
        "queues": [{**groups.flat(lag), "lag": lag.lag} for lag in lags],
        "members": [attrs.asdict(member) for member in members],
        "subscriptions_differ": groups.differing(members),
    }


async def clients(client: Client, page: Page) -> dict[str, Any]:
    """The connected members of one page of the groups."""
    shown, place = page.cut(await group_names(client.admin))
    found = await each(shown, lambda name: groups.group_members(client, name))
    rows = [
        {"group": name, **{key: value for key, value in attrs.asdict(member).items() if key != "subscriptions"}}
        for name, members in zip(shown, found, strict=True)
        for member in members
    ]
    return {"clients": rows, **place}


async def producers(client: Client, page: Page) -> dict[str, Any]:
    """The connected producers, one page of them."""
    found = {f"{row.client_id} {row.group}": row for row in await connected_producers(client)}
    shown, place = page.cut(list(found))
    rows = [{**attrs.asdict(found[name]), "version": version_name(found[name].version)} for name in shown]
    return {"producers": rows, **place}


async def transactions(client: Client, most: int) -> dict[str, Any]:
    """The open transactions of each master, and the newest discarded half messages."""
    try:
        discarded = await peek(client, DISCARDED_TOPIC, "last", most)
    except NoRoute:
        discarded = []
    return {"brokers": [attrs.asdict(row) for row in await open_transactions(client)], "discarded": discarded}


async def trace(client: Client, message_id: str) -> dict[str, Any]:
    """What clients recorded of a message."""
    try:
        return attrs.asdict(await message_traces(client, message_id))
    except NoRoute:
        return {"events": [], "unreadable": 0, "complete": True}


async def why(client: Client, topic_name: str, message_id: str, group_name: str) -> list[dict[str, str]]:
    """Why a group did not get a message."""
    from gantrymq.operations.why import why as reasons

    return [attrs.asdict(each) for each in await reasons(client, topic_name, message_id, group_name)]


async def dead_letter_rows(client: Client) -> list[dict[str, Any]]:
    """How many dead letters each group has, and how many of them were not replayed yet."""
    return [attrs.asdict(row) for row in await dead_letters.dead_letters(client)]


async def dead_letter_messages(client: Client, name: str, most: int) -> list[dict[str, Any]]:
    """The oldest dead letters of a group."""
    return await peek(client, dlq_topic(name), "first", most)


async def delayed(client: Client, topic_name: str | None) -> dict[str, Any]:
    """The timed messages that wait, the next one first; ``complete``: whether all were read, but for those of the
    brokers ``unread``, which have no master."""
    from gantrymq.operations.delayed import waiting_messages

    found = await waiting_messages(client, topic_name, DELAYED_MAX)
    return {
        "total": len(found.messages),
        "complete": found.complete,
        "unread": found.unread,
        "messages": [attrs.asdict(one) for one in found.messages[:PAGE_MAX]],
        "levels": await delay_levels(client),
    }


async def delay_levels(client: Client) -> list[dict[str, Any]]:
    """The delay levels in which messages wait, with their delay and number, by broker.

    ``delay``: as the broker's settings have it (``30s``), empty if these cannot be read.
    """
    from gantrymq.operations.settings import read_settings

    rows: list[dict[str, Any]] = []
    for name, address in sorted((await master_addresses(client)).items()):
        try:
            answer = await client.admin.request(address, Command(RequestCode.GET_ALL_DELAY_OFFSET))
            stats = await client.admin.request(
                address, Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": SCHEDULE_TOPIC})
            )
        except BrokerError:
            continue  # it has no delay levels, or no message has waited yet
        delivered = DelayOffsetSerializeWrapper.from_bytes(answer.body).offset_table
        delays: list[str] | None = None
        for queue, offsets in sorted(TopicStatsReply.from_bytes(stats.body).offsets, key=lambda each: each[0].queue_id):
            level = queue.queue_id + 1
            waiting = offsets.max_offset - max(delivered.get(level, 0), offsets.min_offset)
            if waiting > 0:
                if delays is None:
                    try:
                        delays = (await read_settings(client, address)).get("messageDelayLevel", "").split()
                    except BrokerError:
                        delays = []
                delay = delays[level - 1] if level <= len(delays) else ""
                rows.append({"broker": name, "level": level, "delay": delay, "waiting": waiting})
    return rows


# ---------------------------------------------------------------------------------------------------------- messages


async def peek(client: Client, topic_name: str, start: str, most: int) -> list[dict[str, Any]]:
    """Messages of a topic without a group; ``start``: first, last (the newest), or ms since 1970.

    Each queue is read as far as ``most`` messages, because all of them may be in one queue.
    """
    most = max(1, min(most, MESSAGES_MAX))
    found: list[dict[str, Any]] = []

    async def read(queue: MessageQueue) -> None:
        nonlocal found
        begin, end = await client.admin.min_offset(queue), await client.admin.max_offset(queue)
        if start == "last":
            begin = max(begin, end - most)
        elif start != "first":
            begin = await client.admin.search_offset(queue, int(start))
        if begin >= end:
            return
        left = most
        async with client.reader(topic_name, until="end") as reader:
            await reader.assign([queue])
            await reader.seek(queue, begin)
            while left > 0 and (messages := await reader.poll(max=left)):
                left -= len(messages)
                found += [shown(message) for message in messages]
                found = sorted(found, key=_STORED, reverse=start == "last")[:most]
                if start != "last" and len(found) == most and messages[-1].store_timestamp > found[-1]["stored"]:
                    break  # later ones of this queue are later still

    await each(await client.admin.queues(topic_name), read)
    return found


_STORED: Final = itemgetter("stored", "broker", "queue", "offset")


async def find(client: Client, topic_name: str, *, key: str = "", message_id: str = "") -> list[dict[str, Any]]:
    """The messages with a key or an id."""
    if message_id:
        return [shown(message) for message in await client.admin.find_by_id(topic_name, message_id)]
    return [shown(message) for message in await client.admin.find(topic_name, key, limit=MESSAGES_MAX)]


async def at_offset(client: Client, topic_name: str, queue: int, offset: int) -> list[dict[str, Any]]:
    """The messages at a queue offset, one of each broker."""
    queues = [each for each in await client.admin.queues(topic_name) if each.queue_id == queue]
    found = [await client.admin.message_at(each, offset) for each in queues]
    return [shown(message) for message in found if message is not None]


def shown(message: DeliveredRecord) -> dict[str, Any]:
    """A message with the first :data:`BODY_SHOWN_MAX` bytes of its body: as text if it is UTF-8, and in Base64."""
    body = message.body[:BODY_SHOWN_MAX]
    text: str | None = None
    for end in range(len(body), max(len(body) - 4, -1), -1):  # the cut may be inside a character
        try:
            text = body[:end].decode("utf-8")
            break
        except UnicodeDecodeError:
            if len(body) == len(message.body):
                break
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "offset_id": message.offset_message_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "born": message.born_timestamp,
        "stored": message.store_timestamp,
        "attempts": message.reconsume_times,
        "properties": message.properties,
        "body_bytes": len(message.body),
        "body_text": text,
        "body_base64": base64.b64encode(body).decode("ascii"),
    }


# ---------------------------------------------------------------------------------------------------------- overview


class GroupLags:
    """The latest lag of each group. Each reading asks about at most :data:`GROUPS_SUMMED_MAX` groups: those that are
    not known yet, then those that it asked about the longest time ago."""

    def __init__(self) -> None:
        self._rows: dict[str, groups.Overview] = {}

    async def read(self, client: Client, names: Sequence[str], masters: Mapping[str, str]) -> list[groups.Overview]:
        """Return the latest row of each of the groups ``names`` that is known."""
        before, current = self._rows, set(names)
        unknown = [name for name in names if name not in before]
        known = [name for name in before if name in current]
        asked = (unknown + known)[:GROUPS_SUMMED_MAX]
        found = {row.group: row for row in await groups.overview(client, asked, masters)}
        self._rows = {name: before[name] for name in known if name not in found} | found
        return list(self._rows.values())


async def overview(client: Client, lags: GroupLags) -> dict[str, Any]:
    """The brokers, the number of topics and groups, and the groups that lag most: groups and lag are those of the
    masters that can be reached and do not refuse; None, and no groups, if one of these does not answer."""
    rows = await brokers(client)
    answering = [row for row in rows if row["role"] not in (UNREACHABLE, REFUSING)]
    masters = {row["broker"]: row["address"] for row in answering if row["id"] == 0}
    info = await client.admin.cluster()
    named = named_after(info)
    names = await client.admin.topics()
    known: list[str] | None
    try:
        known = await group_names(client.admin, masters=masters)
        rows_of_groups = await lags.read(client, known, masters)
    except GantryError:  # a broker that has just gone, or is slow: what it has is unknown, not nothing
        known, rows_of_groups = None, []
    rows_of_groups.sort(key=lambda row: -row.lag)
    return {
        "brokers": rows,
        "nameservers": list(client.admin.nameservers),
        "topics": sum(not is_brokers_topic(name, named) for name in names),
        "groups": None if known is None else len(known),
        "dead_letter_topics": sum(name.startswith(DLQ_PREFIX) for name in names),
        "lag": None if known is None else sum(row.lag for row in rows_of_groups),
        "stored_total": sum(row["stored_total"] or 0 for row in rows if row["id"] == 0),
        "delivered_total": sum(row["delivered_total"] or 0 for row in rows),
        "slowest": [attrs.asdict(row) for row in rows_of_groups[:8]],
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _number(text: str | None) -> float | None:
    try:
        number = None if text is None else float(text)
    except ValueError:
        return None
    return number if number is None or math.isfinite(number) else None  # JSON has no other numbers

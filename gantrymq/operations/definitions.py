"""The definitions of a cluster: topics and consumer groups with their settings, without messages and offsets.

An exported document is a JSON object: ``version`` (1), ``topics`` and ``groups``. Each entry has the ``name``, the
``settings`` as RocketMQ's brokers keep them (4.9.7 ``TopicConfig``, ``SubscriptionGroupConfig``), and the names of the
``brokers`` that have them; a name whose settings differ between brokers has an entry for each form. Topics and groups
of the brokers themselves, retry topics and dead-letter topics are left out: brokers create them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from gantrymq.client.groups import is_brokers_group
from gantrymq.operations.brokers import master_addresses, require_masters
from gantrymq.operations.topics import is_brokers_topic, named_after
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.topics import CreateTopicHeader
from gantrymq.remoting.names import AUTO_CREATE_TOPIC, validate_group, validate_topic

if TYPE_CHECKING:
    from gantrymq.client import Client

VERSION: Final = 1
GROUP_DEFAULTS: Final[dict[str, Any]] = {
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
}
"""5.3.3's values of the settings that it has added to 4.9.7's."""

Settings = TopicConfig | SubscriptionGroupConfig


class BadDefinitions(ValueError):
    """The document is not one that :func:`export_definitions` makes; the text says what is wrong."""


@attrs.frozen
class Change:
    """What an import does with one topic or group on one broker; ``removed_queues``: those it takes away."""

    kind: Literal["topic", "group"]
    name: str
    broker: str
    action: Literal["create", "change"]
    removed_queues: int
    settings: Settings = attrs.field(repr=False)
    before: Settings | None = attrs.field(repr=False)


async def export_definitions(client: Client) -> dict[str, Any]:
    """Return the definitions of all masters. :class:`NoRoute` if a broker has no master."""
    topics, groups = await _of_all(client)
    return {"version": VERSION, "topics": list(_entries(topics)), "groups": list(_entries(groups))}


async def plan_import(client: Client, document: object) -> list[Change]:
    """Return the changes that bring the cluster to the definitions of ``document``. Nothing is deleted.

    An entry goes to those of its brokers that the cluster has, or to all masters if it has none of them.
    :class:`BadDefinitions` for an invalid document, before anything is asked; :class:`NoRoute` if a broker has no
    master.
    """
    entries = list(_checked(document))
    topics, groups = await _of_all(client)
    changes: list[Change] = []
    targets: set[tuple[str, str, str]] = set()
    for kind, name, brokers, settings in entries:
        present = topics if kind == "topic" else groups
        for broker in [each for each in present if each in brokers] or list(present):
            if (kind, name, broker) in targets:
                raise BadDefinitions(
                    f"{kind} {name} has several entries for {broker}, or for brokers that the cluster lacks: keep one"
                )
            targets.add((kind, name, broker))
            before = present[broker].get(name)
            if before is None or _compared(before) != _compared(settings):
                changes.append(
                    Change(
                        kind, name, broker, "create" if before is None else "change", _removed(before, settings),
                        settings, before,
                    )
                )  # fmt: skip
    return changes


async def apply(
    client: Client, changes: Sequence[Change], progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Make the changes, in order, on the masters of their brokers. ``progress`` gets their number so far, and of
    all."""
    masters = await master_addresses(client)
    for number, change in enumerate(changes, 1):
        await client.admin.request(masters[change.broker], _command(change))
        progress(number, len(changes))


def _command(change: Change) -> Command:
    settings = change.settings
    if isinstance(settings, SubscriptionGroupConfig):
        return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings.to_bytes())
    old = change.before.attributes if isinstance(change.before, TopicConfig) else None
    header = CreateTopicHeader(
        topic=change.name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=settings.read_queue_nums,
        write_queue_nums=settings.write_queue_nums,
        perm=settings.perm,
        topic_filter_type=settings.topic_filter_type,
        topic_sys_flag=settings.topic_sys_flag,
        order=settings.order,
        attributes=_attribute_changes(old or {}, settings.attributes or {}),
    )
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())


# ---------------------------------------------------------------------------------------------------------- brokers

_Tables = dict[str, dict[str, Any]]
"""Broker name to the settings of its topics or groups, by name."""


async def _of_all(client: Client) -> tuple[_Tables, _Tables]:
    await require_masters(client, "its topics and groups cannot be read")
    info = await client.admin.cluster()
    named = named_after(info)
    topics: _Tables = {}
    groups: _Tables = {}
    for broker, address in (await master_addresses(client)).items():
        answer = await client.admin.request(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG))
        table: Mapping[str, Any] = TopicConfigSerializeWrapper.from_bytes(answer.body).topic_config_table
        topics[broker] = {name: table[name] for name in table if not is_brokers_topic(name, named)}
        answer = await client.admin.request(address, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        table = SubscriptionGroupWrapper.from_bytes(answer.body).subscription_group_table
        groups[broker] = {name: table[name] for name in table if not is_brokers_group(name)}
    return topics, groups


# --------------------------------------------------------------------------------------------------------- document


def _entries(tables: _Tables) -> Iterator[dict[str, Any]]:
    for name in sorted({name for table in tables.values() for name in table}):
        forms: dict[str, list[str]] = {}
        for broker, table in tables.items():
            if name in table:
                forms.setdefault(json.dumps(_texts(table[name]), sort_keys=True), []).append(broker)
        for text, brokers in forms.items():
            yield {"name": name, "brokers": brokers, "settings": json.loads(text)}


def _texts(settings: Body) -> dict[str, Any]:
    """Return the settings as the JSON object of a document: without their name, and without empty attributes."""
    found: dict[str, Any] = json.loads(settings.to_bytes())
    for key in ("topicName", "groupName"):
        found.pop(key, None)
    if not found.get("attributes"):
        found.pop("attributes", None)
    return found


def _compared(settings: Body) -> dict[str, Any]:
    """Return the settings that an import can change.

    Brokers ignore the ``order`` of a request (4.9.7) or replace it by what the nameservers have
    (``TopicConfigManager.updateOrderTopicConfig``): an import that counted it as a change would never end. 5.3.3
    reports its own settings of groups also if they were not given.
    """
    found = _texts(settings)
    found.pop("order", None)
    return GROUP_DEFAULTS | found if isinstance(settings, SubscriptionGroupConfig) else found


def _checked(document: object) -> Iterator[tuple[Literal["topic", "group"], str, Sequence[str], Settings]]:
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise BadDefinitions(f"this is not a document of `gantrymq definitions export` of version {VERSION}")
    kinds: tuple[tuple[Literal["topic", "group"], str], ...] = (("topic", "topics"), ("group", "groups"))
    for kind, key in kinds:
        entries = document.get(key, [])
        if not isinstance(entries, list):
            raise BadDefinitions(f"{key!r} must be a list")
        for number, entry in enumerate(entries):
            try:
                yield _entry(kind, entry)
            except (RemoteFault, KeyError, TypeError, ValueError) as error:
                raise BadDefinitions(f"entry {number} of {key!r} is invalid: {error}") from None


def _entry(kind: Literal["topic", "group"], entry: Any) -> tuple[Any, str, Sequence[str], Settings]:
    name, brokers, values = entry["name"], entry.get("brokers", []), entry["settings"]
    if not isinstance(name, str) or not isinstance(values, dict) or not isinstance(brokers, list):
        raise TypeError("'name' must be a text, 'settings' an object and 'brokers' a list")
    if kind == "topic":
        validate_topic(name)
        if is_brokers_topic(name):
            raise ValueError(f"{name} is a topic of the brokers themselves")
        topic = TopicConfig.from_bytes(json.dumps(values | {"topicName": name}).encode())
        if topic.read_queue_nums < 1 or topic.write_queue_nums < 1:
            raise ValueError(f"topic {name} needs at least one queue")
        return kind, name, brokers, topic
    validate_group(name)
    if is_brokers_group(name):
        raise ValueError(f"{name} is a group of the brokers themselves")
    return kind, name, brokers, SubscriptionGroupConfig.from_bytes(json.dumps(values | {"groupName": name}).encode())


def _removed(before: Settings | None, after: Settings) -> int:
    if isinstance(before, TopicConfig) and isinstance(after, TopicConfig):
        return max(before.read_queue_nums - after.read_queue_nums, before.write_queue_nums - after.write_queue_nums, 0)
    return 0


def _attribute_changes(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return what turns the attributes ``before`` into ``after``, in the form of 5.3.3's request; None without a
    change."""
    parts = [f"+{key}={value}" for key, value in after.items() if before.get(key) != value]
    parts += [f"-{key}" for key in before if key not in after]
    return ",".join(parts) or None

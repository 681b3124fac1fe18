"""Check ``topics.json`` and ``subscriptionGroup.json`` of a store that no broker uses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from gantrymq.plugins.topics.groups import TABLE_KEY as GROUPS_KEY
from gantrymq.plugins.topics.groups import read_groups
from gantrymq.plugins.topics.table import TABLE_KEY as TOPICS_KEY
from gantrymq.plugins.topics.table import read_topics
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson import dumps, loads
from gantrymq.remoting.names import is_system_topic, validate_group, validate_topic

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore
    from gantrymq.remoting.bodies.topics import TopicConfig

TOPICS: Final = "config/topics.json"
GROUPS: Final = "config/subscriptionGroup.json"


def check_topics(store: StoppedStore) -> None:
    """Check the topics, and the queues with messages against them."""
    found = store.read_table(
        TOPICS, read_topics, "the settings of all topics; those with messages get as many queues as they have"
    )
    if found is None:
        return
    topics = found[0].topic_config_table
    illegal = _check_names(store, TOPICS, TOPICS_KEY, topics, validate_topic)
    for name, topic in topics.items():
        if name not in illegal:
            _check_topic(store, name, topic)
    _check_queues(store, topics)


def check_groups(store: StoppedStore) -> None:
    """Check the settings of consumer groups."""
    found = store.read_table(
        GROUPS, read_groups, "the settings of all groups; groups that connect get the default settings"
    )
    if found is not None:
        _check_names(store, GROUPS, GROUPS_KEY, found[0].subscription_group_table, validate_group)


def _check_names(
    store: StoppedStore, path: str, key: str, names: Collection[str], validate: Callable[[str], None]
) -> Collection[str]:
    """Report the entries with illegal names, and return these names."""
    wrong: dict[str, str] = {}
    for name in names:
        try:
            validate(name)
        except RemoteFault as fault:
            wrong[name] = fault.remark
    content = _without(store.read(path), key, wrong) if wrong and store.exists(path) else None
    for name, reason in wrong.items():
        store.damaged(
            path, f"the entry {name[:200]!r} has an illegal name: {reason}", "a start ignores it",
            "removes the entry", contents=None if content is None else {path: content},
        )  # fmt: skip
    return wrong


def _without(data: bytes, key: str, names: Collection[str]) -> bytes | None:
    """The text without these entries; None if it is the ``.bak`` that is readable."""
    try:
        value: Any = loads(data)
        value[key] = {name: entry for name, entry in value[key].items() if name not in names}
        return dumps(value)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _check_topic(store: StoppedStore, name: str, topic: TopicConfig) -> None:
    read, write = topic.read_queue_nums, topic.write_queue_nums
    if min(read, write) < 0:
        store.damaged(
            TOPICS, f"topic {name!r} has {read} queues to read and {write} to write",
            "clients find none of its queues; set the numbers with gantrymq topic update when the broker runs",
        )  # fmt: skip
    if topic.topic_name != name:
        store.damaged(
            TOPICS, f"the entry {name!r} is that of the topic {topic.topic_name!r}",
            "clients get the settings of another topic; set them with gantrymq topic update when the broker runs",
        )  # fmt: skip


def _check_queues(store: StoppedStore, topics: dict[str, TopicConfig]) -> None:
    seen: dict[str, int] = {}
    for (name, queue_id), end in store.queue_ends.items():
        if end:
            seen[name] = max(queue_id + 1, seen.get(name, 0))
    for name, count in sorted(seen.items()):
        if is_system_topic(name):
            continue
        topic = topics.get(name)
        if topic is None:
            meaning = "no client finds them" if store.is_foreign else f"a master creates the topic with {count} queues"
            store.note(TOPICS, f"{count} queues have messages of {name!r}, which is not in the file", meaning)
        elif 0 <= topic.read_queue_nums < count:
            store.note(
                TOPICS, f"topic {name!r} has {topic.read_queue_nums} queues to read, and {count} have had messages",
                "no client reads the other queues until the number of queues is raised",
            )  # fmt: skip

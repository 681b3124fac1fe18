"""Limits of the tables, so that no peer can fill the memory. RocketMQ has no such limits."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Final

from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

BROKERS_MAX: Final = 10_000
TOPICS_MAX: Final = 200_000
NAME_MAX_CHARACTERS: Final = 512
FILTER_SERVERS_MAX: Final = 100
MAPPINGS_MAX: Final = 10_000
"""The most static topics in one registration."""
STEP_NAMES: Final = 4096
"""The number of names checked in one step: less than a millisecond."""


def check_rooms(
    identity: BrokerIdentity,
    live: Collection[str],
    known: Collection[str],
    mapped: Collection[str],
    wrapper: TopicConfigSerializeWrapper,
) -> None:
    """Check that another broker fits, and its topics in addition to those ``known``, its static topics in addition to
    those ``mapped``; :class:`RemoteFault` (code 1)."""
    if not (identity.cluster.strip() and identity.name.strip() and identity.address.strip()):
        raise _fault("a broker's cluster, name and address must not be blank")
    if identity.address not in live and len(live) >= BROKERS_MAX:
        raise _fault(f"{BROKERS_MAX} brokers are registered, which is the limit")
    topics = wrapper.topic_config_table
    if len(known) + len(topics) > TOPICS_MAX:  # else none needs to be looked up
        check_new(known, (topic.topic_name or key for key, topic in topics.items()))
    mappings = wrapper.topic_queue_mapping_info_map or {}
    if len(mapped) + len(mappings) > TOPICS_MAX:
        own = (topic for topic, mapping in mappings.items() if mapping.bname == identity.name)
        check_new(mapped, own, "static topics")


def check_new(known: Collection[str], topics: Iterable[str], kind: str = "topics") -> None:
    """Check that those of ``topics`` that are new fit in addition to those ``known``; :class:`RemoteFault` (code
    1)."""
    new = {topic for topic in topics if topic not in known}
    if new and len(known) + len(new) > TOPICS_MAX:
        raise _fault(f"more than {TOPICS_MAX} {kind} are not taken")


def check_names(
    identity: BrokerIdentity,
    ha_address: str,
    wrapper: TopicConfigSerializeWrapper,
    filter_servers: list[str],
    zone: str | None,
) -> Generator[None, None, None]:
    """Check the lengths of all names, in steps; :class:`RemoteFault` (code 1)."""
    check_lengths((identity.cluster, identity.name, identity.address, ha_address, zone or "", *filter_servers))
    for number, (name, topic) in enumerate(wrapper.topic_config_table.items(), start=1):
        if len(name) > NAME_MAX_CHARACTERS or len(topic.topic_name) > NAME_MAX_CHARACTERS:
            check_lengths((name, topic.topic_name))
        if number % STEP_NAMES == 0:
            yield
    if len(filter_servers) > FILTER_SERVERS_MAX:
        raise _fault(f"{len(filter_servers)} filter servers, {FILTER_SERVERS_MAX} are the limit")
    mappings = wrapper.topic_queue_mapping_info_map or {}
    if len(mappings) > MAPPINGS_MAX:
        raise _fault(f"{len(mappings)} mappings of static topics, {MAPPINGS_MAX} are the limit")
    check_lengths(
        name for key, mapping in mappings.items() for name in (key, mapping.bname, mapping.topic, mapping.scope)
    )


def check_lengths(names: Iterable[str]) -> None:
    """Check the lengths of ``names``; :class:`RemoteFault` (code 1)."""
    longest = max(map(len, names), default=0)
    if longest > NAME_MAX_CHARACTERS:
        raise _fault(f"a name of {longest} characters, {NAME_MAX_CHARACTERS} are the limit")


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)

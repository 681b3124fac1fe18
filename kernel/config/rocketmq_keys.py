"""RocketMQ's names of settings, as the fields of a configuration class declare them.

The field helpers (:mod:`gantrymq.kernel.config.fields`) take a name, or a :class:`RocketmqKey` where RocketMQ writes
the value in another form. Keys that stand for no single setting are a :class:`KeyGroup` of the class. From these follow
how ``broker.conf`` is read, and by which names administrators see and change settings::

    @attrs.frozen(kw_only=True)
    class AuditConfig:
        broker_conf_groups: ClassVar = (KeyGroup(("auditHost", "auditPort"), read_server, write_server),)
        interval: float = duration("5s", rocketmq="auditInterval")  # milliseconds in RocketMQ's file
        keep: float = duration("72h", rocketmq=in_hours("auditKeepHours"))
        loud: bool = plain(False, rocketmq="auditLoud")
        server: str = address("127.0.0.1:9000")
        topics: list[str] = attrs.field(factory=list, metadata=named("auditTopics"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

METADATA = "rocketmq"
"""Where a field's metadata has its :class:`RocketmqKey`."""
GROUPS = "broker_conf_groups"
"""The attribute of a configuration class that has its groups."""

Place = tuple[str, str]
"""Section and key of a setting of ours: ``("plugin.audit", "interval")``."""


def write_plain(value: Any) -> str:
    """A value as RocketMQ writes one of its type: ``true``, lists with ``;``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_plain(text: str) -> str:
    """The text as it is: RocketMQ writes the value as we do."""
    return text


def write_nothing(_section: object) -> dict[str, str]:
    """For a group whose keys fields write, or that need not be seen."""
    return {}


@attrs.frozen
class RocketmqKey:
    """RocketMQ's name of one setting. ``older``: spellings that are read as well, and never written.

    ``read`` turns RocketMQ's text into ours; what does not fit it returns unchanged, so that the field refuses it by
    its own name, or it raises ValueError. ``write`` turns the typed value into RocketMQ's text.
    """

    name: str
    older: tuple[str, ...] = ()
    read: Callable[[str], str] = read_plain
    write: Callable[[Any], str] = write_plain


@attrs.frozen
class KeyGroup:
    """Keys of RocketMQ that are read together, or that stand for more or less than one setting.

    ``read`` gets all properties of the file, stripped, when one of ``keys`` is among them, and returns our settings as
    text by section and key; they replace what the names of fields gave. The key ``""`` only says that the section is
    there. It raises :class:`NoCounterpart` for a value that is to be ignored, and ValueError for one that refuses the
    start. A key that a field names as well is read by the group alone and written by the field. ``write`` gets the
    section, an instance of the class, and returns keys and values as administrators are to see them.
    """

    keys: tuple[str, ...]
    read: Callable[[Mapping[str, str]], Mapping[Place, str]]
    write: Callable[[Any], Mapping[str, str]]


class NoCounterpart(Exception):
    """This key, with the value that it has, means nothing here: it is reported, and its group is ignored."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has no counterpart here")
        self.key = key


def named(rocketmq: str | RocketmqKey | None) -> dict[str, RocketmqKey]:
    """The metadata of a field with this name, or of one without."""
    key = RocketmqKey(rocketmq) if isinstance(rocketmq, str) else rocketmq
    return {} if key is None else {METADATA: key}


def in_milliseconds(name: str, *older: str) -> RocketmqKey:
    """A duration that RocketMQ has in milliseconds, as most."""
    return RocketmqKey(name, older, lambda text: f"{text}ms", lambda seconds: str(round(seconds * 1000)))


def in_seconds(name: str, *older: str) -> RocketmqKey:
    """A duration that RocketMQ has in seconds."""
    return RocketmqKey(name, older, lambda text: f"{text}s", lambda seconds: str(round(seconds)))


def in_hours(name: str, *older: str) -> RocketmqKey:
    """A duration that RocketMQ has in hours."""
    return RocketmqKey(name, older, lambda text: f"{text}h", lambda seconds: str(round(seconds / 3600)))

"""RocketMQ's names of settings, which the fields of a configuration class declare.

The field helpers (:mod:`gantrymq.kernel.config.fields`) take a name, or a :class:`RocketmqKey` where RocketMQ writes
the value in another form. A key that does not correspond to exactly one setting belongs to a :class:`KeyGroup` of the
class. These declarations determine how ``broker.conf`` is read, and under which names administrators see and change
settings::

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
"""The key of a field's metadata for its :class:`RocketmqKey`."""
GROUPS = "broker_conf_groups"
"""The attribute of a configuration class for its groups."""

SettingKey = tuple[str, str]
"""Section and key of a setting of GantryMQ: ``("plugin.sample", "interval")``."""


def write_plain(value: Any) -> str:
    """Return a value in RocketMQ's form for its type: ``true``, lists with ``;``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_plain(text: str) -> str:
    """Return the unchanged text: RocketMQ writes the value in the same form."""
    return text


def write_nothing(_section: object) -> dict[str, str]:
    """For a group whose keys are written by fields or are not shown."""
    return {}


@attrs.frozen
class RocketmqKey:
    """RocketMQ's name of one setting. ``older``: spellings that are read but never written.

    ``read`` converts RocketMQ's text into GantryMQ's. It returns an invalid text unchanged, so that the field refuses
    it under its own name, or raises ValueError. ``write`` converts the typed value into RocketMQ's text.
    """

    name: str
    older: tuple[str, ...] = ()
    read: Callable[[str], str] = read_plain
    write: Callable[[Any], str] = write_plain


@attrs.frozen
class KeyGroup:
    """Keys of RocketMQ that are read together, or that do not correspond to exactly one setting.

    ``read`` gets all properties of the file, stripped, if one of ``keys`` is among them. It returns GantryMQ's settings
    as text by section and key, which replace those from the names of fields. The key ``""`` only says that the section
    exists. It raises :class:`NoCounterpart` for a value to ignore, and ValueError for a value that stops the start. If
    a field has the same key, only the group reads it and only the field writes it. ``write`` gets the section, an
    instance of the class, and returns the keys and values that administrators see.
    """

    keys: tuple[str, ...]
    read: Callable[[Mapping[str, str]], Mapping[SettingKey, str]]
    write: Callable[[Any], Mapping[str, str]]


class NoCounterpart(Exception):
    """This key with this value has no counterpart: its group is ignored, and the key is reported unless another group
    sets its field."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has no counterpart here")
        self.key = key


def named(rocketmq: str | RocketmqKey | None) -> dict[str, RocketmqKey]:
    """Return the metadata of a field with this name, or without a name."""
    key = RocketmqKey(rocketmq) if isinstance(rocketmq, str) else rocketmq
    return {} if key is None else {METADATA: key}


def in_milliseconds(name: str, *older: str) -> RocketmqKey:
    """Return a duration that RocketMQ has in milliseconds, like most."""
    return RocketmqKey(name, older, lambda text: f"{text}ms", lambda seconds: str(round(seconds * 1000)))


def in_seconds(name: str, *older: str) -> RocketmqKey:
    """Return a duration that RocketMQ has in seconds."""
    return RocketmqKey(name, older, lambda text: f"{text}s", lambda seconds: str(round(seconds)))


def in_hours(name: str, *older: str) -> RocketmqKey:
    """Return a duration that RocketMQ has in hours."""
    return RocketmqKey(name, older, lambda text: f"{text}h", lambda seconds: str(round(seconds / 3600)))

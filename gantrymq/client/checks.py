"""What is refused before it reaches the network: names, bodies, properties.

The rules are RocketMQ 4.9.7's (``Validators``, ``TopicValidator``); a broker would refuse the same with a code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final

from gantrymq.client.errors import InvalidMessage, InvalidName
from gantrymq.message import Message
from gantrymq.remoting import properties

TOPIC_MAX_CHARACTERS: Final = 127
GROUP_MAX_CHARACTERS: Final = 255
BODY_MAX_BYTES: Final = 4 * 1024 * 1024

NOT_SENDABLE: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics of the broker's own that clients may not send to."""

TOPICS_REMEMBERED: Final = 1024
"""Names that were found good are not looked at again."""
_sendable: set[str] = set()

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(name: str) -> None:
    """Raise :class:`InvalidName` unless ``name`` can be a topic."""
    _check_name("topic", name, TOPIC_MAX_CHARACTERS)


def check_group(name: str) -> None:
    """Raise :class:`InvalidName` unless ``name`` can be a producer or consumer group."""
    _check_name("group", name, GROUP_MAX_CHARACTERS)


def check_sendable_topic(name: str) -> None:
    """Raise :class:`InvalidName` unless producers may send to the topic ``name``."""
    if type(name) is not str or name not in _sendable:
        check_topic(name)
        if name in NOT_SENDABLE:
            raise InvalidName(f"topic {name} belongs to the broker: clients may not send to it")
        if len(_sendable) >= TOPICS_REMEMBERED:
            _sendable.clear()
        _sendable.add(name)


def check_body(body: object, body_max_bytes: int = BODY_MAX_BYTES) -> None:
    """Raise :class:`InvalidMessage` unless ``body`` can be a message's."""
    if type(body) is bytes and 0 < len(body) <= body_max_bytes:
        return
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidMessage(f"a body is bytes, not {type(body).__name__}: encode it first")
    size = len(body)
    if not size:
        raise InvalidMessage("the body is empty; RocketMQ's protocol has no empty messages")
    if size > body_max_bytes:
        raise InvalidMessage(f"the body has {size} bytes, {body_max_bytes} is the limit: split it")


def check_message(message: Message, body_max_bytes: int = BODY_MAX_BYTES) -> None:
    """Raise :class:`InvalidName` or :class:`InvalidMessage` unless a broker would take ``message``."""
    check_sendable_topic(message.topic)
    check_body(message.body, body_max_bytes)
    if message.tags is not None and not isinstance(message.tags, str):
        raise _no_text("tags", message.tags)
    for key in message.keys:
        if not isinstance(key, str):
            raise _no_text(f"key {key!r}", key)
        if not key or any(character.isspace() for character in key):
            raise InvalidMessage(f"key {key!r} is empty or holds a space, which separates keys")
    if message.delay_level < 0:
        raise InvalidMessage(f"delay level {message.delay_level}: levels begin with 1, and 0 means no delay")
    if (message.delay is not None) + (message.deliver_at is not None) + (message.delay_level > 0) > 1:
        raise InvalidMessage("give one of delay, deliver_at and delay_level")
    given = message.properties
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidMessage(f"properties is {type(given).__name__}: give a mapping of names to values, each a str")
    for name, value in given.items():
        if not isinstance(name, str):
            raise _no_text(f"the name of property {name!r}", name)
        if not isinstance(value, str):
            raise _no_text(f"property {name!r}", value)
        text = str.__str__(name)  # that of a str enum, which also has another hash
        if text in properties.RESERVED:
            raise InvalidMessage(f"property {text} is reserved by RocketMQ (tags and keys are arguments of their own)")


def delay_milliseconds(delay: timedelta | float) -> int:
    """A delay as brokers take it; :class:`InvalidMessage` for what is none."""
    try:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        milliseconds = round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(f"a delay is a timedelta or a number of seconds, not {delay!r}") from None
    if seconds < 0:
        raise InvalidMessage(f"a delay of {seconds:g} s is in the past")
    return milliseconds


def deliver_milliseconds(time: datetime) -> int:
    """A time of delivery as brokers take it; :class:`InvalidMessage` for what is none."""
    if not isinstance(time, datetime):
        raise InvalidMessage(f"deliver_at is a datetime, not {time!r}: delay takes seconds")
    try:
        return max(1, round(time.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise InvalidMessage(f"deliver_at {time!r} is not a time that a message can have") from None


def is_timed(message: Message) -> bool:
    """Whether ``message`` waits at the broker for a time, which brokers before 5.0 do not know."""
    return bool(message.delay) or message.deliver_at is not None


def encode_message_properties(
    message: Message, unique_key: str, added: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The text form of a checked message's properties and of those ``added`` for it.

    :class:`InvalidMessage` for what that form cannot hold.
    """
    pairs = {**message.properties, **added}
    if message.keys:
        pairs[properties.KEYS] = " ".join(message.keys)
    if message.tags is not None:
        pairs[properties.TAGS] = message.tags
    if message.delay_level:
        pairs[properties.DELAY] = str(message.delay_level)
    elif message.delay is not None:
        if milliseconds := delay_milliseconds(message.delay):
            pairs[properties.TIMER_DELAY_MS] = str(milliseconds)
    elif message.deliver_at is not None:
        pairs[properties.TIMER_DELIVER_MS] = str(deliver_milliseconds(message.deliver_at))
    if message.order_key is not None:
        key = message.order_key
        pairs[properties.SHARDING_KEY] = str(key.value if isinstance(key, Enum) else key)
    pairs[properties.UNIQ_KEY] = unique_key
    for name, value in pairs.items():
        if not name or not value:
            raise InvalidMessage(f"property {name!r} has no {'value' if name else 'name'}; it would be lost on the way")
    text = properties.encode_properties(pairs)
    separators = text.count(properties.NAME_SEPARATOR) + text.count(properties.PAIR_SEPARATOR)
    if separators != 2 * len(pairs) - 1:
        raise InvalidMessage("a property's name or value holds U+0001 or U+0002, which separate properties")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"a property is not valid Unicode: {error.reason}") from None
    if size > properties.PROPERTIES_MAX_BYTES:
        raise InvalidMessage(f"the properties have {size} bytes, {properties.PROPERTIES_MAX_BYTES} is the limit")
    return text


def _no_text(what: str, value: object) -> InvalidMessage:
    return InvalidMessage(f"{what[:200]} is {type(value).__name__}: give a str")


def _check_name(kind: str, name: str, limit: int) -> None:
    if not isinstance(name, str):
        raise InvalidName(f"a {kind}'s name is a str, not {type(name).__name__}: {name!r}"[:200])
    if not name or not name.strip():
        raise InvalidName(f"the {kind}'s name is blank")
    if len(name) > limit:
        raise InvalidName(f"{kind} {name[:40]!r}... has {len(name)} characters, {limit} is the limit")
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{kind} {name!r} has characters other than letters, digits, _, -, % and |")

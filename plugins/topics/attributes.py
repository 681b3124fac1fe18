"""Attributes of topics and groups: their names, how a request changes them, and which values are refused.

Source: RocketMQ 5.3.3 ``AttributeParser``, ``AttributeUtil``, ``TopicAttributes``, ``SubscriptionGroupAttributes``;
including the remarks. RocketMQ accepts ``queue.type=BatchCQ`` and ``cleanup.policy=COMPACTION``, for which it has
separate stores. GantryMQ has neither and refuses them, because they would silently have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

_LONG = re.compile(r"[+-]?[0-9]{1,40}")
_LONG_MAX = 2**63 - 1
SHOWN = 100
"""The most characters of a key or value in a remark."""


@attrs.frozen
class Attribute:
    """One attribute: the check of its value, and whether it can be changed after the topic is created."""

    verify: Callable[[str], None]
    is_changeable: bool


def _one_of(*values: str) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if value not in values:
            raise _fault(f"value is not in set: [{', '.join(values)}]")

    return verify


def _long_from(low: int) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if not _LONG.fullmatch(value) or not -_LONG_MAX - 1 <= int(value) <= _LONG_MAX:
            raise _fault(f'For input string: "{value[:SHOWN]}"')
        if int(value) < low:
            raise _fault(f"value is not in range({low}, {_LONG_MAX})")

    return verify


def _no_other_store(values: Callable[[str], None], refused: str, remark: str) -> Callable[[str], None]:
    def verify(value: str) -> None:
        values(value)
        if value == refused:
            raise _fault(remark)

    return verify


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(
        _no_other_store(
            _one_of("BatchCQ", "SimpleCQ"),
            "BatchCQ",
            "queue.type=BatchCQ is not supported: this broker has no batch consume queues; "
            "create the topic without it or with SimpleCQ",
        ),
        is_changeable=False,
    ),
    "cleanup.policy": Attribute(
        _no_other_store(
            _one_of("COMPACTION", "DELETE"),
            "COMPACTION",
            "cleanup.policy=COMPACTION is not supported: this broker does not compact topics; "
            "create the topic without it or with DELETE",
        ),
        is_changeable=False,
    ),
    "message.type": Attribute(
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"), is_changeable=True
    ),
    "reserve.time": Attribute(_long_from(-1), is_changeable=True),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse_changes(text: str) -> dict[str, str]:
    """Return the changes of ``+key=value,-key``: by key with its sign, in the order of the text, the value of ``-key``
    empty.

    :class:`RemoteFault` (code 1) for anything else.
    """
    changes: dict[str, str] = {}
    if not text:
        return changes
    for part in text.split(","):
        key, has_value, value = part.partition("=")
        value = value.partition("=")[0]
        if has_value and ("+" not in key or not value):
            raise _fault(f"add/alter attribute format is wrong: {key[:SHOWN]}")
        if not has_value and "-" not in key:
            raise _fault(f"delete attribute format is wrong: {key[:SHOWN]}")
        if key in changes:
            raise _fault(f"key duplication: {key[:SHOWN]}")
        changes[key] = value
    return changes


def changed_attributes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes after ``changes``; ``current`` is None for a new topic or group.

    :class:`RemoteFault` (code 1) names the key or value that is not allowed.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _fault("kv string format wrong.")
        if key in seen:
            raise _fault(f"alter duplication key. key: {key[:SHOWN]}")
        seen.add(key)
        if current is None and sign != "+":
            raise _fault(f"only add attribute is supported while creating topic. key: {key[:SHOWN]}")
        if sign not in ("+", "-"):
            raise _fault(f"wrong format key: {key[:SHOWN]}")
        if sign == "-" and current is not None and key not in current:
            raise _fault(f"attempt to delete a nonexistent key: {key[:SHOWN]}")
        attribute = known.get(key)
        if attribute is None:
            raise _fault(f"unsupported key: {key[:SHOWN]}")
        if current is not None and not attribute.is_changeable:
            raise _fault(f"attempt to update an unchangeable attribute. key: {key[:SHOWN]}")
        if sign == "+":
            attribute.verify(value)
            result[key] = value
        else:
            del result[key]
    return result


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)

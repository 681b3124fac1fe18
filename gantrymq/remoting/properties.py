"""Message properties: their encoded form, and the names that RocketMQ reserves.

``name \\x01 value`` pairs joined by ``\\x02``; 4.9 writes no separator at the end, 5.x does. Source:
``MessageDecoder.string2messageProperties``, ``MessageConst``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME_SEPARATOR = "\x01"
PAIR_SEPARATOR = "\x02"

_PAIR_END = ord(PAIR_SEPARATOR)

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
CLUSTER = "CLUSTER"
UNIQ_KEY = "UNIQ_KEY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CONSUME_START_TIME = "CONSUME_START_TIME"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
SHARDING_KEY = "__SHARDINGKEY"
"""The order key of a message, as 5.x clients name it."""

# Requests and replies.
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"

# Half messages.
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# Timed messages.
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"

TIMER_PREFIX = "TIMER_DEL"
"""The common prefix of the properties that set a delivery time or recall a timed message."""

RESERVED = frozenset(
    {
        KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP, MIN_OFFSET, MAX_OFFSET,
        ORIGIN_MESSAGE_ID, MSG_REGION, TRACE_ON, UNIQ_KEY, CONSUME_START_TIME, CORRELATION_ID, REPLY_TO_CLIENT,
        PUSH_REPLY_TIME, CLUSTER, "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
        "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "INSTANCE_ID", "TTL", "ARRIVE_TIME", "MSG_TYPE", "INNER_NUM",
        "INNER_BASE", "DUP_INFO",
    }
)  # fmt: skip
"""Names that properties of users must not have (``MessageConst.STRING_HASH_SET``)."""

PROPERTIES_MAX_BYTES = 32767
"""The most bytes of the stored form, whose length is a signed 16-bit number."""
NO_DELAY = re.compile(rb"0+|-[0-9]{1,9}")
"""Values of :data:`DELAY` that delay nothing: RocketMQ delays a message only if its level is above 0."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text form, as 4.9 writes it."""
    return PAIR_SEPARATOR.join(map(NAME_SEPARATOR.join, properties.items()))  # which takes the value of a str enum


def decode_properties(text: str) -> dict[str, str]:
    """The pairs in ``text``. Drops parts that are not a pair of a name and a value, as Java does.

    A value may have the separator of names in it (RocketMQ 4.9.3 and later).
    """
    result: dict[str, str] = {}
    for piece in text.split(PAIR_SEPARATOR):
        name, separator, value = piece.partition(NAME_SEPARATOR)
        if separator and name and value:
            result[name] = value
    return result


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property in the encoded form, without decoding the others."""
    needle = name + b"\x01"
    at = raw.find(needle)
    if at > 0 and raw[at - 1] != _PAIR_END:  # the end of another name, or a part of a value
        at = raw.find(b"\x02" + needle, at)
        at += at >= 0
    if at < 0:
        return None
    start = at + len(needle)
    end = raw.find(b"\x02", start)
    value = raw[start:] if end < 0 else raw[start:end]
    return value or None


def replace_properties(raw: bytes, changes: Mapping[bytes, bytes | None]) -> bytes:
    """The encoded form ``raw`` with ``changes``, which come last; None removes a property."""
    pieces = [piece for piece in raw.split(b"\x02") if piece and piece.partition(b"\x01")[0] not in changes]
    pieces += [name + b"\x01" + value for name, value in changes.items() if value is not None]
    return b"\x02".join(pieces)


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: 31-polynomial over UTF-16 units, a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (value * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value

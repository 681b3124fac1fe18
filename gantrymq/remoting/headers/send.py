"""The headers of messages that are sent, sent back by a consumer, or sent as the reply to a request.

Source: RocketMQ 4.9.7 ``SendMessageRequestHeader``, ``SendMessageResponseHeader``, ``ReplyMessageRequestHeader``,
``ConsumerSendMsgBackRequestHeader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.header import Header, Int32, Int64, read_header

SEND_LETTERS = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j",
    "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m",
}  # fmt: skip
"""The one-letter names of 310, 320 and 325 for the long names of 10 and 324; all of them carry the same fields."""
_LONG_NAMES = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})
_LETTERS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
RECONSUME_UNLIMITED: Final = 2**31 - 1
"""The ``max_reconsume_times`` of a message that no number of redeliveries makes a dead letter."""


class SendMessageHeader(
    Header,
    kw_only=True,
    rename={
        "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
        "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
        "unit_mode": "k", "max_reconsume_times": "l", "batch": "m",
    },
):  # fmt: skip
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325); through
    :func:`read_send_header` also SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None


def read_send_header(code: int, ext: dict[str, str] | None) -> SendMessageHeader:
    """The header of a request that sends a message or a reply, with long or one-letter names of fields."""
    if code in _LONG_NAMES and ext:
        ext = {SEND_LETTERS.get(name, name): value for name, value in ext.items()}
    return read_header(SendMessageHeader, ext)


def topic_in(code: int, ext: Mapping[str, str]) -> str | None:
    """The topic in the header of a request, as its processor reads it; None if there is none."""
    if code in _LONG_NAMES:
        names = [name for name in ext if SEND_LETTERS.get(name, name) == SEND_LETTERS["topic"]]
        return ext[names[-1]] if names else None
    return ext.get(SEND_LETTERS["topic"] if code in _LETTERS else "topic")


class SendMessageResponse(Header, kw_only=True):
    """The place of the stored message. For a batch, commas separate the ids, and the offset is that of the first
    message."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    recall_handle: str | None = None
    """The handle of a timed message for RECALL_MESSAGE (5.3)."""


class ReplyMessageHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): the fields of the reply as it was sent, and its origin.

    ``born_host`` and ``store_host`` are ``address:port`` of the replying client and of the broker, the address in
    digits.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class SendBackHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): the message at ``offset`` of the log; delay level -1 makes it a dead letter, with 0
    the broker chooses."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None

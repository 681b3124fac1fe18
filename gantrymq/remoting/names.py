"""Rules for names of topics and groups, and the names that RocketMQ reserves.

Source: RocketMQ 4.9.7 ``TopicValidator``, ``Validators``, ``MixAll``; the error texts are theirs.
"""

from __future__ import annotations

import re
from typing import Final

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault

TOPIC_MAX_LENGTH: Final = 127
"""A topic's length is a signed byte in the stored record."""
GROUP_MAX_LENGTH: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANS_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}TRANS"
"""The group with which a broker consumes half messages and op messages."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose settings apply to a topic that its first message creates."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""System topics of every broker; the names of the broker and of its cluster are system topics too."""
UNSENDABLE_TOPICS: Final = SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC} | {TIMER_TOPIC}
"""Clients may not send to these."""
SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)
"""Every broker has these subscription groups."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def validate_topic(name: str) -> None:
    """:class:`RemoteFault` (code 1) unless ``name`` is a legal topic name."""
    if not name.strip():
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    if not _LEGAL.fullmatch(name):
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(name) > TOPIC_MAX_LENGTH:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The specified topic is longer than topic max length.")


def validate_group(name: str) -> None:
    """:class:`RemoteFault` (code 1) unless ``name`` is a legal producer or consumer group name."""
    if not name.strip():
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "the specified group is blank")
    if len(name) > GROUP_MAX_LENGTH:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "the specified group is longer than group max length 255.")
    if not _LEGAL.fullmatch(name):
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"the specified group[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )


def refuse_system_topic(name: str) -> None:
    """:class:`RemoteFault` (code 1) when ``name`` is a system topic, which users neither create nor delete."""
    if is_system_topic(name):
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")


def refuse_unsendable_topic(name: str) -> None:
    """:class:`RemoteFault` (code 16) when clients may not send to ``name``."""
    if name in UNSENDABLE_TOPICS:
        raise RemoteFault(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")


def is_system_topic(name: str) -> bool:
    """Whether ``name`` is reserved on every broker."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether ``name`` is a system group of RocketMQ."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The retry topic of a consumer group."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The dead-letter topic of a consumer group."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """The topic for the replies to requests, one in each cluster."""
    return f"{cluster}_REPLY_TOPIC"


def is_retry_topic(name: str) -> bool:
    """Whether ``name`` is some group's retry topic."""
    return name.startswith(RETRY_PREFIX)


def is_dlq_topic(name: str) -> bool:
    """Whether ``name`` is some group's dead-letter topic."""
    return name.startswith(DLQ_PREFIX)

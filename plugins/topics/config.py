"""Section ``[plugin.topics]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import number, plain
from gantrymq.kernel.config.rocketmq_keys import RocketmqKey
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRACE_TOPIC, refuse_unsendable_topic, validate_topic


def _check_trace_topic(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    try:
        validate_topic(value)
        refuse_unsendable_topic(value)
    except RemoteFault as fault:
        raise ValueError(fault.remark) from None


PERMISSIONS = {"read-write": PERM_READ | PERM_WRITE, "read-only": PERM_READ, "write-only": PERM_WRITE}
"""The permissions of clients as RocketMQ's bits."""


def _read_permission(value: str) -> str:
    return {str(bits): name for name, bits in PERMISSIONS.items()}.get(value, value)


def _write_permission(name: str) -> str:
    return str(PERMISSIONS[name])


@attrs.frozen(kw_only=True)
class TopicsConfig:
    """Automatic creation of topics and groups, and their limits."""

    auto_create: bool = plain(True, rocketmq="autoCreateTopicEnable")
    """A topic is created by the first message sent to it."""
    default_queues: int = number(8, 1, 1024, rocketmq="defaultTopicQueueNums")
    """Queues of TBW102, the most for a topic that is created this way; the client can request fewer (it requests 4)."""
    max_topics: int = number(10_000, 1, 1_000_000)
    """The most topics, without retry topics (one per group) and system topics, without which the broker cannot
    start."""
    max_queues: int = number(1024, 1, 65_536)
    """The most queues of a topic."""
    auto_create_groups: bool = plain(True, rocketmq="autoCreateSubscriptionGroup")
    """A consumer group is created by its first member."""
    max_groups: int = number(10_000, 1, 1_000_000)
    trace_topic: bool = plain(True, rocketmq="traceTopicEnable")
    """Create the topic to which clients with tracing write; in RocketMQ this is off by default."""
    trace_topic_name: str = plain(TRACE_TOPIC, rocketmq="msgTraceTopicName", validator=_check_trace_topic)
    """Its name."""
    broker_permission: Literal["read-write", "read-only", "write-only"] = plain(
        "read-write", rocketmq=RocketmqKey("brokerPermission", read=_read_permission, write=_write_permission)
    )
    """What clients may do on this broker, whatever the permission of a topic."""

    @property
    def broker_perm(self) -> int:
        """The permission as RocketMQ's bits."""
        return PERMISSIONS[self.broker_permission]

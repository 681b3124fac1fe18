"""Section ``[plugin.topics]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import number
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRACE_TOPIC, refuse_unsendable_topic, validate_topic


def _check_trace_topic(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    try:
        validate_topic(value)
        refuse_unsendable_topic(value)
    except RemoteFault as fault:
        raise ValueError(fault.remark) from None


@attrs.frozen(kw_only=True)
class TopicsConfig:
    """Which topics and groups come into being by themselves, and how many there may be."""

    auto_create: bool = True
    """A topic is created by the first message sent to it (RocketMQ's autoCreateTopicEnable)."""
    default_queues: int = number(8, 1, 1024)
    """Queues of TBW102, the most that a topic gets that way; the client may ask for less (it asks for 4)."""
    max_topics: int = number(10_000, 1, 1_000_000)
    """Retry topics do not count, there is one a group; nor do system topics, without which the broker cannot start."""
    max_queues: int = number(1024, 1, 65_536)
    """The most queues that a topic may be given."""
    auto_create_groups: bool = True
    """A consumer group is created by its first member (autoCreateSubscriptionGroup)."""
    max_groups: int = number(10_000, 1, 1_000_000)
    trace_topic: bool = True
    """The broker has the topic into which clients with tracing write (traceTopicEnable, there off by default)."""
    trace_topic_name: str = attrs.field(default=TRACE_TOPIC, validator=_check_trace_topic)
    """Its name (msgTraceTopicName)."""
    broker_permission: Literal["read-write", "read-only", "write-only"] = "read-write"
    """What clients may do here, whatever a topic's own permission (RocketMQ's brokerPermission)."""

    @property
    def broker_perm(self) -> int:
        """The same in RocketMQ's bits."""
        return {"read-write": PERM_READ | PERM_WRITE, "read-only": PERM_READ, "write-only": PERM_WRITE}[
            self.broker_permission
        ]

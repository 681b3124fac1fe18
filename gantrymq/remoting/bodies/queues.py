"""The bodies about queues: their bounds, entries and locks.

Source: RocketMQ 4.9.7 ``MessageQueue``, ``common/protocol/body``, ``common/admin``. Maps with queues as keys are
written as fastjson writes them, with raw objects as keys.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Any, ClassVar

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.headers.header import Int32, Int64


class MessageQueue(Body, frozen=True, order=True):  # type: ignore[misc]  # a struct is no dataclass here
    """One queue of a topic on one broker; sorts by topic, broker and queue id as in RocketMQ."""

    topic: str = ""
    """The topic."""
    broker_name: str = ""
    """The name of the broker, ``broker.name``."""
    queue_id: Int32 = 0
    """The number of the queue among those of the topic on this broker, from 0 on."""


class TopicOffset(Body):
    """The bounds of a queue, and the store time of its last message (ms, 0 for an empty queue)."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(Body):
    """Response to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class TopicStatsReply(Body):
    """The answer to 202 as a client reads it. An empty map comes as a dict."""

    offset_table: list[tuple[MessageQueue, TopicOffset]] | dict[str, Any] = []

    @property
    def offsets(self) -> list[tuple[MessageQueue, TopicOffset]]:
        """The table; what has texts for keys is none."""
        return self.offset_table if isinstance(self.offset_table, list) else []


class ConsumeQueueEntry(Body):
    """One entry of a consume queue (``ConsumeQueueData``)."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class ConsumeQueueBody(Body):
    """Response to 321 (``QueryConsumeQueueResponseBody``)."""

    queue_data: list[ConsumeQueueEntry] = []
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class LockBatchRequestBody(Body):
    """Queues that a member of a group locks or unlocks: bodies of 41 and 42. The last field is from 5.x."""

    any_spelling: ClassVar[bool] = True

    consumer_group: str = ""
    client_id: str = ""
    mq_set: set[MessageQueue] = set()
    only_this_broker: bool | None = None


class LockBatchResponseBody(Body, rename={"lock_ok_mq_set": "lockOKMQSet"}):
    """The requested queues whose locks the client holds now: response to 41."""

    lock_ok_mq_set: set[MessageQueue] = set()

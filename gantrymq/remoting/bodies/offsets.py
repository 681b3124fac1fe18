"""The bodies about the progress of consumers, and RocketMQ's files with it.

Source: RocketMQ 4.9.7 ``common/protocol/body``, ``common/admin``. Maps with queues as keys are written as fastjson
writes them, with raw objects as keys.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Any

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.headers.header import Int32, Int64


class ConsumerOffsetSerializeWrapper(Body):
    """Consumer offsets, ``topic@group`` to queue id to offset: body of 43, ``consumerOffset.json``."""

    offset_table: dict[str, dict[Int32, Int64]] = {}
    data_version: DataVersion | None = None


class DelayOffsetSerializeWrapper(Body):
    """The delivered offsets of the delay levels, level to queue offset: file ``delayOffset.json``."""

    offset_table: dict[Int32, Int64] = {}
    data_version: DataVersion | None = None


class OffsetWrapper(Body):
    """The progress of a group in a queue; ``last_timestamp`` is the store time of its last consumed message (ms).

    ``pull_offset``: behind the last message that the group has pulled, at least ``consumer_offset``. RocketMQ 4.x does
    not have it.
    """

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 = 0


class ConsumeStats(Body):
    """Response to 208."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0

    @property
    def behind(self) -> int:
        """The lag in messages."""
        return sum(offset.broker_offset - offset.consumer_offset for offset in self.offset_table.values())


class ConsumeStatsReply(Body):
    """The answer to 208 as a client reads it. An empty map comes as a dict."""

    offset_table: list[tuple[MessageQueue, OffsetWrapper]] | dict[str, Any] = []

    @property
    def offsets(self) -> list[tuple[MessageQueue, OffsetWrapper]]:
        """The table; what has texts for keys is none."""
        return self.offset_table if isinstance(self.offset_table, list) else []


class ConsumeStatsList(Body):
    """Response to 317: for each group its topics' statistics."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: Int64 = 0


class QueueTimeSpan(Body):
    """The store times of a queue's first and last message, the progress of the group, and the age of its next
    message."""

    message_queue: MessageQueue = MessageQueue()
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class ConsumeTimeSpans(Body):
    """Response to 303 (``QueryConsumeTimeSpanBody``)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class CorrectionOffsets(Body):
    """Response to 308: by queue the lowest offset of other groups."""

    correction_offsets: dict[Int32, Int64] = {}


class ResetOffsets(Body):
    """Body of 220 and response to 222 (``ResetOffsetBody``)."""

    offset_table: dict[MessageQueue, Int64] = {}


class OrderedOffsets(Body):
    """The body of 220 as a client reads it. An empty map comes as a dict."""

    offset_table: list[tuple[MessageQueue, Int64]] | dict[str, Any] = []

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        """The table; empty if the keys are texts."""
        return dict(self.offset_table) if isinstance(self.offset_table, list) else {}


class QueueOffset(Body):
    """A queue and its next offset, for clients in C++ (``MessageQueueForC``)."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetList(Body):
    """Body of 220 for clients in C++ (``ResetOffsetBodyForC``)."""

    offset_table: list[QueueOffset] = []


class ClientStatus(Body):
    """A client's response to 221: its next offset by queue. An empty map comes as a dict."""

    message_queue_table: list[tuple[MessageQueue, Int64]] | dict[str, Any] = []

    @property
    def queues(self) -> list[tuple[MessageQueue, int]]:
        """The table; empty if the keys are texts."""
        return self.message_queue_table if isinstance(self.message_queue_table, list) else []


class ClientOffsets(Body):
    """A client's response to 221 (``GetConsumerStatusBody``)."""

    message_queue_table: dict[MessageQueue, Int64] = {}


class ConsumerStatus(Body):
    """Response to 223 (``GetConsumerStatusBody``): by client, by queue."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}

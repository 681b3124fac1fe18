"""The JSON bodies of administrators' requests.

Source: RocketMQ 4.9.7 ``common/protocol/body``, ``common/admin``. Maps with queues for keys are written with raw
objects as keys, which is fastjson's way; missing keys take the Java field's default.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Any

from gantrymq.remoting.bodies import MessageQueue, SubscriptionData
from gantrymq.remoting.body import Body
from gantrymq.remoting.headers import Int32, Int64


class TopicOffset(Body):
    """The bounds of a queue, and when its last message was stored (ms, 0 for an empty one)."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(Body):
    """Answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body):
    """How far a group is in a queue; ``last_timestamp`` (ms): when the last message that it consumed was stored."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(Body):
    """Answer to 208."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0

    @property
    def behind(self) -> int:
        """Messages that wait."""
        return sum(offset.broker_offset - offset.consumer_offset for offset in self.offset_table.values())


class ConsumeStatsList(Body):
    """Answer to 317: for each group its topics' statistics."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: Int64 = 0


class ClientConnection(Body):
    """One client (``Connection``)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: Int32 = 0


class ConsumerConnections(Body):
    """Answer to 203 (``ConsumerConnection``)."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class ProducerConnections(Body):
    """Answer to 204 (``ProducerConnection``)."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body, rename={"remote_ip": "remoteIP", "client_id": "clientId",
                                 "last_update_timestamp": "lastUpdateTimestamp"}):  # fmt: skip
    """One producer, in the answer to 328."""

    client_id: str = ""
    remote_ip: str = ""
    language: str = "OTHER"
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTable(Body):
    """Answer to 328 (``ProducerTableInfo``): producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class GroupList(Body):
    """Answer to 300."""

    group_list: list[str] = []


class QueueTimeSpan(Body):
    """When a queue's first and last message were stored, where its group is, and how long the next one has waited."""

    message_queue: MessageQueue = MessageQueue()
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class ConsumeTimeSpans(Body):
    """Answer to 303 (``QueryConsumeTimeSpanBody``)."""

    consume_time_span_set: list[QueueTimeSpan] = []


class CorrectionOffsets(Body):
    """Answer to 308: by queue the lowest offset of other groups."""

    correction_offsets: dict[Int32, Int64] = {}


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
    """Answer to 321 (``QueryConsumeQueueResponseBody``)."""

    queue_data: list[ConsumeQueueEntry] = []
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class StatsItem(Body, frozen=True):  # type: ignore[misc]  # a struct is no dataclass here
    """A sum over some time, the sum a second, and the average of an event (``BrokerStatsItem``)."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class StatsData(Body):
    """Answer to 315 (``BrokerStatsData``)."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


class ResetOffsets(Body):
    """Body of 220 and answer to 222 (``ResetOffsetBody``)."""

    offset_table: dict[MessageQueue, Int64] = {}


class QueueOffset(Body):
    """A queue and where to go on, for clients in C++ (``MessageQueueForC``)."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetList(Body):
    """Body of 220 for clients in C++ (``ResetOffsetBodyForC``)."""

    offset_table: list[QueueOffset] = []


class ClientStatus(Body):
    """A client's answer to 221: where it goes on, by queue. An empty map comes as a dict."""

    message_queue_table: list[tuple[MessageQueue, Int64]] | dict[str, Any] = []

    @property
    def queues(self) -> list[tuple[MessageQueue, int]]:
        """The table; what has texts for keys is none."""
        return self.message_queue_table if isinstance(self.message_queue_table, list) else []


class ConsumerStatus(Body):
    """Answer to 223 (``GetConsumerStatusBody``): by client, by queue."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}


class GroupSubscription(Body):
    """Answer to 345 (``QuerySubscriptionResponseBody`` of 5.x)."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None

"""The typed headers of administrators' requests to a broker, and the second half of the table of request codes.

Source: the ``*RequestHeader`` classes of RocketMQ 4.9.7 (``common/protocol/header``); 343 to 352 from 5.3.3.
"""

from __future__ import annotations

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers import ConsumerGroupHeader, Header, Int32, Int64, QueueHeader, RequestSpec, TopicHeader

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""A field of 12 that says ``true`` when the key is a client's unique id (``MixAll.UNIQUE_MSG_QUERY_FLAG``)."""


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): messages of a topic by key, stored between two moments (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponse(Header, kw_only=True):
    """Answer to 12, whose body are records: the newest message in the index, by store time (ms) and log offset."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the log offset that a message id holds."""

    offset: Int64


class ConfigVersionResponse(Header, kw_only=True):
    """Answer to 26: the configuration's data version as JSON."""

    version: str


class TimestampResponse(Header, kw_only=True):
    """Answer to 32: milliseconds, -1 for a queue without messages."""

    timestamp: Int64


class ProducerGroupHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ConsumeStatsHeader(Header, kw_only=True):
    """GET_CONSUME_STATS (208): of all topics that the group has consumed, or of one."""

    consumer_group: str
    topic: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """220 to clients and 222 to the broker. ``timestamp`` in milliseconds, -1 for the end."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False


class ConsumerStatusHeader(Header, kw_only=True):
    """221 to clients and 223 to the broker; ``client_addr`` is the id of one client."""

    topic: str
    group: str
    client_addr: str | None = None


class TopicOfGroupHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class RunningInfoHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), to the broker and from there to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class CorrectionOffsetHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308); ``filter_groups`` are names with commas between them."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class ConsumeDirectlyHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), to the broker and from there to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CloneGroupHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET (314). ``offline``: clone although the source's members do not subscribe to the topic."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class StatsHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317): of all topics, or of ordered ones only."""

    is_order: bool


class ConsumeQueueHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE (321): ``count`` entries from ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class GroupHeader(Header, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343), GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class GroupSubscriptionHeader(Header, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class MinimumChangedHeader(Header, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), from a nameserver to 5.x brokers."""

    min_broker_id: Int64
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class RoleChangedHeader(Header, kw_only=True):
    """NOTIFY_BROKER_ROLE_CHANGED (1008); RocketMQ 5's controller tells brokers so who is the master.

    Between brokers of ours the field ``gantryEpoch`` has the epoch: see :mod:`gantrymq.remoting.epoch`.
    """

    master_address: str | None = None


class CompareLogHeader(Header, kw_only=True):
    """COMPARE_LOG (47001): the bytes that a slave's log has at this offset, by their number and their SHA-256 (hex)."""

    offset: Int64
    size: Int32
    digest: str


class CompareLogResponse(Header, kw_only=True):
    """Answer to 47001: what the master's log has there (``LogMatch``), and where it ends."""

    match: str
    log_end: Int64


_C = RequestCode
ADMIN_REQUESTS: dict[RequestCode, RequestSpec] = {
    _C.QUERY_MESSAGE: RequestSpec("broker", QueryMessageHeader, QueryMessageResponse),
    _C.VIEW_MESSAGE_BY_ID: RequestSpec("broker", ViewMessageHeader),
    _C.UPDATE_BROKER_CONFIG: RequestSpec("broker", None),
    _C.GET_BROKER_CONFIG: RequestSpec("broker", None, ConfigVersionResponse),
    _C.GET_BROKER_RUNTIME_INFO: RequestSpec("broker", None),
    _C.GET_EARLIEST_MSG_STORETIME: RequestSpec("broker", QueueHeader, TimestampResponse),
    _C.GET_ALL_CONSUMER_OFFSET: RequestSpec("broker", None),
    _C.GET_ALL_DELAY_OFFSET: RequestSpec("broker", None),
    _C.GET_TOPIC_STATS_INFO: RequestSpec("broker", TopicHeader),
    _C.GET_CONSUMER_CONNECTION_LIST: RequestSpec("broker", ConsumerGroupHeader),
    _C.GET_PRODUCER_CONNECTION_LIST: RequestSpec("broker", ProducerGroupHeader),
    _C.GET_CONSUME_STATS: RequestSpec("broker", ConsumeStatsHeader),
    _C.RESET_CONSUMER_CLIENT_OFFSET: RequestSpec("client", ResetOffsetHeader),
    _C.GET_CONSUMER_STATUS_FROM_CLIENT: RequestSpec("client", ConsumerStatusHeader),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: RequestSpec("broker", ResetOffsetHeader),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: RequestSpec("broker", ConsumerStatusHeader),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: RequestSpec("broker", TopicHeader),
    _C.QUERY_CONSUME_TIME_SPAN: RequestSpec("broker", TopicOfGroupHeader),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: RequestSpec("broker", None),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: RequestSpec("broker", None),
    _C.GET_CONSUMER_RUNNING_INFO: RequestSpec("broker", RunningInfoHeader),
    _C.QUERY_CORRECTION_OFFSET: RequestSpec("broker", CorrectionOffsetHeader),
    _C.CONSUME_MESSAGE_DIRECTLY: RequestSpec("broker", ConsumeDirectlyHeader),
    _C.CLONE_GROUP_OFFSET: RequestSpec("broker", CloneGroupHeader),
    _C.VIEW_BROKER_STATS_DATA: RequestSpec("broker", StatsHeader),
    _C.CLEAN_UNUSED_TOPIC: RequestSpec("broker", None),
    _C.GET_BROKER_CONSUME_STATS: RequestSpec("broker", BrokerConsumeStatsHeader),
    _C.UPDATE_NAMESRV_CONFIG: RequestSpec("nameserver", None),
    _C.GET_NAMESRV_CONFIG: RequestSpec("nameserver", None),
    _C.QUERY_CONSUME_QUEUE: RequestSpec("broker", ConsumeQueueHeader),
    _C.GET_ALL_PRODUCER_INFO: RequestSpec("broker", None),
    _C.DELETE_EXPIRED_COMMITLOG: RequestSpec("broker", None),
    _C.QUERY_TOPICS_BY_CONSUMER: RequestSpec("broker", GroupHeader),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: RequestSpec("broker", GroupSubscriptionHeader),
    _C.GET_TOPIC_CONFIG: RequestSpec("broker", TopicHeader),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: RequestSpec("broker", GroupHeader),
    _C.NOTIFY_MIN_BROKER_ID_CHANGE: RequestSpec("broker", MinimumChangedHeader),
    _C.NOTIFY_BROKER_ROLE_CHANGED: RequestSpec("broker", RoleChangedHeader),
    _C.COMPARE_LOG: RequestSpec("broker", CompareLogHeader, CompareLogResponse),
}
"""The requests that only administrators and tools send, beside :data:`gantrymq.remoting.headers.REQUESTS`."""

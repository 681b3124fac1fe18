"""The headers of requests for the offsets of queues and groups. Source: RocketMQ 4.9.7 ``common/protocol/header``."""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32, Int64


class QueueHeader(Header, kw_only=True):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32


class OffsetResponse(Header, kw_only=True):
    """Response to 14, 29, 30 and 31."""

    offset: Int64


class SearchOffsetHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). ``boundary_type``: LOWER or UPPER, from clients of RocketMQ 5."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class TimestampResponse(Header, kw_only=True):
    """Response to 32: milliseconds, -1 for a queue without messages."""

    timestamp: Int64


class ConsumeQueueHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE (321): ``count`` entries from ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class QueryConsumerOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). The last field is from 5.x: with False, a missing offset is an error."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class ResetOffsetHeader(Header, kw_only=True):
    """220 to clients and 222 to the broker. ``timestamp`` in milliseconds, -1 for the end.

    ``queue_id`` and ``offset`` come from tools of RocketMQ 5: only this queue, if it is not negative, goes to this
    offset; to ``timestamp`` if the offset is missing or -1.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class CorrectionOffsetHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308); ``filter_groups`` are names with commas between them."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET (314). ``offline``: clone although the source's members do not subscribe to the topic."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False

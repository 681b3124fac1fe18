"""The headers of requests that find messages by key or by id. Source: RocketMQ 4.9.7 ``common/protocol/header``."""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32, Int64

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""A field of 12 that is ``true`` if the key is a client's unique id (``MixAll.UNIQUE_MSG_QUERY_FLAG``)."""


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): messages of a topic by key, stored between two moments (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponse(Header, kw_only=True):
    """Response to 12, whose body are records: the newest message in the index, by store time (ms) and log offset."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the log offset in a message id."""

    offset: Int64

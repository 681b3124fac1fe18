"""The headers of a pull. Source: RocketMQ 4.9.7 ``PullMessageRequestHeader``, ``PullMessageResponseHeader``."""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32, Int64


class PullMessageHeader(Header, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). ``sys_flag``: 1 commit offset valid, 2 may suspend,
    4 subscription inline, 8 class filter, 16 lite.

    ``gantrymq_max_bytes`` is an extension of GantryMQ (``docs/format/frame.md``): the most bytes of messages that the
    client accepts in one response, instead of RocketMQ's limits. Other brokers ignore it.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    gantrymq_max_bytes: Int32 | None = None


class PullMessageResponse(Header, kw_only=True):
    """The next offset to pull from, and the queue's bounds."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64

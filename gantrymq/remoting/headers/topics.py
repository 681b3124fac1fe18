"""The headers of requests that create, delete and describe topics.

Source: RocketMQ 4.9.7 ``common/protocol/header``.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32


class CreateTopicHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17). ``attributes``: changes such as ``+message.type=DELAY,-reserve.time`` (5.x)."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None


class TopicHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215), REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class DeleteTopicInNameserverHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None

"""The headers of requests about producer and consumer groups and their clients.

Source: RocketMQ 4.9.7 ``common/protocol/header``; 343 to 352 from 5.3.3.
"""

from __future__ import annotations

from gantrymq.remoting.headers.header import Header, Int32


class UnregisterClientHeader(
    Header,
    kw_only=True,
    rename={"client_id": "clientID", "producer_group": "producerGroup", "consumer_group": "consumerGroup"},
):
    """UNREGISTER_CLIENT (35)."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class ProducerGroupHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class GroupHeader(Header, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343), GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class DeleteGroupHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207); 4.x says removeOffset, 5.x cleanOffset."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class GroupSubscriptionHeader(Header, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class TopicOfGroupHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class ConsumeStatsHeader(Header, kw_only=True):
    """GET_CONSUME_STATS (208): of all topics that the group has consumed, of one, or (5.x) of those in ``topic_list``,
    which are separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumerStatusHeader(Header, kw_only=True):
    """221 to clients and 223 to the broker; ``client_addr`` is the id of one client."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), to the broker and from there to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309), to the broker and from there to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CloseConnectionsHeader(Header, kw_only=True, rename={"client_id": "clientID"}):
    """CLOSE_CLIENT_CONNECTIONS (47005): the connections on which this client sends its heartbeats."""

    client_id: str


class CloseConnectionsResponse(Header, kw_only=True):
    """Response to 47005: how many connections the broker has closed."""

    closed: Int32

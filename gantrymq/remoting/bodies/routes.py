"""The routes of topics and the members of clusters. Source: RocketMQ 4.9.7 and 5.3.3 ``protocol/{route,body}``."""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.topics import TopicQueueMapping
from gantrymq.remoting.headers.header import Int32, Int64


class QueueData(Body):
    """A topic's queues on one broker. The system flag is written under both of its names.

    ``topic_syn_flag`` is the name up to 4.8.0 and in the Go client; set ``topic_sys_flag`` alone.
    """

    broker_name: str = ""
    """The name of the broker."""
    read_queue_nums: Int32 = 0
    """The number of queues that can be read."""
    write_queue_nums: Int32 = 0
    """The number of queues that can be sent to."""
    perm: Int32 = 0
    """The permissions: the sum of 4 (read) and 2 (write)."""
    topic_sys_flag: Int32 = 0
    """The system flag of the topic."""
    topic_syn_flag: Int32 | None = None

    def __post_init__(self) -> None:
        if self.topic_syn_flag and not self.topic_sys_flag:
            self.topic_sys_flag = self.topic_syn_flag
        self.topic_syn_flag = self.topic_sys_flag


class BrokerData(Body):
    """The addresses of a broker name, by broker id; 0 is the master."""

    cluster: str = ""
    """The name of the cluster."""
    broker_name: str = ""
    """The name of the broker."""
    broker_addrs: dict[Int64, str] = {}
    """The addresses, ``host:port``, by broker id."""
    zone_name: str | None = None
    """The zone of the broker (5.x)."""
    enable_acting_master: bool | None = None
    """Whether a slave acts for a missing master (5.x)."""


class TopicRouteData(Body):
    """The route of a topic: response to 105."""

    queue_datas: list[QueueData] = []
    """The queues on each broker."""
    broker_datas: list[BrokerData] = []
    """The addresses of these brokers."""
    filter_server_table: dict[str, list[str]] = {}
    """The filter servers of RocketMQ 4.x by broker address; GantryMQ has none."""
    order_topic_conf: str | None = None
    """The brokers and queues of an ordered topic, as in ``broker-a:4;broker-b:2``."""
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None
    """The queues of a static topic by broker (5.x)."""


class ClusterInfo(Body):
    """All brokers and clusters: response to 106."""

    broker_addr_table: dict[str, BrokerData] = {}
    """The brokers by name."""
    cluster_addr_table: dict[str, list[str]] = {}
    """The names of the brokers by cluster."""


class BrokerMemberGroup(Body):
    """The live members of a broker name, by broker id: part of the response to 901 (5.x)."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Int64, str] = {}


class BrokerMemberGroupBody(Body):
    """Response to 901 (``GetBrokerMemberGroupResponseBody``, 5.x)."""

    broker_member_group: BrokerMemberGroup | None = None

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
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0
    topic_syn_flag: Int32 | None = None

    def __post_init__(self) -> None:
        if self.topic_syn_flag and not self.topic_sys_flag:
            self.topic_sys_flag = self.topic_syn_flag
        self.topic_syn_flag = self.topic_sys_flag


class BrokerData(Body):
    """The addresses of a broker name, by broker id; 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Int64, str] = {}
    zone_name: str | None = None
    enable_acting_master: bool | None = None


class TopicRouteData(Body):
    """The route of a topic: response to 105."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Body):
    """All brokers and clusters: response to 106."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMemberGroup(Body):
    """The live members of a broker name, by broker id: part of the response to 901 (5.x)."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Int64, str] = {}


class BrokerMemberGroupBody(Body):
    """Response to 901 (``GetBrokerMemberGroupResponseBody``, 5.x)."""

    broker_member_group: BrokerMemberGroup | None = None

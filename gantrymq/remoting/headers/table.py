"""The table of request codes with their servers and typed headers.

Source: the ``*RequestHeader`` and ``*ResponseHeader`` classes of RocketMQ 4.9.7 (``common/protocol/header``).
"""

from __future__ import annotations

import attrs

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.access import (
    AclVersionResponse,
    DeleteAccountHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    SubjectHeader,
    UpdateAccountHeader,
    UpdateAddressesHeader,
    UserHeader,
)
from gantrymq.remoting.headers.brokers import (
    BrokerConsumeStatsHeader,
    ConfigVersionResponse,
    ControlExporterHeader,
    DescribePluginsHeader,
    StatsHeader,
)
from gantrymq.remoting.headers.groups import (
    CloseConnectionsHeader,
    CloseConnectionsResponse,
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupSubscriptionHeader,
    ProducerGroupHeader,
    RunningInfoHeader,
    TopicOfGroupHeader,
    UnregisterClientHeader,
)
from gantrymq.remoting.headers.header import Header
from gantrymq.remoting.headers.nameserver import (
    AddWritePermResponse,
    BrokerGroupHeader,
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionResponse,
    KVConfigHeader,
    KVConfigResponse,
    NamespaceHeader,
    PutKVConfigHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    RouteHeader,
    WipeWritePermResponse,
)
from gantrymq.remoting.headers.offsets import (
    CloneGroupHeader,
    ConsumeQueueHeader,
    CorrectionOffsetHeader,
    OffsetResponse,
    QueryConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    TimestampResponse,
    UpdateConsumerOffsetHeader,
)
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
from gantrymq.remoting.headers.query import QueryMessageHeader, QueryMessageResponse, ViewMessageHeader
from gantrymq.remoting.headers.recall import RecallMessageHeader, RecallMessageResponse
from gantrymq.remoting.headers.replication import (
    CompareLogHeader,
    CompareLogResponse,
    MinimumChangedHeader,
    RoleChangedHeader,
    SlaveTicketResponse,
)
from gantrymq.remoting.headers.send import ReplyMessageHeader, SendBackHeader, SendMessageHeader, SendMessageResponse
from gantrymq.remoting.headers.topics import CreateTopicHeader, DeleteTopicInNameserverHeader, TopicHeader
from gantrymq.remoting.headers.transactions import CheckTransactionHeader, EndTransactionHeader, ResumeCheckHeader


@attrs.frozen
class RequestSpec:
    """One row of the table: the server ("broker", "nameserver", "client"), and the headers of request and response."""

    server: str
    header: type[Header] | None
    response: type[Header] | None = None


_C = RequestCode
REQUESTS: dict[RequestCode, RequestSpec] = {
    _C.SEND_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.PULL_MESSAGE: RequestSpec("broker", PullMessageHeader, PullMessageResponse),
    _C.QUERY_MESSAGE: RequestSpec("broker", QueryMessageHeader, QueryMessageResponse),
    _C.QUERY_CONSUMER_OFFSET: RequestSpec("broker", QueryConsumerOffsetHeader, OffsetResponse),
    _C.UPDATE_CONSUMER_OFFSET: RequestSpec("broker", UpdateConsumerOffsetHeader),
    _C.UPDATE_AND_CREATE_TOPIC: RequestSpec("broker", CreateTopicHeader),
    _C.GET_ALL_TOPIC_CONFIG: RequestSpec("broker", None),
    _C.UPDATE_BROKER_CONFIG: RequestSpec("broker", None),
    _C.GET_BROKER_CONFIG: RequestSpec("broker", None, ConfigVersionResponse),
    _C.GET_BROKER_RUNTIME_INFO: RequestSpec("broker", None),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: RequestSpec("broker", SearchOffsetHeader, OffsetResponse),
    _C.GET_MAX_OFFSET: RequestSpec("broker", QueueHeader, OffsetResponse),
    _C.GET_MIN_OFFSET: RequestSpec("broker", QueueHeader, OffsetResponse),
    _C.GET_EARLIEST_MSG_STORETIME: RequestSpec("broker", QueueHeader, TimestampResponse),
    _C.VIEW_MESSAGE_BY_ID: RequestSpec("broker", ViewMessageHeader),
    _C.HEART_BEAT: RequestSpec("broker", None),
    _C.UNREGISTER_CLIENT: RequestSpec("broker", UnregisterClientHeader),
    _C.CONSUMER_SEND_MSG_BACK: RequestSpec("broker", SendBackHeader),
    _C.END_TRANSACTION: RequestSpec("broker", EndTransactionHeader),
    _C.GET_CONSUMER_LIST_BY_GROUP: RequestSpec("broker", ConsumerGroupHeader),
    _C.CHECK_TRANSACTION_STATE: RequestSpec("client", CheckTransactionHeader),
    _C.NOTIFY_CONSUMER_IDS_CHANGED: RequestSpec("client", ConsumerGroupHeader),
    _C.LOCK_BATCH_MQ: RequestSpec("broker", None),
    _C.UNLOCK_BATCH_MQ: RequestSpec("broker", None),
    _C.GET_ALL_CONSUMER_OFFSET: RequestSpec("broker", None),
    _C.GET_ALL_DELAY_OFFSET: RequestSpec("broker", None),
    _C.CHECK_CLIENT_CONFIG: RequestSpec("broker", None),
    _C.UPDATE_AND_CREATE_ACL_CONFIG: RequestSpec("broker", UpdateAccountHeader),
    _C.DELETE_ACL_CONFIG: RequestSpec("broker", DeleteAccountHeader),
    _C.GET_BROKER_CLUSTER_ACL_INFO: RequestSpec("broker", None, AclVersionResponse),
    _C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: RequestSpec("broker", UpdateAddressesHeader),
    _C.GET_BROKER_CLUSTER_ACL_CONFIG: RequestSpec("broker", None),
    _C.GET_TIMER_CHECK_POINT: RequestSpec("broker", None),
    _C.GET_TIMER_METRICS: RequestSpec("broker", None),
    _C.PUT_KV_CONFIG: RequestSpec("nameserver", PutKVConfigHeader),
    _C.GET_KV_CONFIG: RequestSpec("nameserver", KVConfigHeader, KVConfigResponse),
    _C.DELETE_KV_CONFIG: RequestSpec("nameserver", KVConfigHeader),
    _C.REGISTER_BROKER: RequestSpec("nameserver", RegisterBrokerHeader, RegisterBrokerResponse),
    _C.UNREGISTER_BROKER: RequestSpec("nameserver", BrokerHeader),
    _C.GET_ROUTEINFO_BY_TOPIC: RequestSpec("nameserver", RouteHeader),
    _C.GET_BROKER_CLUSTER_INFO: RequestSpec("nameserver", None),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: RequestSpec("broker", None),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: RequestSpec("broker", None),
    _C.GET_TOPIC_STATS_INFO: RequestSpec("broker", TopicHeader),
    _C.GET_CONSUMER_CONNECTION_LIST: RequestSpec("broker", ConsumerGroupHeader),
    _C.GET_PRODUCER_CONNECTION_LIST: RequestSpec("broker", ProducerGroupHeader),
    _C.WIPE_WRITE_PERM_OF_BROKER: RequestSpec("nameserver", BrokerNameHeader, WipeWritePermResponse),
    _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: RequestSpec("nameserver", None),
    _C.DELETE_SUBSCRIPTIONGROUP: RequestSpec("broker", DeleteGroupHeader),
    _C.GET_CONSUME_STATS: RequestSpec("broker", ConsumeStatsHeader),
    _C.DELETE_TOPIC_IN_BROKER: RequestSpec("broker", TopicHeader),
    _C.DELETE_TOPIC_IN_NAMESRV: RequestSpec("nameserver", DeleteTopicInNameserverHeader),
    _C.REGISTER_TOPIC_IN_NAMESRV: RequestSpec("nameserver", TopicHeader),
    _C.GET_KVLIST_BY_NAMESPACE: RequestSpec("nameserver", NamespaceHeader),
    _C.RESET_CONSUMER_CLIENT_OFFSET: RequestSpec("client", ResetOffsetHeader),
    _C.GET_CONSUMER_STATUS_FROM_CLIENT: RequestSpec("client", ConsumerStatusHeader),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: RequestSpec("broker", ResetOffsetHeader),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: RequestSpec("broker", ConsumerStatusHeader),
    _C.GET_TOPICS_BY_CLUSTER: RequestSpec("nameserver", ClusterHeader),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: RequestSpec("broker", TopicHeader),
    _C.QUERY_CONSUME_TIME_SPAN: RequestSpec("broker", TopicOfGroupHeader),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: RequestSpec("nameserver", None),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: RequestSpec("broker", None),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: RequestSpec("broker", None),
    _C.GET_CONSUMER_RUNNING_INFO: RequestSpec("broker", RunningInfoHeader),
    _C.QUERY_CORRECTION_OFFSET: RequestSpec("broker", CorrectionOffsetHeader),
    _C.CONSUME_MESSAGE_DIRECTLY: RequestSpec("broker", ConsumeDirectlyHeader),
    _C.SEND_MESSAGE_V2: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.GET_UNIT_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.GET_HAS_UNIT_SUB_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.CLONE_GROUP_OFFSET: RequestSpec("broker", CloneGroupHeader),
    _C.VIEW_BROKER_STATS_DATA: RequestSpec("broker", StatsHeader),
    _C.CLEAN_UNUSED_TOPIC: RequestSpec("broker", None),
    _C.GET_BROKER_CONSUME_STATS: RequestSpec("broker", BrokerConsumeStatsHeader),
    _C.UPDATE_NAMESRV_CONFIG: RequestSpec("nameserver", None),
    _C.GET_NAMESRV_CONFIG: RequestSpec("nameserver", None),
    _C.SEND_BATCH_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.QUERY_CONSUME_QUEUE: RequestSpec("broker", ConsumeQueueHeader),
    _C.QUERY_DATA_VERSION: RequestSpec("nameserver", BrokerHeader, DataVersionResponse),
    _C.RESUME_CHECK_HALF_MESSAGE: RequestSpec("broker", ResumeCheckHeader),
    _C.SEND_REPLY_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.SEND_REPLY_MESSAGE_V2: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.PUSH_REPLY_MESSAGE_TO_CLIENT: RequestSpec("client", ReplyMessageHeader),
    _C.ADD_WRITE_PERM_OF_BROKER: RequestSpec("nameserver", BrokerNameHeader, AddWritePermResponse),
    _C.GET_ALL_PRODUCER_INFO: RequestSpec("broker", None),
    _C.DELETE_EXPIRED_COMMITLOG: RequestSpec("broker", None),
    _C.QUERY_TOPICS_BY_CONSUMER: RequestSpec("broker", GroupHeader),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: RequestSpec("broker", GroupSubscriptionHeader),
    _C.GET_TOPIC_CONFIG: RequestSpec("broker", TopicHeader),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: RequestSpec("broker", GroupHeader),
    _C.LITE_PULL_MESSAGE: RequestSpec("broker", PullMessageHeader, PullMessageResponse),
    _C.RECALL_MESSAGE: RequestSpec("broker", RecallMessageHeader, RecallMessageResponse),
    _C.GET_BROKER_MEMBER_GROUP: RequestSpec("nameserver", BrokerGroupHeader),
    _C.BROKER_HEARTBEAT: RequestSpec("nameserver", BrokerHeartbeatHeader),
    _C.NOTIFY_MIN_BROKER_ID_CHANGE: RequestSpec("broker", MinimumChangedHeader),
    _C.NOTIFY_BROKER_ROLE_CHANGED: RequestSpec("broker", RoleChangedHeader),
    _C.AUTH_CREATE_USER: RequestSpec("broker", UserHeader),
    _C.AUTH_UPDATE_USER: RequestSpec("broker", UserHeader),
    _C.AUTH_DELETE_USER: RequestSpec("broker", UserHeader),
    _C.AUTH_GET_USER: RequestSpec("broker", UserHeader),
    _C.AUTH_LIST_USER: RequestSpec("broker", ListUsersHeader),
    _C.AUTH_CREATE_ACL: RequestSpec("broker", SubjectHeader),
    _C.AUTH_UPDATE_ACL: RequestSpec("broker", SubjectHeader),
    _C.AUTH_DELETE_ACL: RequestSpec("broker", DeleteAclHeader),
    _C.AUTH_GET_ACL: RequestSpec("broker", SubjectHeader),
    _C.AUTH_LIST_ACL: RequestSpec("broker", ListAclsHeader),
    _C.COMPARE_LOG: RequestSpec("broker", CompareLogHeader, CompareLogResponse),
    _C.DESCRIBE_PLUGINS: RequestSpec("broker", DescribePluginsHeader),
    _C.CONTROL_EXPORTER: RequestSpec("broker", ControlExporterHeader),
    _C.GET_SLAVE_TICKET: RequestSpec("broker", None, SlaveTicketResponse),
    _C.CLOSE_CLIENT_CONNECTIONS: RequestSpec("broker", CloseConnectionsHeader, CloseConnectionsResponse),
}

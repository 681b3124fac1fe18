"""The right that each request needs: one table for the broker, one for the nameserver.

A broker with the plugin ``acl`` does not start if a plugin serves a code that is not in its table. The nameserver
identifies peers by their addresses, and with ``--access`` also by keys or certificates.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from gantrymq.remoting.codes import RequestCode


class Right(Enum):
    """What the sender of a request needs. PUB and SUB are RocketMQ's permissions for topics and groups."""

    ADMIN = "an admin account"
    SEND = "PUB on the topic; SUB on the group of a retry topic"
    REPLY = "PUB on the cluster's reply topic; what sending to the topic needs"
    READ = "SUB on the topic"
    TOPIC = "PUB or SUB on the topic"
    CONSUME = "SUB on the topic and on the group"
    OFFSET = "a signature of any account; for users SUB on the topic and on the group"
    GROUP = "SUB on the group"
    SEND_BACK = "SUB on the group, and on the topic of the message at the log offset"
    VIEW = "SUB on the topic of the message at the log offset"
    END = "PUB on the topic of the half message at the log offset"
    RECALL = "PUB on the topic of the handle"
    HEARTBEAT = "SUB on the groups and topics of the consumers; PUB on any topic for producers, except of traces"
    UNREGISTER = "SUB on the consumer group; PUB on any topic for a producer group, except of traces"
    LOCK = "SUB on the group and on the topics of the queues"
    CHECK = "SUB on the group and on the topic of the subscription"
    PEER = "an address of `--peers`; with `--access`, an identity with the right to the broker name, else an admin"
    ANYONE = "none"


_C = RequestCode
_R = Right

BROKER_RIGHTS: Final[Mapping[int, Right]] = MappingProxyType({
    _C.SEND_MESSAGE: _R.SEND,
    _C.SEND_MESSAGE_V2: _R.SEND,
    _C.SEND_BATCH_MESSAGE: _R.SEND,
    _C.SEND_REPLY_MESSAGE: _R.REPLY,
    _C.SEND_REPLY_MESSAGE_V2: _R.REPLY,
    _C.RECALL_MESSAGE: _R.RECALL,
    _C.END_TRANSACTION: _R.END,
    _C.PULL_MESSAGE: _R.CONSUME,
    _C.LITE_PULL_MESSAGE: _R.CONSUME,
    _C.QUERY_CONSUMER_OFFSET: _R.OFFSET,
    _C.UPDATE_CONSUMER_OFFSET: _R.CONSUME,
    _C.QUERY_CONSUME_TIME_SPAN: _R.CONSUME,
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: _R.CONSUME,
    _C.CONSUMER_SEND_MSG_BACK: _R.SEND_BACK,
    _C.QUERY_MESSAGE: _R.READ,
    _C.VIEW_MESSAGE_BY_ID: _R.VIEW,
    _C.SEARCH_OFFSET_BY_TIMESTAMP: _R.TOPIC,
    _C.GET_MAX_OFFSET: _R.TOPIC,
    _C.GET_MIN_OFFSET: _R.TOPIC,
    _C.GET_EARLIEST_MSG_STORETIME: _R.TOPIC,
    _C.GET_TOPIC_STATS_INFO: _R.TOPIC,
    _C.GET_TOPIC_CONFIG: _R.TOPIC,
    _C.QUERY_TOPIC_CONSUME_BY_WHO: _R.TOPIC,
    _C.GET_CONSUMER_LIST_BY_GROUP: _R.GROUP,
    _C.GET_CONSUMER_CONNECTION_LIST: _R.GROUP,
    _C.GET_CONSUME_STATS: _R.GROUP,
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: _R.GROUP,
    _C.QUERY_TOPICS_BY_CONSUMER: _R.GROUP,
    _C.HEART_BEAT: _R.HEARTBEAT,
    _C.UNREGISTER_CLIENT: _R.UNREGISTER,
    _C.LOCK_BATCH_MQ: _R.LOCK,
    _C.UNLOCK_BATCH_MQ: _R.LOCK,
    _C.CHECK_CLIENT_CONFIG: _R.CHECK,
    **dict.fromkeys(
        (
            _C.UPDATE_AND_CREATE_TOPIC,
            _C.GET_ALL_TOPIC_CONFIG,
            _C.UPDATE_BROKER_CONFIG,
            _C.GET_BROKER_CONFIG,
            _C.GET_BROKER_RUNTIME_INFO,
            _C.GET_ALL_CONSUMER_OFFSET,
            _C.GET_ALL_DELAY_OFFSET,
            _C.GET_TIMER_CHECK_POINT,
            _C.GET_TIMER_METRICS,
            _C.UPDATE_AND_CREATE_ACL_CONFIG,
            _C.DELETE_ACL_CONFIG,
            _C.GET_BROKER_CLUSTER_ACL_INFO,
            _C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            _C.GET_BROKER_CLUSTER_ACL_CONFIG,
            _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            _C.GET_PRODUCER_CONNECTION_LIST,
            _C.DELETE_SUBSCRIPTIONGROUP,
            _C.DELETE_TOPIC_IN_BROKER,
            _C.INVOKE_BROKER_TO_RESET_OFFSET,
            _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            _C.CLEAN_EXPIRED_CONSUMEQUEUE,
            _C.GET_CONSUMER_RUNNING_INFO,
            _C.QUERY_CORRECTION_OFFSET,
            _C.CONSUME_MESSAGE_DIRECTLY,
            _C.CLONE_GROUP_OFFSET,
            _C.VIEW_BROKER_STATS_DATA,
            _C.CLEAN_UNUSED_TOPIC,
            _C.GET_BROKER_CONSUME_STATS,
            _C.QUERY_CONSUME_QUEUE,
            _C.RESUME_CHECK_HALF_MESSAGE,
            _C.GET_ALL_PRODUCER_INFO,
            _C.DELETE_EXPIRED_COMMITLOG,
            _C.NOTIFY_BROKER_ROLE_CHANGED,
            _C.COMPARE_LOG,
            _C.GET_SLAVE_TICKET,
            _C.AUTH_CREATE_USER,
            _C.AUTH_UPDATE_USER,
            _C.AUTH_DELETE_USER,
            _C.AUTH_GET_USER,
            _C.AUTH_LIST_USER,
            _C.AUTH_CREATE_ACL,
            _C.AUTH_UPDATE_ACL,
            _C.AUTH_DELETE_ACL,
            _C.AUTH_GET_ACL,
            _C.AUTH_LIST_ACL,
            _C.DESCRIBE_PLUGINS,
            _C.CONTROL_EXPORTER,
            _C.CLOSE_CLIENT_CONNECTIONS,
        ),
        _R.ADMIN,
    ),
})  # fmt: skip
"""By request code, what a broker with access control asks for. A code that is not here is not served."""

READING_CODES: Final = frozenset(
    {
        _C.GET_ALL_TOPIC_CONFIG,
        _C.GET_BROKER_CONFIG,
        _C.GET_BROKER_RUNTIME_INFO,
        _C.GET_ALL_CONSUMER_OFFSET,
        _C.GET_ALL_DELAY_OFFSET,
        _C.GET_TIMER_CHECK_POINT,
        _C.GET_TIMER_METRICS,
        _C.GET_BROKER_CLUSTER_ACL_INFO,
        _C.GET_BROKER_CLUSTER_ACL_CONFIG,
        _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        _C.GET_PRODUCER_CONNECTION_LIST,
        _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        _C.GET_CONSUMER_RUNNING_INFO,
        _C.QUERY_CORRECTION_OFFSET,
        _C.VIEW_BROKER_STATS_DATA,
        _C.GET_BROKER_CONSUME_STATS,
        _C.QUERY_CONSUME_QUEUE,
        _C.GET_ALL_PRODUCER_INFO,
        _C.AUTH_GET_USER,
        _C.AUTH_LIST_USER,
        _C.AUTH_GET_ACL,
        _C.AUTH_LIST_ACL,
        _C.COMPARE_LOG,
        _C.DESCRIBE_PLUGINS,
    }
)
"""Administrative requests that change nothing: an audit may leave them out."""

NAMESERVER_RIGHTS: Final[Mapping[int, Right]] = MappingProxyType({
    **dict.fromkeys(
        (
            _C.PUT_KV_CONFIG,
            _C.DELETE_KV_CONFIG,
            _C.REGISTER_BROKER,
            _C.UNREGISTER_BROKER,
            _C.REGISTER_TOPIC_IN_NAMESRV,
            _C.QUERY_DATA_VERSION,
            _C.BROKER_HEARTBEAT,
            _C.WIPE_WRITE_PERM_OF_BROKER,
            _C.ADD_WRITE_PERM_OF_BROKER,
            _C.DELETE_TOPIC_IN_NAMESRV,
            _C.UPDATE_NAMESRV_CONFIG,
        ),
        _R.PEER,
    ),
    **dict.fromkeys(
        (
            _C.GET_KV_CONFIG,
            _C.GET_ROUTEINFO_BY_TOPIC,
            _C.GET_BROKER_CLUSTER_INFO,
            _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            _C.GET_KVLIST_BY_NAMESPACE,
            _C.GET_TOPICS_BY_CLUSTER,
            _C.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            _C.GET_UNIT_TOPIC_LIST,
            _C.GET_HAS_UNIT_SUB_TOPIC_LIST,
            _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            _C.GET_NAMESRV_CONFIG,
            _C.GET_BROKER_MEMBER_GROUP,
        ),
        _R.ANYONE,
    ),
})  # fmt: skip
"""By request code, what the nameserver asks for."""

"""The typed headers of requests and responses, and the one table that ties them to the request codes.

A header travels as text fields (``Command.ext``). A missing field without a default, or one that is no number of its
width, is the sender's fault and answered with code 1. Source: the ``*RequestHeader`` and ``*ResponseHeader`` classes
of RocketMQ 4.9.7 (``common/protocol/header``).
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import attrs
import msgspec

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.errors import RemoteFault

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

H = TypeVar("H", bound="Header")


class Header(msgspec.Struct, rename="camel"):
    """Base of all typed headers."""

    def to_ext(self) -> dict[str, str]:
        """The fields as they travel; those that are None stay out."""
        ext: dict[str, str] = {}
        for name, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is None:
                continue
            ext[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return ext


def read_header(kind: type[H], ext: dict[str, str] | None) -> H:
    """The typed form of ``ext``; :class:`RemoteFault` (code 1) names the field that is missing or wrong."""
    try:
        return msgspec.convert(ext or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{kind.__name__}: {error}") from None


SEND_LETTERS = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
    "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j",
    "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m",
}  # fmt: skip
"""The one-letter names of 310, 320 and 325 for the long names of 10 and 324; all of them carry the same fields."""
_LONG_NAMES = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})


class SendMessageHeader(
    Header,
    kw_only=True,
    rename={
        "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
        "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
        "unit_mode": "k", "max_reconsume_times": "l", "batch": "m",
    },
):  # fmt: skip
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325); through
    :func:`read_send_header` also SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None


def read_send_header(code: int, ext: dict[str, str] | None) -> SendMessageHeader:
    """The header of a request that sends a message or a reply, whichever names its fields have."""
    if code in _LONG_NAMES and ext:
        ext = {SEND_LETTERS.get(name, name): value for name, value in ext.items()}
    return read_header(SendMessageHeader, ext)


class SendMessageResponse(Header, kw_only=True):
    """Where the message lies; a batch's ids are joined by commas and its offset is the first one's."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Of a message with a time of its own: what RECALL_MESSAGE wants (5.3)."""


class PullMessageHeader(Header, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). ``sys_flag``: 1 commit offset valid, 2 may suspend,
    4 subscription inline, 8 class filter, 16 lite.

    ``gantrymq_max_bytes`` is an extension of GantryMQ (``docs/format/frame.md``): the client accepts so many bytes of
    messages in one answer, instead of RocketMQ's limits. Other brokers ignore it.
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
    """Where to go on, and the queue's bounds."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryConsumerOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14); the last field is 5.x's: False wants to be told of a missing offset."""

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


class OffsetResponse(Header, kw_only=True):
    """Answer to 14, 29, 30 and 31."""

    offset: Int64


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


class SearchOffsetHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class QueueHeader(Header, kw_only=True):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32


class UnregisterClientHeader(
    Header,
    kw_only=True,
    rename={"client_id": "clientID", "producer_group": "producerGroup", "consumer_group": "consumerGroup"},
):
    """UNREGISTER_CLIENT (35)."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBackHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): the message at ``offset`` of the log; delay level -1 gives up, 0 leaves it to us."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class PutKVConfigHeader(Header, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KVConfigHeader(Header, kw_only=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KVConfigResponse(Header, kw_only=True):
    """Answer to 101."""

    value: str | None = None


class RegisterBrokerHeader(Header, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int64 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponse(Header, kw_only=True):
    """Answer to 103: the master's addresses, for a slave."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeader(Header, kw_only=True):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerGroupHeader(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatHeader(Header, kw_only=True):
    """BROKER_HEARTBEAT (904); its fields for the controller are not read."""

    cluster_name: str
    broker_name: str
    broker_addr: str


class DataVersionResponse(Header, kw_only=True):
    """Answer to 322."""

    changed: bool


class RouteHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class TopicHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215), REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class DeleteTopicInNameserverHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class DeleteGroupHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207); 4.x says removeOffset, 5.x cleanOffset."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class BrokerNameHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipeWritePermResponse(Header, kw_only=True):
    """Answer to 205."""

    wipe_topic_count: Int32


class AddWritePermResponse(Header, kw_only=True):
    """Answer to 327."""

    add_topic_count: Int32


class NamespaceHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class ClusterHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@attrs.frozen
class RequestSpec:
    """One row of the table: who answers ("broker", "nameserver", "client"), and the typed headers both ways."""

    server: str
    header: type[Header] | None
    response: type[Header] | None = None


_C = RequestCode
REQUESTS: dict[RequestCode, RequestSpec] = {
    _C.SEND_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.PULL_MESSAGE: RequestSpec("broker", PullMessageHeader, PullMessageResponse),
    _C.QUERY_CONSUMER_OFFSET: RequestSpec("broker", QueryConsumerOffsetHeader, OffsetResponse),
    _C.UPDATE_CONSUMER_OFFSET: RequestSpec("broker", UpdateConsumerOffsetHeader),
    _C.UPDATE_AND_CREATE_TOPIC: RequestSpec("broker", CreateTopicHeader),
    _C.GET_ALL_TOPIC_CONFIG: RequestSpec("broker", None),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: RequestSpec("broker", SearchOffsetHeader, OffsetResponse),
    _C.GET_MAX_OFFSET: RequestSpec("broker", QueueHeader, OffsetResponse),
    _C.GET_MIN_OFFSET: RequestSpec("broker", QueueHeader, OffsetResponse),
    _C.HEART_BEAT: RequestSpec("broker", None),
    _C.UNREGISTER_CLIENT: RequestSpec("broker", UnregisterClientHeader),
    _C.CONSUMER_SEND_MSG_BACK: RequestSpec("broker", SendBackHeader),
    _C.CHECK_CLIENT_CONFIG: RequestSpec("broker", None),
    _C.GET_CONSUMER_LIST_BY_GROUP: RequestSpec("broker", ConsumerGroupHeader),
    _C.NOTIFY_CONSUMER_IDS_CHANGED: RequestSpec("client", ConsumerGroupHeader),
    _C.LOCK_BATCH_MQ: RequestSpec("broker", None),
    _C.UNLOCK_BATCH_MQ: RequestSpec("broker", None),
    _C.PUT_KV_CONFIG: RequestSpec("nameserver", PutKVConfigHeader),
    _C.GET_KV_CONFIG: RequestSpec("nameserver", KVConfigHeader, KVConfigResponse),
    _C.DELETE_KV_CONFIG: RequestSpec("nameserver", KVConfigHeader),
    _C.REGISTER_BROKER: RequestSpec("nameserver", RegisterBrokerHeader, RegisterBrokerResponse),
    _C.UNREGISTER_BROKER: RequestSpec("nameserver", BrokerHeader),
    _C.GET_ROUTEINFO_BY_TOPIC: RequestSpec("nameserver", RouteHeader),
    _C.GET_BROKER_CLUSTER_INFO: RequestSpec("nameserver", None),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: RequestSpec("broker", None),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: RequestSpec("broker", None),
    _C.WIPE_WRITE_PERM_OF_BROKER: RequestSpec("nameserver", BrokerNameHeader, WipeWritePermResponse),
    _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: RequestSpec("nameserver", None),
    _C.DELETE_SUBSCRIPTIONGROUP: RequestSpec("broker", DeleteGroupHeader),
    _C.DELETE_TOPIC_IN_BROKER: RequestSpec("broker", TopicHeader),
    _C.DELETE_TOPIC_IN_NAMESRV: RequestSpec("nameserver", DeleteTopicInNameserverHeader),
    _C.REGISTER_TOPIC_IN_NAMESRV: RequestSpec("nameserver", TopicHeader),
    _C.GET_KVLIST_BY_NAMESPACE: RequestSpec("nameserver", NamespaceHeader),
    _C.GET_TOPICS_BY_CLUSTER: RequestSpec("nameserver", ClusterHeader),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: RequestSpec("nameserver", None),
    _C.GET_UNIT_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.GET_HAS_UNIT_SUB_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: RequestSpec("nameserver", None),
    _C.SEND_MESSAGE_V2: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.SEND_BATCH_MESSAGE: RequestSpec("broker", SendMessageHeader, SendMessageResponse),
    _C.QUERY_DATA_VERSION: RequestSpec("nameserver", BrokerHeader, DataVersionResponse),
    _C.ADD_WRITE_PERM_OF_BROKER: RequestSpec("nameserver", BrokerNameHeader, AddWritePermResponse),
    _C.LITE_PULL_MESSAGE: RequestSpec("broker", PullMessageHeader, PullMessageResponse),
    _C.GET_BROKER_MEMBER_GROUP: RequestSpec("nameserver", BrokerGroupHeader),
    _C.BROKER_HEARTBEAT: RequestSpec("nameserver", BrokerHeartbeatHeader),
}

"""The JSON bodies of requests and responses, and of RocketMQ's configuration files.

Defaults are those of the Java classes, which is what a missing key means. Source: RocketMQ 4.9.7
``common/protocol/{body,heartbeat,route}``, ``TopicConfig``, ``SubscriptionGroupConfig``; what 5.3.3 added is optional
and stays out of the text unless set, so that both versions read it.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from gantrymq.remoting import fastjson
from gantrymq.remoting.body import TOLERANT_VALUES_MAX, Body, check_values
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson_types import NAMES, enum_name
from gantrymq.remoting.headers import Int32, Int64
from gantrymq.remoting.properties import java_hash


class MessageQueue(Body, frozen=True, order=True):  # type: ignore[misc]  # a struct is no dataclass here
    """One queue of a topic on one broker; orders by topic, broker and queue id as in RocketMQ."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0


class DataVersion(Body, frozen=True):  # type: ignore[misc]  # as above
    """Which state of a table this is; two are the same state when all fields are equal. ``timestamp`` in ms."""

    counter: Int64 = 0
    timestamp: Int64 = 0
    state_version: Int64 | None = None

    def __post_init__(self) -> None:
        # 4.9.7 has no such field, 5.3.3 writes 0 for the same thing
        if self.state_version == 0:
            msgspec.structs.force_setattr(self, "state_version", None)

    def next(self, now: int) -> DataVersion:
        """The version after a change at ``now`` (ms)."""
        return DataVersion(self.counter + 1, now, self.state_version)


class TopicConfig(Body):
    """A topic's settings on one broker."""

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    def to_text(self) -> str:
        """``name read write perm FILTERTYPE``, the form in compressed registrations; the other fields are lost."""
        return f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} {self.topic_filter_type}"

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """The inverse of :meth:`to_text`; takes 5.3.3's form with attributes at the end, and leaves them out.

        :class:`RemoteFault` (code 1) for anything else.
        """
        words = text.split(" ", 5)
        try:
            name, reads, writes, perm, kind = words[:5]
            numbers = [int(reads), int(writes), int(perm)]
            if min(numbers) < -0x80000000 or max(numbers) > 0x7FFFFFFF:
                raise ValueError("a number of more than 32 bits")
        except ValueError:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"TopicConfig: unreadable text {text[:200]!r}") from None
        return cls(name, numbers[0], numbers[1], numbers[2], kind)


class TopicQueueMapping(Body):
    """Which logical queues of a static topic a broker has, logical id to its own (``TopicQueueMappingInfo``, 5.x)."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: Int32 = 0
    bname: str = ""
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[Int32, Int32] = {}


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker: body of 21, file ``topics.json``. 5.x brokers register mappings of static topics too."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] | None = None


RETRY_POLICIES: Final = ("EXPONENTIAL", "CUSTOMIZED")
"""``GroupRetryPolicyType``, by its number."""


class ExponentialRetryPolicy(Body):
    """Delays between a message's attempts that grow by a factor; ``initial`` and ``max`` in ms (5.x)."""

    initial: Int64 = 5000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(Body):
    """Delays between a message's attempts, each in ms (5.x). None: those of the delay levels."""

    next: list[Int64] | None = None


class GroupRetryPolicy(Body):
    """How long a message of a group waits between its attempts (5.x)."""

    type: Annotated[str, Meta(extra={NAMES: RETRY_POLICIES})] = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None

    def __post_init__(self) -> None:
        # Java reads none from an unknown name, and goes by this one then
        self.type = enum_name(self.type, RETRY_POLICIES) or "CUSTOMIZED"


class SimpleSubscriptionData(Body):
    """What a group is configured to want of a topic (5.x)."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: Int64 = 0


class SubscriptionGroupConfig(Body):
    """A consumer group's settings on one broker. The fields with None are 5.x's."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    attributes: dict[str, str] | None = None
    consume_message_orderly: bool | None = None
    consume_timeout_minute: Int32 | None = None
    group_sys_flag: Int32 | None = None
    group_retry_policy: GroupRetryPolicy | None = None
    subscription_data_set: list[SimpleSubscriptionData] | None = None


class SubscriptionGroupWrapper(Body):
    """All consumer groups of a broker: body of 201, file ``subscriptionGroup.json``."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    data_version: DataVersion = DataVersion()


class ConsumerOffsetSerializeWrapper(Body):
    """How far groups have consumed, ``topic@group`` to queue id to offset: body of 43, ``consumerOffset.json``."""

    offset_table: dict[str, dict[Int32, Int64]] = {}
    data_version: DataVersion | None = None


class DelayOffsetSerializeWrapper(Body):
    """How far the delay levels are delivered, level to queue offset: file ``delayOffset.json``."""

    offset_table: dict[Int32, Int64] = {}
    data_version: DataVersion | None = None


class LockBatchRequestBody(Body):
    """Queues that a member of a group wants to have, or gives back: bodies of 41 and 42. The last field is 5.x's."""

    any_spelling: ClassVar[bool] = True

    consumer_group: str = ""
    client_id: str = ""
    mq_set: set[MessageQueue] = set()
    only_this_broker: bool | None = None


class LockBatchResponseBody(Body, rename={"lock_ok_mq_set": "lockOKMQSet"}):
    """Those of the queues asked for that the client has now: answer to 41."""

    lock_ok_mq_set: set[MessageQueue] = set()


class SubscriptionData(Body):
    """A group's subscription to a topic. The larger ``sub_version`` (ms) is the newer of two."""

    topic: str = ""
    sub_string: str = ""
    tags_set: set[str] = set()
    code_set: set[Int32] = set()
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @classmethod
    def for_tags(cls, topic: str, expression: str = "*", version: int = 0) -> SubscriptionData:
        """A subscription by tag: ``*`` or nothing for all, else tags between ``||``.

        :class:`ValueError` when nothing but separators is left, as ``FilterAPI`` has it.
        """
        if not expression or expression == "*":
            return cls(topic=topic, sub_string="*", sub_version=version)
        tags = {tag.strip() for tag in expression.split("||")} - {""}
        if not tags:
            raise ValueError(f"no tag in the subscription {expression!r}")
        codes = {java_hash(tag) for tag in tags}
        return cls(topic=topic, sub_string=expression, tags_set=tags, code_set=codes, sub_version=version)


CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ConsumerData(Body):
    """One consumer group that a client belongs to. The three choices are names of the tuples above."""

    group_name: str = ""
    consume_type: Annotated[str, Meta(extra={NAMES: CONSUME_TYPES})] = "CONSUME_PASSIVELY"
    message_model: Annotated[str, Meta(extra={NAMES: MESSAGE_MODELS})] = "CLUSTERING"
    consume_from_where: Annotated[str, Meta(extra={NAMES: CONSUME_FROM_WHERE})] = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        # Java reads the names without regard to case, and none from an unknown one
        self.consume_type = enum_name(self.consume_type, CONSUME_TYPES) or "CONSUME_PASSIVELY"
        self.message_model = enum_name(self.message_model, MESSAGE_MODELS) or "CLUSTERING"
        self.consume_from_where = enum_name(self.consume_from_where, CONSUME_FROM_WHERE) or "CONSUME_FROM_LAST_OFFSET"


class ProducerData(Body):
    """One producer group that a client belongs to."""

    group_name: str = ""


class HeartbeatData(Body, rename={"client_id": "clientID", "producer_data_set": "producerDataSet",
                                  "consumer_data_set": "consumerDataSet", "without_sub": "withoutSub",
                                  "heartbeat_fingerprint": "heartbeatFingerprint"}):  # fmt: skip
    """What a client is part of: body of 34. 5.x may send a fingerprint in place of the subscriptions."""

    any_spelling: ClassVar[bool] = True

    client_id: str = ""
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = None


class CheckClientConfig(Body):
    """A subscription that a client is about to make: body of 46 (``CheckClientRequestBody``)."""

    any_spelling: ClassVar[bool] = True

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class ConsumerList(Body):
    """The client ids of a consumer group: answer to 38 (``GetConsumerListByGroupResponseBody``)."""

    consumer_id_list: list[str] = []


class QueueData(Body):
    """A topic's queues on one broker. The system flag goes out under both names it ever had.

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
    """Where a topic's queues are: answer to 105."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Body):
    """All brokers and clusters: answer to 106."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body):
    """Names of topics; ``broker_addr`` only in the answer to 304."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KVTable(Body):
    """Text to text: answers to 219, 28 and 103."""

    table: dict[str, str] = {}


class BrokerMemberGroup(Body):
    """The live members of a broker name, by broker id: part of the answer to 901 (5.x)."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Int64, str] = {}


class BrokerMemberGroupBody(Body):
    """Answer to 901 (``GetBrokerMemberGroupResponseBody``, 5.x)."""

    broker_member_group: BrokerMemberGroup | None = None


def read_filter_servers(data: bytes) -> list[str]:
    """The list of filter server addresses at the end of a compressed registration; :class:`RemoteFault` (code 1)."""
    try:
        return msgspec.json.decode(data, type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass  # most likely the dialect: the tolerant way decides
    try:
        check_values(data, TOLERANT_VALUES_MAX)
        return msgspec.convert(fastjson.loads(data), list[str])
    except ValueError as error:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"filterServerList: {error}") from None


def write_filter_servers(addresses: Iterable[str]) -> bytes:
    """The inverse of :func:`read_filter_servers`."""
    return fastjson.dumps(list(addresses))

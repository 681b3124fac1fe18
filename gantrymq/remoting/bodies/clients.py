"""The bodies about clients: heartbeats, subscriptions, and the connections of a group.

Source: RocketMQ 4.9.7 ``common/protocol/heartbeat``, ``common/protocol/body``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.fastjson_types import NAMES, enum_name
from gantrymq.remoting.headers.header import Int32, Int64
from gantrymq.remoting.properties import java_hash

SQL92: Final = "SQL92"
"""The expression type of subscriptions by SQL92 expressions."""


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

        :class:`ValueError` for a text of separators alone, as in ``FilterAPI``.
        """
        if not expression or expression == "*":
            return cls(topic=topic, sub_string="*", sub_version=version)
        tags = {tag.strip() for tag in expression.split("||")} - {""}
        if not tags:
            raise ValueError(f"no tag in the subscription {expression!r}")
        codes = {java_hash(tag) for tag in tags}
        return cls(topic=topic, sub_string=expression, tags_set=tags, code_set=codes, sub_version=version)

    @classmethod
    def for_sql(cls, topic: str, expression: str, version: int = 0) -> SubscriptionData:
        """A subscription by an SQL92 expression over properties; the broker evaluates it."""
        return cls(topic=topic, sub_string=expression, sub_version=version, expression_type=SQL92)


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
        # Java ignores the case of names, and reads an unknown name as null
        self.consume_type = enum_name(self.consume_type, CONSUME_TYPES) or "CONSUME_PASSIVELY"
        self.message_model = enum_name(self.message_model, MESSAGE_MODELS) or "CLUSTERING"
        self.consume_from_where = enum_name(self.consume_from_where, CONSUME_FROM_WHERE) or "CONSUME_FROM_LAST_OFFSET"


class ProducerData(Body):
    """One producer group that a client belongs to."""

    group_name: str = ""


class HeartbeatData(Body, rename={"client_id": "clientID", "producer_data_set": "producerDataSet",
                                  "consumer_data_set": "consumerDataSet", "without_sub": "withoutSub",
                                  "heartbeat_fingerprint": "heartbeatFingerprint"}):  # fmt: skip
    """The groups of a client: body of 34. 5.x may send a fingerprint in place of the subscriptions."""

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
    """The client ids of a consumer group: response to 38 (``GetConsumerListByGroupResponseBody``)."""

    consumer_id_list: list[str] = []


class ClientConnection(Body):
    """One client (``Connection``)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: Int32 = 0


class ConsumerConnections(Body):
    """Response to 203 (``ConsumerConnection``)."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class ProducerConnections(Body):
    """Response to 204 (``ProducerConnection``)."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body, rename={"remote_ip": "remoteIP", "client_id": "clientId",
                                 "last_update_timestamp": "lastUpdateTimestamp"}):  # fmt: skip
    """One producer, in the response to 328."""

    client_id: str = ""
    remote_ip: str = ""
    language: str = "OTHER"
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTable(Body):
    """Response to 328 (``ProducerTableInfo``): producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class GroupList(Body):
    """Response to 300."""

    group_list: list[str] = []


class GroupSubscription(Body):
    """Response to 345 (``QuerySubscriptionResponseBody`` of 5.x)."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None

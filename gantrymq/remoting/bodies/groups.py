"""The settings of consumer groups, and RocketMQ's file of them.

The fields that 5.3.3 added are optional and omitted unless set, so that both versions read the text. Source: RocketMQ
4.9.7 ``SubscriptionGroupConfig``, ``SubscriptionGroupWrapper``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.fastjson_types import NAMES, enum_name
from gantrymq.remoting.headers.header import Int32, Int64

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
        # Java reads an unknown name as null, and then uses this policy
        self.type = enum_name(self.type, RETRY_POLICIES) or "CUSTOMIZED"


class SimpleSubscriptionData(Body):
    """A configured subscription of a group (5.x)."""

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

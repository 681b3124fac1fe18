"""A consumer's report for an administrator, and the result of the direct consumption of a message.

Source: RocketMQ 4.9.7 ``ConsumerRunningInfo`` and the classes of its fields, ``ConsumeMessageDirectlyResult``.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from typing import Any

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.headers.header import Int32, Int64
from gantrymq.remoting.names import is_retry_topic


class ProcessQueueInfo(Body):
    """One queue of a consumer: its outstanding messages and its next offset. Times in ms."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class ConsumeStatus(Body, rename={
    "pull_rt": "pullRT", "pull_tps": "pullTPS", "consume_rt": "consumeRT", "consume_ok_tps": "consumeOKTPS",
    "consume_failed_tps": "consumeFailedTPS", "consume_failed_msgs": "consumeFailedMsgs",
}):  # fmt: skip
    """The rates of a consumer on one topic, a second; the round trips in ms."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(Body):
    """Response to 307; ``jstack`` is the text of the stacks of all threads, where it was asked for."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class MemberReport(Body):
    """What an administrator reads of the answer to 307. An empty map comes as a dict."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: list[tuple[MessageQueue, ProcessQueueInfo]] | dict[str, Any] = []

    @property
    def subscriptions(self) -> dict[str, str]:
        """The expression by topic, without retry topics, to which every consumer subscribes."""
        return {each.topic: each.sub_string for each in self.subscription_set if not is_retry_topic(each.topic)}

    @property
    def queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The queues that the member consumes."""
        return dict(self.mq_table) if isinstance(self.mq_table, list) else {}

    @property
    def is_ordered(self) -> bool:
        """Whether the member consumes each queue in order, under the broker's lock."""
        return self.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"


class DirectlyConsumed(Body):
    """Response to 309 (``ConsumeMessageDirectlyResult``). ``consume_result``: CR_SUCCESS, CR_LATER, ..."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    remark: str | None = None
    spent_time_mills: Int64 = 0

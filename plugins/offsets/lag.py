"""Metrics of the lag of consumer groups.

Names and labels are RocketMQ 5.3.3's (``ConsumerLagCalculator``). RocketMQ counts connected groups, without retry
topics; GantryMQ counts every group that has committed an offset, connected or not, and its retry topic as a separate
topic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.store.reading import message_stored_at
from gantrymq.remoting.names import is_retry_topic, is_system_group, is_system_topic

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
    from gantrymq.plugins.offsets.table import Offsets

READS_MAX: Final = 1000
"""The most messages that are read to determine the age of the oldest unconsumed ones."""


@attrs.frozen
class _Group:
    topic: str
    group: str
    unconsumed: list[tuple[ConsumeQueue, int]]
    """The first unconsumed message of each queue."""

    def labels(self) -> dict[str, str | bool]:
        return {
            "topic": self.topic,
            "consumer_group": self.group,
            "is_retry": is_retry_topic(self.topic),
            "is_system": is_system_topic(self.topic) or is_system_group(self.group),
        }


def report_lag(broker: Broker, offsets: Offsets, metrics: Metrics) -> None:
    """For each topic and group the number of unconsumed messages and the age of the oldest one."""
    found = []
    for topic, group in offsets.pairs():
        behind, unconsumed = 0, []
        for queue_id, offset in offsets.queues_of(group, topic).items():
            queue = broker.queues.get(topic, queue_id)
            if queue is not None and queue.max_offset > offset:
                behind += queue.max_offset - offset
                unconsumed.append((queue, max(offset, queue.min_offset)))
        row = _Group(topic, group, unconsumed)
        metrics.gauge(
            "rocketmq_consumer_lag_messages", "Messages that the group has not consumed", behind, **row.labels()
        )
        found.append(row)
    metrics.later(partial(_report_ages, broker, found, metrics))


def _report_ages(broker: Broker, groups: list[_Group], metrics: Metrics) -> None:
    now, left = broker.env.wall_ms(), READS_MAX
    for row in groups:
        left -= len(row.unconsumed)
        if left < 0:
            return
        times = [message_stored_at(broker.log, queue, offset) for queue, offset in row.unconsumed]
        known = [time for time in times if time >= 0]
        metrics.gauge(
            "rocketmq_consumer_lag_latency_milliseconds",
            "For how long the oldest message that the group has not consumed is there",
            max(now - min(known), 0) if known else 0,
            **row.labels(),
        )

"""Metrics of the lag of consumer groups.

Names and labels are RocketMQ 5.3.3's (``ConsumerLagCalculator``). RocketMQ counts connected groups, without retry
topics; GantryMQ counts every group that has committed an offset, connected or not, and its retry topic as a separate
topic. A group that has pulled nothing since the broker's start has pulled what it has committed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.store.reading import message_stored_at
from gantrymq.plugins.interfaces import Statistics
from gantrymq.remoting.names import is_retry_topic, is_system_group, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    unpulled: list[tuple[ConsumeQueue, int]]
    """The first message of each queue that the group has not pulled."""

    def labels(self) -> dict[str, str | bool]:
        return {
            "topic": self.topic,
            "consumer_group": self.group,
            "is_retry": is_retry_topic(self.topic),
            "is_system": is_system_topic(self.topic) or is_system_group(self.group),
        }


def report_lag(broker: Broker, offsets: Offsets, metrics: Metrics) -> None:
    """For each topic and group the number of unconsumed messages and the age of the oldest one.

    With the plugin ``stats`` also how many of them the group has pulled, how many it has not, and the age of the oldest
    of these.
    """
    found = []
    statistics = broker.registry.find(Statistics)
    for topic, group in offsets.pairs():
        behind = in_flight = 0
        row = _Group(topic, group, [], [])
        for queue_id, offset in offsets.queues_of(group, topic).items():
            queue = broker.queues.get(topic, queue_id)
            if queue is None or queue.max_offset <= offset:
                continue
            behind += queue.max_offset - offset
            row.unconsumed.append((queue, max(offset, queue.min_offset)))
            pulled = None if statistics is None else statistics.pulled_to(group, topic, queue_id)
            pulled = offset if pulled is None else min(max(pulled, offset), queue.max_offset)
            in_flight += pulled - offset
            if pulled < queue.max_offset:
                row.unpulled.append((queue, max(pulled, queue.min_offset)))
        labels = row.labels()
        metrics.gauge("rocketmq_consumer_lag_messages", "Messages that the group has not consumed", behind, **labels)
        if statistics is not None:
            metrics.gauge(
                "rocketmq_consumer_inflight_messages", "Messages that the group has pulled and not committed",
                in_flight, **labels,
            )  # fmt: skip
            metrics.gauge(
                "rocketmq_consumer_ready_messages", "Messages that the group has not pulled", behind - in_flight,
                **labels,
            )  # fmt: skip
        found.append(row)
    metrics.later(partial(_report_ages, broker, found, metrics, statistics is not None))


def _report_ages(broker: Broker, groups: list[_Group], metrics: Metrics, has_pulled: bool) -> None:
    now, left = broker.env.wall_ms(), READS_MAX
    for row in groups:
        places = dict.fromkeys(row.unconsumed + (row.unpulled if has_pulled else []))
        left -= len(places)
        if left < 0:
            return
        times = {place: message_stored_at(broker.log, *place) for place in places}

        def age(of: list[tuple[ConsumeQueue, int]], times: Mapping[tuple[ConsumeQueue, int], int] = times) -> int:
            known = [times[place] for place in of if times[place] >= 0]
            return max(now - min(known), 0) if known else 0

        metrics.gauge(
            "rocketmq_consumer_lag_latency_milliseconds",
            "For how long the oldest message that the group has not consumed is there",
            age(row.unconsumed),
            **row.labels(),
        )
        if has_pulled:
            metrics.gauge(
                "rocketmq_consumer_queueing_latency_milliseconds",
                "For how long the oldest message that the group has not pulled is there",
                age(row.unpulled),
                **row.labels(),
            )

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
    from collections.abc import Mapping, Sequence

    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
    from gantrymq.plugins.offsets.table import Offsets

READS_MAX: Final = 1000
"""The most messages that a scrape reads to determine the age of the oldest unconsumed ones."""

_Times = tuple[int | None, int | None]
"""The store times of the oldest unconsumed and of the oldest unpulled message of a group; None without one."""


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


def report_lag(broker: Broker, offsets: Offsets, ages: LagAges, metrics: Metrics) -> None:
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
    metrics.later(partial(ages.report, broker, found, metrics, statistics is not None))


class LagAges:
    """The ages of the oldest unconsumed messages.

    A scrape reads at most :data:`READS_MAX` messages, but always those of one group, and continues with the groups that
    the one before has left out. Their ages are those of their last read, so they may be too high by a few scrapes.
    """

    def __init__(self) -> None:
        self._next = 0
        """The position of the first group to read."""
        self._stored: dict[tuple[str, str], _Times] = {}
        """By topic and group."""

    def report(self, broker: Broker, groups: list[_Group], metrics: Metrics, has_pulled: bool) -> None:
        """Report the ages for ``groups``, and how many of them this scrape has left out; reads the log."""
        now = broker.env.wall_ms()
        left_out = self._read(broker.log, groups, has_pulled)
        for row in groups:
            stored = self._stored.get((row.topic, row.group))
            if stored is None:
                continue
            ages = [0 if time is None else max(now - time, 0) for time in stored]
            metrics.gauge(
                "rocketmq_consumer_lag_latency_milliseconds",
                "For how long the oldest message that the group has not consumed is there",
                ages[0],
                **row.labels(),
            )
            if has_pulled:
                metrics.gauge(
                    "rocketmq_consumer_queueing_latency_milliseconds",
                    "For how long the oldest message that the group has not pulled is there",
                    ages[1],
                    **row.labels(),
                )
        metrics.gauge(
            "gantrymq_consumer_lag_latency_left_out_groups",
            "Pairs of topic and group whose latency is of an earlier scrape, or missing, because of the limit of reads",
            left_out,
        )

    def _read(self, log: CommitLog, groups: list[_Group], has_pulled: bool) -> int:
        """Read the store times; returns how many groups were left out."""
        found: dict[tuple[str, str], _Times] = {}
        begin = self._next if self._next < len(groups) else 0
        reads = left_out = 0
        for index in (*range(begin, len(groups)), *range(begin)):
            row = groups[index]
            key = row.topic, row.group
            places = dict.fromkeys(row.unconsumed + (row.unpulled if has_pulled else []))
            if places and (left_out or (reads and reads + len(places) > READS_MAX)):
                if not left_out:
                    self._next = index
                left_out += 1
                if key in self._stored:
                    found[key] = self._stored[key]
                continue
            reads += len(places)
            times = {place: message_stored_at(log, *place) for place in places}
            found[key] = _oldest(times, row.unconsumed), _oldest(times, row.unpulled if has_pulled else [])
        self._stored = found
        return left_out


def _oldest(times: Mapping[tuple[ConsumeQueue, int], int], places: Sequence[tuple[ConsumeQueue, int]]) -> int | None:
    return min((times[place] for place in places if times[place] >= 0), default=None)

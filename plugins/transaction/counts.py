"""Counts of ended transactions by topic, for metrics with the names of RocketMQ 5.3.3 (``EndTransactionProcessor``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.metrics import Buckets
from gantrymq.remoting.property_bytes import REAL_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.transaction.plain import Ending

TOPICS: Final = 1_000
"""The most topics that are counted by name."""
OTHERS: Final = "(others)"
LATENCY_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
"""RocketMQ 5.3.3's buckets (``BrokerMetricsManager``)."""


class EndCounts:
    """Since the broker's start, by the topic that the messages are for; repeated commits and rollbacks count again."""

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        self._latencies: dict[str, Buckets] = {}

    def ended(self, endings: Sequence[Ending], now_ms: int) -> None:
        """Count ``endings``, whose half messages were found. ``now_ms``: the wall clock."""
        for ending in endings:
            record = ending.record
            name = record.property_of(REAL_TOPIC)
            topic = record.topic if name is None else name.decode("utf-8", "replace")
            counts = self.commits if ending.is_commit else self.rollbacks
            if topic not in counts and len(counts) >= TOPICS:
                topic = OTHERS
            counts[topic] += 1
            if ending.is_commit:
                latency = self._latencies.get(topic)
                if latency is None:
                    latency = self._latencies[topic] = Buckets(LATENCY_BOUNDS_S)
                latency.add(max(now_ms - record.born_timestamp, 0) // 1000)

    def report(self, metrics: Metrics) -> None:
        """Add the commits, the rollbacks and the time until commits, in seconds as in RocketMQ."""
        for topic, count in self.commits.items():
            metrics.counter(
                "rocketmq_commit_messages_total", "Transactions that their producers committed", count, topic=topic
            )
        for topic, count in self.rollbacks.items():
            metrics.counter(
                "rocketmq_rollback_messages_total", "Transactions that their producers rolled back", count, topic=topic
            )
        for topic, latency in self._latencies.items():
            metrics.histogram(
                "rocketmq_finish_message_latency_milliseconds",
                "Seconds from the creation of half messages to their commits: the unit in the name is RocketMQ's",
                latency.bounds, latency.counts, latency.total, topic=topic,
            )  # fmt: skip

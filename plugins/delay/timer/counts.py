"""Counts of timed messages, for metrics with the names of RocketMQ 5.3.3 (``DefaultStoreMetricsManager``).

A message counts when it comes into the wheel and when it leaves it for its topic. Unlike in RocketMQ, one that waits
for longer than the wheel's window, and comes in several times, counts once.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gantrymq.kernel.metrics import Buckets

TOPICS: Final = 1_000
"""The most topics that are counted by name."""
OTHERS: Final = "(others)"
DELAY_BOUNDS_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)
"""RocketMQ 5.3.3's buckets (``getMetricsView``)."""
RECENT_MS: Final = 2_000


class TimerCounts:
    """Since the broker's start, by the topic that the messages are for."""

    def __init__(self) -> None:
        self.enqueued: Counter[str] = Counter()
        self.dequeued: Counter[str] = Counter()
        self.delays: dict[str, Buckets] = {}
        """The delay that the producer asked for, in seconds from the creation of the message on."""
        self._newest = (0, 0)
        """When a message came into the wheel last, and when that one was stored; ms."""

    def came(self, topic: str, delay_s: int, stored_ms: int, now_ms: int) -> None:
        """A message has come into the wheel."""
        topic = _known(self.enqueued, topic)
        self.enqueued[topic] += 1
        delays = self.delays.get(topic)
        if delays is None:
            delays = self.delays[topic] = Buckets(DELAY_BOUNDS_S)
        delays.add(max(delay_s, 0))
        self._newest = (now_ms, stored_ms)

    def left(self, topic: str) -> None:
        """A message has left the wheel for its topic."""
        self.dequeued[_known(self.dequeued, topic)] += 1

    def behind_ms(self, now_ms: int) -> int:
        """Return how long the newest message had waited to come into the wheel; 0 if none came in the last two seconds.

        Source: RocketMQ 5.3.3 ``TimerMessageStore.getEnqueueBehindMillis``.
        """
        came, stored = self._newest
        return max(now_ms - stored, 0) if now_ms - came < RECENT_MS else 0


def _known(counts: Counter[str], topic: str) -> str:
    return topic if topic in counts or len(counts) < TOPICS else OTHERS

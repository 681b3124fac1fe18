"""Message sizes by topic, counted in bulk from the entries of the consume queues.

Source of the bounds: RocketMQ 5.3.3 ``BrokerMetricsManager.registerMetricsView``.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE

KIB: Final = 1024
BOUNDS: Final = (KIB, 4 * KIB, 512 * KIB, 1024 * KIB, 2048 * KIB, 4096 * KIB)
"""Upper bounds of the classes in bytes of the stored record; what is larger is one more class."""
WORDS: Final = 5
"""32-bit words of a queue entry; the third one is the size."""


def sizes_of(entries: bytes) -> array[int]:
    """Return the sizes in these consume queue entries; ``FILLER_SIZE`` for fillers."""
    words = array("i", entries)[2::WORDS]
    if sys.byteorder == "little":
        words.byteswap()
    return words


class Sizes:
    """By topic: how many messages are of each class, and the bytes of all."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.totals: dict[str, int] = {}

    def add(self, topic: str, sizes: array[int]) -> None:
        """Count the messages of these ``sizes``."""
        ordered = sorted(sizes)
        del ordered[bisect_left(ordered, FILLER_SIZE) :]
        counts = self.counts.setdefault(topic, [0] * (len(BOUNDS) + 1))
        passed = 0
        for number, bound in enumerate(BOUNDS):
            reached = bisect_right(ordered, bound)
            counts[number] += reached - passed
            passed = reached
        counts[-1] += len(ordered) - passed
        self.totals[topic] = self.totals.get(topic, 0) + sum(ordered)

    def forget(self, topic: str) -> None:
        """Remove the topic."""
        self.counts.pop(topic, None)
        self.totals.pop(topic, None)

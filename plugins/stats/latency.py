"""Times from a message's request to its final status: a distribution, and high percentiles.

Source: RocketMQ 4.9.7 ``StoreStatsService``: the classes of the distribution and its names, the finer buckets behind
the percentiles, and that both cover the last complete minute.
"""

from __future__ import annotations

from bisect import bisect_left

CLASSES = (
    (0, "[<=0ms]"), (9, "[0~10ms]"), (49, "[10~50ms]"), (99, "[50~100ms]"), (199, "[100~200ms]"), (499, "[200~500ms]"),
    (999, "[500ms~1s]"), (1999, "[1~2s]"), (2999, "[2~3s]"), (3999, "[3~4s]"), (4999, "[4~5s]"), (9999, "[5~10s]"),
)  # fmt: skip
"""The highest whole millisecond of a class, and its name; the last class has none."""
LAST_CLASS = "[10s~]"
_HIGHEST = [high for high, _ in CLASSES]
_NAMES = [*(name for _, name in CLASSES), LAST_CLASS]
_STEPS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))


def _buckets() -> list[int]:
    edges, edge = [], 0
    for step, count in _STEPS:
        for _ in range(count):
            edge += step
            edges.append(edge)
    return edges


BUCKETS = _buckets()
"""Upper bounds in ms, denser where most values are; values above the last one are in one more bucket."""


class Latency:
    """Call ``add`` during a minute and ``turn`` at its end; the results are those of the previous minute."""

    def __init__(self) -> None:
        self.longest = 0
        self.seconds = 0.0
        """The sum of the times of all messages since the start."""
        self._past = [0] * len(_NAMES)
        self._classes = [0] * len(_NAMES)
        self._last_classes: list[int] | None = None
        self._counts = [0] * (len(BUCKETS) + 1)
        self._last_counts = self._counts

    def add(self, seconds: float, messages: int) -> None:
        """Count ``messages`` that took this long."""
        milliseconds = int(seconds * 1000)
        self._classes[bisect_left(_HIGHEST, milliseconds)] += messages
        self._counts[bisect_left(BUCKETS, milliseconds)] += messages
        self.longest = max(self.longest, milliseconds)
        self.seconds += seconds * messages

    def turn(self) -> None:
        """Begin the next minute."""
        self._past = self.counts()
        self._last_classes, self._classes = self._classes, [0] * len(_NAMES)
        self._last_counts, self._counts = self._counts, [0] * (len(BUCKETS) + 1)

    def counts(self) -> list[int]:
        """Return how many messages ever were in each class of :data:`CLASSES`, and in the last one."""
        return [past + now for past, now in zip(self._past, self._classes, strict=True)]

    def distribution(self) -> str:
        """Return how many messages in each class, as RocketMQ writes it; ``null`` before the first minute is over."""
        if self._last_classes is None:
            return "null"
        return "".join(f"{name}:{count} " for name, count in zip(_NAMES, self._last_classes, strict=True))

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the messages was done, interpolated within a bucket; 0 for none."""
        total = sum(self._last_counts)
        wanted, passed = int(total * share), 0
        for number, count in enumerate(self._last_counts):
            if wanted <= passed + count:
                low = BUCKETS[number - 1] if number else 0
                high = BUCKETS[number] if number < len(BUCKETS) else low
                return low + (high - low) * (wanted - passed) / count if count else float(low)
            passed += count
        return 0.0

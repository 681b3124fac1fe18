"""Durations counted in classes, as a histogram of Prometheus needs them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import attrs

BOUNDS_S: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
"""The upper bounds of the classes, in seconds; a last class has the longer durations."""


@attrs.define
class Durations:
    """Counts by class, and the sum of all durations in seconds. One thread at a time adds to it."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds

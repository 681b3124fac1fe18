"""Metrics of the process, with the names of Prometheus's client libraries, and the lag of the event loop."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from gantrymq.kernel.metrics import Metrics

LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
PROBE_S: Final = 0.25
"""How often the lag of the loop is measured."""


class LoopLag:
    """How much later than planned the event loop runs a task: what requests wait when the loop is busy."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BOUNDS_S) + 1)
        self.seconds = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            due = trio.current_time() + PROBE_S
            await trio.sleep_until(due)
            self.add(trio.current_time() - due)

    def add(self, lag: float) -> None:
        """Count one measurement in seconds."""
        lag = max(lag, 0.0)
        self.counts[bisect_left(LAG_BOUNDS_S, lag)] += 1
        self.seconds += lag

    def report(self, metrics: Metrics) -> None:
        """Add the histogram."""
        metrics.histogram(
            "gantrymq_loop_lag_seconds", "How much later than planned the event loop runs a task, in seconds",
            LAG_BOUNDS_S, list(self.counts), self.seconds,
        )  # fmt: skip


def report_process(metrics: Metrics) -> None:
    """``process_*``: processor time, memory, open files and start time, as far as the system shows them."""
    for family in ProcessCollector(registry=None).collect():
        for sample in family.samples:
            add = metrics.counter if sample.name.endswith("_total") else metrics.gauge
            add(sample.name, family.documentation.rstrip("."), sample.value)

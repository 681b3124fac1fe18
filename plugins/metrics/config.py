"""Section ``[plugin.metrics]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import address, duration, number


@attrs.frozen(kw_only=True)
class MetricsConfig:
    """Where numbers are told, and how much to how many."""

    listen: str = address("127.0.0.1:5557", any_port=True)
    """RocketMQ's port (``metricsPromExporterPort``). Who can reach it reads the names of topics and groups."""
    series_max: int = number(10_000, 100, 1_000_000)
    """Series in one answer; of what has most of them, the rest is left out (``gantrymq_metrics_dropped_series``)."""
    connections_max: int = number(16, 1, 1024)
    """Connections at a time; one more is closed at once."""
    timeout: float = duration("60s", minimum="100ms", maximum="10m")
    """How long a connection may say nothing, take to ask, or take to be answered."""

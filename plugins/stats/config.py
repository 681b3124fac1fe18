"""Section ``[plugin.stats]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import number


@attrs.frozen(kw_only=True)
class StatsConfig:
    """Which statistics are counted."""

    by_queue: bool = True
    """Count each queue as well, not only topics and groups (RocketMQ's enableQueueStat)."""
    max_items: int = number(50_000, 100, 10_000_000)
    """The most counters; beyond it nothing new is counted. A counter without events for a day is deleted."""

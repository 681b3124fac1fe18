"""Section ``[plugin.stats]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import number


@attrs.frozen(kw_only=True)
class StatsConfig:
    """What is counted."""

    by_queue: bool = True
    """Count each queue as well, not only topics and groups (RocketMQ's enableQueueStat)."""
    max_items: int = number(50_000, 100, 10_000_000)
    """Counters that are kept; what would be one more is not counted. One goes when nothing came for a day."""

"""Section ``[plugin.delay]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, plain
from gantrymq.kernel.config.rocketmq_keys import in_seconds
from gantrymq.plugins.delay.levels.levels import Levels

DELIVERIES = ("pipelined", "synchronous")


def _check_levels(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    Levels.parse(value)


def _check_delivery(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value not in DELIVERIES:
        raise ValueError(f"allowed: {', '.join(DELIVERIES)}")


@attrs.frozen(kw_only=True)
class DelayConfig:
    """The delays and the delivery mode."""

    levels: str = plain(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        rocketmq="messageDelayLevel",
        validator=_check_levels,
    )
    """The delay of level 1, of level 2 and so on, in s, m, h or d."""
    delivery: str = attrs.field(default="pipelined", validator=_check_delivery)
    """``synchronous`` waits for the disk after each batch of a level, ``pipelined`` continues meanwhile."""
    max_delay: float = duration("3d", minimum="1s", maximum="365d", rocketmq=in_seconds("timerMaxDelaySec"))
    """The longest delay of a timed message; a longer one is refused."""

"""Section ``[plugin.locks]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, size


@attrs.frozen(kw_only=True)
class LocksConfig:
    """Time limits of locks, and limits on their number and memory."""

    expire_after: float = duration("60s", minimum="1s", maximum="1h")
    """``rocketmq.broker.rebalance.lockMaxLiveTime``. Consumers renew their locks every 20 s and rely on them for 30 s:
    a smaller value could give one queue to two consumers."""
    free_after_disconnect: float = duration("30s", minimum="0s", maximum="1h")
    """Time for a disconnected client to reconnect. It relies on its locks for 30 s after its last request: a smaller
    value may give one queue to two consumers."""
    max_locks: int = number(100_000, 1, 10_000_000)
    """The most locks; beyond it no queue is locked until others are released."""
    max_bytes: int = size("64 MiB", minimum="1 MiB", maximum="16 GiB")
    """The most memory of locks, which depends on the names; otherwise as ``max_locks``."""

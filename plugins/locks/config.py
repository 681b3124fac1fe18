"""Section ``[plugin.locks]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, size


@attrs.frozen(kw_only=True)
class LocksConfig:
    """How long a lock lives, and how many there may be."""

    expire_after: float = duration("60s", minimum="1s", maximum="1h")
    """``rocketmq.broker.rebalance.lockMaxLiveTime``. Consumers take their locks again every 20 s and believe for 30 s
    that they have them: no less than that keeps two from one queue."""
    free_after_disconnect: float = duration("30s", minimum="0s", maximum="1h")
    """A client that lost its connection has so long to come back. It believes for 30 s after its last request that it
    has its queues: less than that may give one queue to two."""
    max_locks: int = number(100_000, 1, 10_000_000)
    """Queues that may be locked at once; more are not given to anybody until some are free."""
    max_bytes: int = size("64 MiB", minimum="1 MiB", maximum="16 GiB")
    """What locks may take in memory, which depends on the names; as with ``max_locks``."""

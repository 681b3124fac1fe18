"""Log when a slave falls behind and when it has caught up, once each; runtime info has the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.plugins.ha.copies import Copies, Copy

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

CHECK_S: Final = 5.0
BEHIND_S: Final = 10.0
"""How long a slave must lag, in seconds, before the lag is logged."""


def lag_seconds(copy: Copy, end: int, now: float) -> float:
    """Return how long the slave has lagged, in seconds."""
    return 0.0 if copy.acknowledged >= end else now - max(copy.level_at, copy.since)


class LagWatch:
    """Checks a master's slaves every :data:`CHECK_S` seconds while :meth:`run` runs."""

    def __init__(self, broker: Broker, copies: Copies) -> None:
        self._broker = broker
        self._copies = copies
        self._behind: set[Copy] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            self.check()

    def check(self) -> None:
        """Log slaves that have fallen behind or caught up since the last check."""
        now, end = self._broker.env.monotonic(), self._broker.log.end
        self._behind.intersection_update(self._copies)
        for copy in self._copies:
            seconds, missing = lag_seconds(copy, end, now), end - copy.acknowledged
            if copy not in self._behind and seconds > BEHIND_S:
                self._behind.add(copy)
                log.warning("slave_behind", peer=copy.address, lag_bytes=missing, lag_seconds=round(seconds, 1))
            elif copy in self._behind and seconds == 0.0:
                self._behind.discard(copy)
                log.info("slave_caught_up", peer=copy.address, offset=copy.acknowledged)

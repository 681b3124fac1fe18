"""Which brokers failed lately, so that messages go through others meanwhile.

Source of the idea: RocketMQ 4.9.7 ``LatencyFaultToleranceImpl``, which is off by default and avoids a broker for ten
minutes; here one failure costs a second, and each further one twice as much.
"""

from __future__ import annotations

from typing import Final

import anyio

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 3.0
"""How long one send alone tries a broker whose time of avoidance is over."""


class Faults:
    """Brokers by name; one that never failed is not known."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[float, float, bool]] = {}
        """Until when a broker is avoided, for how many seconds then, and whether one send tries it meanwhile."""

    def failed(self, broker: str) -> None:
        """A send to ``broker`` failed: avoid it for some time.

        Sends that were under way together fail together: they count as one failure.
        """
        now = anyio.current_time()
        until, seconds, is_tried = self._faults.get(broker, (now, FIRST_SECONDS / 2, False))
        if now < until and not is_tried:
            return
        seconds = min(2 * seconds, LONGEST_SECONDS)
        self._faults[broker] = (now + seconds, seconds, False)

    def worked(self, broker: str) -> None:
        """``broker`` took a message: it is as good as any."""
        if self._faults:
            self._faults.pop(broker, None)

    def is_usable(self, broker: str) -> bool:
        """Whether to send to ``broker`` if there is another one; a yes after a fault is for the caller alone."""
        fault = self._faults.get(broker)
        if fault is None:
            return True
        until, seconds, _ = fault
        now = anyio.current_time()
        if now < until:
            return False
        self._faults[broker] = (now + PROBE_SECONDS, seconds, True)
        return True

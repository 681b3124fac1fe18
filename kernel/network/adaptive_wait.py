"""Decides from the results of earlier waits whether and how to wait briefly for more events."""

from __future__ import annotations

import math

SKIPS_MAX = 63


class AdaptiveWait:
    """Decides whether to wait, with a backoff.

    After a wait without result the caller skips the next one, then 3, then 7, up to 63, so useless waits cost almost
    nothing. A successful wait ends the backoff.
    """

    __slots__ = ("_left", "_skips")

    def __init__(self) -> None:
        self._skips = 0
        self._left = 0

    def should_wait(self) -> bool:
        """Return whether to wait this time. The caller then reports the result to :meth:`record`."""
        if self._left:
            self._left -= 1
            return False
        return True

    def record(self, paid: object) -> None:
        """Record whether the wait was successful."""
        self._left = self._skips = 0 if paid else min(2 * self._skips + 1, SKIPS_MAX)


TRIAL_BLOCKS = 6
CYCLE_BLOCKS = 96
"""After a trial, the faster way of waiting is used for the rest of so many blocks."""
POLLING_GAIN = 0.95
"""Polling takes more processor time than sleeping, so it must make a block shorter by a twentieth."""


class PollingTrial:
    """Decides by measurement whether to poll for the next request of a lone sender or to sleep until it comes.

    Polling saves the wake-up of this thread. But while this thread occupies a processor, the system wakes the sender on
    another one, which can take longer than a switch between the two on the same processor. Which is faster depends on
    the machine, its load and on where the sender runs. So a trial does both in turn, in blocks of the same number of
    requests. The shortest block of each way counts, because other load only makes blocks longer.
    """

    __slots__ = ("_block", "_shortest", "polls")

    def __init__(self) -> None:
        self.polls = True
        """Whether to poll now."""
        self._block = 0
        self._shortest = [math.inf, math.inf]

    def record(self, seconds: float) -> None:
        """Record how long one block took in the present way, and decide about the next one."""
        if self._block < TRIAL_BLOCKS:
            self._shortest[self.polls] = min(self._shortest[self.polls], seconds)
        self._block = (self._block + 1) % CYCLE_BLOCKS
        if self._block < TRIAL_BLOCKS:
            if not self._block:
                self._shortest = [math.inf, math.inf]
            self.polls = not self._block & 1
        else:
            asleep, polling = self._shortest
            self.polls = polling < asleep * POLLING_GAIN

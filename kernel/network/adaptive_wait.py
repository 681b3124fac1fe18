"""Decides from the results of earlier waits whether to wait briefly for more events."""

from __future__ import annotations

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

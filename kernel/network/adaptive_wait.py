"""Decides by the results of earlier waits whether a short wait for more events pays."""

from __future__ import annotations

SKIPS_MAX = 63


class AdaptiveWait:
    """Decides whether to wait, with a backoff.

    After a wait in vain the caller skips the next one, then 3, then 7, up to 63: waits that never pay cost next to
    nothing. A wait that paid ends the backoff.
    """

    __slots__ = ("_left", "_skips")

    def __init__(self) -> None:
        self._skips = 0
        self._left = 0

    def should_wait(self) -> bool:
        """Whether to wait this time. The caller then reports the result to :meth:`record`."""
        if self._left:
            self._left -= 1
            return False
        return True

    def record(self, paid: object) -> None:
        """Note whether the wait brought something."""
        self._left = self._skips = 0 if paid else min(2 * self._skips + 1, SKIPS_MAX)

"""Whether it pays to wait a moment for what comes next, learnt from the last times."""

from __future__ import annotations

SKIPS_MAX = 63


class Patience:
    """Who waited in vain does not the next time, nor, after twice, the next 3 times, and so on up to 63: what never
    pays costs next to nothing. Who waited with success may again."""

    __slots__ = ("_left", "_skips")

    def __init__(self) -> None:
        self._skips = 0
        self._left = 0

    def allows(self) -> bool:
        """Whether to wait this time. :meth:`learn` is to be told what came of it."""
        if self._left:
            self._left -= 1
            return False
        return True

    def learn(self, paid: object) -> None:
        """Whether that wait brought something."""
        self._left = self._skips = 0 if paid else min(2 * self._skips + 1, SKIPS_MAX)

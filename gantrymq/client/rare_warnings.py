"""Warnings about what the client tries again and again: each is logged twice a minute at most."""

from __future__ import annotations

import time
from typing import Final

QUIET_SECONDS: Final = 30.0
SUBJECTS: Final = 256


class RareWarnings:
    """Remembers what was logged when."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, ...], tuple[float, int]] = {}

    def due(self, *subject: str) -> int | None:
        """How many warnings about ``subject`` were left out, if one is to be logged now; None if it is too soon."""
        now = time.monotonic()
        at, left_out = self._logged.get(subject, (-QUIET_SECONDS, 0))
        if now - at < QUIET_SECONDS:
            self._logged[subject] = (at, left_out + 1)
            return None
        if len(self._logged) >= SUBJECTS:
            self._logged.clear()
        self._logged[subject] = (now, 0)
        return left_out

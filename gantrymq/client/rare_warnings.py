"""Warnings about what the client tries again and again: each is logged twice a minute at most."""

from __future__ import annotations

import time
from typing import Any, Final

from gantrymq.remoting.logs import LibraryLog

QUIET_SECONDS: Final = 30.0
SUBJECTS: Final = 256

_log = LibraryLog()


class RareWarnings:
    """Remembers what was logged when."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, ...], tuple[float, int]] = {}

    def warning(self, event: str, *subject: str, **fields: Any) -> None:
        """Log ``event`` about ``subject`` with ``fields``, and how often it was left out since the last time."""
        now = time.monotonic()
        at, left_out = self._logged.get((event, *subject), (-QUIET_SECONDS, 0))
        if now - at < QUIET_SECONDS:
            self._logged[event, *subject] = (at, left_out + 1)
            return
        if len(self._logged) >= SUBJECTS:
            self._logged.clear()
        self._logged[event, *subject] = (now, 0)
        _log.warning(event, **fields, repeated=left_out)

"""Warnings about repeated errors of clients: each is logged once an hour, however often the client tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

KEYS_MAX: Final = 1024
QUIET_S: Final = 3600.0


class RareWarnings:
    """Remembers what was logged when; beyond ``KEYS_MAX`` subjects within the hour nothing more is logged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds, in a broker ``env.monotonic``."""
        self._clock = clock
        self._logged: dict[str, float] = {}

    def is_due(self, subject: str) -> bool:
        """Return whether to log a warning about ``subject`` now; if so, it counts as logged."""
        now = self._clock()
        before = self._logged.get(subject)
        if before is not None and now - before < QUIET_S:
            return False
        if before is None and len(self._logged) >= KEYS_MAX:
            self._logged = {name: at for name, at in self._logged.items() if now - at < QUIET_S}
            if len(self._logged) >= KEYS_MAX:
                return False
        self._logged[subject] = now
        return True

"""Warnings about what fails again and again: one at the first failure, one every half minute with the number of
failures, and one when it works again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import attrs

REPEAT_SECONDS: Final = 30.0
SUBJECTS: Final = 256
"""The most subjects that are remembered; beyond it all are forgotten, and the next failure of each is a first one."""


@attrs.define
class _Outage:
    began: float
    logged: float
    failures: int
    left_out: int
    fields: dict[str, Any]


class Outages:
    """Logs failures by event and subject, such as an address."""

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: monotonic seconds."""
        self._log = log
        self._clock = clock
        self._known: dict[tuple[str, ...], _Outage] = {}

    def warning(self, event: str, *subject: str, **fields: Any) -> None:
        """``event`` has happened to ``subject``. ``repeated`` in the log is how often it was left out before.

        Without a call of :meth:`over`, the calls only limit the lines to one each half minute.
        """
        self._failed(self._log.warning, event, subject, fields)

    def error(self, event: str, *subject: str, **fields: Any) -> None:
        """As :meth:`warning`, at level error."""
        self._failed(self._log.error, event, subject, fields)

    def _failed(self, write: Callable[..., Any], event: str, subject: tuple[str, ...], fields: dict[str, Any]) -> None:
        now, key = self._clock(), (event, *subject)
        outage = self._known.get(key)
        if outage is None:
            if len(self._known) >= SUBJECTS:
                self._known.clear()
            outage = self._known[key] = _Outage(now, now, 1, 0, fields)
        else:
            outage.failures += 1
            outage.fields = fields
            if now - outage.logged < REPEAT_SECONDS:
                outage.left_out += 1
                return
        write(event, **fields, repeated=outage.left_out)
        outage.logged, outage.left_out = now, 0

    def is_open(self, event: str, *subject: str) -> bool:
        """Return whether ``event`` has happened to ``subject``, and is not over."""
        return (event, *subject) in self._known

    def over(self, event: str, *subject: str) -> None:
        """It works again: log the end of the outage, if there was one, with the last failure's fields."""
        outage = self._known.pop((event, *subject), None) if self._known else None
        if outage is not None:
            about = {name: value for name, value in outage.fields.items() if name != "reason"}
            seconds = round(self._clock() - outage.began, 1)
            self._log.warning("outage_ended", of=event, **about, failures=outage.failures, seconds=seconds)

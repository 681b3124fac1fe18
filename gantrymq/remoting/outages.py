"""Warnings about what fails again and again: one at the first failure, one every half minute with the number of
failures, and one when it works again. What fails and works in turn has one of each every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import attrs

REPEAT_SECONDS: Final = 30.0
SUBJECTS: Final = 1024
"""The most subjects that are remembered. Beyond it those that work again are forgotten; if none does, all are, and the
next failure of each is a first one."""


@attrs.define
class _Outage:
    began: float = 0.0
    failures: int = 0
    """Since it began; 0 when it is over."""
    is_logged: bool = False
    logged_at: float = float("-inf")
    """Of this outage or an earlier one of the same subject."""
    left_out: int = 0
    fields: dict[str, Any] = attrs.field(factory=dict)


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
                self._forget_some()
            outage = self._known[key] = _Outage()
        if not outage.failures:
            outage.began = now
        outage.failures += 1
        outage.fields = fields
        if now - outage.logged_at < REPEAT_SECONDS:
            outage.left_out += 1
            return
        write(event, **fields, repeated=outage.left_out)
        outage.is_logged, outage.logged_at, outage.left_out = True, now, 0

    def _forget_some(self) -> None:
        self._known = {key: outage for key, outage in self._known.items() if outage.failures}
        if len(self._known) >= SUBJECTS:
            self._known.clear()

    def is_open(self, event: str, *subject: str) -> bool:
        """Return whether ``event`` has happened to ``subject``, and is not over."""
        outage = self._known.get((event, *subject))
        return outage is not None and outage.failures > 0

    def over(self, event: str, *subject: str) -> None:
        """It works again: log the end of the outage, if its failures were logged, with the last failure's fields."""
        outage = self._known.get((event, *subject)) if self._known else None
        if outage is None or not outage.failures:
            return
        if outage.is_logged:
            about = {name: value for name, value in outage.fields.items() if name != "reason"}
            seconds = round(self._clock() - outage.began, 1)
            self._log.warning("outage_ended", of=event, **about, failures=outage.failures, seconds=seconds)
            outage.left_out = 0
        outage.failures, outage.is_logged = 0, False

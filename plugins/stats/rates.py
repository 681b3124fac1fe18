"""Totals and rates of appends and pulls, and totals at midnight.

Source: RocketMQ 4.9.7 ``StoreStatsService`` (a snapshot each second, rates over 10 s, one minute and ten minutes) and
``BrokerStats`` (the totals at midnight).
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

import attrs

SPANS = (10, 60, 600)
"""The spans of the rates, in seconds."""


@attrs.frozen
class Totals:
    """Totals since the start, at a time in ms: stored messages, pulls with and without messages, pulled messages."""

    at: int
    puts: int
    found: int
    missed: int
    transferred: int


class Rates:
    """Call ``take`` once a second; a rate is available when its span is over."""

    def __init__(self, first: Totals) -> None:
        self._kept: deque[Totals] = deque([first], maxlen=SPANS[-1] + 1)
        self._day = _day(first.at)
        self.puts_today = self.puts_yesterday = 0
        self.gets_today = self.gets_yesterday = 0

    def take(self, totals: Totals) -> None:
        """Record the present totals; at the start of a day they are also kept as its totals."""
        self._kept.append(totals)
        day = _day(totals.at)
        if day != self._day:
            self._day = day
            self.puts_yesterday, self.puts_today = self.puts_today, totals.puts
            self.gets_yesterday, self.gets_today = self.gets_today, totals.transferred

    def runtime_info(self) -> dict[str, str]:
        """Return the rates by RocketMQ's names: one number for each span, nothing for a span that is not over."""
        return {
            "putTps": self._text("puts"),
            "getFoundTps": self._text("found"),
            "getMissTps": self._text("missed"),
            "getTotalTps": " ".join(
                str((self._rate("found", n) or 0.0) + (self._rate("missed", n) or 0.0)) for n in SPANS
            ),
            "getTransferedTps": self._text("transferred"),
            "getTransferredTps": self._text("transferred"),  # 5.x corrected the name
        }

    def _text(self, name: str) -> str:
        rates = (self._rate(name, span) for span in SPANS)
        return " ".join("" if rate is None else str(rate) for rate in rates)

    def _rate(self, name: str, span: int) -> float | None:
        if len(self._kept) <= span:
            return None
        first, last = self._kept[-span - 1], self._kept[-1]
        passed = last.at - first.at
        return (getattr(last, name) - getattr(first, name)) * 1000 / passed if passed > 0 else 0.0


def _day(milliseconds: int) -> int:
    return datetime.fromtimestamp(milliseconds / 1000).toordinal()

"""The options that set when messages are delivered: after a duration, by a delay level, or at a time."""

from __future__ import annotations

from datetime import datetime

import attrs
import rich_click as click

from gantrymq.remoting.properties import TIMER_DELAY_MS, TIMER_DELIVER_MS

_ZONES = "such as Z or +01:00"


@attrs.frozen
class Delay:
    """The delay of each message; all fields are empty for immediate delivery."""

    level: int = 0
    properties: dict[str, str] = attrs.field(factory=dict)

    @property
    def is_none(self) -> bool:
        """Whether messages are delivered at once and so can be batched: brokers refuse batches of delayed messages."""
        return not self.level and not self.properties


def read_delay(after: float | None, level: int | None, at: str | None) -> Delay:
    """The delay from the options ``--delay``, ``--delay-level`` and ``--deliver-at``, of which at most one may be
    given.

    ``after``: seconds. :class:`click.UsageError` for more than one, and for a time without a zone.
    """
    if [after, level, at].count(None) < 2:
        raise click.UsageError("give one of --delay, --delay-level and --deliver-at")
    if after is not None:
        return Delay(properties={TIMER_DELAY_MS: str(max(round(after * 1000), 1))})
    if at is not None:
        return Delay(properties={TIMER_DELIVER_MS: str(read_moment(at, "--deliver-at"))})
    return Delay(level or 0)


def read_moment(text: str, option: str) -> int:
    """The time in ms since 1970, rounded up: not before it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text!r}: a time as 2026-11-21T20:00:00Z is expected") from None
    if moment.tzinfo is None:
        raise click.UsageError(f"{option} {text!r}: has no time zone; add one, {_ZONES}")
    since = moment - datetime.fromisoformat("1970-01-01T00:00:00Z")
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if microseconds < 0:
        raise click.UsageError(f"{option} {text!r}: that is before 1970")
    return -(-microseconds // 1000)

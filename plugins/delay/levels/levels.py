"""The delay levels: their delays, and when a stored message is due.

Source: RocketMQ 4.9.7 ``ScheduleMessageService.parseDelayLevel``, ``computeDeliverTimestamp``,
``CommitLog.checkMessageAndReturnSize``.
"""

from __future__ import annotations

import re
from typing import Self

from gantrymq.remoting.properties import find_property
from gantrymq.remoting.property_bytes import DELAY

LEVELS_MAX = 1024
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
PLAUSIBLE_DELAY_MS = 3650 * _UNITS_MS["d"]
"""The longest delay that is read from a queue entry. It does not follow from the configured levels, because messages
may wait in levels that are no longer configured. Hashes of tags, which have 32 bits, are before every store time."""
_LEVEL = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_NUMBER = re.compile(rb"[+-]?[0-9]{1,10}")


class Levels:
    """The delays in milliseconds, level 1 first."""

    def __init__(self, delays_ms: list[int]) -> None:
        self._delays_ms = delays_ms

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the form ``1s 5s 1m 2h 1d``; :class:`ValueError` for anything else."""
        delays = []
        for piece in text.split():
            match = _LEVEL.fullmatch(piece)
            if match is None:
                raise ValueError(f"{piece!r} is not a delay: a number above 0 and one of {', '.join(_UNITS_MS)}")
            delays.append(int(match[1]) * _UNITS_MS[match[2]])
        if not 1 <= len(delays) <= LEVELS_MAX:
            raise ValueError(f"{len(delays)} levels; allowed: 1 to {LEVELS_MAX}")
        return cls(delays)

    def __len__(self) -> int:
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of ``level``; above the last level, the delay of the last one."""
        return self._delays_ms[min(level, len(self._delays_ms)) - 1]

    def due_code(self, _queue_id: int, properties: bytes, stored: int) -> int:
        """Return the due time of a message that was stored at ``stored`` (ms since 1970), for its queue entry.

        A message without a level is due at once; this happens if a client writes to the topic directly.
        """
        level = read_level(properties) or 0
        return stored + self.delay_ms(level) if level > 0 else stored

    def due(self, code: int, properties: bytes, stored: int) -> int:
        """Return the due time from the ``code`` of a queue entry if it is plausible, else as :meth:`due_code`.

        It is implausible if the entry is damaged, or was written while the plugin was disabled.
        """
        return code if stored <= code <= stored + PLAUSIBLE_DELAY_MS else self.due_code(0, properties, stored)


def read_level(properties: bytes) -> int | None:
    """Return the delay level in encoded properties; 0 when there is none, None when it is no 32-bit number."""
    value = find_property(properties, DELAY)
    if value is None:
        return 0
    if not _NUMBER.fullmatch(value):
        return None
    level = int(value)
    return level if -(2**31) <= level < 2**31 else None

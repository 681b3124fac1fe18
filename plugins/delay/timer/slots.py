"""An open slot of the wheel: its undelivered messages in the order of their due times."""

from __future__ import annotations

from typing import Final

import attrs

from gantrymq.plugins.delay.timer.log import NOWHERE, Unit
from gantrymq.remoting.timer_times import PRECISION_MS

_POSITION_BITS: Final = 48
_POSITION: Final = (1 << _POSITION_BITS) - 1


@attrs.define(eq=False)
class OpenSlot:
    """The slot of ``time``. A key is one number: ms after ``time``, then position in the timer log; sorted downwards.

    ``reading`` is the position of the next unit to read, None if all are read; ``unsettled`` counts deliveries that are
    not flushed yet.
    """

    time: int
    reading: int | None
    unsettled: int = 0
    unread_recalls: list[tuple[int, Unit]] = attrs.field(factory=list)
    """Position and unit of the recalls that are still to be read from the commit log."""
    recalled: dict[bytes, int] = attrs.field(factory=dict)
    """By recalled message (``topic+unique key``): the position of the recall's unit."""
    delivered: bool = False
    """Whether any message has been delivered from it."""
    _keys: list[int] = attrs.field(factory=list)
    _is_sorted: bool = True
    _not_before: int = 0

    def add(self, due: int, position: int) -> None:
        """Add a message that is due at ``due``, or at the end of the slot if that is outside it."""
        after = due - self.time
        if not 0 <= after <= PRECISION_MS:
            after = PRECISION_MS
        self._keys.append(after << _POSITION_BITS | position)
        self._is_sorted = False

    def read_to(self, position: int) -> None:
        """Set the position of the next unit to read."""
        self.reading = None if position == NOWHERE else position

    @property
    def is_read(self) -> bool:
        """Whether all units and all recalls are read."""
        return self.reading is None and not self.unread_recalls

    @property
    def has_more(self) -> bool:
        """Whether messages remain to be delivered."""
        return bool(self._keys)

    @property
    def is_done(self) -> bool:
        """Whether all messages are durably delivered."""
        return not self._keys and self.is_read and not self.unsettled

    def next_due(self) -> int:
        """Return the due time of the next message, ms since 1970; only if it :attr:`has_more`."""
        self._sort()
        return max(self.time + (self._keys[-1] >> _POSITION_BITS), self._not_before)

    def take(self, now: int, count: int) -> list[int]:
        """At most ``count`` keys of messages that are due at ``now``, the earliest first."""
        if not self._keys or now < self._not_before:
            return []
        self._sort()
        keys, bound = self._keys, (now - self.time + 1) << _POSITION_BITS
        if keys[-1] >= bound:
            return []
        taken = keys[-count:]
        taken.reverse()
        del keys[-count:]
        if taken[-1] >= bound:
            first = next(number for number, key in enumerate(taken) if key >= bound)
            self.put_back(taken[first:])
            del taken[first:]
        self.delivered = True
        return taken

    def put_back(self, keys: list[int]) -> None:
        """Put back ``keys``, the last ones that were taken."""
        self._keys.extend(reversed(keys))

    def try_again(self, keys: list[int], not_before: int) -> None:
        """``keys`` could not be delivered: the slot delivers nothing until ``not_before`` (ms)."""
        self._keys.extend(keys)
        self._is_sorted = False
        self._not_before = not_before

    @staticmethod
    def position(key: int) -> int:
        """Return the position of the unit of ``key`` in the timer log."""
        return key & _POSITION

    def positions(self) -> list[int]:
        """Return the units of all undelivered messages, and of all recalls."""
        return [*(key & _POSITION for key in self._keys), *self.recalled.values()]

    def _sort(self) -> None:
        if not self._is_sorted:
            self._keys.sort(reverse=True)
            self._is_sorted = True

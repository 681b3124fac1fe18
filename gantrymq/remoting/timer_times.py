"""The due time of a timed message from its properties, and its slot of the wheel.

Source: RocketMQ 5.3.3 ``HookUtils.transformTimerMessage``. Times are ms since 1970.

The slot of time T has the messages that are due after T and at or before T + 1000. RocketMQ delivers them at T + 1000,
up to a second late. GantryMQ delivers each at its own millisecond, which the unit in the timer log has (:func:`exact`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gantrymq.remoting.property_bytes import TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

PRECISION_MS: Final = 1000
"""``timerPrecisionMs`` of RocketMQ: the width of a slot. Both brokers must interpret the files alike."""


Find = Callable[[bytes], bytes | None]
"""Returns a property of a message by its name."""

_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


def read_number(value: bytes) -> int:
    """As ``Long.parseLong``, up to 18 digits; :class:`ValueError` for anything else."""
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"{value[:32]!r} is not a number")
    return int(value)


def wanted(find: Find, now: int, at_wall: Callable[[int], int] | None = None) -> int | None:
    """Return the due time of a message that is sent at ``now`` on the store's clock; None if it has no time.

    ``at_wall`` converts a time of the machine's clock, which senders use, to the store's clock; without it the time is
    on the store's clock already. TIMER_DELAY_SEC takes precedence over TIMER_DELAY_MS, and that over TIMER_DELIVER_MS.
    :class:`ValueError` for an invalid number.
    """
    value = find(TIMER_DELAY_SEC)
    if value is not None:
        return now + read_number(value) * 1000
    value = find(TIMER_DELAY_MS)
    if value is not None:
        return now + read_number(value)
    value = find(TIMER_DELIVER_MS)
    if value is None:
        return None
    moment = read_number(value)
    # While the store's clock runs slower, it sometimes stands still for a millisecond: wait until it has advanced.
    return moment if at_wall is None else at_wall(moment - 1) + 1


def slot_of(due: int) -> int:
    """Return the time of the slot for the due time ``due``; TIMER_OUT_MS of the message."""
    return (due - 1) // PRECISION_MS * PRECISION_MS


def floor(time: int) -> int:
    """Return the start of the slot that ``time`` lies in."""
    return time // PRECISION_MS * PRECISION_MS


def exact(find: Find, stored: int, out: int, at_wall: Callable[[int], int] | None = None) -> int:
    """Return the exact due time of a message of the slot ``out`` that was stored at ``stored``, never earlier than
    requested.

    If the properties have none, the end of the slot, as in RocketMQ. ``at_wall``: see :func:`wanted`.
    """
    end = out + PRECISION_MS
    try:
        due = wanted(find, stored, at_wall)
    except ValueError:
        return end
    # Time may have passed between the check and the timestamp: the slot's end is then the latest possible time.
    return end if due is None or not out < due <= end else due

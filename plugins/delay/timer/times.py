"""When a message with a time of its own is due, by its properties; and the slot of the wheel in which it waits.

Source: RocketMQ 5.3.3 ``HookUtils.transformTimerMessage``. Times are ms since 1970.

A slot of the time T has what is due after T, up to T + 1000. RocketMQ empties it at T + 1000, late by up to a second.
Here each message leaves at its own millisecond, which the unit in the timer log keeps (:func:`exact`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gantrymq.remoting.property_bytes import TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

PRECISION_MS: Final = 1000
"""``timerPrecisionMs`` of RocketMQ: the width of a slot. Both brokers must mean the same by the files."""


Find = Callable[[bytes], bytes | None]
"""Tells a property of a message by its name."""

_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


def read_number(value: bytes) -> int:
    """As ``Long.parseLong``, up to 18 digits; :class:`ValueError` for anything else."""
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"{value[:32]!r} is no number")
    return int(value)


def wanted(find: Find, now: int, at_wall: Callable[[int], int] | None = None) -> int | None:
    """When the message is to be delivered that is sent at ``now``, the store's clock; None when it names no time.

    ``at_wall`` tells what that clock shows when the machine's shows a time: a moment that a sender names is one of the
    machine's clock. Without it the moment is one of the store's already. TIMER_DELAY_SEC counts before TIMER_DELAY_MS
    before TIMER_DELIVER_MS. :class:`ValueError` when that is no number.
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
    # While the store's clock loses time it stands still for a millisecond now and then: not before it has moved on.
    return moment if at_wall is None else at_wall(moment - 1) + 1


def slot_of(due: int) -> int:
    """The time of the slot for what is due at ``due``; TIMER_OUT_MS of the message."""
    return (due - 1) // PRECISION_MS * PRECISION_MS


def floor(time: int) -> int:
    """The start of the slot that ``time`` lies in."""
    return time // PRECISION_MS * PRECISION_MS


def exact(find: Find, stored: int, out: int, at_wall: Callable[[int], int] | None = None) -> int:
    """When a message of the slot ``out`` that was stored at ``stored`` is due, not before its sender wanted it.

    The end of the slot when the properties do not tell: so RocketMQ would deliver it. ``at_wall``: see :func:`wanted`.
    """
    end = out + PRECISION_MS
    try:
        due = wanted(find, stored, at_wall)
    except ValueError:
        return end
    # A moment may lie between the question and the stamp: then the slot's end is as late as it can have been.
    return end if due is None or not out < due <= end else due

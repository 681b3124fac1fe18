"""Shares a limit among queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


def share(wanted: Mapping[K, int], limit: int) -> dict[K, int]:
    """How much of ``limit`` each gets: all that it wants if that fits, else in proportion, never more in sum.

    So all queues reach their ends at about the same time, which keeps their event times close. Each gets at least 1 if
    ``limit`` has as many, else those that want the most get 1.
    """
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    by_size = sorted(wanted, key=lambda key: wanted[key], reverse=True)
    if limit <= len(wanted):
        return dict.fromkeys(by_size[:limit], 1)
    spare = limit - len(wanted)
    given = {key: 1 + (count - 1) * spare // total for key, count in wanted.items()}
    left = limit - sum(given.values())
    for key in by_size:
        if left == 0:
            break
        more = min(left, wanted[key] - given[key])
        given[key] += more
        left -= more
    return given

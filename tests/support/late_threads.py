"""Let trio's worker threads begin late at random, as on a busy machine.

Tests that rely on the progress of a background thread then fail often. ``make repeat LATE=0.3`` uses it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import trio

SHARE: Final = 0.2
"""The share of calls that begin late."""
_CHANCE = random.Random()
_RUN_SYNC = trio.to_thread.run_sync


def delay_threads(longest_s: float) -> None:
    """Delay a fifth of the calls of ``trio.to_thread.run_sync`` by up to ``longest_s`` seconds."""

    async def run_late(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if _CHANCE.random() >= SHARE:
            return await _RUN_SYNC(function, *arguments, **options)
        delay_s = _CHANCE.uniform(0, longest_s)

        def late() -> Any:
            time.sleep(delay_s)
            return function(*arguments)

        return await _RUN_SYNC(late, **options)

    setattr(trio.to_thread, "run_sync", run_late)  # noqa: B010 - its type has the function's type variables

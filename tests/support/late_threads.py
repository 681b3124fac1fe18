"""A plugin of pytest (``-p support.late_threads``): at random, trio's worker threads begin late, as on a busy machine.

Tests that take for granted what a thread does in the background then fail often. ``GANTRYMQ_LATE_THREADS`` is the
longest delay in seconds; a fifth of the calls are delayed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, Final

import trio

SHARE: Final = 0.2
_LONGEST_S = float(os.environ.get("GANTRYMQ_LATE_THREADS", "0"))
_CHANCE = random.Random()
_RUN_SYNC = trio.to_thread.run_sync


async def _run_late(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if _CHANCE.random() >= SHARE:
        return await _RUN_SYNC(function, *arguments, **options)
    delay_s = _CHANCE.uniform(0, _LONGEST_S)

    def late() -> Any:
        time.sleep(delay_s)
        return function(*arguments)

    return await _RUN_SYNC(late, **options)


setattr(trio.to_thread, "run_sync", _run_late)  # noqa: B010 - its type has the function's type variables

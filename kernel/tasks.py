"""Background tasks: what a plugin does beside its hooks, for as long as the broker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import attrs


@attrs.frozen
class BackgroundTask:
    """A named task: ``run()`` works until it is cancelled. ``run_on`` says whether it runs on masters only or on all
    brokers."""

    name: str
    run: Callable[[], Awaitable[None]]
    run_on: Literal["all", "masters"] = "all"

    def runs_on(self, broker_id: int) -> bool:
        """Return whether a broker with this id runs it; the master's id is 0."""
        return self.run_on == "all" or broker_id == 0

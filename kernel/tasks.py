"""Background tasks: what a plugin does beside its hooks, for as long as the broker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import attrs


@attrs.frozen
class BackgroundTask:
    """A named task: ``run()`` works until it is cancelled. ``run_on``: what it does is for masters, or for all."""

    name: str
    run: Callable[[], Awaitable[None]]
    run_on: Literal["all", "masters"] = "all"

    def runs_on(self, broker_id: int) -> bool:
        """Whether a broker of that id runs it: a master's is 0."""
        return self.run_on == "all" or broker_id == 0

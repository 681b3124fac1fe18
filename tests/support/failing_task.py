"""A plugin whose background task fails."""

from __future__ import annotations

import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.tasks import BackgroundTask


async def fail() -> None:
    """Fail at once."""
    raise ValueError("no such archive")


class Archive:
    """One task fails, the other one runs; the broker continues."""

    name = "archive"
    on_error = "skip"

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The task that fails, and one that waits."""
        return [BackgroundTask("archiving", fail), BackgroundTask("waiting", trio.sleep_forever)]

"""Calls the hook ``offsets_committed``."""

from __future__ import annotations

import trio

from gantrymq.kernel.changes import OffsetsBatch
from gantrymq.kernel.observers import Observers
from gantrymq.plugins.offsets.table import Offsets


class OffsetChanges:
    """Reports changed offsets to plugins, all changes of a turn in one call."""

    def __init__(self, offsets: Offsets, observers: Observers) -> None:
        """From here on the table collects its changes."""
        self._offsets = offsets
        self._observers = observers
        self._news = trio.Event()
        offsets.committed, offsets.wake = {}, self._wake

    async def run(self) -> None:
        """Report changes as they come, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            committed, self._offsets.committed = self._offsets.committed or {}, {}
            batch = OffsetsBatch()
            for (group, topic, queue_id), offset in committed.items():
                batch.groups.append(group)
                batch.topics.append(topic)
                batch.queue_ids.append(queue_id)
                batch.offsets.append(offset)
            self._observers(batch)

    def _wake(self) -> None:
        self._news.set()

"""The changes of the table of topics, collected for the hook ``topics_changed``."""

from __future__ import annotations

from collections.abc import Container

import trio

from gantrymq.kernel.changes import TopicsBatch
from gantrymq.kernel.observers import Observers


class TopicChanges:
    """What changed since the last report. Changes of one turn are one report."""

    def __init__(self, topics: Container[str], observers: Observers) -> None:
        """``topics``: the names that exist at present."""
        self._topics = topics
        self._observers = observers
        self._existed: dict[str, bool] = {}
        self._news = trio.Event()

    def add(self, topic: str, existed: bool) -> None:
        """The topic was created, changed or removed; ``existed``: whether it existed before that."""
        self._existed.setdefault(topic, existed)
        self._news.set()

    def report(self) -> None:
        """Call the observers, if anything changed."""
        existed, self._existed = self._existed, {}
        batch = TopicsBatch(
            [topic for topic, before in existed.items() if not before and topic in self._topics],
            [topic for topic, before in existed.items() if before and topic in self._topics],
            [topic for topic, before in existed.items() if before and topic not in self._topics],
        )
        if len(batch):
            self._observers(batch)

    async def run(self) -> None:
        """Report changes as they come, until cancelled. Not in the turn of the change: a turn may have many."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            self.report()

"""One outage in the log for all queues that cannot be written, because a full disk concerns thousands of them."""

from __future__ import annotations

from typing import Final

import structlog

from gantrymq.kernel.env import Env
from gantrymq.remoting.outages import Outages

log: Final = structlog.get_logger("gantrymq.queues")


class QueueOutages:
    """What the queues of a store share. An outage is over when the last queue is written again, or was deleted."""

    def __init__(self, env: Env) -> None:
        self._outages = Outages(log, env.monotonic)
        self._queues: set[str] = set()
        self._extensions: set[str] = set()

    def queue_failed(self, folder: str, error: Exception) -> None:
        """The entries of the queue in ``folder`` could not be written; they stay in memory."""
        self._queues.add(folder)
        self._outages.warning("queue_entries_not_written", path=folder, reason=str(error))

    def queue_written(self, folder: str) -> None:
        """The queue in ``folder`` has no entries that wait to be written."""
        if _is_last(self._queues, folder):
            self._outages.over("queue_entries_not_written")

    def extension_failed(self, folder: str, error: Exception) -> None:
        """The extension in ``folder`` could not be written."""
        self._extensions.add(folder)
        self._outages.warning("queue_extension_not_written", path=folder, reason=str(error))

    def extension_written(self, folder: str) -> None:
        """The extension in ``folder`` could be written, or was deleted."""
        if _is_last(self._extensions, folder):
            self._outages.over("queue_extension_not_written")


def _is_last(folders: set[str], folder: str) -> bool:
    """Remove ``folder``; return whether it was there and none is left."""
    if folder not in folders:
        return False
    folders.discard(folder)
    return not folders

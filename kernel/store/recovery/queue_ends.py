"""``gantrymq.ends``: the ends of queues whose files a repair moved, until the queues are built again.

The log does not have the end of a queue whose messages have all expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.store.log.record import TOPIC_PATTERN

log = structlog.get_logger("gantrymq.recovery")

QUEUE_ENDS: Final = "gantrymq.ends"
QueueEnd = tuple[str, int, int]
"""Topic and number of a queue, and the queue offset behind its last entry."""


class QueueEndList:
    """The list of the store in ``root``; a queue in it several times has the highest end."""

    def __init__(self, env: Env, root: str) -> None:
        self._env = env
        self._root = root
        self._path = f"{root}/{QUEUE_ENDS}"

    def load(self) -> list[QueueEnd]:
        """Return the list; empty if there is none, or it is damaged. :class:`OSError`."""
        if not self._env.exists(self._path):
            return []
        try:
            return [_checked(*each) for each in json.loads(self._env.read_bytes(self._path))]
        except (ValueError, TypeError) as error:
            log.error("queue_ends_unreadable", path=self._path, error=str(error))
            return []

    def save(self, ends: Iterable[QueueEnd]) -> None:
        """Replace the list, durably. :class:`OSError`."""
        self._env.replace(self._path, json.dumps(list(ends)).encode())

    def remove(self) -> None:
        """Remove the file, if there is one, durably. :class:`OSError`."""
        if self._env.exists(self._path):
            self._env.unlink(self._path)
            self._env.sync_dir(self._root)


def _checked(topic: str, queue_id: int, end: int) -> QueueEnd:
    if not TOPIC_PATTERN.fullmatch(topic) or queue_id < 0:
        raise ValueError(f"{topic!r} has no queue {queue_id}")
    return topic, queue_id, int(end)

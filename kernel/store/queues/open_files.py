"""Limit the number of open files: when there are too many, the least recently used are closed.

A broker has a file for each queue in use, and can have more queues than the process may have descriptors.
"""

from __future__ import annotations

from itertools import islice
from threading import Lock
from typing import Protocol

CLOSED_AT_ONCE = 8
"""How many candidates are tried when one is opened: most can be closed."""


class Closable(Protocol):
    """Something with files that open again when they are used."""

    def close_files(self) -> bool:
        """Close the files unless they are in use now; returns whether they are closed. Must not block."""


class OpenFiles:
    """At most about ``limit`` of them keep their files open. May be used from any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: dict[Closable, None] = {}
        self._guard = Lock()

    def __len__(self) -> int:
        return len(self._used)

    def use(self, user: Closable) -> None:
        """``user`` is about to use its files: it becomes the most recently used."""
        with self._guard:
            self._used.pop(user, None)
            self._used[user] = None
            surplus = list(islice(self._used, max(0, min(len(self._used) - self._limit, CLOSED_AT_ONCE))))
            for other in surplus:
                del self._used[other]
        for other in surplus:
            if not other.close_files():
                with self._guard:
                    self._used[other] = None

    def forget(self, user: Closable) -> None:
        """``user`` has closed its files for good."""
        with self._guard:
            self._used.pop(user, None)

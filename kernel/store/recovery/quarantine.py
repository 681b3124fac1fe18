"""``gantrymq.quarantine``: the list of the log's damaged ranges, which readers skip."""

from __future__ import annotations

import json
from collections.abc import Iterable

import structlog

from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.recovery")

Range = tuple[int, int]


class QuarantineList:
    """The list of the store in ``root``. A range is the log offsets of its first byte and of the byte behind it."""

    def __init__(self, env: Env, root: str) -> None:
        self._env = env
        self._path = f"{root}/gantrymq.quarantine"

    def load(self) -> list[Range]:
        """Return the ranges in order; none if the file is damaged, because recovery finds damage again."""
        if not self._env.exists(self._path):
            return []
        try:
            ranges = json.loads(self._env.read_bytes(self._path))
            return sorted((int(start), int(end)) for start, end in ranges)
        except (ValueError, TypeError) as error:
            log.error("quarantine_list_unreadable", error=str(error))
            return []

    def save(self, ranges: Iterable[Range]) -> None:
        """Replace the list, durably. :class:`OSError`."""
        self._env.replace(self._path, json.dumps(list(ranges)).encode())

    def cut(self, end: int) -> list[Range]:
        """Remove everything at or behind the log offset ``end``, durably; returns the remaining ranges.

        New records get these offsets, and readers would skip them. :class:`OSError`.
        """
        known = self.load()
        ranges = [(start, min(stop, end)) for start, stop in known if start < end]
        if ranges != known:
            self.save(ranges)
            log.info("quarantine_list_shortened", end=end, removed=len(known) - len(ranges))
        return ranges

"""``gantrymq.quarantine``: the list of the log's damaged ranges, which readers skip."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import Stop
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segments

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


@attrs.frozen
class Rewritten:
    """Where RocketMQ's broker cut the log and appended to it, as a quarantined range began there.

    ``row``: the number of that range; it and those behind it are obsolete. ``timestamp``: the store timestamp of the
    first record that was appended, 0 if that is in the next file.
    """

    row: int
    start: int
    timestamp: int

    def was_cut_off(self, position: int, timestamp: int) -> bool:
        """Return whether a record behind ``position`` with this store timestamp is one that RocketMQ's broker cut off.

        Such records remain, with their queue entries, behind those that it appended; they are older than the first of
        these.
        """
        return position > self.start and timestamp < self.timestamp


def find_rewritten(segments: Segments, ranges: Sequence[Range]) -> Rewritten | None:
    """Return the first of the ``ranges`` that begins with intact data; None if none does."""
    for row, (start, _) in enumerate(ranges):
        segment = segments.at(start)
        if segment is None:
            continue
        try:
            batch, stop = scan_block(segments, start, segment.end, 1, check_body=True)
        except OSError:
            continue
        if len(batch) or stop is Stop.BLANK:
            return Rewritten(row, start, batch.store_timestamps[0] if len(batch) else 0)
    return None

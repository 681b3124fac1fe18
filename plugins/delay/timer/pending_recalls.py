"""Recalls that are in the log and not in the wheel yet, because the log is dispatched and enqueued some time later.

A recall is effective from its append on, so the timer needs it in memory until its unit is in the wheel. Nothing is
stored: after a crash, the timer enqueues everything that is in its queue before it delivers anything.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from gantrymq.remoting.property_bytes import REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY
from gantrymq.remoting.timer_times import floor

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.store.log.record import Record


class PendingRecalls:
    """Recalls by slot and message (``topic+unique key``). Its size is the number of those that are not enqueued yet."""

    def __init__(self) -> None:
        self._rows: list[tuple[AppendBatch, int, int, bytes]] = []
        """Rows that may be appended next: only a recall that the log has stored is effective."""
        self._offsets: dict[tuple[int, bytes], int] = {}
        """The log offset of the last recall of each message, in ascending order."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add_row(self, batch: AppendBatch, row: int, slot: int, key: bytes) -> None:
        """``row`` of ``batch``, which is appended next, recalls the message ``key`` of ``slot``."""
        self._rows.append((batch, row, slot, key))

    def appended(self) -> None:
        """Take in the recalls that the log has stored; call this before the next deliveries."""
        for batch, row, slot, key in self._rows:
            offset, _ = batch.place_of(row)
            if offset >= 0:
                self._offsets.pop((slot, key), None)  # the new offset belongs at the end
                self._offsets[slot, key] = offset
        self._rows.clear()

    def enqueued(self, offset: int) -> None:
        """Forget the recalls up to the log offset ``offset``: their units are in the wheel."""
        enqueued = list(takewhile(lambda recall: self._offsets[recall] <= offset, self._offsets))
        for recall in enqueued:
            del self._offsets[recall]

    def find(self, record: Record) -> int | None:
        """Return the log offset of a recall of the timed message ``record``; None if none is pending."""
        if not self._offsets:
            return None
        out = record.property_of(TIMER_OUT_MS) or b""
        if not out.isdigit() or len(out) > 18:
            return None
        return self._offsets.get((floor(int(out)), recall_key(record)))


def recall_key(record: Record) -> bytes:
    """Return how recalls name the timed message ``record``."""
    return (record.property_of(REAL_TOPIC) or b"") + b"+" + (record.property_of(UNIQ_KEY) or b"")

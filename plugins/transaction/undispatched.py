"""Half messages that are appended and not dispatched yet: until then no queue and no table contains them.

A producer can end a transaction that early: with WAIT=false it gets its response before the flush, and a response that
reports a late flush or slave also has the offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.store.store import Store

_SWEEP_AT_LEAST: Final = 4096


class UndispatchedHalves:
    """The log offset of each half message that is not dispatched, by its queue offset.

    Rows are recorded before their append and examined on demand, which is rare. Rows that the log did not store, or
    that other plugins moved, are left out: only rows in ``queue`` count, or in any queue if it is None.
    """

    def __init__(self, store: Store, queue: tuple[str, int] | None = None) -> None:
        self._store = store
        self._queue = queue
        self._batches: deque[tuple[AppendBatch, Sequence[int]]] = deque()
        self._offsets: dict[int, int] = {}
        self._last = -1
        self._sweep_at = _SWEEP_AT_LEAST

    def note(self, batch: AppendBatch, rows: Sequence[int]) -> None:
        """Record the half messages of ``batch``, which is appended next or was appended last."""
        dispatched, batches = self._store.dispatched, self._batches
        while batches and batches[0][0].end <= dispatched:
            batches.popleft()
        batches.append((batch, rows))

    def find(self, queue_offset: int) -> int | None:
        """Return the log offset of the half message, None if there is none or it was dispatched."""
        self._take_in()
        found = self._offsets.get(queue_offset)
        return None if found is None or found < self._store.dispatched else found

    def _take_in(self) -> None:
        offsets, dispatched = self._offsets, self._store.dispatched
        if offsets and self._last < dispatched:
            offsets.clear()
        while self._batches:
            batch, rows = self._batches.popleft()
            if batch.end <= dispatched:
                continue
            for row in rows:
                offset, queue_offset = batch.place_of(row)
                if offset >= dispatched and (self._queue is None or batch.queue_of(row) == self._queue):
                    offsets[queue_offset] = self._last = offset
        if len(offsets) >= self._sweep_at:
            self._offsets = {number: offset for number, offset in offsets.items() if offset >= dispatched}
            self._sweep_at = max(2 * len(self._offsets), _SWEEP_AT_LEAST)

"""What plugins ask of the log beside the records themselves: a look at many, when the message at a place was stored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from gantrymq.kernel.commitlog import USUAL_BYTES, CommitLog, CorruptRange, OutOfLog
from gantrymq.kernel.consumequeue import ENTRY, ConsumeQueue
from gantrymq.kernel.fast import read_records
from gantrymq.kernel.record import BadRecord, Record

NEAR_BYTES: Final = 256 * 1024
"""No further apart lies what is looked at in one piece of the log: that much counts as read, page by page."""


def look_at(log: CommitLog, offsets: Sequence[int]) -> list[Record | None]:
    """The records at ``offsets`` (one at least), checked; None where none can be read.

    They are made for few parts of each to be looked at, cheapest where they lie close together, and may only look like
    a :class:`Record`.
    """
    first, last = min(offsets), max(offsets)
    if last - first > NEAR_BYTES:
        middle = len(offsets) // 2
        return look_at(log, offsets[:middle]) + look_at(log, offsets[middle:])
    near = first >= 0 and last < log.written and not log.quarantine
    data = log.segments.view(first, min(last + USUAL_BYTES, log.written) - first) if near else b""
    records = read_records(data, first, offsets)
    for row, record in enumerate(records):
        if record is None:
            with suppress(OutOfLog, CorruptRange, BadRecord):
                records[row] = log.read_record(offsets[row])
    return records


def stored_at(log: CommitLog, offset: int) -> int | None:
    """When the record at ``offset`` of the log was stored, in ms; None when none can be read there."""
    try:
        return log.read_record(offset).store_timestamp
    except (OutOfLog, CorruptRange, BadRecord, OSError):
        return None


def message_stored_at(log: CommitLog, queue: ConsumeQueue | None, offset: int) -> int:
    """When the message at ``offset`` of the queue was stored, in ms; -1 when there is none, or it cannot be read."""
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return -1
    entry = queue.entries(offset, 1)
    if not entry:
        return -1
    at, _, _ = ENTRY.unpack_from(entry)
    found = stored_at(log, at)
    return -1 if found is None else found

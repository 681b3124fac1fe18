"""What plugins ask of a queue and the log together: when the message at a place was stored."""

from __future__ import annotations

from gantrymq.kernel.commitlog import CommitLog, CorruptRange, OutOfLog
from gantrymq.kernel.consumequeue import ENTRY, ConsumeQueue
from gantrymq.kernel.record import BadRecord


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

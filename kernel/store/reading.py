"""What plugins ask of the log beside the records themselves: a look at many, when the message at a place was stored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.fast import read_records
from gantrymq.kernel.layouts import ENTRY, PLACES
from gantrymq.kernel.store.log.commitlog import USUAL_BYTES, CommitLog
from gantrymq.kernel.store.log.record import HOST_V6_BITS, BadRecord, Record
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.kernel.store.queues.repair import is_right
from gantrymq.remoting.records import HEADS, MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from gantrymq.kernel.store.store import Store

NEAR_BYTES: Final = 64 * 1024
"""No further apart lies what is looked at in one piece of the log, which is read as a whole."""


@attrs.frozen
class NamedRecord:
    """A record that a consume queue entry names: its queue, and its size in bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int


def find_named(store: Store, offset: int) -> NamedRecord | None:
    """The record at the log offset ``offset``, if the entry of the queue that it names points back to it, else None.

    For offsets that a client chose: the body of a message may hold the bytes of a forged record, which nothing but the
    queues tells from a real one. No more than a few fields are read, whatever sizes the bytes claim; the body is not
    checked. Records that are in no queue (prepared, rolled back, of a deleted topic, not yet dispatched) are not found.
    """
    log = store.log
    try:
        size, magic, queue_id, queue_offset, place, bits = PLACES.unpack(log.view(offset, PLACES.size))
        if place != offset or magic not in (MAGIC_V1, MAGIC_V2) or offset + size > store.dispatched:
            return None
        body_at = offset + HEADS[bits & HOST_V6_BITS].size
        body_size = int.from_bytes(log.view(body_at - 4, 4), "big", signed=True)
        length_bytes = 1 if magic == MAGIC_V1 else 2
        topic_at = body_at + body_size + length_bytes
        if body_size < 0 or topic_at > offset + size:
            return None
        length = int.from_bytes(log.view(topic_at - length_bytes, length_bytes), "big")
        topic = bytes(log.view(topic_at, length)).decode()
        queue = store.queues.get(topic, queue_id)
        entry = b"" if queue is None else queue.entries(queue_offset, 1)
    except (OutOfLog, CorruptRange, UnicodeDecodeError, OSError):
        return None
    if not entry or ENTRY.unpack(entry)[:2] != (offset, size):
        return None
    return NamedRecord(topic, queue_id, queue_offset, size)


def read_many(log: CommitLog, offsets: Sequence[int]) -> list[Record | None]:
    """The records at ``offsets`` (one at least), checked; None where none can be read.

    They are made for few parts of each to be looked at, cheapest where they lie close together, and may only look like
    a :class:`Record`.
    """
    first, last = min(offsets), max(offsets)
    if last - first > NEAR_BYTES:
        middle = len(offsets) // 2
        return read_many(log, offsets[:middle]) + read_many(log, offsets[middle:])
    near = first >= 0 and last < log.written and not log.quarantine
    data = b""
    if near:
        with suppress(OSError):  # where one block of it is unreadable, the records are read one by one
            data = log.segments.pread(first, min(last + USUAL_BYTES, log.written) - first)
    records = read_records(data, first, offsets)
    for row, record in enumerate(records):
        if record is None:
            with suppress(OutOfLog, CorruptRange, BadRecord):
                records[row] = log.read_record(offsets[row])
    return records


def is_misled(log: CommitLog, queue: ConsumeQueue, offset: int, at: int, size: int) -> bool:
    """Whether the entry at a queue offset, which says ``at`` and ``size``, leads elsewhere and is soon corrected.

    False where the log itself is damaged, or its disk: then the message is lost.
    """
    try:
        return not is_right(log, queue, offset, at, size) and queue.suspect(offset)
    except CorruptRange:
        return False


def is_entrys(record: Record | None, queue: ConsumeQueue, offset: int) -> bool:
    """Whether a record is the one that the entry at a queue offset should lead to."""
    return record is not None and (record.topic, record.queue_id, record.queue_offset) == (
        queue.topic,
        queue.queue_id,
        offset,
    )


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

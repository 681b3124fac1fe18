"""Reads of the log for plugins: many records at once, verified records, store times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel import fast
from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.layouts import ENTRY, PLACES
from gantrymq.kernel.store.log.commitlog import USUAL_BYTES, CommitLog
from gantrymq.kernel.store.log.record import HOST_V6_BITS, BadRecord, Record
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.kernel.store.queues.repair import is_right
from gantrymq.remoting.records import HEADS, MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from gantrymq.kernel.store.store import Store

READ_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of messages that :func:`read_messages` returns, if it returns more than one."""
NEAR_BYTES: Final = 64 * 1024
"""Records at most this far apart are read together, as one piece of the log."""


@attrs.frozen
class NamedRecord:
    """A record that a consume queue entry points to: its queue, and its size in bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int


def find_named(store: Store, offset: int) -> NamedRecord | None:
    """Return the record at the log offset ``offset`` if the queue entry that it names points back to it, else None.

    For offsets from clients: the body of a message can contain a forged record, which only the queues distinguish from
    a real one. Only a few fields are read, whatever sizes the bytes claim; the body is not checked. Records without a
    queue entry (prepared, rolled back, of a deleted topic, not yet dispatched) are not found.
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
    """Return the verified records at ``offsets`` (at least one); None for each that is lost.

    ``OSError`` if the process has no file descriptor left to read one: it is not lost, and can be read later.
    The results have the attributes of :class:`Record` but may be of another class that creates its parts on first use.
    Records that lie close together are cheapest.
    """
    return [record for part in _near(offsets) for record in _read_near(log, part)]


def _near(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the parts of ``offsets`` that are read together, as one piece of the log."""
    begin, low, high = 0, offsets[0], offsets[0]
    for number, offset in enumerate(offsets):
        low, high = min(low, offset), max(high, offset)
        if high - low > NEAR_BYTES:
            yield offsets[begin:number]
            begin, low, high = number, offset, offset
    yield offsets[begin:]


def _read_near(log: CommitLog, offsets: Sequence[int]) -> list[Record | None]:
    first, last = min(offsets), max(offsets)
    near = first >= 0 and last < log.written and not log.quarantine
    data = b""
    if near:
        with suppress(OSError):  # if one block is unreadable, the records are read one by one
            data = log.segments.pread(first, min(last + USUAL_BYTES, log.written) - first)
    records = fast.read_records(data, first, offsets)
    for row, record in enumerate(records):
        if record is None:
            try:
                records[row] = log.read_record(offsets[row])
            except UnreadableRange as error:
                error.raise_if_temporary()
            except (OutOfLog, CorruptRange, BadRecord):
                pass
    return records


Place = tuple[int, int]
"""Log offset and size of a record, as its queue entry has them."""


def count_cached(log: CommitLog, places: Sequence[Place]) -> int:
    """Return how many of the first records :func:`read_many` reads from the page cache, without waiting for the
    disk."""
    count = 0
    buffer = memoryview(fast.empty_buffer(NEAR_BYTES))
    for number, start, end in _pieces(log, places):
        with suppress(OSError):  # reading it shows the error
            while start < end and (segment := log.segments.at(start)) is not None:
                size = min(end - start, segment.end - start, NEAR_BYTES)
                if segment.file.peek_into(buffer[:size], start - segment.base) < size:
                    return count
                start += size
        count = number
    return count


def fetch(log: CommitLog, places: Sequence[Place]) -> None:
    """Read records into the page cache; for a worker thread."""
    pieces = [(start, end) for _, start, end in _pieces(log, places)]
    for start, end in pieces:
        segment = log.segments.at(start)
        if segment is not None:
            with suppress(OSError):
                segment.file.read_ahead(start - segment.base, end - start)
    for start, end in pieces:
        with suppress(OSError):  # the reader that needs it shows the error
            while start < end:
                start += len(log.segments.pread(start, min(end - start, NEAR_BYTES))) or end - start


def _pieces(log: CommitLog, places: Sequence[Place]) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of the log that :func:`read_many` reads: the number of records up to there, start and end."""
    count = 0
    for part in _near([offset for offset, _ in places]):
        following = count + len(part)
        end = max(
            offset + (USUAL_BYTES if size < USUAL_BYTES or size == FILLER_SIZE else min(size, READ_BYTES))
            for offset, size in places[count:following]
        )
        count = following
        yield count, min(part), min(end, log.written)


@attrs.frozen
class QueueMessages:
    """Messages of a queue in their order, and the queue offset at which the next read continues."""

    records: list[Record]
    next_offset: int


def read_messages(store: Store, topic: str, queue_id: int, offset: int, count: int = 32) -> QueueMessages:
    """Return up to ``count`` messages of a queue, from the queue offset ``offset`` on.

    A missing queue, and an offset at or behind the queue's end, have no messages. Deleted messages and those on a
    damaged part of the disk are skipped. At most :data:`READ_BYTES` are returned, but at least one message, so a
    result with fewer than ``count`` is not necessarily the end of the queue: that is ``queue.max_offset``.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return QueueMessages([], offset)
    start = max(offset, queue.min_offset)
    rows: list[tuple[int, int, int]] = []
    total, next_offset = 0, start
    for at, size, _code in ENTRY.iter_unpack(queue.entries(start, count)):
        if size != FILLER_SIZE:
            total += size
            if rows and total > READ_BYTES:
                break
            rows.append((next_offset, at, size))
        next_offset += 1
    if not rows:
        return QueueMessages([], next_offset)
    found: list[Record] = []
    for row, record in zip(rows, read_many(store.log, [at for _, at, _ in rows]), strict=True):
        if record is not None and belongs_to_entry(record, queue, row[0]):
            found.append(record)
        elif is_wrong_entry(store.log, queue, *row):
            return QueueMessages(found, row[0])  # the entry will be repaired
    return QueueMessages(found, next_offset)


def is_wrong_entry(log: CommitLog, queue: ConsumeQueue, offset: int, at: int, size: int) -> bool:
    """Return whether the entry that was read at a queue offset, with ``at`` and ``size``, points to a wrong record and
    will be repaired, or was repaired since.

    False if the log or its disk is damaged: then the message is lost. ``OSError`` if the process has no file descriptor
    left to find out.
    """
    try:
        return not is_right(log, queue, offset, at, size) and queue.is_wrong(offset, at, size)
    except UnreadableRange as error:
        error.raise_if_temporary()
    except CorruptRange:
        pass
    return False


def belongs_to_entry(record: Record | None, queue: ConsumeQueue, offset: int) -> bool:
    """Return whether a record belongs to the entry at a queue offset."""
    return record is not None and (record.topic, record.queue_id, record.queue_offset) == (
        queue.topic,
        queue.queue_id,
        offset,
    )


def stored_at(log: CommitLog, offset: int) -> int | None:
    """Return the store time (ms) of the record at the log offset ``offset``; None if it is lost.

    ``OSError`` if the process has no file descriptor left to read it.
    """
    try:
        return log.read_record(offset).store_timestamp
    except UnreadableRange as error:
        error.raise_if_temporary()
    except (OutOfLog, CorruptRange, BadRecord):
        pass
    return None


def first_stored_at(log: CommitLog) -> int | None:
    """Return the store time (ms) of the log's first message; None if there is none or it cannot be read."""
    with suppress(OSError):
        return stored_at(log, log.min_offset)
    return None


def message_stored_at(log: CommitLog, queue: ConsumeQueue | None, offset: int) -> int:
    """Return the store time (ms) of the message at the queue offset ``offset``; -1 if there is none or it cannot be
    read."""
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return -1
    try:
        entry = queue.entries(offset, 1)
        found = stored_at(log, ENTRY.unpack(entry)[0]) if entry else None
    except OSError:
        return -1
    return -1 if found is None else found

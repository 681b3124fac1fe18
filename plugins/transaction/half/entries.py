"""Read half messages and op messages by their queue entries, which may be damaged: the log decides."""

from __future__ import annotations

from contextlib import suppress

import structlog

from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.kernel.store.reading import belongs_to_entry, is_wrong_entry
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.transaction.half.rows import QUEUE_ID
from gantrymq.remoting.names import TRANS_HALF_TOPIC

log = structlog.get_logger("gantrymq.transaction")


class WrongEntry(Exception):
    """A queue entry points to another message than its own, or to none; the kernel will repair it."""


def read_half(store: Store, offset: int, *, repair: bool = False) -> Record | None:
    """Return the half message at a queue offset; None if it is lost.

    ``UnreadableRange`` if the disk cannot read it now, ``WrongEntry`` if its queue entry will be repaired: then it is
    not lost, and must stay open. ``repair``: see :func:`read_message`.
    """
    found = _entry_of(store, offset)
    if found is None:
        return None
    queue, at, size = found
    try:
        return read_message(store, queue, offset, at, size, repair=repair)
    except UnreadableRange:
        raise
    except (OutOfLog, CorruptRange, BadRecord) as error:
        log.error("half_message_lost", queue_offset=offset, at=at, reason=str(error))
        return None


def read_message(
    store: Store, queue: ConsumeQueue, offset: int, at: int, size: int, *, repair: bool = False
) -> Record | None:
    """Return the message at a queue offset whose entry is ``at`` and ``size``; None for a filler.

    ``WrongEntry``, ``OutOfLog``, ``CorruptRange`` or ``BadRecord`` if it cannot be read. ``repair``: for a
    start, this repairs a wrong entry first, which may read much of the log; :class:`OSError` or ``UnreadableRange`` if
    that fails.
    """
    while size != FILLER_SIZE:
        try:
            return _read_own(store, queue, offset, at, size)
        except WrongEntry:
            if not repair:
                raise
        store.repair.repair(queue, offset)
        entry = queue.entries(offset, 1)
        if not entry:
            break
        at, size, _ = ENTRY.unpack(entry)
    return None


def _entry_of(store: Store, offset: int) -> tuple[ConsumeQueue, int, int] | None:
    """Return the queue of half messages, and log offset and size in its entry at a queue offset; None without one."""
    queue = store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID)
    entry = b"" if queue is None else queue.entries(offset, 1)
    if queue is None or not entry:
        return None
    at, size, _ = ENTRY.unpack(entry)
    return queue, at, size


def _read_own(store: Store, queue: ConsumeQueue, offset: int, at: int, size: int) -> Record:
    failure: Exception = BadRecord("another message")
    try:
        record = store.log.read_record(at)
        if belongs_to_entry(record, queue, offset):
            return record
    except (OutOfLog, CorruptRange, BadRecord) as error:
        failure = error
    try:
        is_wrong = is_wrong_entry(store.log, queue, offset, at, size)
    except OSError as error:
        raise UnreadableRange(at, size, error.strerror or str(error), error.errno or 0) from error
    if is_wrong:
        raise WrongEntry(f"the entry of {queue.topic} at queue offset {offset} will be repaired")
    raise failure


def half_stored_at(store: Store, offset: int) -> int | None:
    """Return when the half message at a queue offset, open or not, was stored, in ms; None if it cannot be read.

    ``WrongEntry`` as in :func:`read_half`.
    """
    found = _entry_of(store, offset)
    if found is None:
        return None
    queue, at, size = found
    if at < store.log.min_offset:
        return None  # deleted
    try:
        record = read_message(store, queue, offset, at, size)
    except (OutOfLog, CorruptRange, BadRecord):
        return None
    return None if record is None else record.store_timestamp


def floor_of(store: Store, offset: int) -> int:
    """Return a log offset that is not above that of the half message at a queue offset."""
    found = _entry_of(store, offset)
    if found is None:
        return store.dispatched
    queue, at, size = found
    log_min = store.log.min_offset
    if size == FILLER_SIZE or at < log_min or is_wrong_entry(store.log, queue, offset, at, size):
        return log_min
    return at


def report_wrong_entry(store: Store, queue: ConsumeQueue, offset: int) -> None:
    """Have the entry at a queue offset repaired if it is wrong; a client may have named any offset.

    Does nothing while the process has no file descriptor left to find out."""
    if queue.min_offset <= offset < queue.max_offset and (entry := queue.entries(offset, 1)):
        at, size, _ = ENTRY.unpack(entry)
        if size != FILLER_SIZE and at >= store.log.min_offset:  # otherwise it is deleted next
            with suppress(OSError):  # a later request reports it
                is_wrong_entry(store.log, queue, offset, at, size)

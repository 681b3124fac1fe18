"""Determine the open half messages at a start, from the stored progress, the op messages and the copies."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.kernel.store.store import Store
from gantrymq.plugins.interfaces import ConsumerOffsets
from gantrymq.plugins.transaction.half.entries import WrongEntry, read_half, read_message
from gantrymq.plugins.transaction.half.rows import END_TAG, GROUP, QUEUE_ID, copy_key, ended_in, number_in
from gantrymq.plugins.transaction.half.table import COMMITTED, GONE, ROLLED_BACK, HalfTable
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.remoting.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.property_bytes import TAGS, TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES

ENTRIES = 1024
"""Entries of a queue that are read at once."""

_END_TAG = END_TAG.encode()

log = structlog.get_logger("gantrymq.transaction")


def load_halves(context: StrategyContext) -> HalfTable:
    """Return the table of a recovered store; nothing is changed, except that wrong queue entries are repaired.

    ``OSError`` if the process has no file descriptor left to read an op message: its transaction has ended.
    """
    store, offsets = context.store, context.registry.get(ConsumerOffsets)
    table = HalfTable(
        _begin(store, offsets, TRANS_HALF_TOPIC), lambda: store.queues.next_offset(TRANS_HALF_TOPIC, QUEUE_ID)
    )
    for op_offset, half_offset in _ends(store, _begin(store, offsets, TRANS_OP_HALF_TOPIC)):
        table.noted(op_offset, half_offset)
        table.close(half_offset, GONE)
    _join_copies(store, table)
    return table


def count_open_halves(context: StrategyContext) -> int:
    """Return how many half messages of the strategy ``half`` are open in a store that uses another one."""
    if context.store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID) is None:
        return 0
    return load_halves(context).open_count


def _begin(store: Store, offsets: ConsumerOffsets, topic: str) -> int:
    """Return the stored progress in one of the two queues."""
    queue = store.queues.get(topic, QUEUE_ID)
    stored = offsets.query(GROUP, topic, QUEUE_ID) or 0
    if queue is None:
        return 0
    begin = min(max(stored, queue.min_offset), queue.max_offset)
    if stored > queue.max_offset:
        log.warning("transaction_offset_corrected", topic=topic, offset=stored, corrected=begin)
    return begin


def _ends(store: Store, begin: int) -> Iterator[tuple[int, int]]:
    """Yield the op messages from ``begin`` on: their queue offset, and the half offset in each. :class:`OSError`."""
    queue = store.queues.get(TRANS_OP_HALF_TOPIC, QUEUE_ID)
    if queue is None:
        return
    while begin < queue.max_offset:
        entries = queue.entries(begin, ENTRIES)
        if not entries:
            return
        for unit, (offset, size, _) in enumerate(ENTRY.iter_unpack(entries), begin):
            if size == FILLER_SIZE:
                continue
            try:
                record = read_message(store, queue, unit, offset, size, repair=True)
            except (OutOfLog, CorruptRange, BadRecord) as error:
                if isinstance(error, UnreadableRange):
                    error.raise_if_temporary()
                log.error("transaction_end_lost", queue_offset=unit, at=offset, reason=str(error))
                continue
            if record is None:
                log.error("transaction_end_lost", queue_offset=unit, at=offset, reason="no record")
            elif record.property_of(TAGS) != _END_TAG:
                log.error("transaction_end_unknown", queue_offset=unit, at=record.offset, size=size)
            else:
                for half_offset in ended_in(record.body):
                    yield unit, half_offset
        begin += len(entries) // ENTRY.size


def _join_copies(store: Store, table: HalfTable) -> None:
    """Let each transaction continue as its newest copy: a crash may have come between writing a copy and the op message
    of the previous one. That op message is missing, and must be written before the copy ends: a start does not read
    copies that have ended."""
    offset, end = table.base, table.end
    while (found := table.next_open(offset, end)) is not None:
        offset = found + 1
        try:
            record = read_half(store, found, repair=True)
        except UnreadableRange as error:
            log.error("half_message_unreadable", queue_offset=found, reason=str(error))
            table.unjoined.add(found)
            continue
        if record is None:
            table.lose(found)
            table.unjoined.add(found)
        else:
            _join(table, record)
    if table.copies:
        _close_originals(store, table)


def _join(table: HalfTable, record: Record) -> bool:
    """Let the transaction of an open half message continue as this one if it is a copy. Returns whether it is a copy by
    RocketMQ, which does not have its first offset."""
    offset = record.queue_offset
    first = number_in(record, TRAN_PREPARED_QUEUE_OFFSET)
    if first is not None:
        table.close_unnoted(table.current(first))
        table.moved[first] = offset
    elif number_in(record, TRANSACTION_CHECK_TIMES) and (key := copy_key(record)):
        table.copies[key] = max(table.copies.get(key, offset), offset)
        return True
    return False


def join_late(store: Store, table: HalfTable, record: Record) -> bool:
    """Join a half message in ``table.unjoined`` with its transaction, now that it can be read.

    Returns whether it was closed because the transaction has ended meanwhile, or continues as a newer copy.
    """
    offset = record.queue_offset
    table.unjoined.discard(offset)
    first = number_in(record, TRAN_PREPARED_QUEUE_OFFSET)
    current = offset if first is None else table.current(first)
    state = table.state(current)
    if state in (COMMITTED, ROLLED_BACK):
        table.close(offset, state)
        table.unnoted.append(offset)
        return True
    copied = table.copies.get(copy_key(record) or b"", offset) if table.copies else offset
    if max(current, copied) > offset:  # a newer copy was joined before
        table.close_unnoted(offset)
        return True
    if _join(table, record):
        _close_originals(store, table)
    return False


def _close_originals(store: Store, table: HalfTable) -> None:
    """Close half messages that RocketMQ has copied: after a kill its stored progress may lack them."""
    offset, end = table.base, max(table.copies.values())
    while (found := table.next_open(offset, end)) is not None:
        offset = found + 1
        try:
            record = read_half(store, found)
        except (UnreadableRange, WrongEntry):
            table.unjoined.add(found)  # it is joined when it can be read
            continue
        key = None if record is None else copy_key(record)
        if table.copies.get(key or b"", -1) > found:
            table.close_unnoted(found)

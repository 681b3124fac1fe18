"""Prepared records, commits and rollbacks of the strategy ``state_table`` in the log.

Source: RocketMQ 3.2 ``DefaultMessageStore.DispatchMessageService``, ``TransactionStateService``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.layouts import FLAGS_AND_PLACES
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.plugins.transaction.state_table.redo import PREPARED_MARK
from gantrymq.plugins.transaction.state_table.table import PREPARED, StateRow
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.properties import find_property, java_hash
from gantrymq.remoting.property_bytes import PGROUP, TRAN_MSG

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE_BITS: Final = int(TransactionState.ROLLBACK)
"""The bits of a sys flag with a ``TransactionState``."""


log = structlog.get_logger("gantrymq.transaction")


@attrs.define
class Found:
    """The transaction data of a batch of the log.

    ``offsets``, ``sizes`` and ``prepared_offsets`` are columns of the redo log; ``opened`` the rows of new
    transactions with their numbers; ``ended`` the log offset of the prepared record and the new state, by row number.
    """

    offsets: list[int] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    prepared_offsets: list[int] = attrs.field(factory=list)
    opened: list[tuple[int, StateRow]] = attrs.field(factory=list)
    ended: dict[int, tuple[int, int]] = attrs.field(factory=dict)

    def note(self, offset: int, size: int, prepared_offset: int) -> None:
        """Add to the columns of the redo log."""
        self.offsets.append(offset)
        self.sizes.append(size)
        self.prepared_offsets.append(prepared_offset)


@lru_cache(maxsize=1024)
def group_hash(group: bytes) -> int:
    """Java's hash of a producer group."""
    return java_hash(group.decode("utf-8", "replace"))


def group_of(properties: bytes) -> bytes | None:
    """Return the producer group of a transaction; None if the properties are not those of a transaction."""
    if (find_property(properties, TRAN_MSG) or b"").lower() != b"true":
        return None
    return find_property(properties, PGROUP)


def is_prepared(record: Record) -> bool:
    """Return whether the record begins a transaction."""
    return record.sys_flag & STATE_BITS == PREPARED and group_of(record.properties) is not None


def find_rows(batch: DispatchBatch, start: int, commit_log: CommitLog) -> Found:
    """Return the transaction data of the records at or behind the log offset ``start``."""
    found = Found()
    offsets, sizes, properties = batch.offsets, batch.sizes, batch.properties
    for row, sys_flag in enumerate(batch.sys_flags):
        state = sys_flag & STATE_BITS
        if not state or offsets[row] < start:
            continue
        if state != PREPARED:
            number = row_of(commit_log, batch.prepared_offsets[row])
            if number is not None and (batch.prepared_offsets[row] or _ends_first_record(batch, row, commit_log)):
                found.note(offsets[row], sizes[row], batch.prepared_offsets[row])
                found.ended.setdefault(number, (batch.prepared_offsets[row], state))
        elif (group := group_of(properties[row])) is not None:
            found.note(offsets[row], sizes[row], PREPARED_MARK)
            seconds = batch.store_timestamps[row] // 1000
            state_row = StateRow(offsets[row], sizes[row], seconds, group_hash(group))
            found.opened.append((batch.queue_offsets[row], state_row))
    return found


def _ends_first_record(batch: DispatchBatch, row: int, commit_log: CommitLog) -> bool:
    """Return whether the row ends the transaction whose prepared record is at offset 0.

    A client chooses the sys flag of its message, and messages that end no transaction have prepared offset 0 too. The
    row is an end if it has the properties of that prepared record, with its unique id; its topic may be another one,
    because plugins may move commits. No other message has these properties: one from a client would be prepared.
    """
    try:
        record = read_prepared(commit_log, 0)
    except UnreadableRange as error:
        log.error("prepared_record_unreadable", log_offset=0, reason=str(error))
        return False
    return record is not None and batch.properties[row] == record.properties


def row_of(commit_log: CommitLog, offset: int) -> int | None:
    """Return the row number of the prepared record at ``offset``; None if there is no such record, or no longer."""
    try:
        head = commit_log.view(offset, FLAGS_AND_PLACES.size)
    except (OutOfLog, CorruptRange):
        return None
    _, queue_offset, place, sys_flag = FLAGS_AND_PLACES.unpack(head)
    return int(queue_offset) if place == offset and sys_flag & STATE_BITS == PREPARED else None


def is_record(commit_log: CommitLog, offset: int, size: int) -> bool:
    """Return whether a record of that size lies at ``offset``; True if its file was deleted."""
    if offset < commit_log.min_offset:
        return True
    try:
        head = commit_log.view(offset, FLAGS_AND_PLACES.size)
    except (OutOfLog, CorruptRange):
        return False
    return FLAGS_AND_PLACES.unpack(head)[2] == offset and int.from_bytes(head[:4], "big") == size


def read_prepared(commit_log: CommitLog, offset: int) -> Record | None:
    """Return the prepared record at ``offset``; None, with a log event, if it is lost.

    ``UnreadableRange`` if the disk cannot read it now: then its transaction must stay open.
    """
    try:
        record = commit_log.read_record(offset)
        if is_prepared(record):
            return record
        reason = "another record"
    except UnreadableRange:
        raise
    except (OutOfLog, CorruptRange, BadRecord) as error:
        reason = str(error)
    log.error("prepared_record_lost", log_offset=offset, reason=reason)
    return None


def state_row(record: Record, size: int) -> StateRow:
    """Return the row of a prepared record of ``size`` bytes."""
    group = group_of(record.properties) or b""
    return StateRow(record.offset, size, record.store_timestamp // 1000, group_hash(group))


def scan_whole(commit_log: CommitLog, start: int, stop: int) -> Iterator[DispatchBatch]:
    """As :meth:`CommitLog.scan`; after invalid bytes it continues with the next file and logs this."""
    while start < stop:
        try:
            for batch in commit_log.scan(start, stop):
                start = batch.end
                yield batch
            return
        except CorruptRange as error:
            log.error("transactions_may_be_missing", log_offset=start, reason=str(error))
            segment = commit_log.segments.at(start)
            if segment is None:
                return
            start = segment.end

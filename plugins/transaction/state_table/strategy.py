"""The strategy ``state_table``: prepared records keep their own topic, and a table has the states of transactions.

A prepared record has no queue entry; its queue offset is the number of its row in the table. A commit is a second
record with the log offset of the first one and a queue entry; a rollback is one without a body and an entry. Source:
RocketMQ 3.2 ``EndTransactionProcessor``, ``TransactionStateService``. ``docs/format/transaction-state.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import structlog
import trio

from gantrymq.kernel.batch import STORED, AppendBatch, DispatchBatch, Source
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.plugins.transaction.half.rows import check_size
from gantrymq.plugins.transaction.plain import Ending
from gantrymq.plugins.transaction.state_table.check_scan import StateScan
from gantrymq.plugins.transaction.state_table.files import StateFiles
from gantrymq.plugins.transaction.state_table.records import add_end, is_written
from gantrymq.plugins.transaction.state_table.rows import STATE_BITS, is_prepared
from gantrymq.plugins.transaction.state_table.table import PREPARED
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.plugins.transaction.undispatched import UndispatchedHalves
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC

FLUSH_S = 1.0
"""How often the redo log is flushed, in seconds. The next start reads missing entries from the commit log."""

log = structlog.get_logger("gantrymq.transaction")


@attrs.define(eq=False)
class Closing:
    """The end of a transaction that is appended and not yet dispatched, and the requests that wait for it."""

    number: int
    is_commit: bool
    waiting: list[Request]

    def answer(self, code: int, remark: str | None) -> None:
        """Answer the waiting requests."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            request.answer(code, remark)


class StateTableStrategy:
    """A :class:`Strategy`. Rows are counted when they are appended, and written when they are dispatched."""

    _files: StateFiles
    _scan: StateScan

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._store = context.store
        self._closing: dict[int, Closing] = {}
        self._next_row = 0
        self._undispatched = UndispatchedHalves(context.store)
        self._last: tuple[AppendBatch, list[int], int] | None = None
        self._is_open = False

    def open(self) -> None:
        """See :class:`Strategy`."""
        self._context.registry.get(TopicTable).ensure(TopicConfig(TRANS_CHECK_MAX_TIME_TOPIC, 1, 1))
        self._files = StateFiles(self._context.env, self._store, file_rows=self._context.config.file_rows)
        self._files.open()
        self._next_row = self._files.table.end
        self._scan = StateScan(self._context, self._files, self._closing, self._end_alone)
        self._is_open = True
        if self.open_count:
            log.info("transactions_open", count=self.open_count)

    def tasks(self) -> list[BackgroundTask]:
        """See :class:`Strategy`."""
        return [BackgroundTask("state table", self._keep)]

    @property
    def open_count(self) -> int:
        """See :class:`Strategy`."""
        table = self._files.table
        return table.open_count + len(self._files.unread) + self._count_rows() - table.end - len(self._closing)

    # ------------------------------------------------------------------------------------------------- half messages

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        """See :class:`Strategy`. Refuses all rows while rows of the table wait for disk space, and messages that are
        too large to be stored in the topic of discarded ones."""
        if self._files.table.unwritten:
            for row in rows:
                batch.refuse(
                    row, ResponseCode.SERVICE_NOT_AVAILABLE, "no disk space for the state table of transactions"
                )
            return
        refused = batch.refused
        for row in rows:
            topic = batch.topics[row]
            try:
                body, properties = batch.sizes_of(row)
                check_size(topic, body, properties + len(topic.encode()), self._store.config)
            except RemoteFault as fault:
                batch.refuse(row, fault.code, fault.remark)
        if batch.refused > refused:
            rows = [row for row in rows if row not in batch.remarks]
            if not rows:
                return
        first = self._count_rows()
        for number, row in enumerate(rows, first):
            batch.sys_flags[row] = batch.sys_flags[row] & ~STATE_BITS | PREPARED
            batch.own_queue_offsets[row] = number
        self._undispatched.note(batch, rows)
        self._last = (batch, rows, batch.refused)
        self._next_row = first + len(rows)

    def _count_rows(self) -> int:
        """Return the number of the next row; numbers of messages that were refused later are used again."""
        if self._last is None:
            return self._next_row
        batch, rows, refused = self._last
        if batch.refused != refused or batch.end <= batch.start:
            written = [row for row in rows if is_written(batch, row)]
            first = batch.own_queue_offsets[rows[0]]
            self._next_row = batch.own_queue_offsets[written[-1]] + 1 if written else first
        self._last = None
        return self._next_row

    def is_prepared(self, record: Record) -> bool:
        """See :class:`Strategy`."""
        return is_prepared(record)

    # ------------------------------------------------------------------------------------------------------- endings

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        """See :class:`Strategy`. Dispatched half messages are found by their rows.

        A rebuilt table has no rows of ended transactions; the redo log still has them.
        """
        named: list[Ending] = []
        others: list[Ending] = []
        table, redo = self._files.table, self._files.redo
        for ending in endings:
            number, offset = ending.table_offset, ending.commit_log_offset
            row = table.get(number)
            is_named = (
                (row is not None and row.log_offset == offset)
                or self._undispatched.find(number) == offset
                or redo.is_prepared(offset)
            )
            (named if is_named else others).append(ending)
        return named, others

    def end(self, endings: list[Ending]) -> None:
        """See :class:`Strategy`. Appends the commits and rollbacks of a turn as one batch."""
        batch = AppendBatch(done=_reply, source=Source.TRANSACTION)
        begun: dict[int, int] = {}
        for ending in endings:
            record = ending.record
            closing = self._closing.get(record.offset)
            first_is_commit = closing.is_commit if closing is not None else self._verdict(record)
            if first_is_commit is not None:
                self._again(ending, closing, first_is_commit)
                if record.offset in begun and not ending.request.is_oneway:
                    batch.waits[begun[record.offset]] = True
            elif closing is None and self._is_open_row(record):
                closing = Closing(record.queue_offset, ending.is_commit, [ending.request])
                self._closing[record.offset] = closing
                begun[record.offset] = len(batch)
                wait = not ending.request.is_oneway
                add_end(batch, record, is_commit=ending.is_commit, wait=wait, origin=closing)
            else:
                # It has ended before, with an unknown outcome.
                ending.request.answer(ResponseCode.SUCCESS)
        self._append(batch, begun)

    def _end_alone(self, batch: AppendBatch, records: dict[int, Record]) -> None:
        """Append a batch of rollbacks from the scan; ``records`` has the prepared record for each such row."""
        begun = {}
        for row, record in records.items():
            closing = Closing(record.queue_offset, is_commit=False, waiting=[])
            self._closing[record.offset] = closing
            batch.origins[row] = closing
            begun[record.offset] = row
        batch.done = _reply
        self._append(batch, begun)

    def _append(self, batch: AppendBatch, begun: dict[int, int]) -> None:
        if not len(batch):
            return
        self._context.append(batch)
        if batch.refused:
            for offset, row in begun.items():
                if not is_written(batch, row):
                    self._closing.pop(offset, None)

    def _verdict(self, record: Record) -> bool | None:
        """Return whether the transaction was committed according to its row; None if it is open or has no row."""
        row = self._files.table.get(record.queue_offset)
        if row is None or row.log_offset != record.offset or row.state == PREPARED:
            return None
        return row.state == TransactionState.COMMIT

    def _is_open_row(self, record: Record) -> bool:
        """Return whether the row of the prepared record exists, or is not dispatched yet, or could not be rebuilt."""
        table = self._files.table
        if record.offset in self._files.unread:
            return True
        if record.queue_offset >= table.end:
            return record.offset >= self._files.position
        row = table.get(record.queue_offset)
        return row is not None and row.log_offset == record.offset

    def _again(self, ending: Ending, closing: Closing | None, first_is_commit: bool) -> None:
        """Answer the ending of a transaction that has ended before: the first outcome wins, the same one is no
        error."""
        if first_is_commit != ending.is_commit:
            done = "committed" if first_is_commit else "rolled back"
            log.warning("transaction_ended_otherwise", row=ending.record.queue_offset, was=done)
            ending.request.answer(ResponseCode.SYSTEM_ERROR, f"the transaction was {done} before")
        elif closing is None:
            ending.request.answer(ResponseCode.SUCCESS)
        else:
            closing.waiting.append(ending.request)  # answered together with the first request

    # -------------------------------------------------------------------------------------------------------- files

    def dispatch(self, batch: DispatchBatch) -> None:
        """See :class:`Strategy`. Ignores batches of the recovery, because :meth:`open` reads new records itself."""
        if not self._is_open:
            return
        files = self._files
        if files.position < self._store.log.min_offset:
            files.position = batch.start  # a new slave begins with a later file of its master's log
        if batch.start != files.position:
            raise ValueError(f"dispatched from {batch.start} on, but the table ends at {files.position}")
        files.apply(batch)
        if self._closing and batch.sys_flag_bits & STATE_BITS:
            for offset in set(batch.prepared_offsets) & self._closing.keys():
                row = files.table.get(self._closing[offset].number)
                if row is None or row.log_offset != offset or row.state != PREPARED:
                    self._closing.pop(offset).answer(ResponseCode.SUCCESS, None)

    def scan(self) -> Iterator[None]:
        """See :class:`Strategy`."""
        yield from self._scan.run()

    def persist(self) -> dict[str, bytes] | None:
        """See :class:`Strategy`."""
        self._files.retire()
        return self._files.changed_marks()

    def floor(self) -> int:
        """See :class:`Strategy`."""
        table = self._files.table
        found = table.first_open()
        if found is not None:
            floor = found[1].log_offset
        else:
            floor = self._files.position if self._count_rows() > table.end else self._store.log.end
        return min([floor, *self._files.unread])

    async def _keep(self) -> None:
        """Flush the redo log periodically, and at the end the table too."""
        try:
            while True:
                await trio.sleep(FLUSH_S)
                await trio.to_thread.run_sync(self.flush)
        finally:
            self.settle()

    def flush(self) -> None:
        """Flush the redo log; for a worker thread."""
        self._files.flush()

    def settle(self) -> None:
        """Flush all files, so that the next start can use them unchanged if nothing more is dispatched."""
        self._files.retire()
        self._files.flush(clean=True)


def _reply(batch: AppendBatch) -> None:
    closings: Sequence[Closing | None] = batch.origins
    for row, closing in enumerate(closings):
        if closing is None:
            continue
        if batch.statuses[row] in STORED:
            closing.answer(ResponseCode.SUCCESS, None)
        else:
            closing.answer(batch.statuses[row], batch.remarks.get(row))

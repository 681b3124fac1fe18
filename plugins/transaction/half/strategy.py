"""The strategy ``half``: half messages are in one topic, and op messages in another mark those that have ended.

RMQ_SYS_TRANS_HALF_TOPIC has the half messages, RMQ_SYS_TRANS_OP_HALF_TOPIC the op messages with their queue offsets.
The consumer offsets of CID_RMQ_SYS_TRANS are the progress in both, from which RocketMQ 4.x, 5.x and this strategy
continue. Source: RocketMQ 4.9.7 ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import structlog

from gantrymq.kernel import fast
from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import ConsumerOffsets, TopicTable
from gantrymq.plugins.transaction import fast as loops
from gantrymq.plugins.transaction.fast import Ending, EndTerms
from gantrymq.plugins.transaction.half.check_scan import HalfScan
from gantrymq.plugins.transaction.half.entries import floor_of, report_wrong_entry
from gantrymq.plugins.transaction.half.load import load_halves
from gantrymq.plugins.transaction.half.rows import (
    GROUP,
    QUEUE_ID,
    STATE_BITS,
    add_end,
    add_real,
    check_size,
    copy_key,
    first_offset,
    fitting_size,
    half_message_changes,
    is_written,
)
from gantrymq.plugins.transaction.half.table import COMMITTED, GONE, OPEN, ROLLED_BACK, HalfTable
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.plugins.transaction.undispatched import UndispatchedHalves
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC

NEAR_ENTRIES = 1024
"""The most queue entries that are read at once to find the half messages of endings."""
WAITING_MAX = 64
"""The most positions that wait for the disk; a further one replaces the last."""

log = structlog.get_logger("gantrymq.transaction")

_TOPICS = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)


_VERDICTS = {COMMITTED: True, ROLLED_BACK: False}
_UNKNOWN = (
    "Find prepared transaction message failed: a later half message, which may be a copy of this one, cannot be read"
)


class HalfStrategy:
    """A :class:`Strategy`; its table is exact from :meth:`open` on. On a slave the table stays as :meth:`open` read it,
    and the progress is the master's."""

    _table: HalfTable
    _scan: HalfScan

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        self._store = context.store
        self._host = context.store.config.store_host
        self._fitting = fitting_size(context.store.config)
        self._undispatched = UndispatchedHalves(context.store, (TRANS_HALF_TOPIC, QUEUE_ID))
        self._ended_at = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._saved: tuple[int, int] | None = None

    def open(self) -> None:
        """See :class:`Strategy`."""
        topics = self._context.registry.get(TopicTable)
        for topic in _TOPICS:
            topics.ensure(TopicConfig(topic, 1, 1))
        self._table = load_halves(self._context)
        self._scan = HalfScan(self._context, self._table, self._undispatched)
        if self.open_count:
            log.info("transactions_open", count=self.open_count)

    @property
    def open_count(self) -> int:
        """See :class:`Strategy`."""
        return self._table.open_count

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        """See :class:`Strategy`. Refuses half messages that would be too large to store again."""
        for row in loops.divert_rows(batch, rows, TRANS_HALF_TOPIC, half_message_changes, STATE_BITS, self._fitting):
            try:
                check_size(TRANS_HALF_TOPIC, *batch.sizes_of(row), self._store.config)
            except RemoteFault as fault:
                batch.refuse(row, fault.code, fault.remark)
        self._undispatched.note(batch, rows)

    def is_prepared(self, record: Record) -> bool:
        """See :class:`Strategy`."""
        return record.topic == TRANS_HALF_TOPIC and record.queue_id == QUEUE_ID

    def dispatch(self, batch: DispatchBatch) -> None:
        """Do nothing: this strategy reads the queues of its two topics."""

    def scan(self) -> Iterator[None]:
        """See :class:`Strategy`."""
        try:
            yield from self._scan.run()
        finally:
            self.save()

    def persist(self) -> dict[str, bytes] | None:
        """Save the progress as consumer offsets, which the plugin ``offsets`` writes."""
        self.save()
        return None

    def tasks(self) -> list[BackgroundTask]:
        """No tasks: everything is written through the log."""
        return []

    def floor(self) -> int:
        """See :class:`Strategy`."""
        if self._context.is_slave:
            return self._floor_by_progress()
        offset = self._table.next_open(self._table.base, self._table.end)
        if offset is None:
            return self._store.log.end
        return floor_of(self._store, offset)

    def _floor_by_progress(self) -> int:
        """Return the log offset of the first half message that may be open according to the master's progress.

        A table that followed the master's op messages would be exact, but would read the record of each.
        """
        queue = self._store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID)
        if queue is None:
            return self._store.log.end
        progress = self._context.registry.get(ConsumerOffsets).query(GROUP, TRANS_HALF_TOPIC, QUEUE_ID) or 0
        offset = queue.next_real(max(progress, queue.min_offset), queue.max_offset, any_place=True)
        return floor_of(self._store, offset) if offset < queue.max_offset else self._store.log.end

    # ------------------------------------------------------------------------------------------------------- endings

    def split_named(self, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
        """See :class:`Strategy`. Dispatched half messages are found by their queue entries.

        A half message whose entry is wrong is not named until the entry is repaired, which this initiates.
        """
        queue = self._store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID)
        named, others = ([], endings) if queue is None else _split_by_queue(queue, endings)
        if not others:
            return named, others
        find = self._undispatched.find
        found = [ending for ending in others if find(ending.table_offset) == ending.commit_log_offset]
        if queue is not None and len(found) < len(others):
            for offset in {ending.table_offset for ending in others}:
                report_wrong_entry(self._store, queue, offset)
        if not found:
            return named, others
        by_request = {id(ending) for ending in (*named, *found)}
        return (
            [ending for ending in endings if id(ending) in by_request],
            [ending for ending in others if id(ending) not in by_request],
        )

    def end(self, endings: list[Ending]) -> None:
        """See :class:`Strategy`. Appends messages and op messages as one batch."""
        batch, ended = fast.new_batch(fast.answer_rows, Source.TRANSACTION), dict[int, Ending]()
        table, now = self._table, self._store.log.clock.now_ms()

        def end_one(ending: Ending) -> None:
            self._end_one(batch, ending, ended, now)

        if table.copies or table.unjoined:  # only end_one distinguishes these copies from new half messages
            for ending in endings:
                end_one(ending)
        else:
            states, origin = table.states
            terms = EndTerms(states, origin, table.moved, now, self._host, self._fitting)
            loops.add_ends(batch, endings, ended, terms, end_one)
        if len(batch):
            self._scan.note_rest()
            self._context.append(batch)
            self._close(batch, ended)

    def _end_one(self, batch: AppendBatch, ending: Ending, ended: dict[int, Ending], now: int) -> None:
        table, first = self._table, first_offset(ending.record)
        if ending.record.queue_offset in table.unjoined:
            self._scan.is_joined(ending.record)
        current = self._current(ending.record, first) if table.moved or table.copies else first
        if current in ended:
            self._again(batch, ending, current, ended[current].is_commit, now)
        elif (state := table.state(current)) != OPEN and not self._has_no_outcome(ending, first, current):
            if state == GONE and table.unjoined and table.may_continue(first):
                log.warning("transaction_outcome_unknown", queue_offset=first)
                ending.request.answer(ResponseCode.SYSTEM_ERROR, _UNKNOWN)
            else:
                self._again(batch, ending, current, _VERDICTS.get(state), now)
        else:
            try:
                self._add(batch, ending, current, now)
                ended[current] = ending
            except RemoteFault as fault:
                log.error("half_message_destination_invalid", queue_offset=current, reason=fault.remark)
                ending.request.answer(fault.code, fault.remark)

    def _has_no_outcome(self, ending: Ending, first: int, current: int) -> bool:
        """Return whether a closed transaction can still be ended: discarded ones can be committed, and those whose half
        message was lost can have any outcome."""
        return current in self._table.lost or (ending.is_commit and first in self._table.discarded)

    def _current(self, record: Record, first: int) -> int:
        """Return the half message as which the transaction of ``record``, which began as ``first``, continues."""
        table = self._table
        current = table.current(first)
        if table.copies and table.state(current) == GONE:
            copy = table.copies.get(copy_key(record) or b"")
            if copy is not None:
                return table.current(copy)
        return current

    def _add(self, batch: AppendBatch, ending: Ending, current: int, now: int) -> None:
        if not ending.is_commit:
            self._add_note(batch, current, ending, now)
        else:
            row, record, request = len(batch), ending.record, ending.request
            body, properties = record.body_size, record.properties_size
            if body + properties > self._fitting:
                check_size(record.topic, body, properties, self._store.config)
            add_real(batch, record, ending.commit_log_offset, wait=not request.is_oneway, origin=request)
            batch.tie_next_to(row)
            add_end(batch, current, now, self._host)
        ending.row = len(batch) - 1

    def _add_note(self, batch: AppendBatch, offset: int, ending: Ending, now: int) -> None:
        """Add the op message; ``ending`` is answered when it is durable."""
        request = ending.request
        add_end(batch, offset, now, self._host, wait=not request.is_oneway, origin=request)

    def _again(self, batch: AppendBatch, ending: Ending, current: int, first_is_commit: bool | None, now: int) -> None:
        """Answer the ending of a transaction that has ended before: the first outcome wins, the same one is no
        error."""
        if first_is_commit is not None and first_is_commit != ending.is_commit:
            done = "committed" if first_is_commit else "rolled back"
            log.warning("transaction_ended_otherwise", queue_offset=current, was=done)
            ending.request.answer(ResponseCode.SYSTEM_ERROR, f"the transaction was {done} before")
        elif not len(batch) and self._ended_at <= self._store.dispatched:
            ending.request.answer(ResponseCode.SUCCESS)
        elif not ending.request.is_oneway:
            # The first op message may not be durable yet. A second one has no effect, and is not durable before it.
            self._add_note(batch, current, ending, now)

    def _close(self, batch: AppendBatch, ended: dict[int, Ending]) -> None:
        """Update the table by the endings that are written."""
        table = self._table
        self._ended_at = max(self._ended_at, batch.end)
        closed, first, last, highest, unnoted = loops.close_ends(batch, ended, *table.states)
        table.closed(closed, ended)
        if first >= 0:
            table.noted(first, highest, last + 1 - first)
        for current in unnoted:
            ending = ended.pop(current)
            if ending.is_commit and is_written(batch, ending.row - 1):
                table.unnoted.append(current)
                table.close(current, COMMITTED)
                ended[current] = ending
        if table.moved or table.discarded or table.lost:
            for current, ending in ended.items():
                table.recover_lost(current, COMMITTED if ending.is_commit else ROLLED_BACK)
                began = first_offset(ending.record)
                table.moved.pop(began, None)
                table.discarded.pop(began, None)

    # ----------------------------------------------------------------------------------------------------- progress

    def save(self) -> None:
        """Commit the durable progress as consumer offsets; on a slave they are the master's."""
        if self._context.is_slave:
            return
        store, table, waiting = self._store, self._table, self._waiting
        done = table.ops_done()
        if len(waiting) >= WAITING_MAX:
            waiting.pop()
        waiting.append((store.log.end, table.base, 0 if done is None else done))
        safe = None
        while waiting and waiting[0][0] <= min(store.log.durable, store.dispatched):
            safe = waiting.popleft()[1:]
        if safe is None or safe == self._saved:
            return
        self._saved = safe
        offsets = self._context.registry.get(ConsumerOffsets)
        for topic, offset in zip((TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC), safe, strict=True):
            if store.queues.get(topic, QUEUE_ID) is not None and offset > (offsets.query(GROUP, topic, QUEUE_ID) or 0):
                offsets.commit(GROUP, topic, QUEUE_ID, offset)


def _split_by_queue(queue: ConsumeQueue, endings: list[Ending]) -> tuple[list[Ending], list[Ending]]:
    """See :meth:`HalfStrategy.split_named`. Splits the endings so that distant offsets do not make it read many
    entries."""
    numbers = [ending.table_offset for ending in endings]
    first, last = max(min(numbers), queue.min_offset), min(max(numbers), queue.max_offset - 1)
    if last < first:
        return [], endings
    if last - first < NEAR_ENTRIES:
        return loops.split_named(endings, queue.entries(first, last + 1 - first), first)
    middle = len(endings) // 2
    halves = [_split_by_queue(queue, part) for part in (endings[:middle], endings[middle:])]
    return halves[0][0] + halves[1][0], halves[0][1] + halves[1][1]

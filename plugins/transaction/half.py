"""The strategy ``half``: half messages lie in a topic of their own, and what ended is noted in another.

RMQ_SYS_TRANS_HALF_TOPIC has the half messages, RMQ_SYS_TRANS_OP_HALF_TOPIC the queue offsets of those that ended, and
the consumer offsets of CID_RMQ_SYS_TRANS tell how far both are done with: RocketMQ 4.x and 5.x go on from there, and
this from what they left. Source: RocketMQ 4.9.7 ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs
import structlog

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.fast import new_batch
from gantrymq.kernel.record import Record
from gantrymq.kernel.services import ConsumerOffsets, Service, TopicTable
from gantrymq.plugins.transaction.halfload import load_halves
from gantrymq.plugins.transaction.halfrows import (
    GROUP,
    QUEUE_ID,
    UNIQUE_KEY,
    add_end,
    add_real,
    check_size,
    first_offset,
    fitting_size,
    hide,
    is_written,
)
from gantrymq.plugins.transaction.halftable import COMMITTED, GONE, OPEN, ROLLED_BACK, HalfTable
from gantrymq.plugins.transaction.halfwalk import HalfWalk
from gantrymq.plugins.transaction.strategy import Ending, Means
from gantrymq.remoting.bodies import TopicConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC

STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""With these codes a row lies in the log; who ended the transaction is told success, as in RocketMQ."""
WAITING_MAX = 64
"""Progress that waits for the disk; further progress takes the last one's place."""

log = structlog.get_logger("gantrymq.transaction")

_TOPICS = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)


_VERDICTS = {COMMITTED: True, ROLLED_BACK: False}


@attrs.define(eq=False)
class _Ended:
    """An end in a batch of the transaction that began at ``first``: the row of the message, of a commit, and the row of
    the note."""

    ending: Ending
    first: int
    real_row: int | None
    end_row: int


class HalfStrategy:
    """A :class:`Strategy`; its table is exact from :meth:`open` on."""

    _table: HalfTable
    _walk: HalfWalk

    def __init__(self, means: Means) -> None:
        self._means = means
        self._store = means.store
        self._host = means.store.config.store_host
        self._fitting = fitting_size(means.store.config)
        self._ended_at = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._saved: tuple[int, int] | None = None

    def open(self) -> None:
        """See :class:`Strategy`."""
        topics = self._means.services.get(TopicTable)
        for topic in _TOPICS:
            topics.ensure(TopicConfig(topic, 1, 1))
        self._table = load_halves(self._means)
        self._walk = HalfWalk(self._means, self._table)
        if self.open_count:
            log.info("transactions_open", count=self.open_count)

    @property
    def open_count(self) -> int:
        """See :class:`Strategy`."""
        return self._table.open_count

    def prepare(self, batch: AppendBatch, rows: list[int]) -> None:
        """See :class:`Strategy`. What could not be written again later is refused now."""
        for row in rows:
            hide(batch, row)
            body, properties = batch.sizes_of(row)
            if body + properties <= self._fitting:
                continue
            try:
                check_size(TRANS_HALF_TOPIC, body, properties, self._store.config)
            except RemoteFault as fault:
                batch.refuse(row, fault.code, fault.remark)

    def is_prepared(self, record: Record) -> bool:
        """See :class:`Strategy`."""
        return record.topic == TRANS_HALF_TOPIC and record.queue_id == QUEUE_ID

    def dispatch(self, batch: DispatchBatch) -> None:
        """The queues of the two topics are all that is needed."""

    def walk(self) -> Iterator[None]:
        """See :class:`Strategy`."""
        try:
            yield from self._walk.run()
        finally:
            self.save()

    def persist(self) -> dict[str, bytes] | None:
        """The offsets are the consumer offsets', which write them."""
        self.save()
        return None

    def services(self) -> list[Service]:
        """None: what is written goes through the log."""
        return []

    def floor(self) -> int:
        """See :class:`Strategy`."""
        offset = self._table.next_open(self._table.base, self._table.end)
        if offset is None:
            return self._store.log.end
        queue = self._store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID)
        entry = b"" if queue is None else queue.entries(offset, 1)
        return int.from_bytes(entry[:8], "big") if entry else self._store.dispatched

    # ------------------------------------------------------------------------------------------------------- to end

    def end(self, endings: list[Ending]) -> None:
        """See :class:`Strategy`. The message and the note of its end are written as one batch."""
        batch = new_batch(_reply)
        table, ended, now = self._table, dict[int, _Ended](), self._store.log.clock.now_ms()
        for ending in endings:
            first = first_offset(ending.record)
            current = self._current(ending.record, first) if table.moved or table.copies else first
            if current in ended:
                self._again(batch, ending, current, ended[current].ending.is_commit, now)
            elif (state := table.state(current)) != OPEN and not (ending.is_commit and first in table.aside):
                self._again(batch, ending, current, _VERDICTS.get(state), now)
            else:
                try:
                    ended[current] = self._add(batch, ending, first, current, now)
                except RemoteFault as fault:
                    log.error("half_message_ends_nowhere", queue_offset=current, reason=fault.remark)
                    ending.request.answer(fault.code, fault.remark)
        if len(batch):
            self._means.append(batch)
            self._close(batch, ended)

    def _current(self, record: Record, first: int) -> int:
        """As which half message the transaction of ``record``, which began as ``first``, goes on."""
        table = self._table
        current = table.current(first)
        if table.copies and table.state(current) == GONE:
            copy = table.copies.get(record.property_of(UNIQUE_KEY) or b"")
            if copy is not None:
                return table.current(copy)
        return current

    def _add(self, batch: AppendBatch, ending: Ending, first: int, current: int, now: int) -> _Ended:
        row = len(batch)
        if not ending.is_commit:
            self._add_note(batch, current, ending, now)
            return _Ended(ending, first, None, row)
        record, request = ending.record, ending.request
        body, properties = record.body_size, record.properties_size
        if body + properties > self._fitting:
            check_size(record.topic, body, properties, self._store.config)
        add_real(batch, record, ending.header.commit_log_offset, wait=not request.is_oneway, origin=request)
        batch.follow(row)
        add_end(batch, current, now, self._host)
        return _Ended(ending, first, row, row + 1)

    def _add_note(self, batch: AppendBatch, offset: int, ending: Ending, now: int) -> None:
        """``ending`` is answered when the note is safe."""
        request = ending.request
        add_end(batch, offset, now, self._host, wait=not request.is_oneway, origin=request)

    def _again(self, batch: AppendBatch, ending: Ending, current: int, first_is_commit: bool | None, now: int) -> None:
        """The transaction has ended before: the first word counts, the same word again is no error."""
        if first_is_commit is not None and first_is_commit != ending.is_commit:
            done = "committed" if first_is_commit else "rolled back"
            log.warning("transaction_ended_otherwise", queue_offset=current, was=done)
            ending.request.answer(ResponseCode.SYSTEM_ERROR, f"the transaction was {done} before")
        elif not len(batch) and self._ended_at <= self._store.dispatched:
            ending.request.answer(ResponseCode.SUCCESS)
        elif not ending.request.is_oneway:
            # Safe when the first one is: a second note, which nobody minds, waits for the same.
            self._add_note(batch, current, ending, now)

    def _close(self, batch: AppendBatch, ended: dict[int, _Ended]) -> None:
        """Take in which of the ends are written."""
        table, noted, closed = self._table, dict[int, int](), dict[int, int]()
        self._ended_at = max(self._ended_at, batch.end)
        for current, one in ended.items():
            place, op_offset = batch.place_of(one.end_row)
            if place >= 0:
                noted[op_offset] = current
            elif one.real_row is not None and is_written(batch, one.real_row):
                self._walk.unnoted.append(current)
            else:
                continue
            closed[current] = COMMITTED if one.ending.is_commit else ROLLED_BACK
            if table.moved:
                table.moved.pop(one.first, None)
            if table.aside:
                table.aside.pop(one.first, None)
        table.close_all(closed)
        if noted:
            first = min(noted)
            table.noted(first, max(noted.values()), max(noted) + 1 - first)

    # ----------------------------------------------------------------------------------------------------- progress

    def save(self) -> None:
        """Hand what is done with to the consumer offsets, as far as no crash can take it back."""
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
        offsets = self._means.services.get(ConsumerOffsets)
        for topic, offset in zip((TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC), safe, strict=True):
            if store.queues.get(topic, QUEUE_ID) is not None and offset > (offsets.query(GROUP, topic, QUEUE_ID) or 0):
                offsets.commit(GROUP, topic, QUEUE_ID, offset)


def _reply(batch: AppendBatch) -> None:
    for row, (request, status) in enumerate(zip(batch.origins, batch.statuses, strict=True)):
        if request is None:
            continue
        if status in STORED:
            request.answer(ResponseCode.SUCCESS)
        else:
            request.answer(status, batch.remarks.get(row))

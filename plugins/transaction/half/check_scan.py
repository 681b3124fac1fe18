"""The scan of open half messages: sends check-backs, and discards half messages after too many of them.

Source: RocketMQ 4.9.7 ``TransactionalMessageServiceImpl.check``. It differs where RocketMQ is known to be wrong (issues
544, 1517, 8158, 8311, 9500):

- The scan knows which transactions have ended before it decides anything.
- The immunity time that a producer requests does not count as a check-back; only sent check-backs count.
- A half message without a connected producer stays where it is; RocketMQ stores it again each minute.
- An error with one half message does not affect others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import attrs
import structlog

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.reading import stored_at
from gantrymq.plugins.interfaces import ProducerGroups
from gantrymq.plugins.transaction.check import CheckBackSender, slice_limits
from gantrymq.plugins.transaction.half.entries import WrongEntry, half_stored_at, read_half
from gantrymq.plugins.transaction.half.load import join_late
from gantrymq.plugins.transaction.half.rows import (
    QUEUE_ID,
    add_copy,
    add_discarded,
    add_end,
    check_size,
    first_offset,
    is_written,
    number_in,
    real_place,
)
from gantrymq.plugins.transaction.half.table import GONE, OPEN, HalfTable
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.plugins.transaction.undispatched import UndispatchedHalves
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.remoting.properties import find_property, replace_properties
from gantrymq.remoting.property_bytes import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    TRANSACTION_CHECK_TIMES,
    WAIT,
)

SLICE_ROWS = 256
"""The number of half messages after which the scan yields."""
FAR_HALVES = 1_000_000
"""A half message that is followed by this many others is stored again without a check-back, so that the table can
forget the others."""

log = structlog.get_logger("gantrymq.transaction")


@attrs.frozen
class _Step:
    """The two rows that the scan writes for one half message: a copy or the discarded message, then the op message."""

    offset: int
    record: Record
    connection: Connection | None
    is_copy: bool


@attrs.define
class _Slice:
    """The batch that one slice of a scan writes, with two rows for each step."""

    batch: AppendBatch
    steps: list[_Step] = attrs.field(factory=list)
    looked: int = 0

    @property
    def asks(self) -> bool:
        """Whether check-backs follow it."""
        return any(step.connection is not None for step in self.steps)


class HalfScan:
    """Scans a table. ``undispatched`` gets the copies that are written."""

    def __init__(self, context: StrategyContext, table: HalfTable, undispatched: UndispatchedHalves) -> None:
        self._context = context
        self._store = context.store
        self._table = table
        self._undispatched = undispatched
        self._check_backs = CheckBackSender(
            context.env, context.registry.get(ProducerGroups), context.registry.find(Deliveries)
        )
        self._host = context.store.config.store_host

    def run(self) -> Iterator[None]:
        """Scan once; yields after each slice, and several times after one with a check-back if the rate is low."""
        self.note_rest()
        steps_max, rests = slice_limits(self._context.config.checks_per_second)
        queue = self._store.queues.get(TRANS_HALF_TOPIC, QUEUE_ID)
        end = 0 if queue is None else queue.max_offset
        # The store's clock never goes back, so younger messages are behind older ones.
        start = self._store.log.clock.now_ms()
        offset = self._table.base
        part = self._new_slice()
        try:
            while (found := self._table.next_open(offset, end)) is not None:
                offset = found + 1
                part.looked += 1
                try:
                    if not self._check(part, found, start):
                        break
                except WrongEntry:
                    pass  # the kernel has logged it; a later scan reads the repaired entry
                except Exception as error:
                    log.error("transaction_check_failed", queue_offset=found, reason=repr(error))
                if part.looked >= SLICE_ROWS or len(part.steps) >= steps_max:
                    written, part = part, self._new_slice()
                    self._write(written)
                    yield from repeat(None, rests if written.asks else 1)
        finally:
            self._write(part)

    def _check(self, part: _Slice, offset: int, now: int) -> bool:
        """Handle one half message; False if it and all following ones are too young."""
        record = read_half(self._store, offset)
        if record is None:
            self._table.lose(offset)
            return True
        if offset in self._table.unjoined and not self.is_joined(record):
            return True
        config = self._context.config
        if record.store_timestamp > now - config.timeout * 1000:
            return False
        age = now - self._began(record)
        if age > config.max_age * 1000:
            self._discard(part, record, "too old")
        elif age <= self._patience(record):
            self._leave(part, record)
        elif (number_in(record, TRANSACTION_CHECK_TIMES) or 0) >= config.check_max:
            self._discard(part, record, "asked too often")
        else:
            real_place(record)
            check_size(record.topic, record.body_size, record.properties_size, self._store.config)
            group = (find_property(record.properties, PGROUP) or b"").decode("utf-8", "replace")
            connection = self._check_backs.find(group)
            if connection is None:
                self._leave(part, record)
            else:
                add_copy(part.batch, record, (number_in(record, TRANSACTION_CHECK_TIMES) or 0) + 1, wait=True)
                self._add_step(part, _Step(offset, record, connection, is_copy=True))
        return True

    def is_joined(self, record: Record) -> bool:
        """Join a half message that could not be read at the start; False if its transaction has ended or continues as
        another one."""
        return not join_late(self._store, self._table, record)

    def _began(self, record: Record) -> int:
        """Return when the transaction began, in ms by the store's clock.

        That is when its first half message was stored. If that one cannot be read any more, it is the producer's time,
        but not before the oldest message of the log, because the producer's clock may be wrong.
        """
        first, stored = first_offset(record), record.store_timestamp
        if first == record.queue_offset:
            return stored
        began = half_stored_at(self._store, first)
        if began is not None:
            return min(began, stored)
        oldest = stored_at(self._store.log, self._store.log.min_offset)
        return stored if oldest is None else min(max(record.born_timestamp, oldest), stored)

    def _patience(self, record: Record) -> float:
        """Return the time without check-backs in ms: the immunity time that the producer requested, else the configured
        one."""
        asked_for = number_in(record, CHECK_IMMUNITY_TIME_IN_SECONDS)
        return self._context.config.timeout * 1000 if asked_for is None else asked_for * 1000

    def _leave(self, part: _Slice, record: Record) -> None:
        """Leave the half message where it is, unless too many others follow it: then store it again."""
        if self._table.end - record.queue_offset > FAR_HALVES:
            check_size(record.topic, record.body_size, record.properties_size, self._store.config)
            add_copy(part.batch, record, number_in(record, TRANSACTION_CHECK_TIMES) or 0, wait=False)
            self._add_step(part, _Step(record.queue_offset, record, None, is_copy=True))

    def _discard(self, part: _Slice, record: Record, reason: str) -> None:
        log.error("half_message_discarded", queue_offset=record.queue_offset, at=record.offset, reason=reason)
        add_discarded(part.batch, record)
        self._add_step(part, _Step(record.queue_offset, record, None, is_copy=False))

    def _add_step(self, part: _Slice, step: _Step) -> None:
        part.batch.tie_next_to(len(part.batch) - 1)
        add_end(part.batch, step.offset, self._store.log.clock.now_ms(), self._host)
        part.steps.append(step)

    # ------------------------------------------------------------------------------------------------------- writing

    def _new_slice(self) -> _Slice:
        return _Slice(AppendBatch(source=Source.TRANSACTION))

    def _write(self, part: _Slice) -> None:
        """Write the slice, and update the table by the rows that are written; :meth:`_ask` follows when they are
        durable."""
        steps, batch, table = part.steps, part.batch, self._table
        if not steps:
            return
        self.note_rest()
        batch.done = lambda done: self._ask(done, steps)
        self._context.append(batch)
        self._undispatched.note(batch, [2 * number for number, step in enumerate(steps) if step.is_copy])
        for number, step in enumerate(steps):
            if not is_written(batch, 2 * number):
                continue
            first = first_offset(step.record)
            if step.is_copy:
                table.moved[first] = batch.queue_offsets[2 * number]
            else:
                table.discard(first)
            table.close(step.offset, GONE)
            if is_written(batch, 2 * number + 1):
                table.noted(batch.queue_offsets[2 * number + 1], step.offset)
            else:
                table.unnoted.append(step.offset)

    def note_rest(self) -> None:
        """Write missing op messages; call this before a batch that ends copies."""
        table = self._table
        offsets, table.unnoted = table.unnoted, []
        if not offsets:
            return
        batch = AppendBatch(source=Source.TRANSACTION)
        for offset in offsets:
            add_end(batch, offset, self._store.log.clock.now_ms(), self._host)
        self._context.append(batch)
        for row, offset in enumerate(offsets):
            if is_written(batch, row):
                table.noted(batch.queue_offsets[row], offset)
            else:
                table.unnoted.append(offset)

    # ---------------------------------------------------------------------------------------------------- check-backs

    def _ask(self, batch: AppendBatch, steps: list[_Step]) -> None:
        """The copies are durable: send check-backs for transactions that are still open."""
        for number, step in enumerate(steps):
            row = 2 * number
            connection = step.connection
            if connection is None or not is_written(batch, row):
                continue
            if self._table.state(batch.queue_offsets[row]) == OPEN:
                try:
                    self._ask_one(self._store.log.read_record(batch.offsets[row]), connection)
                except Exception as error:
                    log.error("transaction_check_failed", queue_offset=batch.queue_offsets[row], reason=repr(error))

    def _ask_one(self, record: Record, connection: Connection) -> None:
        group = (find_property(record.properties, PGROUP) or b"").decode("utf-8", "replace")
        if connection.closed:
            found = self._check_backs.find(group)
            if found is None:
                return
            connection = found
        topic, queue_id = real_place(record)
        # As in RocketMQ's check-backs, because its brokers store the copy without waiting.
        properties = replace_properties(record.properties, {WAIT: b"false"})
        self._check_backs.ask(connection, attrs.evolve(record, topic=topic, queue_id=queue_id, properties=properties))
        log.debug("transaction_check_sent", group=group, queue_offset=record.queue_offset, peer=connection.address)

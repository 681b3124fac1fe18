"""The scan of the state table: sends check-backs for rows that are open for too long.

Source: RocketMQ 3.2 ``TransactionStateService`` (its timer task), ``DefaultTransactionCheckExecuter``. RocketMQ forgets
a transaction when its file of the log is deleted. GantryMQ discards and rolls back a transaction that is too old or had
too many check-backs, as the strategy ``half`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.errors import UnreadableRange
from gantrymq.kernel.store.log.record import Record
from gantrymq.plugins.interfaces import ProducerGroups
from gantrymq.plugins.transaction.check import CheckBackSender, slice_limits
from gantrymq.plugins.transaction.state_table.files import StateFiles
from gantrymq.plugins.transaction.state_table.records import add_discarded, add_end
from gantrymq.plugins.transaction.state_table.rows import read_prepared, state_row
from gantrymq.plugins.transaction.state_table.table import ENDS, StateRow
from gantrymq.plugins.transaction.strategy import StrategyContext
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.property_bytes import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

SLICE_ROWS = 256
"""The number of open rows after which the scan yields."""

log = structlog.get_logger("gantrymq.transaction")

EndAlone = Callable[[AppendBatch, dict[int, Record]], None]


class StateScan:
    """Scans the open transactions of ``files`` without those whose prepared records are in ``closing``.

    ``end_alone`` appends a batch in which transactions are rolled back. The numbers of check-backs are not stored: they
    begin at 0 when the broker starts.
    """

    def __init__(
        self, context: StrategyContext, files: StateFiles, closing: Container[int], end_alone: EndAlone
    ) -> None:
        self._context = context
        self._store = context.store
        self._files = files
        self._table = files.table
        self._closing = closing
        self._end_alone = end_alone
        self._check_backs = CheckBackSender(
            context.env, context.registry.get(ProducerGroups), context.registry.find(Deliveries)
        )
        self._asked: dict[int, int] = {}
        self._has_asked = False
        """Whether the current slice has sent a check-back."""

    def run(self) -> Iterator[None]:
        """Scan once; yields after each slice, and several times after one with a check-back if the rate is low."""
        self._forget_ended()
        most, rests = slice_limits(self._context.config.checks_per_second)
        now = self._store.log.clock.now_ms()
        looked = asked = 0
        for number, row in chain(self._unread_rows(), self._table.open_rows()):
            if row is not None and row.log_offset not in self._closing:
                looked += 1
                try:
                    verdict = self._check(number, row, now)
                except Exception as error:
                    log.error("transaction_check_failed", row=number, reason=repr(error))
                    verdict = True
                if verdict is None:
                    return
                asked += verdict
            if looked >= SLICE_ROWS or asked >= most or row is None:
                looked = asked = 0
                has_asked, self._has_asked = self._has_asked, False
                yield from repeat(None, rests if has_asked else 1)

    def _unread_rows(self) -> Iterator[tuple[int, StateRow]]:
        """Yield the rows of prepared records that a rebuild of the table could not read, and that can be read now."""
        unread = self._files.unread
        for offset, size in list(unread.items()):
            try:
                record = read_prepared(self._store.log, offset)
            except UnreadableRange as error:
                log.error("prepared_record_unreadable", log_offset=offset, reason=str(error))
                continue
            if record is not None:
                yield record.queue_offset, state_row(record, size)
            else:
                unread.pop(offset, None)

    def _forget_ended(self) -> None:
        if self._files.unread:
            return  # their row numbers are not known
        found = self._table.first_open()
        low = self._table.end if found is None else found[0]
        self._asked = {number: times for number, times in self._asked.items() if number >= low}

    def _check(self, number: int, row: StateRow, now: int) -> bool | None:
        """Handle one open row. True: sent or wrote something. None: it and all following rows are too young."""
        config = self._context.config
        if row.seconds * 1000 > now - config.timeout * 1000:
            return None
        record = read_prepared(self._store.log, row.log_offset)
        if record is None:
            self._table.finish({number: (row.log_offset, ENDS[1])})
            return False
        age = now - record.store_timestamp
        if age < config.timeout * 1000:
            return None
        if age > config.max_age * 1000:
            return self._discard(record, "too old")
        if age <= self._patience(record):
            return False
        if self._asked.get(number, 0) >= config.check_max:
            return self._discard(record, "asked too often")
        group = (find_property(record.properties, PGROUP) or b"").decode("utf-8", "replace")
        connection = self._check_backs.find(group)
        if connection is None:
            return False
        self._ask(number, group, record, connection)
        return True

    @staticmethod
    def _patience(record: Record) -> int:
        """Return the immunity time that the producer requested, in ms."""
        value = find_property(record.properties, CHECK_IMMUNITY_TIME_IN_SECONDS)
        return int(value) * 1000 if value is not None and value.isdigit() and len(value) <= 18 else 0

    def _ask(self, number: int, group: str, record: Record, connection: Connection) -> None:
        self._check_backs.ask(connection, record)
        self._asked[number] = self._asked.get(number, 0) + 1
        self._has_asked = True
        log.debug("transaction_check_sent", group=group, row=number, peer=connection.address)

    def _discard(self, record: Record, reason: str) -> bool:
        log.error("half_message_discarded", row=record.queue_offset, at=record.offset, reason=reason)
        batch = AppendBatch(source=Source.TRANSACTION)
        add_discarded(batch, record)
        batch.tie_next_to(0)
        add_end(batch, record, is_commit=False, wait=False)
        self._end_alone(batch, {1: record})
        return True

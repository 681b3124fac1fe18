"""END_TRANSACTION (37): a producer says what became of its transaction.

The request names a place in the log and a queue offset; both must fit a half message of the producer's group. Source:
RocketMQ 4.9.7 ``EndTransactionProcessor``, whose codes, texts and order of checks these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.commitlog import CorruptRange, OutOfLog
from gantrymq.kernel.processors import Request
from gantrymq.kernel.record import BadRecord, Record
from gantrymq.plugins.transaction.strategy import Ending, Strategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.transaction_headers import EndTransactionHeader, TransactionState

if TYPE_CHECKING:
    from gantrymq.kernel.store import Store

log = structlog.get_logger("gantrymq.transaction")

_ENDS = (TransactionState.COMMIT, TransactionState.ROLLBACK)


class EndTransactions:
    """Batch processor of 37: what a sweep brings goes to the strategy in one call."""

    def __init__(self, store: Store, strategy: Strategy, *, is_slave: bool) -> None:
        self._store = store
        self._strategy = strategy
        self._is_slave = is_slave

    def handle(self, requests: list[Request]) -> None:
        """End each transaction; a bad request is answered at once and harms no other.

        One that says nothing yet (the state 0, or one that there is not) gets no answer, as in RocketMQ.
        """
        endings = []
        for request in requests:
            try:
                ending = self._read(request)
            except RemoteFault as fault:
                log.warning(
                    "transaction_not_ended", peer=request.connection.address, code=fault.code, reason=fault.remark
                )
                request.answer(fault.code, fault.remark)
            else:
                if ending is not None:
                    endings.append(ending)
        if endings:
            self._strategy.end(endings)

    def _read(self, request: Request) -> Ending | None:
        header = request.header(EndTransactionHeader)
        if self._is_slave:
            raise RemoteFault(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
        if header.commit_or_rollback not in _ENDS:
            return None
        record = self._find(header.commit_log_offset)
        if record.property_of(b"PGROUP") != header.producer_group.encode():
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return Ending(request, header, record, header.commit_or_rollback == TransactionState.COMMIT)

    def _find(self, offset: int) -> Record:
        """The half message at ``offset``: anything else there is none."""
        try:
            if 0 <= offset < self._store.log.end:
                record = self._store.log.look_at(offset)
                if self._strategy.is_prepared(record):
                    return record
        except (OutOfLog, CorruptRange, BadRecord):
            pass
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")

"""END_TRANSACTION (37): a producer says what became of its transaction.

The request names a place in the log and a queue offset; both must fit a half message of the producer's group. Source:
RocketMQ 4.9.7 ``EndTransactionProcessor``, whose codes, texts and order of checks these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.processors import Request
from gantrymq.kernel.reading import look_at
from gantrymq.plugins.transaction.strategy import Ending, Strategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.transaction_headers import EndTransactionHeader, TransactionState

if TYPE_CHECKING:
    from gantrymq.kernel.record import Record
    from gantrymq.kernel.store import Store

log = structlog.get_logger("gantrymq.transaction")

_COMMIT = int(TransactionState.COMMIT)
_ENDS = (_COMMIT, int(TransactionState.ROLLBACK))


class EndTransactions:
    """Batch processor of 37: what a sweep brings goes to the strategy in one call."""

    def __init__(self, store: Store, strategy: Strategy, *, is_slave: bool) -> None:
        self._store = store
        self._strategy = strategy
        self._is_slave = is_slave
        self.commits = 0
        """How often a producer said "commit" of a transaction that there is; a word that was repeated counts again."""
        self.rollbacks = 0
        """And "roll back"."""

    def handle(self, requests: list[Request]) -> None:
        """End each transaction; a bad request is answered at once and harms no other.

        One that says nothing yet (the state 0, or one that there is not) gets no answer, as in RocketMQ.
        """
        asked: list[tuple[Request, EndTransactionHeader]] = []
        is_slave = self._is_slave
        for request in requests:
            try:
                header = request.header(EndTransactionHeader)
                if is_slave:
                    raise RemoteFault(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
            except RemoteFault as fault:
                _refuse(request, fault)
            else:
                if header.commit_or_rollback in _ENDS:
                    asked.append((request, header))
        if not asked:
            return
        endings = []
        records = look_at(self._store.log, [header.commit_log_offset for _, header in asked])
        for (request, header), record in zip(asked, records, strict=True):
            try:
                endings.append(self._check(request, header, record))
            except RemoteFault as fault:
                _refuse(request, fault)
        if endings:
            commits = sum(ending.is_commit for ending in endings)
            self.commits += commits
            self.rollbacks += len(endings) - commits
            self._strategy.end(endings)

    def _check(self, request: Request, header: EndTransactionHeader, record: Record | None) -> Ending:
        """``record`` lies where the header says. Unless it is a half message there is none."""
        if record is None or not self._strategy.is_prepared(record):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if record.property_of(b"PGROUP") != header.producer_group.encode():
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return Ending(request, header, record, header.commit_or_rollback == _COMMIT)


def _refuse(request: Request, fault: RemoteFault) -> None:
    log.warning("transaction_not_ended", peer=request.connection.address, code=fault.code, reason=fault.remark)
    request.answer(fault.code, fault.remark)

"""END_TRANSACTION (37): a producer says what became of its transaction.

The request names a place in the log and a queue offset; both must fit a half message of the producer's group. Source:
RocketMQ 4.9.7 ``EndTransactionProcessor``, whose codes, texts and order of checks these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.processors import Request
from gantrymq.kernel.reading import look_at
from gantrymq.plugins.transaction.fast import match_records, read_endings
from gantrymq.plugins.transaction.strategy import Strategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.transaction_headers import EndTransactionHeader

if TYPE_CHECKING:
    from gantrymq.kernel.store import Store

log = structlog.get_logger("gantrymq.transaction")


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
        if self._is_slave:
            for request in requests:
                _refuse_at_slave(request)
            return
        endings = read_endings(requests, _refuse)
        if endings:
            records = look_at(self._store.log, [ending.commit_log_offset for ending in endings])
            endings = match_records(endings, records, self._strategy.is_prepared, _refuse)
        if endings:
            commits = len([ending for ending in endings if ending.is_commit])
            self.commits += commits
            self.rollbacks += len(endings) - commits
            self._strategy.end(endings)


def _refuse_at_slave(request: Request) -> None:
    fault = RemoteFault(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
    try:
        request.header(EndTransactionHeader)
    except RemoteFault as unreadable:
        fault = unreadable
    _refuse(request, fault)


def _refuse(request: Request, fault: RemoteFault) -> None:
    log.warning("transaction_not_ended", peer=request.connection.address, code=fault.code, reason=fault.remark)
    request.answer(fault.code, fault.remark)

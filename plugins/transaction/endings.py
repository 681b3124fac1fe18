"""END_TRANSACTION (37): a producer says what became of its transaction.

The request names a place in the log and a queue offset; both must fit a half message of the producer's group. Source:
RocketMQ 4.9.7 ``EndTransactionProcessor``, whose codes, texts and order of checks these are. Unlike there, the record
at the place in the log is not read, far less believed, before the strategy has said that it put a half message there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.layouts import LOG_PLACE
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.reading import read_many
from gantrymq.plugins.transaction.fast import match_records, read_endings
from gantrymq.plugins.transaction.strategy import Strategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.records import MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from gantrymq.kernel.store.store import Store
    from gantrymq.plugins.transaction.plain import Ending

TURN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of half messages that are read, and written again, in one turn; a single one may have more."""

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

    def handle(self, requests: list[Request]) -> list[Request]:
        """End each transaction; a bad request is answered at once and harms no other.

        One that says nothing yet (the state 0, or one that there is not) gets no answer, as in RocketMQ. A request of
        some bytes stands for a message of megabytes: what is beyond :data:`TURN_BYTES` is returned, and comes again.
        """
        left: list[Request] = []
        if self._is_slave:
            for request in requests:
                _refuse_at_slave(request)
            return left
        endings = read_endings(requests, _refuse)
        if endings:
            endings, others = self._strategy.split_named(endings)
            for ending in others:
                _refuse(ending.request, self._why_not_named(ending))
        if endings:
            count = self._count_for_turn([ending.commit_log_offset for ending in endings])
            left = [ending.request for ending in endings[count:]]
            endings = endings[:count]
            records = read_many(self._store.log, [ending.commit_log_offset for ending in endings])
            endings = match_records(endings, records, self._strategy.is_prepared, _refuse)
        if endings:
            commits = len([ending for ending in endings if ending.is_commit])
            self.commits += commits
            self.rollbacks += len(endings) - commits
            self._strategy.end(endings)
        return left

    def _count_for_turn(self, offsets: list[int]) -> int:
        """How many of the half messages at these places are read in one turn, one at least."""
        if max(offsets) - min(offsets) <= TURN_BYTES and len(set(offsets)) == len(offsets):
            return len(offsets)  # they lie in so few bytes
        size = 0
        for count, offset in enumerate(offsets, start=1):
            with suppress(OutOfLog, CorruptRange, OSError):
                size += int.from_bytes(self._store.log.view(offset, 4), "big")
            if size >= TURN_BYTES:
                return count
        return len(offsets)

    def _why_not_named(self, ending: Ending) -> RemoteFault:
        """RocketMQ's text for a place in the log without a record, or another one than the queue offset names."""
        try:
            head = self._store.log.view(ending.commit_log_offset, LOG_PLACE.size)
        except (OutOfLog, CorruptRange):
            head = bytes(LOG_PLACE.size)
        magic, place = LOG_PLACE.unpack(head)
        if magic in (MAGIC_V1, MAGIC_V2) and place == ending.commit_log_offset:
            return RemoteFault(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return RemoteFault(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


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

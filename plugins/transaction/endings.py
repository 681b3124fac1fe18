"""END_TRANSACTION (37): a producer commits or rolls back its transaction.

The request has a log offset and a queue offset; both must be those of a half message of the producer's group. Source:
RocketMQ 4.9.7 ``EndTransactionProcessor``, whose codes, texts and order of checks these are. Unlike RocketMQ, the
record at the log offset is not read before the strategy has confirmed that it stored a half message there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.layouts import LOG_PLACE
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.reading import read_many
from gantrymq.plugins.transaction import fast as loops
from gantrymq.plugins.transaction.counts import EndCounts
from gantrymq.plugins.transaction.strategy import Strategy
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.records import MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.kernel.store.log.record import Record
    from gantrymq.kernel.store.store import Store
    from gantrymq.plugins.transaction.plain import Ending

TURN_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of half messages that are read and written again in one turn; a single one may have more."""

log = structlog.get_logger("gantrymq.transaction")


class EndTransactions:
    """Batch processor of 37: all requests of a turn go to the strategy in one call."""

    def __init__(self, store: Store, strategy: Strategy, clock: Callable[[], float], *, is_slave: bool) -> None:
        """``clock``: monotonic seconds."""
        self._store = store
        self._strategy = strategy
        self._is_slave = is_slave
        self.counts = EndCounts()
        # It is never over: accepted and refused requests of one host alternate.
        self._outages = Outages(log, clock)

    def handle(self, requests: list[Request]) -> list[Request]:
        """End each transaction; an invalid request is answered at once and does not affect others.

        A request without an outcome (state 0 or an unknown one) gets no response, as in RocketMQ. A small request can
        refer to a large message: requests beyond :data:`TURN_BYTES` are returned and processed in a later turn.
        """
        left: list[Request] = []
        if self._is_slave:
            for request in requests:
                self._refuse_at_slave(request)
            return left
        endings = loops.read_endings(requests, self._refuse)
        if endings:
            endings, others = self._strategy.split_named(endings)
            for ending in others:
                self._refuse(ending.request, self._why_not_named(ending))
        if endings:
            count = self._count_for_turn([ending.commit_log_offset for ending in endings])
            left = [ending.request for ending in endings[count:]]
            endings = endings[:count]
            records: list[Record | None] = [None] * len(endings)
            with suppress(OSError):  # no descriptor is left: a check-back asks for the outcome again
                records = read_many(self._store.log, [ending.commit_log_offset for ending in endings])
            endings = loops.match_records(endings, records, self._strategy.is_prepared, self._refuse)
        if endings:
            self.counts.ended(endings, self._store.log.clock.now_ms())
            self._strategy.end(endings)
        return left

    def _count_for_turn(self, offsets: list[int]) -> int:
        """Return how many of the half messages at these offsets are read in one turn, at least one."""
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
        """RocketMQ's text for a log offset without a record, or with another one than that of the queue offset."""
        try:
            head = self._store.log.view(ending.commit_log_offset, LOG_PLACE.size)
        except (OutOfLog, CorruptRange):
            head = bytes(LOG_PLACE.size)
        magic, place = LOG_PLACE.unpack(head)
        if magic in (MAGIC_V1, MAGIC_V2) and place == ending.commit_log_offset:
            return RemoteFault(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return RemoteFault(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")

    def _refuse_at_slave(self, request: Request) -> None:
        fault = RemoteFault(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
        try:
            request.header(EndTransactionHeader)
        except RemoteFault as unreadable:
            fault = unreadable
        self._refuse(request, fault)

    def _refuse(self, request: Request, fault: RemoteFault) -> None:
        peer = request.connection.address
        self._outages.warning(
            "transaction_not_ended", peer.rpartition(":")[0], peer=peer, code=fault.code, reason=fault.remark
        )
        request.answer(fault.code, fault.remark)

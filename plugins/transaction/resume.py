"""RESUME_CHECK_HALF_MESSAGE (323): a discarded half message is stored again, and check-backs to its producers resume.

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor.resumeCheckHalfMessage``, with its code and texts. RocketMQ accepts any
message of its log, even if its transaction has ended, and delivers that one twice. GantryMQ accepts only discarded
ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.batch import STORED, AppendBatch, Source, Trait
from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.processors import take_each
from gantrymq.kernel.store.log.record import BadRecord, Record
from gantrymq.kernel.store.reading import find_named
from gantrymq.plugins.transaction.endings import TURN_BYTES
from gantrymq.plugins.transaction.half.rows import real_place
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import ResumeCheckHeader
from gantrymq.remoting.message_ids import parse_offset_message_id
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import REAL_QID, REAL_TOPIC, TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.kernel.processors import Request
    from gantrymq.kernel.store.store import Store

NOT_FOUND = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
NOT_PUT = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."

REQUEST_BYTES: Final = 4096
"""The size that a request without a message counts for, because it takes time too."""

_OWN: dict[bytes, bytes | None] = {
    REAL_TOPIC: None,
    REAL_QID: None,
    TRANSACTION_CHECK_TIMES: None,
    TRAN_PREPARED_QUEUE_OFFSET: None,
}

log = structlog.get_logger("gantrymq.transaction")


class ResumeHalves:
    """Answers 323. ``append`` takes a batch through the write path, which hides its rows like other half messages."""

    def __init__(self, store: Store, append: Callable[[AppendBatch], None], *, is_slave: bool) -> None:
        self._store = store
        self._append = append
        self._is_slave = is_slave

    def handle(self, requests: list[Request]) -> int:
        """Append one batch for all requests, and answer each when its message is durable.

        Requests beyond :data:`TURN_BYTES` are left for a later turn. Returns how many were taken.
        """
        batch = AppendBatch(done=_answer, traits=Trait.PREPARED, source=Source.TRANSACTION)
        taken = size = 0
        while taken < len(requests) and size < TURN_BYTES:
            before = len(batch)
            take_each(requests[taken : taken + 1], partial(self._add, batch))
            size += REQUEST_BYTES + sum(len(body) for body in batch.bodies[before:])
            taken += 1
        if len(batch):
            self._append(batch)
        return taken

    def _add(self, batch: AppendBatch, request: Request) -> None:
        header = request.header(ResumeCheckHeader)
        if self._is_slave:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, NOT_PUT)
        record = self._find(header.msg_id or "")
        topic, queue_id = real_place(record)
        properties = replace_properties(record.properties, _OWN)
        batch.add_stored(record, topic, queue_id, properties=properties, origin=request)
        log.info("transaction_resumed", at=record.offset, topic=topic)

    def _find(self, message_id: str) -> Record:
        """Return the discarded half message with this id (``MessageDecoder.decodeMessageId``)."""
        try:
            _, offset = parse_offset_message_id(message_id)
            named = find_named(self._store, offset)
            if named is not None and named.topic == TRANS_CHECK_MAX_TIME_TOPIC:
                return self._store.log.read_record(offset)
        except (ValueError, OutOfLog, CorruptRange, BadRecord):
            pass
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, NOT_FOUND)


def _answer(batch: AppendBatch) -> None:
    for row, request in enumerate(batch.origins):
        if batch.statuses[row] in STORED:
            request.answer(ResponseCode.SUCCESS)
        else:
            log.warning("transaction_not_resumed", reason=batch.remarks.get(row))
            request.answer(ResponseCode.SYSTEM_ERROR, NOT_PUT)

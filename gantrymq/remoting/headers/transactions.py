"""The headers of requests that end a transaction or check it back.

Source: RocketMQ 4.9.7 ``EndTransactionRequestHeader``, ``CheckTransactionStateRequestHeader``, ``MessageSysFlag``.
"""

from __future__ import annotations

from enum import IntEnum

from gantrymq.remoting.headers.header import Header, Int32, Int64


class TransactionState(IntEnum):
    """The state of a transaction, in ``EndTransactionHeader.commit_or_rollback`` and in bits 2 and 3 of a sys flag."""

    UNKNOWN = 0
    PREPARED = 4
    COMMIT = 8
    ROLLBACK = 12


class EndTransactionHeader(Header, kw_only=True):
    """END_TRANSACTION (37): the outcome of a half message. The first offset is its queue offset, the second one its log
    offset; ``commit_or_rollback`` is a :class:`TransactionState`. 5.x checks the write permission for ``topic``."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), a check-back to a producer; the body is the record of the half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): ``msg_id`` is the broker's id of a discarded half message
    (``ResumeCheckHalfMessageRequestHeader``)."""

    msg_id: str | None = None

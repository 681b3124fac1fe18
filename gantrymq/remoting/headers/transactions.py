"""The headers by which a transaction ends and is checked back.

Source: RocketMQ 4.9.7 ``EndTransactionRequestHeader``, ``CheckTransactionStateRequestHeader``, ``MessageSysFlag``.
"""

from __future__ import annotations

from enum import IntEnum

from gantrymq.remoting.headers.header import Header, Int32, Int64


class TransactionState(IntEnum):
    """How a transaction stands, in ``EndTransactionHeader.commit_or_rollback`` and in bits 2 and 3 of a sys flag."""

    UNKNOWN = 0
    PREPARED = 4
    COMMIT = 8
    ROLLBACK = 12


class EndTransactionHeader(Header, kw_only=True):
    """END_TRANSACTION (37): what became of a half message. The first offset is its place in the queue of half messages,
    the second one its place in the log; ``commit_or_rollback`` is a :class:`TransactionState`. 5.x asks for the right
    to write to ``topic``."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), a broker's question to a producer; the half message is the body, as a record."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): ``msg_id`` is the broker's id of a message that was put aside
    (``ResumeCheckHalfMessageRequestHeader``)."""

    msg_id: str | None = None

"""Refuses half messages by configuration. Source: RocketMQ 4.9.7 ``SendMessageProcessor``."""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.remoting.codes import ResponseCode


def refuse_halves(batch: AppendBatch, rows: list[int], config: TransactionConfig, open_count: int) -> bool:
    """Refuse all ``rows`` if the configuration refuses half messages, or too many are open. Returns whether it did."""
    if config.reject:
        code, remark = (
            ResponseCode.NO_PERMISSION,
            "this broker takes no transaction messages (plugin.transaction.reject)",
        )
    elif open_count + len(rows) > config.max_open:
        code, remark = ResponseCode.SYSTEM_BUSY, f"{open_count} transactions are open (plugin.transaction.max_open)"
    else:
        return False
    for row in rows:
        batch.refuse(row, code, remark)
    return True

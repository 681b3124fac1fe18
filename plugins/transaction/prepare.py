"""Which rows of a batch are half messages, and which of them are refused.

Source: RocketMQ 4.9.7 ``SendMessageProcessor``.
"""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.remoting.codes import ResponseCode

_NO_DELAYS = (None, b"0")


def half_rows(batch: AppendBatch) -> list[int]:
    """The live rows that are half messages (property TRAN_MSG), of those that may be; others of them are refused.

    What a client before 4.6.1 sends back to be consumed again has the property still, and is none. A half message with
    a delay would lie in a queue of delays, where no transaction finds it: RocketMQ loses it, here it is refused.
    """
    rows = []
    property_of = batch.property_of
    for row in batch.live:
        if (property_of(row, b"TRAN_MSG") or b"").lower() != b"true":
            continue
        is_delayed = property_of(row, b"DELAY") not in _NO_DELAYS
        if is_delayed and batch.reconsume_times[row] > 0:
            continue
        if is_delayed:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a half message cannot have a delay level")
        elif not property_of(row, b"PGROUP"):
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a half message must name its producer group (PGROUP)")
        else:
            rows.append(row)
    return rows


def refuse_halves(batch: AppendBatch, rows: list[int], config: TransactionConfig, open_count: int) -> bool:
    """Refuse all ``rows`` when the broker takes no half messages, or has too many already; whether it did."""
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

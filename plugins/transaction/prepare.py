"""Refuses half messages by configuration, and those that the timer would take away.

Source: RocketMQ 4.9.7 ``SendMessageProcessor``; 5.3.3 ``HookUtils``, ``EndTransactionProcessor``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.transaction.config import TransactionConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.property_bytes import TIMER_OUT_MS
from gantrymq.remoting.timer_times import wanted

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.clock import StoreClock


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


def refuse_timed(batch: AppendBatch, rows: list[int], clock: StoreClock) -> list[int]:
    """Refuse the half messages among ``rows`` that name a later time, or an invalid one; returns the others.

    RocketMQ 5.3.3 moves such a half message to the timer's topic, with the topic of half messages as its destination;
    a commit stores the message there too, and it never reaches its own topic. A time that has passed has no effect.
    """
    accepted = []
    now = clock.now_ms()
    for row in rows:
        find = partial(batch.property_of, row)
        try:
            due = None if find(TIMER_OUT_MS) is not None else wanted(find, now, clock.at_wall)
        except ValueError as error:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {error}")
            continue
        if due is None or due <= now:
            accepted.append(row)
        else:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "a half message cannot be delivered at a later time")
    return accepted

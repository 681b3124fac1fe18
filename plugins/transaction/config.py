"""Section ``[plugin.transaction]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import duration, number, plain


@attrs.frozen(kw_only=True)
class TransactionConfig:
    """The strategy for half messages, and the times of check-backs."""

    strategy: Literal["half", "state_table"] = "half"
    """``half``: as RocketMQ 4.x and 5.x; ``state_table``: as RocketMQ 3.x."""
    check_interval: float = duration("60s", minimum="10ms", maximum="1h", rocketmq="transactionCheckInterval")
    """The time between two scans of the open transactions."""
    timeout: float = duration("6s", minimum="10ms", maximum="1d", rocketmq="transactionTimeOut")
    """The age of a transaction at its first check-back."""
    check_max: int = number(15, 1, 1_000_000, rocketmq="transactionCheckMax")
    """After this many check-backs the message is discarded (TRANS_CHECK_MAX_TIME_TOPIC)."""
    max_age: float = duration("72h", minimum="1s", maximum="365d")
    """A half message is discarded at this age, also if its producer is connected."""
    checks_per_second: int = number(1000, 1, 1_000_000)
    """The most check-backs per second."""
    max_open: int = number(1_000_000, 1)
    """With this many open transactions, further half messages are refused (code 2, busy)."""
    file_rows: int = number(2_000_000, 16, 50_000_000)
    """``state_table``: rows of a file of the table, and entries of a file of its redo log; an existing store needs the
    same value."""
    reject: bool = plain(False, rocketmq="rejectTransactionMessage")
    """Refuse all half messages (code 16)."""

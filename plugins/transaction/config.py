"""Section ``[plugin.transaction]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import duration, number, plain


@attrs.frozen(kw_only=True)
class TransactionConfig:
    """How half messages are kept, and when their producers are asked."""

    strategy: Literal["half", "state_table"] = "half"
    """``half`` keeps them as RocketMQ 4.x and 5.x do, ``state_table`` as 3.x did."""
    check_interval: float = duration("60s", minimum="10ms", maximum="1h", rocketmq="transactionCheckInterval")
    """The time between two walks over the open transactions."""
    timeout: float = duration("6s", minimum="10ms", maximum="1d", rocketmq="transactionTimeOut")
    """As long a producer has until it is first asked."""
    check_max: int = number(15, 1, 1_000_000, rocketmq="transactionCheckMax")
    """After so many checks the message is put aside (TRANS_CHECK_MAX_TIME_TOPIC)."""
    max_age: float = duration("72h", minimum="1s", maximum="365d")
    """A message whose producers cannot be asked is put aside when it is this old."""
    checks_per_second: int = number(1000, 1, 1_000_000)
    """As many questions are sent at most."""
    max_open: int = number(1_000_000, 1)
    """With so many open transactions no further half message is taken (code 2, busy)."""
    file_rows: int = number(2_000_000, 16, 50_000_000)
    """``state_table``: rows of a file of the table, and entries of one of its redo log; must stay as it was."""
    reject: bool = plain(False, rocketmq="rejectTransactionMessage")
    """Take no half messages at all (code 16)."""

"""Section ``[plugin.reply]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, plain, size


@attrs.frozen(kw_only=True)
class ReplyConfig:
    """Storage of replies, and limits for slow requesters."""

    store: bool = plain(True, rocketmq="storeReplyMessageEnable")
    """Store each reply in the topic that it was sent to."""
    push_timeout: float = duration("10s", minimum="10ms", maximum="10m")
    """How long a requester may take to acknowledge a reply, including the time that the reply waits behind others."""
    max_waiting: int = number(10_000, 4, 1_000_000, rocketmq="replyThreadPoolQueueCapacity")
    """The most unacknowledged replies; at most a quarter of them for one requester."""
    max_waiting_bytes: int = size("64 MiB", minimum="64 KiB", maximum="16 GiB")
    """The most bytes of their bodies and properties; at most a quarter for one requester."""

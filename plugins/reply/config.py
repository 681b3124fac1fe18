"""Section ``[plugin.reply]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, plain, size


@attrs.frozen(kw_only=True)
class ReplyConfig:
    """Whether replies are stored, and how many may wait for slow requesters."""

    store: bool = plain(True, rocketmq="storeReplyMessageEnable")
    """Store each reply in the topic that it was sent to."""
    push_timeout: float = duration("10s", minimum="10ms", maximum="10m")
    """How long the requester may take to acknowledge a reply, the time included in which the reply waits its turn."""
    max_waiting: int = number(10_000, 4, 1_000_000, rocketmq="replyThreadPoolQueueCapacity")
    """Replies that requesters have not acknowledged yet; one requester gets a quarter of them."""
    max_waiting_bytes: int = size("64 MiB", minimum="64 KiB", maximum="16 GiB")
    """Bytes of their bodies and properties; one requester gets a quarter of them as well."""

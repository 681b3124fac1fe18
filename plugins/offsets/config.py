"""Section ``[plugin.offsets]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import number, size


@attrs.frozen(kw_only=True)
class OffsetsConfig:
    """The limit on offsets, and where a group without one begins."""

    max_entries: int = number(100_000, 1, 10_000_000)
    """Pairs of topic and group; each has one offset per queue."""
    from_start_within: int = size("4 GiB")
    """A group that never committed an offset begins at a queue's first message if that message is at most this many
    bytes behind the log's end (RocketMQ: 40 % of the machine's memory). Otherwise the client's consumeFromWhere
    decides."""

"""Section ``[plugin.offsets]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import number, size


@attrs.frozen(kw_only=True)
class OffsetsConfig:
    """How many offsets are kept, and where a group without one begins."""

    max_entries: int = number(100_000, 1, 10_000_000)
    """Pairs of topic and group; each has one offset a queue."""
    from_start_within: int = size("4 GiB")
    """A group that never committed begins at a queue's first message if that lies at most so many bytes behind the
    log's end (RocketMQ: 40 % of the machine's memory). Else the client decides by its consumeFromWhere."""

"""How a consumer is doing, queue by queue."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gantrymq.remoting.bodies.queues import MessageQueue


@attrs.frozen
class QueueStatistics:
    """One queue of a consumer. Offsets are queue offsets, ages are in seconds, times in ms since 1970."""

    position: int
    """The offset that is pulled next; -1, as with ``committable``, until the start is known."""
    committable: int
    """The offset up to which all is acknowledged: the group continues there after a crash."""
    end: int
    """The offset that the queue's next message gets, as the last answer of the broker had it."""
    outstanding: int
    """Messages that were fetched and are not acknowledged."""
    outstanding_bytes: int
    """The size of these messages as stored, in bytes."""
    oldest_age: float | None
    """The seconds since the oldest outstanding message was fetched; None without one."""
    stalled: bool
    """Whether nothing is fetched because acknowledgments are missing, for so long that a warning was logged."""
    last_pull: int
    """When the broker last answered a pull, in ms since 1970; 0 before the first time."""
    last_acknowledged: int
    """When a message was last acknowledged, in ms since 1970; 0 before the first time."""

    @property
    def lag(self) -> int:
        """Messages of the queue that are not acknowledged."""
        return max(0, self.end - self.committable)


@attrs.frozen
class ConsumerStatistics:
    """A consumer as it is now."""

    queues: Mapping[MessageQueue, QueueStatistics]
    """The queues that are this member's, those of the group's retry topic among them."""
    fetched: int
    """Messages fetched since the consumer began."""
    acknowledged: int
    """Messages acknowledged since then."""
    returned: int
    """Messages sent back since then, with ``retry`` or because of ``consume_timeout``."""
    fetched_per_second: float
    """Messages fetched per second, over the last minute."""
    acknowledged_per_second: float
    """Messages acknowledged per second, over the last minute."""
    returned_per_second: float
    """Messages sent back per second, over the last minute."""
    last_error: str | None
    """What failed last while pulling, committing or sharing out queues; it is tried again."""
    last_error_at: int
    """When that was, in ms since 1970; 0 for never."""

    @property
    def lag(self) -> int:
        """Messages of all queues that are not acknowledged."""
        return sum(queue.lag for queue in self.queues.values())

    @property
    def outstanding(self) -> int:
        """Messages of all queues that were fetched and are not acknowledged."""
        return sum(queue.outstanding for queue in self.queues.values())

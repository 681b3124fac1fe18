"""How a consumer is doing, queue by queue."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gantrymq.remoting.bodies.queues import MessageQueue


@attrs.frozen
class QueueStatistics:
    """One queue of a consumer. Offsets are queue offsets, ages are in seconds, times in ms since 1970."""

    position: int
    """The offset that is pulled next."""
    committable: int
    """The offset up to which all is acknowledged: the group continues there after a crash."""
    end: int
    """The offset that the queue's next message gets, as the last answer of the broker had it."""
    outstanding: int
    """Messages that were fetched and are not acknowledged."""
    outstanding_bytes: int
    oldest_age: float | None
    """How long ago the oldest outstanding message was fetched; None without one."""
    stalled: bool
    """Whether nothing is fetched because acknowledgments are missing, for so long that a warning was logged."""
    last_pull: int
    """When the broker last answered a pull; 0 before the first time."""
    last_acknowledged: int
    """When a message was last acknowledged; 0 before the first time."""

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
    returned: int
    """Messages returned with ``retry``."""
    fetched_per_second: float
    """Over the last minute, as the two that follow."""
    acknowledged_per_second: float
    returned_per_second: float
    last_error: str | None
    """What failed last while pulling, committing or sharing out queues; it is tried again."""
    last_error_at: int
    """When, in ms since 1970; 0 for never."""

    @property
    def lag(self) -> int:
        """Messages of all queues that are not acknowledged."""
        return sum(queue.lag for queue in self.queues.values())

    @property
    def outstanding(self) -> int:
        """Messages of all queues that were fetched and are not acknowledged."""
        return sum(queue.outstanding for queue in self.queues.values())

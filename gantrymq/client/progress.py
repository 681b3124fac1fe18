"""How far one queue is consumed: what was pulled, what is done, what may be committed. No I/O.

Source of the limits: RocketMQ 4.9.7 ``DefaultMQPushConsumer``, ``ProcessQueue``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

OUTSTANDING_MAX_MESSAGES: Final = 1000
OUTSTANDING_MAX_BYTES: Final = 100 * 1024 * 1024
OUTSTANDING_MAX_SPAN: Final = 2000


class Progress:
    """The messages of one queue between pull and acknowledgment.

    Offsets are pulled in ascending order and acknowledged in any. ``position`` is the offset to pull next.
    """

    def __init__(self, position: int, messages_max: int | None = None) -> None:
        """``messages_max``: how many may be outstanding."""
        self.position = position
        self._messages_max = messages_max or OUTSTANDING_MAX_MESSAGES
        self._span_max = max(OUTSTANDING_MAX_SPAN, 2 * self._messages_max if messages_max else 0)
        self._order: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._pulls: deque[tuple[int, float]] = deque()

    @property
    def bytes(self) -> int:
        """The size of what is outstanding."""
        return self._bytes

    def oldest_since(self) -> float | None:
        """When the oldest outstanding message was pulled, as :meth:`batch_pulled` had it; None without one."""
        oldest = self.committable
        if not self._sizes:
            return None
        while len(self._pulls) > 1 and self._pulls[0][0] < oldest:
            self._pulls.popleft()
        return self._pulls[0][1] if self._pulls else None

    @property
    def outstanding(self) -> int:
        """Messages that were pulled and are not done."""
        return len(self._sizes)

    @property
    def full(self) -> bool:
        """Whether so much is outstanding that no more must be pulled."""
        return (
            len(self._sizes) >= self._messages_max
            or self._bytes >= OUTSTANDING_MAX_BYTES
            or self.position - self.committable >= self._span_max
        )

    @property
    def committable(self) -> int:
        """The offset to go on from after a crash: the oldest message that is not done, else the next to pull."""
        order = self._order
        while order and order[0] not in self._sizes:
            order.popleft()
        return order[0] if order else self.position

    def pulled(self, offset: int, size: int) -> None:
        """Count a message of ``size`` bytes as outstanding."""
        self._order.append(offset)
        self._sizes[offset] = size
        self._bytes += size

    def batch_pulled(self, at: float) -> None:
        """The messages counted last came at the time ``at``."""
        pulls = self._pulls
        oldest = self.committable
        while pulls and pulls[0][0] < oldest:
            pulls.popleft()
        if self._order:
            pulls.append((self._order[-1], at))

    def done(self, offset: int) -> bool:
        """Count a message as done; False when it was not outstanding."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return False
        self._bytes -= size
        return True

    def reset(self, position: int) -> None:
        """Go on at ``position``, where the broker says the queue is; what is outstanding does not count any more."""
        self._order.clear()
        self._sizes.clear()
        self._pulls.clear()
        self._bytes = 0
        self.position = position

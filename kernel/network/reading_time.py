"""Since when the sweep has been reading: a peer is not silent while its bytes wait in the broker's own sockets."""

from __future__ import annotations

import math
from typing import Final

UNREAD_S: Final = 1.0
"""An interruption of reading that takes longer is not counted against peers. Shorter ones are, because a busy disk can
cause them again and again, and peers that send slowly would then never be closed."""


class ReadingTime:
    """The time limits of peers begin when the sweep reads again: after the log was full, or after the process was
    stopped or blocked, which :meth:`check` notices by being called late."""

    def __init__(self) -> None:
        self.reads = True
        """Whether the sweep receives from its sockets."""
        self._since = -math.inf
        self._interrupted_at = self._checked_at = math.inf

    def set_reads(self, reads: bool, now: float) -> None:
        """The sweep begins or ends to receive."""
        if self.reads and not reads:
            self._interrupted_at = now
        elif reads and not self.reads and now - self._interrupted_at > UNREAD_S:
            self._since = now
        self.reads = reads

    def check(self, now: float) -> None:
        """Call it several times a second."""
        if now - self._checked_at > UNREAD_S:
            self._since = now
        self._checked_at = now

    def before(self, now: float, limit_s: float) -> float:
        """Return the moment ``limit_s`` seconds ago, before which a peer must have acted to be closed; minus infinity
        if the sweep has not been reading since then."""
        moment = now - limit_s
        return moment if self.reads and self._since <= moment else -math.inf

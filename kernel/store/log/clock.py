"""The clock of store timestamps: it continues from the store's last message and never steps.

Between two runs of a broker the machine's clock may have been set back. A timestamp below the last one would break the
order of the log. Timestamps that stand still until the clock has caught up would delay everything that waits for a
time. So the store's clock starts at the last timestamp and runs a little slower until both clocks agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

SLOWER: Final = 10
"""While it is ahead, the clock loses one part in this many: waits become a tenth longer, never shorter."""


class StoreClock:
    """Milliseconds since 1970, for store timestamps."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._ahead = 0
        self._since = 0

    def begin(self, last: int) -> None:
        """The store's last message has the timestamp ``last``; the clock does not start below it."""
        self._since = self._env.wall_ms()
        self._ahead = max(last - self._since, 0)

    @property
    def ahead_ms(self) -> int:
        """How far it is ahead of the machine's clock now."""
        return self.now_ms() - self._env.wall_ms()

    def at_wall(self, wall_ms: int) -> int:
        """Return the time that this clock shows when the machine's clock, without steps, shows ``wall_ms``."""
        return wall_ms + max(self._ahead - max(wall_ms - self._since, 0) // SLOWER, 0)

    def now_ms(self) -> int:
        """Return the timestamp that a message would get; never decreases."""
        wall = self._env.wall_ms()
        if self._ahead:
            ahead = self._ahead - (wall - self._since) // SLOWER
            if ahead > 0:
                return wall + ahead
            self._ahead = 0
        return wall

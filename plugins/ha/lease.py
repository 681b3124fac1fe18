"""How long a master that hears from nobody goes on believing that it is the master.

A nameserver's answer counts from when it was asked for, a slave's report from when it came. After a pause of the
process, or of the machine, the lease has run out before anything that waits in the sockets is read: it is a comparison
of clocks, not a timer. Once it has run out only a nameserver can renew it, where there is one: a slave may not have
heard of a promotion yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.ha")

_BEATS: int = 3
"""How often the nameservers are asked in the length of a lease."""


class Lease:
    """Lasts ``seconds`` from the last sign. Without ``has_nameservers`` it begins with a slave's first report."""

    def __init__(self, env: Env, seconds: float, *, has_nameservers: bool) -> None:
        self._env = env
        self._seconds = seconds
        self._has_nameservers = has_nameservers
        self._heard: tuple[float, float] | None = None
        """When the last sign was given, by the monotonic clock and by the wall clock, in seconds. The monotonic clock
        stands still while a machine is suspended."""
        self.expired_at: float | None = env.monotonic() if has_nameservers else None
        """Since when there is no lease; None while there is one, or while nobody was heard that could renew it."""

    @property
    def beat(self) -> float:
        """How often to ask the nameservers, in seconds."""
        return self._seconds / _BEATS

    @property
    def refusal(self) -> str:
        """Why this broker may not act as the master now; empty while it may."""
        self._look()
        if self.expired_at is None:
            return ""
        return (
            f"this master has heard from no nameserver{'' if self._has_nameservers else ' and no slave'} for longer "
            f"than its lease of {self._seconds:g} s (plugin.ha.lease): another broker may have been promoted"
        )

    def nameserver_answered(self, asked_at: float) -> None:
        """A nameserver has answered what was asked at this time (monotonic), and knows of no other master."""
        self._look()
        if self._env.monotonic() - asked_at < self._seconds:
            self._renew(asked_at)

    def slave_reported(self, connected_at: float) -> bool:
        """A slave that has been connected since then has said something now.

        False when that may have been said long ago, before the lease ran out: the slave must connect again.
        """
        self._look()
        if self.expired_at is not None and (connected_at <= self.expired_at or self._has_nameservers):
            return self._has_nameservers
        self._renew(self._env.monotonic())
        return True

    def _renew(self, at: float) -> None:
        now = self._env.monotonic()
        if self.expired_at is not None and self._heard is not None:
            log.info("lease_renewed", after_seconds=round(now - self.expired_at, 1))
        self.expired_at = None
        if self._heard is None or at > self._heard[0]:
            self._heard = at, self._env.wall_ms() / 1000 - (now - at)

    def _look(self) -> None:
        if self._heard is None or self.expired_at is not None:
            return
        now = self._env.monotonic()
        silent = max(now - self._heard[0], self._env.wall_ms() / 1000 - self._heard[1])
        if silent > self._seconds:
            self.expired_at = now
            log.warning("lease_expired", silent_seconds=round(silent, 1), lease_seconds=self._seconds)

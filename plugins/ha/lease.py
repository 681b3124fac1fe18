"""The master's lease: how long it acts as the master without contact to other processes.

A nameserver's response counts from the time of the request, a slave's report from its arrival. The lease is a
comparison of clocks and not a timer: after a pause of the process or the machine it is expired before anything in the
sockets is read. A response to a request from before a suspension of the machine does not count, because the monotonic
clock, which measures the age of the request, stops meanwhile. If there are nameservers, only a nameserver can renew an
expired lease, because a slave may not know of a promotion yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.ha")

_QUERIES_PER_LEASE: int = 3
"""How often the nameservers are asked during one lease."""
_SUSPENDED_S: Final = 0.5
"""By how much the wall clock must run ahead of the monotonic clock, between two looks at both, to count as a suspension
of the machine. A step of the wall clock counts too; it costs one extra request."""


class Lease:
    """Lasts ``seconds`` from the last contact. Without ``has_nameservers`` it begins with a slave's first report."""

    def __init__(self, env: Env, seconds: float, *, has_nameservers: bool) -> None:
        self._env = env
        self._seconds = seconds
        self._has_nameservers = has_nameservers
        self._last_contact: tuple[float, float] | None = None
        """The last contact by the monotonic clock and by the wall clock, in seconds. The monotonic clock stops while a
        machine is suspended."""
        self._difference = env.wall_ms() / 1000 - env.monotonic()
        """The wall clock minus the monotonic clock, at the last look at both."""
        self._resumed_at = env.monotonic()
        """The monotonic time at which the last suspension of the machine was noticed."""
        self.expired_at: float | None = env.monotonic() if has_nameservers else None
        """When the lease expired; None while it is valid, or before the first contact that could renew it."""

    @property
    def query_interval(self) -> float:
        """The interval between requests to the nameservers, in seconds."""
        return self._seconds / _QUERIES_PER_LEASE

    @property
    def refusal(self) -> str:
        """Why this broker may not act as the master now; empty while it may."""
        self._expire_if_silent()
        if self.expired_at is None:
            return ""
        return (
            f"this master has had no contact to a nameserver{'' if self._has_nameservers else ' or a slave'} for "
            f"longer than its lease of {self._seconds:g} s (plugin.ha.lease): another broker may have been promoted"
        )

    def nameserver_answered(self, asked_at: float) -> None:
        """Renew the lease. A nameserver answered a request sent at ``asked_at`` (monotonic) and reported no other
        master."""
        self._expire_if_silent()
        if asked_at >= self._resumed_at and self._env.monotonic() - asked_at < self._seconds:
            self._renew(asked_at)

    def slave_reported(self, connected_at: float) -> bool:
        """Renew the lease for a report of a slave that has been connected since ``connected_at``.

        Returns False if the report may be older than the expiry of the lease: the slave must connect again.
        """
        self._expire_if_silent()
        if self.expired_at is not None and (connected_at <= self.expired_at or self._has_nameservers):
            return self._has_nameservers
        self._renew(self._env.monotonic())
        return True

    def _renew(self, at: float) -> None:
        now = self._env.monotonic()
        if self.expired_at is not None and self._last_contact is not None:
            log.info("lease_renewed", after_seconds=round(now - self.expired_at, 1))
        self.expired_at = None
        if self._last_contact is None or at > self._last_contact[0]:
            self._last_contact = at, self._env.wall_ms() / 1000 - (now - at)

    def _expire_if_silent(self) -> None:
        now, wall = self._env.monotonic(), self._env.wall_ms() / 1000
        before, self._difference = self._difference, wall - now
        if self._difference - before > _SUSPENDED_S:
            self._resumed_at = now
        if self._last_contact is None or self.expired_at is not None:
            return
        silent = max(now - self._last_contact[0], wall - self._last_contact[1])
        if silent > self._seconds:
            self.expired_at = now
            log.warning("lease_expired", silent_seconds=round(silent, 1), lease_seconds=self._seconds)

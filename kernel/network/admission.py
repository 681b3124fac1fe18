"""Admission of connections: limits by address, fair shares, and one log line for many refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.network.connection import Connection
from gantrymq.remoting.descriptors import descriptors_allowed
from gantrymq.remoting.peers import FairShares, site_of

log = structlog.get_logger("gantrymq.admission")

DESCRIPTOR_SHARE: Final = 2
"""Half of the process's file descriptors are for connections, the rest for the store."""
REPORT_S: Final = 10.0
"""How often refusals are logged: the first at once, then the number since."""


class Admission:
    """Counts connections by address. ``drop(connection, reason)`` closes one that is replaced."""

    def __init__(self, limits: LimitsSection, drop: Callable[[Connection, str], None]) -> None:
        self._most = min(limits.connections, descriptors_allowed(DESCRIPTOR_SHARE))
        self._each = limits.connections_per_address
        self._drop = drop
        self._shares: FairShares[Connection] = FairShares()
        self._open = 0
        self._refused = 0
        self._report_at = 0.0

    def opened(self, connection: Connection) -> None:
        """``connection`` was admitted."""
        self._open += 1
        self._shares.add(connection.site, connection)

    def closed(self, connection: Connection) -> None:
        """``connection`` was closed."""
        self._open -= 1
        self._shares.remove(connection.site, connection)

    def admits(self, host: str, now: float) -> bool:
        """Return whether to admit one more connection from ``host``.

        When all connections are in use, the newest connection of the address with the most is closed for an address
        that has at least two fewer.
        """
        site = site_of(host)
        if self._each and self._shares.count(site) >= self._each:
            self._count(host, now, self._each, "limits.connections_per_address")
            return False
        if self._open < self._most:
            return True
        displaced = self._shares.to_displace(site)
        self._count(host if displaced is None else displaced.peer[0], now, self._most, "limits.connections")
        if displaced is None:
            return False
        self._drop(displaced, "every connection is taken, and its address has most of them")
        return True

    def _count(self, host: str, now: float, limit: int, setting: str) -> None:
        self._refused += 1
        if now >= self._report_at:
            log.warning("connection_refused", peer=host, limit=limit, setting=setting, refused=self._refused)
            self._refused, self._report_at = 0, now + REPORT_S

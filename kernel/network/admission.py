"""Who is let in while connections are scarce: caps by address, fair shares, and one log line for many refusals."""

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
"""Half of the process's descriptors are for the connections, the rest for the files of the store."""
REPORT_S: Final = 10.0
"""How often refusals are logged: the first at once, then how many there were since."""


class Admission:
    """Counts connections by address. ``drop(connection, reason)`` closes one that has to give way."""

    def __init__(self, limits: LimitsSection, drop: Callable[[Connection, str], None]) -> None:
        self._most = min(limits.connections, descriptors_allowed(DESCRIPTOR_SHARE))
        self._each = limits.connections_per_address
        self._drop = drop
        self._shares: FairShares[Connection] = FairShares()
        self._open = 0
        self._refused = 0
        self._report_at = 0.0

    def opened(self, connection: Connection) -> None:
        """``connection`` was let in."""
        self._open += 1
        self._shares.add(connection.site, connection)

    def closed(self, connection: Connection) -> None:
        """``connection`` is gone."""
        self._open -= 1
        self._shares.remove(connection.site, connection)

    def admits(self, host: str, now: float) -> bool:
        """Whether one more connection from ``host`` is let in.

        While every place is taken, the newest connection of the address that has most gives way to an address that has
        at least two fewer.
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

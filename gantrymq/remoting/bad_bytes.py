"""Logs connections with bytes that are not frames: once each half minute for a host, TLS handshakes once an hour.

The addresses of one IPv6 network are one host: a machine there can choose among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.peers import site_of

QUIET_SECONDS: Final = 3600.0
"""The time between two logs of handshakes from one host, because a client tries again every few seconds."""
HOSTS_MAX: Final = 1024
"""The most hosts whose last time is kept; beyond it the oldest is forgotten and may be logged again."""


class BadBytesLog:
    """Logs invalid bytes from peers to ``log``, a structlog logger. ``clock``: monotonic seconds."""

    def __init__(self, log: Any, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._outages = Outages(log, clock)
        self._handshakes: dict[str, float] = {}

    def report(self, peer: str, fault: FatalRemoteFault) -> None:
        """Log that the connection of ``peer`` (``host:port``) is closed because of ``fault``."""
        site = site_of(peer.rpartition(":")[0].strip("[]"))
        if not isinstance(fault, TlsHandshake):
            self._outages.warning("bad_bytes_received", site, peer=peer, reason=str(fault))
        elif self._is_due(site, self._clock()):
            self._log.warning("tls_handshake_on_plaintext_port", peer=peer, reason=str(fault))

    def _is_due(self, site: str, now: float) -> bool:
        logged_at = self._handshakes.get(site)
        if logged_at is not None and now - logged_at < QUIET_SECONDS:
            return False
        self._handshakes.pop(site, None)  # keeps the oldest first
        if len(self._handshakes) >= HOSTS_MAX:
            del self._handshakes[next(iter(self._handshakes))]
        self._handshakes[site] = now
        return True

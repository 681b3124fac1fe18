"""Logs connections with bytes that are not frames: each one, but TLS handshakes once an hour for each peer host."""

from __future__ import annotations

from typing import Any, Final

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake

QUIET_SECONDS: Final = 3600.0
"""The time between two logs of handshakes from one host, because a client tries again every few seconds."""
HOSTS_MAX: Final = 1024
"""The most hosts whose last time is kept; beyond it the oldest is forgotten and may be logged again."""


class BadBytesLog:
    """Logs invalid bytes from peers to ``log``, a structlog logger."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._handshakes: dict[str, float] = {}

    def report(self, peer: str, fault: FatalRemoteFault, now: float) -> None:
        """Log that the connection of ``peer`` (``host:port``) is closed because of ``fault``; ``now`` in seconds."""
        if not isinstance(fault, TlsHandshake):
            self._log.warning("bad_bytes_received", peer=peer, reason=str(fault))
        elif self._is_due(peer.rpartition(":")[0], now):
            self._log.warning("tls_handshake_on_plaintext_port", peer=peer, reason=str(fault))

    def _is_due(self, host: str, now: float) -> bool:
        logged_at = self._handshakes.get(host)
        if logged_at is not None and now - logged_at < QUIET_SECONDS:
            return False
        self._handshakes.pop(host, None)  # keeps the oldest first
        if len(self._handshakes) >= HOSTS_MAX:
            del self._handshakes[next(iter(self._handshakes))]
        self._handshakes[host] = now
        return True

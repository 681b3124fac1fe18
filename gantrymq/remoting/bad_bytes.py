"""How a server logs bytes that are no frames: each time, but a TLS handshake once an hour for each peer host."""

from __future__ import annotations

from typing import Any, Final

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake

QUIET_SECONDS: Final = 3600.0
"""How long the handshakes of one host are not logged again: a client tries again every few seconds."""
HOSTS_MAX: Final = 1024
"""For how many hosts the time is kept; past that the oldest is forgotten, and may be logged again."""


class BadBytesLog:
    """Writes to ``log``, a structlog logger, what peers sent that is no frame."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._handshakes: dict[str, float] = {}

    def report(self, peer: str, fault: FatalRemoteFault, now: float) -> None:
        """Log that the connection of ``peer`` (``host:port``) is closed for ``fault``; ``now`` in seconds."""
        if not isinstance(fault, TlsHandshake):
            self._log.warning("bad_bytes_received", peer=peer, reason=str(fault))
        elif self._is_due(peer.rpartition(":")[0], now):
            self._log.warning("tls_handshake_on_plaintext_port", peer=peer, reason=str(fault))

    def _is_due(self, host: str, now: float) -> bool:
        logged_at = self._handshakes.get(host)
        if logged_at is not None and now - logged_at < QUIET_SECONDS:
            return False
        self._handshakes.pop(host, None)  # so that the oldest stays in front
        if len(self._handshakes) >= HOSTS_MAX:
            del self._handshakes[next(iter(self._handshakes))]
        self._handshakes[host] = now
        return True

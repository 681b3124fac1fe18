"""Logs connections with bytes that are not frames, with a pause for each peer host."""

from __future__ import annotations

from typing import Any, Final

from gantrymq.remoting.errors import FatalRemoteFault, TlsHandshake

HANDSHAKE_QUIET_SECONDS: Final = 3600.0
"""The time between two logs of handshakes from one host, because a client tries again every few seconds."""
QUIET_SECONDS: Final = 30.0
"""The time between two logs of other bytes from one host, so that it cannot fill the disk with log lines."""
HOSTS_MAX: Final = 1024
"""The most hosts whose last time is kept; beyond it the oldest is forgotten and may be logged again."""


class BadBytesLog:
    """Logs invalid bytes from peers to ``log``, a structlog logger."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._quiet_until: dict[tuple[str, str], float] = {}

    def report(self, peer: str, fault: FatalRemoteFault, now: float) -> None:
        """Log that the connection of ``peer`` (``host:port``) is closed because of ``fault``; ``now`` in seconds."""
        host = peer.rpartition(":")[0]
        if isinstance(fault, TlsHandshake):
            if self._is_due(("handshake", host), now, HANDSHAKE_QUIET_SECONDS):
                self._log.warning("tls_handshake_on_plaintext_port", peer=peer, reason=str(fault))
        elif self._is_due(("other", host), now, QUIET_SECONDS):
            self._log.warning("bad_bytes_received", peer=peer, reason=str(fault))

    def _is_due(self, subject: tuple[str, str], now: float, quiet: float) -> bool:
        if now < self._quiet_until.get(subject, now):
            return False
        self._quiet_until.pop(subject, None)  # keeps the oldest first
        if len(self._quiet_until) >= HOSTS_MAX:
            del self._quiet_until[next(iter(self._quiet_until))]
        self._quiet_until[subject] = now + quiet
        return True

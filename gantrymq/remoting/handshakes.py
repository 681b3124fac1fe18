"""The processor time that TLS handshakes may take in this process, at all its ports together.

A handshake costs a server much more than a peer, so many peers could keep the process from all other work. The contexts
of :class:`gantrymq.remoting.tls.ServerTls` count the time. A port processes no bytes of a handshake while none is left.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable
from typing import Final

SLICE_SECONDS: Final = 0.010
HANDSHAKE_SECONDS: Final = 0.005
"""Handshakes take at most this much of each :data:`SLICE_SECONDS`, however many clients connect."""


class HandshakeTime:
    """Divides time into slices, each with a share for handshakes. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._slice_end = self._spent = 0.0

    def is_left(self) -> bool:
        """Whether handshakes have time left in this slice."""
        return self.wait_seconds() <= 0.0

    def wait_seconds(self) -> float:
        """The time until handshakes have time left again; 0 if they have."""
        now = self.clock()
        if now >= self._slice_end:
            self._slice_end, self._spent = now + SLICE_SECONDS, 0.0
        return self._slice_end - now if self._spent >= HANDSHAKE_SECONDS else 0.0

    def count(self, begun: float) -> None:
        """Count the computation of a handshake, which began at ``begun`` and is over now."""
        self._spent += self.clock() - begun


HANDSHAKES: Final = HandshakeTime()
"""The time of this process."""


def has_peer_left(descriptor: int) -> bool:
    """Return whether the peer of a socket has closed the connection, also if bytes from before are still unread.

    False where the system cannot report it, such as on macOS and Windows.
    """
    if not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


class CountedHandshake(ssl.SSLObject):
    """A server's connection whose handshake is counted; only its computation, because the system may let a peer work
    first when data is sent to it."""

    def do_handshake(self) -> None:
        """As of ``ssl.SSLObject``."""
        begun = HANDSHAKES.clock()
        try:
            super().do_handshake()
        finally:
            HANDSHAKES.count(begun)

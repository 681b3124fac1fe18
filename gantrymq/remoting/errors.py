"""What can go wrong on the wire, by whose fault it is and how far it reaches.

Two ranks of the peer's fault: :class:`RemoteFault` is answered with a response code and the connection lives on;
:class:`FatalRemoteFault` cannot be answered (the stream can no longer be trusted) and closes that connection only.
Any other exception is ours.
"""

from __future__ import annotations


class RemoteFault(Exception):
    """The peer asked for something it cannot have: answered with ``code`` and ``remark``."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"[{code}] {remark}")
        self.code: int = int(code)
        self.remark = remark


class FatalRemoteFault(Exception):
    """The peer's bytes cannot be followed any further: the connection is closed, nobody else is harmed."""


class TlsHandshake(FatalRemoteFault):
    """The peer begins a TLS handshake on a port that speaks plaintext."""

    def __init__(self) -> None:
        super().__init__(
            "the peer started a TLS handshake, but this port speaks plaintext: turn TLS off in the client "
            "(Java: -Dtls.enable=false), or put a proxy that ends TLS in front of this port"
        )


class GantryError(Exception):
    """Root of everything that the calling side raises on purpose."""


class ConnectError(GantryError):
    """A peer cannot be reached, or stopped answering. ``address`` is the peer's ``host:port``."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectFailed(ConnectError):
    """No connection came about: nothing listens there, or the network between does not carry it."""


class TlsFailed(ConnectFailed):
    """A peer was reached, but no encrypted connection came about: nothing was sent to it."""


class ChannelClosed(ConnectError):
    """The connection ended before the answer came; whether the peer did what was asked is unknown."""


class CallTimeout(ConnectError):
    """The answer did not come in time; whether the peer did what was asked is unknown."""

"""Errors of remoting, by their cause and their effect.

A fault of the peer is a :class:`RemoteFault`, which is answered with a response code and leaves the connection open, or
a :class:`FatalRemoteFault`, after which the stream is invalid: it closes that connection only. Any other exception is a
bug.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from typing import Any


class RemoteFault(Exception):
    """A request is refused; the response has ``code`` and ``remark``."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"[{code}] {remark}")
        self.code: int = int(code)
        self.remark = remark


class FatalRemoteFault(Exception):
    """The peer's stream is invalid: its connection is closed; other connections are not affected."""


class TlsHandshake(FatalRemoteFault):
    """The peer begins a TLS handshake on a port that speaks plaintext."""

    def __init__(self) -> None:
        super().__init__(
            "the peer started a TLS handshake, but this port speaks plaintext: turn TLS off in the client "
            "(Java: -Dtls.enable=false), or put a proxy that ends TLS in front of this port"
        )


class FrameTooLong(ValueError):
    """A request or response does not fit into a frame; nothing was sent."""


class GantryError(Exception):
    """Base of all errors that the calling side raises intentionally."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with the text, where classes take what the text is made of.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConnectError(GantryError):
    """A peer cannot be reached, or stopped answering. ``address`` is the peer's ``host:port``."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectFailed(ConnectError):
    """No connection was established: nothing listens there, or the network does not lead there."""


class TlsFailed(ConnectFailed):
    """The peer was reached, but the TLS handshake failed; no request was sent."""


class ChannelClosed(ConnectError):
    """The connection ended before the response; whether the peer carried out the request is unknown."""


class CallTimeout(ConnectError):
    """The response did not arrive in time; whether the peer carried out the request is unknown."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside nested exception groups (a nursery always raises a group)."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error

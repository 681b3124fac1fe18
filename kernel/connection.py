"""One peer's connection as plugins see it, and the changes of one sweep."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import attrs

from gantrymq.remoting.command import Command, encode

if TYPE_CHECKING:
    from gantrymq.kernel.sweep import Sweep


class Connection:
    """A peer: what is not yet a whole frame of it, and what it has not yet taken of our answers.

    Memory is bounded on both sides: the unread part by the frame limit (and the time a frame may take), the unsent part
    by ``limits.write_buffer_bytes``, past which the connection is closed. Whoever has a large answer asks
    :meth:`is_congested` first, so that a peer that merely asked for much at once is not closed for it.
    """

    __slots__ = (
        "_sweep", "active_at", "closed", "host", "id", "inbound", "outbound", "outbound_bytes", "partial_since", "peer",
        "sock", "wants_write",
    )  # fmt: skip

    def __init__(self, sweep: Sweep, sock: socket.socket, number: int, peer: tuple[str, int], now: float) -> None:
        self._sweep = sweep
        self.sock = sock
        self.id = number
        self.peer = peer
        self.host = encode_host(peer[0], peer[1])
        """Address and port as a record stores them: 8 bytes, 20 for IPv6."""
        self.inbound = bytearray()
        self.outbound: list[bytes] = []
        self.outbound_bytes = 0
        self.active_at = now
        self.partial_since: float | None = None
        self.wants_write = False
        self.closed = False

    @property
    def address(self) -> str:
        """``host:port`` of the peer."""
        return f"{self.peer[0]}:{self.peer[1]}"

    def send(self, command: Command) -> None:
        """Queue ``command`` for the peer; never blocks. A closed connection swallows it."""
        self.send_bytes(encode(command))

    def send_bytes(self, data: bytes) -> None:
        """Queue an encoded frame."""
        if self.closed:
            return
        self.outbound.append(data)
        self.outbound_bytes += len(data)
        self._sweep.touch(self, len(data))

    def is_congested(self) -> bool:
        """Whether the peer should take what it was sent before it gets another large answer."""
        return self._sweep.is_congested(self)

    def close(self, reason: str) -> None:
        """Drop the connection; the reason goes to the log."""
        self._sweep.drop(self, reason)


def encode_host(host: str, port: int) -> bytes:
    """Address and port as stored in a record: 4 or 16 bytes and an i32."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host.partition("%")[0]) + port.to_bytes(4, "big")


@attrs.define
class ConnectionsBatch:
    """What one sweep saw of connections coming and going."""

    opened: list[Connection] = attrs.field(factory=list)
    closed: list[Connection] = attrs.field(factory=list)

"""The connection of one peer, and the changes of connections in one turn."""

from __future__ import annotations

import select
from typing import Protocol

import attrs
import trio

from gantrymq.remoting.address import encode_host
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, RemoteFault
from gantrymq.remoting.peers import site_of

ASKED_MAX = 64
"""The most unanswered requests of the broker to one peer."""

JOINED_BYTES = 256 * 1024
"""Responses of one connection up to this size are joined for one send."""


class Socket(Protocol):
    """What a connection needs of its socket; no call blocks.

    A socket of TLS has the attribute ``subject``: the subject of the peer's verified certificate, or None.
    A plugin may set ``connection.sock`` to an object of its own in ``connections_changed``: nothing has been received
    from an opened connection before that hook.
    """

    def fileno(self) -> int:
        """Return the descriptor to wait for; it stays the same."""

    def recv(self, size: int, /) -> bytes:
        """Read at most ``size`` bytes from the network and return the bytes received; empty at the end.

        ``BlockingIOError`` if there are none yet, another OSError if the connection has failed. A TLS socket returns
        all bytes that it has decrypted.
        """

    def send(self, data: bytes | memoryview, /) -> int:
        """Send the first bytes of ``data``; returns how many. ``BlockingIOError`` and OSError as above."""

    def close(self) -> None:
        """Close the connection."""


class Owner(Protocol):
    """The interface of the sweep for its connections."""

    def touch(self, connection: Connection, size: int) -> None:
        """The connection has ``size`` bytes more to send."""

    def yield_to_tasks(self) -> None:
        """Another task has work that should run soon."""

    def is_congested(self, connection: Connection) -> bool:
        """Return whether much of the connection's data waits, even after an attempt to send it."""

    def watch(self, connection: Connection) -> None:
        """The events that the connection waits for have changed."""

    def drop(self, connection: Connection, reason: str) -> None:
        """Close the connection."""

    def identified(self, connection: Connection) -> None:
        """The connection has a new identity."""


@attrs.define(eq=False)
class _Asked:
    """A request of the broker that waits for its response."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Command | None = None


class Connection:
    """A peer with its incomplete frame and its unsent responses.

    Memory is limited in both directions: the received part by the frame limit (and the time that a frame may take), the
    unsent part by ``limits.write_buffer_bytes``, not counting the largest waiting response; beyond it the connection is
    closed. Code with a large response checks :meth:`is_congested` first, so that a peer that requested much at once is
    not closed.
    """

    __slots__ = (
        "_asked", "_identity", "_is_held", "_is_throttled", "_opaque", "_owner", "active_at", "closed", "host", "id",
        "inbound", "is_paused", "largest_response", "outbound", "outbound_bytes", "partial_since", "peer", "peer_left",
        "silent_since", "site", "sock", "wants_write",
    )  # fmt: skip

    def __init__(self, owner: Owner, sock: Socket, number: int, peer: tuple[str, int], now: float) -> None:
        self._owner = owner
        self.sock = sock
        self.id = number
        self.peer = peer
        self.host = encode_host(peer[0], peer[1])
        """Address and port as a record stores them: 8 bytes, 20 for IPv6."""
        self.inbound = bytearray()
        self.outbound: list[bytes | memoryview] = []
        self.outbound_bytes = 0
        self.largest_response = 0
        """Bytes of the largest response since everything was sent: any single response may wait, regardless of the
        limit."""
        self.active_at = now
        self.partial_since: float | None = None
        self.silent_since: float | None = now
        """When it was accepted, or read again after a pause, until its first whole frame."""
        self.site = site_of(peer[0])
        """The address for shared limits: its IPv4 address, or the network of its IPv6 address."""
        self.wants_write = False
        self.closed = False
        self._is_held = self._is_throttled = self.is_paused = False
        self.peer_left = False
        """Whether the peer closed the connection while it was not being read: it receives no more responses."""
        self._identity: object = None
        self._asked: dict[int, _Asked] = {}
        self._opaque = 0

    @property
    def identity(self) -> object:
        """The identity of the peer, set by a plugin (in ``authorize``, or by TLS); None before that.

        ``connections_changed`` reports a new one.
        """
        return self._identity

    @identity.setter
    def identity(self, identity: object) -> None:
        if identity != self._identity:
            self._identity = identity
            if identity is not None:
                self._owner.identified(self)

    @property
    def address(self) -> str:
        """``host:port`` of the peer."""
        return f"{self.peer[0]}:{self.peer[1]}"

    def send(self, command: Command) -> None:
        """Queue ``command`` for the peer; never blocks. A closed connection ignores it."""
        self.send_bytes(encode(command))

    def send_bytes(self, data: bytes) -> None:
        """Queue an encoded frame."""
        if self.closed:
            return
        size = len(data)
        self.outbound.append(data)
        self.outbound_bytes += size
        if size > self.largest_response:
            self.largest_response = size
        self._owner.touch(self, size)

    def write(self) -> None:
        """Send as much waiting data as the socket accepts; :class:`OSError` if it is broken."""
        outbound = self.outbound
        while outbound:
            # Send a large response separately: joining it for each attempt would copy it each time.
            is_alone = len(outbound) == 1 or len(outbound[0]) > JOINED_BYTES
            data = outbound[0] if is_alone else b"".join(outbound)
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            self.outbound_bytes -= sent
            rest = [_behind(data, sent)] if sent < len(data) else []
            outbound[:] = [*rest, *outbound[1:]] if is_alone else rest
            if rest:
                return
        self.largest_response = 0

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """Send ``command`` as a request of the broker and wait for the peer's response, with any code.

        This method sets its opaque. Raises ``CallTimeout`` without a response in ``timeout_s`` seconds,
        ``ChannelClosed`` if the connection ends before, and ``RemoteFault`` (busy) if the peer has :data:`ASKED_MAX`
        unanswered requests.
        """
        if self.closed:
            raise ChannelClosed(self.address, "the connection is closed")
        if len(self._asked) >= ASKED_MAX:
            raise RemoteFault(ResponseCode.SYSTEM_BUSY, f"client {self.address} has {ASKED_MAX} unanswered requests")
        self._opaque = command.opaque = self._opaque % 0x7FFFFFFF + 1
        asked = self._asked[command.opaque] = _Asked()
        try:
            self.send(command)
            with trio.move_on_after(max(0.0, timeout_s)):
                await asked.done.wait()
        finally:
            self._asked.pop(command.opaque, None)
        if asked.answer is not None:
            return asked.answer
        if self.closed:
            raise ChannelClosed(self.address, "the connection ended before the answer came")
        raise CallTimeout(self.address, f"no answer in {timeout_s:g} s")

    def take_response(self, command: Command) -> None:
        """Process the peer's response to a request of the broker; a response without a waiting task is dropped."""
        asked = self._asked.get(command.opaque)
        if asked is not None and asked.answer is None:
            asked.answer = command
            asked.done.set()
            self._owner.yield_to_tasks()

    def ended(self) -> None:
        """The connection is closed: wake tasks that wait for responses."""
        for asked in self._asked.values():
            asked.done.set()

    def is_congested(self) -> bool:
        """Return whether the peer should first read its data before it gets another large response."""
        return self.outbound_bytes > 0 and self._owner.is_congested(self)

    @property
    def interest(self) -> int:
        """The events to wait for on its socket, as bits of ``epoll``."""
        writing = select.EPOLLOUT if self.wants_write else 0
        if not self.is_paused:
            return select.EPOLLIN | writing
        return writing if self.peer_left else select.EPOLLRDHUP | writing

    def pause(self) -> None:
        """Stop reading from the peer for now."""
        self._is_held = True
        self._update_paused()

    def resume(self) -> None:
        """Continue reading, unless a plugin throttles the connection."""
        self._is_held = False
        self._update_paused()

    def throttle(self, is_on: bool) -> None:
        """For plugins: read no further requests from the peer, or do so again; those that were read are served."""
        self._is_throttled = is_on
        self._update_paused()

    def _update_paused(self) -> None:
        is_paused = self._is_held or self._is_throttled
        if not self.closed and self.is_paused is not is_paused:
            self.is_paused = is_paused
            self._owner.watch(self)

    def notice(self, event: int) -> None:
        """These events came while it is paused."""
        if event & (select.EPOLLHUP | select.EPOLLERR):
            self.close("closed by the peer")
        elif event & select.EPOLLRDHUP:
            self.peer_left = True
            self._owner.watch(self)

    def excuse(self, now: float) -> None:
        """The connection is paused, so the peer is not responsible for the delay of a frame."""
        self.active_at = now
        if self.partial_since is not None:
            self.partial_since = now
        if self.silent_since is not None:
            self.silent_since = now

    def close(self, reason: str) -> None:
        """Close the connection and log the reason."""
        self._owner.drop(self, reason)


def _behind(data: bytes | memoryview, sent: int) -> bytes | memoryview:
    """Return the unsent part of ``data``. Copying it each time would take quadratic time, and never copying would keep
    a whole large response in memory for its last byte; so it is copied when half of it is sent."""
    rest = memoryview(data)[sent:]
    whole = rest.obj
    assert isinstance(whole, bytes)
    return rest if 2 * len(rest) >= len(whole) else rest.tobytes()


@attrs.define
class ConnectionsBatch:
    """The connections that were opened, identified and closed in one turn."""

    opened: list[Connection] = attrs.field(factory=list)
    closed: list[Connection] = attrs.field(factory=list)
    identified: list[Connection] = attrs.field(factory=list)
    """Connections whose ``identity`` has become known or another one."""

    def __len__(self) -> int:
        return len(self.opened) + len(self.closed) + len(self.identified)

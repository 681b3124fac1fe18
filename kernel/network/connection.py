"""One peer's connection as plugins see it, and the changes of one sweep."""

from __future__ import annotations

import select
import socket
from typing import Protocol

import attrs
import trio

from gantrymq.remoting.address import encode_host
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, RemoteFault
from gantrymq.remoting.peers import site_of

ASKED_MAX = 64
"""How many requests of ours one peer may owe an answer to."""

JOINED_BYTES = 256 * 1024
"""Answers of one connection are joined for one send, but for larger ones."""


class Owner(Protocol):
    """What a connection asks of the sweep that reads and writes it."""

    def touch(self, connection: Connection, size: int) -> None:
        """The connection has ``size`` bytes more to send."""

    def give_way(self) -> None:
        """Another task has work to do that should not be kept waiting."""

    def is_congested(self, connection: Connection) -> bool:
        """Whether much of what the connection was given to send waits, even after an attempt to send it."""

    def watch(self, connection: Connection) -> None:
        """The events that the connection wants to hear of have changed."""

    def drop(self, connection: Connection, reason: str) -> None:
        """Close the connection."""


@attrs.define(eq=False)
class _Asked:
    """A request of ours that waits for its answer."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Command | None = None


class Connection:
    """A peer: what is not yet a whole frame of it, and what it has not yet taken of our answers.

    Memory is bounded on both sides: the unread part by the frame limit (and the time a frame may take), the unsent part
    by ``limits.write_buffer_bytes`` beside the largest answer that waits, past which the connection is closed. Whoever
    has a large answer asks :meth:`is_congested` first, so that a peer that merely asked for much at once is not closed
    for it.
    """

    __slots__ = (
        "_asked", "_opaque", "_owner", "active_at", "closed", "host", "id", "identity", "inbound", "is_paused",
        "largest_answer", "outbound", "outbound_bytes", "partial_since", "peer", "peer_left", "silent_since", "site",
        "sock", "wants_write",
    )  # fmt: skip

    def __init__(self, owner: Owner, sock: socket.socket, number: int, peer: tuple[str, int], now: float) -> None:
        self._owner = owner
        self.sock = sock
        self.id = number
        self.peer = peer
        self.host = encode_host(peer[0], peer[1])
        """Address and port as a record stores them: 8 bytes, 20 for IPv6."""
        self.inbound = bytearray()
        self.outbound: list[bytes | memoryview] = []
        self.outbound_bytes = 0
        self.largest_answer = 0
        """Bytes of the largest one since all was sent: any single answer may wait, whatever the limit."""
        self.active_at = now
        self.partial_since: float | None = None
        self.silent_since: float | None = now
        """When it was accepted, until its first whole frame."""
        self.site = site_of(peer[0])
        """Whom it counts for where peers share: its IPv4 address, or the network of its IPv6 address."""
        self.wants_write = False
        self.closed = False
        self.is_paused = False
        self.peer_left = False
        """Whether the peer ended the connection while it was not read: it takes no more answers."""
        self.identity: object = None
        """Who the peer is, as a plugin found out (``authorize``); None while nobody said."""
        self._asked: dict[int, _Asked] = {}
        self._opaque = 0

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
        if len(data) > self.largest_answer:
            self.largest_answer = len(data)
        self._owner.touch(self, len(data))

    def write(self) -> None:
        """Send as much of what waits as the socket takes; :class:`OSError` when it is broken."""
        outbound = self.outbound
        while outbound:
            # A large answer goes alone: joining it anew with each attempt would copy it as often.
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
        self.largest_answer = 0

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """Send ``command`` as a request of ours and wait for the peer's answer, whatever its code.

        Its opaque is chosen here. Raises ``CallTimeout`` when nothing came in ``timeout_s`` seconds, ``ChannelClosed``
        when the connection ended before, and ``RemoteFault`` (busy) when the peer owes :data:`ASKED_MAX` answers.
        """
        if self.closed:
            raise ChannelClosed(self.address, "the connection is closed")
        if len(self._asked) >= ASKED_MAX:
            raise RemoteFault(ResponseCode.SYSTEM_BUSY, f"the client {self.address} owes {ASKED_MAX} answers already")
        self._opaque = command.opaque = self._opaque % 0x7FFFFFFF + 1
        asked = self._asked[command.opaque] = _Asked()
        try:
            self.send(command)
            with trio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            self._asked.pop(command.opaque, None)
        if asked.answer is not None:
            return asked.answer
        if self.closed:
            raise ChannelClosed(self.address, "the connection ended before the answer came")
        raise CallTimeout(self.address, f"no answer in {timeout_s:g} s")

    def take_answer(self, command: Command) -> None:
        """The peer answers a request of ours. An answer that nobody waits for (any more) is dropped."""
        asked = self._asked.get(command.opaque)
        if asked is not None and asked.answer is None:
            asked.answer = command
            asked.done.set()
            self._owner.give_way()

    def ended(self) -> None:
        """The connection is closed: who waits for an answer learns of it."""
        for asked in self._asked.values():
            asked.done.set()

    def is_congested(self) -> bool:
        """Whether the peer should take what it was sent before it gets another large answer."""
        return self._owner.is_congested(self)

    @property
    def interest(self) -> int:
        """The events of its socket that matter, as bits of ``epoll``."""
        writing = select.EPOLLOUT if self.wants_write else 0
        if not self.is_paused:
            return select.EPOLLIN | writing
        return writing if self.peer_left else select.EPOLLRDHUP | writing

    def pause(self) -> None:
        """Read nothing more of the peer for now."""
        self._set_paused(True)

    def resume(self) -> None:
        """Read on."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if not self.closed and self.is_paused is not paused:
            self.is_paused = paused
            self._owner.watch(self)

    def notice(self, event: int) -> None:
        """These events came while it is paused."""
        if event & (select.EPOLLHUP | select.EPOLLERR):
            self.close("closed by the peer")
        elif event & select.EPOLLRDHUP:
            self.peer_left = True
            self._owner.watch(self)

    def excuse(self, now: float) -> None:
        """It is paused: it is not the peer who keeps the rest of a frame waiting."""
        self.active_at = now
        if self.partial_since is not None:
            self.partial_since = now

    def close(self, reason: str) -> None:
        """Drop the connection; the reason goes to the log."""
        self._owner.drop(self, reason)


def _behind(data: bytes | memoryview, sent: int) -> bytes | memoryview:
    """What of ``data`` is not sent yet. Copied each time it would take quadratic time, never it would keep all of a
    large answer in memory for its last byte: so once half of it is sent."""
    rest = memoryview(data)[sent:]
    whole = rest.obj
    assert isinstance(whole, bytes)
    return rest if 2 * len(rest) >= len(whole) else rest.tobytes()


@attrs.define
class ConnectionsBatch:
    """What one sweep saw of connections coming and going."""

    opened: list[Connection] = attrs.field(factory=list)
    closed: list[Connection] = attrs.field(factory=list)

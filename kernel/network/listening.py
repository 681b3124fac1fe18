"""Accept connections at a TCP address, also while the process has no file descriptors left."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
import trio

from gantrymq.remoting.outages import Outages

log = structlog.get_logger("gantrymq.listening")

OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors after which no connection can be accepted until others have ended."""
ACCEPT_PAUSE_S: Final = 0.1


class Acceptor(Protocol):
    """What connections come from: a :class:`~gantrymq.kernel.env.Listener` that listens, or such a socket of Python's.

    No method blocks.
    """

    def fileno(self) -> int:
        """A descriptor that is readable while a connection waits to be accepted."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection, with host and port of the peer. ``BlockingIOError`` if none waits; OSError."""

    def close(self) -> None:
        """Release the address; accepted connections stay open."""


async def accept_from(listener: Acceptor, peer_kind: str) -> tuple[socket.socket, tuple[str, int]]:
    """Wait for the next connection; returns it with its address. Peers that disconnected meanwhile are skipped.

    While this process has no file descriptors left, connections wait, and ``accept_failed`` is logged with
    ``peer_kind`` ("a slave") as the peer.
    """
    is_logged = False
    while True:
        await trio.lowlevel.wait_readable(listener.fileno())
        try:
            return listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                if not is_logged:  # once per shortage, not for each attempt
                    log.warning("accept_failed", peer=peer_kind, error=str(error))
                is_logged = True
                await trio.sleep(ACCEPT_PAUSE_S)


async def serve_connections(
    listener: Acceptor, peer_kind: str, connections_max: int, serve: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    """Run ``serve`` for each connection until cancelled, then close the listener.

    More than ``connections_max`` at a time are closed at once. ``peer_kind``: as for :func:`accept_from`. An error of
    ``serve``, which must close its stream, ends only its own connection, and is logged at most every 30 s.
    """
    connections = 0
    outages = Outages(log, trio.current_time)

    async def serve_one(sock: socket.socket) -> None:
        nonlocal connections
        try:
            await serve(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
        except Exception as error:
            outages.error("connection_failed", peer=peer_kind, error=repr(error), exc_info=True)
        finally:
            connections -= 1

    with contextlib.closing(listener):
        async with trio.open_nursery() as nursery:
            while True:
                sock, _ = await accept_from(listener, peer_kind)
                if connections >= connections_max:
                    sock.close()
                    continue
                connections += 1
                nursery.start_soon(serve_one, sock)

"""A TCP address at which somebody waits for connections. ``gantrymq.kernel.env`` makes them."""

from __future__ import annotations

import errno
import socket
from typing import Final, Protocol

import structlog
import trio

log = structlog.get_logger("gantrymq.listening")

OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""What no connection can be accepted for until others have ended."""
ACCEPT_PAUSE_S: Final = 0.1


class Listener(Protocol):
    """An address that is taken. Nothing here blocks; what comes out is a socket that does not block either."""

    address: tuple[str, int]
    """What was taken: host and port."""

    def fileno(self) -> int:
        """A descriptor that is readable while somebody waits to be accepted."""

    def listen(self, backlog: int) -> None:
        """Let peers connect from now on."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next connection, and who that is: host and port. ``BlockingIOError`` when nobody waits; OSError."""

    def close(self) -> None:
        """Give the address back; connections that were accepted go on."""


async def accept_from(listener: Listener, whom: str) -> tuple[socket.socket, tuple[str, int]]:
    """The next connection, and who that is, however long it takes; a peer that left before is passed over.

    While this process has no descriptor left the log has ``accept_failed`` with ``whom`` ("a slave") that must wait.
    """
    said = False
    while True:
        await trio.lowlevel.wait_readable(listener.fileno())
        try:
            return listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                if not said:  # once a shortage, not with each attempt
                    log.warning("accept_failed", peer=whom, error=str(error))
                said = True
                await trio.sleep(ACCEPT_PAUSE_S)


class SystemListener:
    """A :class:`Listener` of Linux. OSError or OverflowError when the address cannot be taken (port 0: any)."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self.address = str(name[0]), int(name[1])

    def fileno(self) -> int:
        return self._socket.fileno()

    def listen(self, backlog: int) -> None:
        self._socket.listen(backlog)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        accepted, peer = self._socket.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted, (str(peer[0]), int(peer[1]))

    def close(self) -> None:
        self._socket.close()

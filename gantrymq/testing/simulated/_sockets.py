"""The sockets that trio creates during a simulation."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Any

import trio

from gantrymq.testing.simulated.network import MemoryListener, Network, running


class MemorySocket(trio.socket.SocketType):
    """A TCP socket of the current task's process, with the methods that streams and listeners use."""

    def __init__(self, network: Network, family: int, kind: int, proto: int) -> None:
        super().__init__()
        self._network = network
        self._family, self._kind, self._proto = family, kind, proto
        self._listener: MemoryListener | None = None
        self._stream: trio.socket.SocketType | None = None
        self._name: tuple[str, int] = ("0.0.0.0", 0)  # noqa: S104 - what a system says before
        self._peer: tuple[str, int] | None = None
        self._closed = False

    @property
    def _sock(self) -> MemorySocket:
        """The object that anyio uses as the standard library's socket, for its addresses."""
        return self

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AddressFamily(self._family)

    @property
    def type(self) -> socket.SocketKind:
        return socket.SocketKind(self._kind)

    @property
    def proto(self) -> int:
        return self._proto

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802 - trio's name
        return self._stream is not None and self._stream.did_shutdown_SHUT_WR

    # ------------------------------------------------------------------------------------------ before the connection

    def setsockopt(self, *_arguments: Any) -> None:
        """Do nothing: simulated sockets have no options."""

    def getsockopt(self, level: int, option: int, *_size: int) -> Any:
        return int(option == socket.SO_ACCEPTCONN and self._listener is not None and self._listener.listening)

    async def bind(self, address: Any) -> None:
        await trio.lowlevel.checkpoint()
        host = running().host if address[0] == "0.0.0.0" else address[0]  # noqa: S104 - compared
        self._listener = self._network.bind(host, address[1])
        self._name = self._listener.address

    def listen(self, backlog: int = 100) -> None:
        if self._listener is None:
            raise OSError(errno.EINVAL, "bind first")
        self._listener.listen(backlog)

    async def accept(self) -> tuple[trio.socket.SocketType, object]:
        while self._listener is not None:
            await trio.lowlevel.wait_readable(self._listener.fileno())
            try:
                end, peer = self._listener.accept()
            except BlockingIOError:
                continue
            accepted = MemorySocket(self._network, self._family, self._kind, self._proto)
            accepted._join(end, self._name, peer)
            return accepted, peer
        raise OSError(errno.EBADF, "this socket does not listen")

    async def connect(self, address: Any) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "this socket is closed")
        connection = await self._network.connect((address[0], address[1]))
        self._join(connection.client_end, connection.client, connection.server)

    def _join(self, end: socket.socket, name: tuple[str, int], peer: tuple[str, int]) -> None:
        self._stream, self._name, self._peer = trio.socket.from_stdlib_socket(end), name, peer

    # ------------------------------------------------------------------------------------------- after the connection

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int]:
        if self._peer is None:
            raise OSError(errno.ENOTCONN, "this socket is not connected")
        return self._peer

    def fileno(self) -> int:
        inner = self._stream or self._listener
        return -1 if self._closed or inner is None else inner.fileno()

    def close(self) -> None:
        self._closed = True
        inner = self._stream or self._listener
        if inner is not None:
            if inner.fileno() >= 0:
                trio.lowlevel.notify_closing(inner.fileno())
            inner.close()

    @property
    def _connected(self) -> trio.socket.SocketType:
        if self._stream is None:
            raise OSError(errno.ENOTCONN, "this socket is not connected")
        return self._stream

    def shutdown(self, flag: int) -> None:
        self._connected.shutdown(flag)

    async def wait_writable(self) -> None:
        await self._connected.wait_writable()

    async def recv(self, size: int, flags: int = 0, /) -> bytes:
        return await self._connected.recv(size, flags)

    async def recv_into(self, room: Any, size: int = 0, flags: int = 0) -> int:
        return await self._connected.recv_into(room, size, flags)

    async def send(self, data: Any, flags: int = 0, /) -> int:
        return await self._connected.send(data, flags)

    async def sendmsg(self, parts: Iterable[Any], *more: Any) -> int:
        return await self._connected.sendmsg(parts, *more)


class MemorySockets(trio.abc.SocketFactory):
    """For ``trio.socket.set_custom_socket_factory``: creates all sockets of the run in the simulated network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(
        self, family: int = socket.AF_INET, type: int = socket.SOCK_STREAM, proto: int = 0
    ) -> trio.socket.SocketType:
        """Return a new socket, neither bound nor connected."""
        return MemorySocket(self._network, family, type, proto)

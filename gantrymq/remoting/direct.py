"""A connection on asyncio, plain or by TLS, that is read and written in callbacks, without tasks and their switches in
between."""

from __future__ import annotations

import asyncio
import socket
import ssl
from ipaddress import ip_address
from typing import Any, Final, Protocol, cast

import anyio

_ADDRESSES_MAX: Final = 8
"""The most addresses of a host that are tried."""
_BUFFER_BYTES: Final = 256 * 1024
_BUFFER_KEPT_BYTES: Final = 2 * 1024 * 1024
"""A larger buffer is freed when it is empty."""
_TLS_SHUTDOWN_SECONDS: Final = 1.0
"""How long the end of a connection waits for the peer to end TLS as well."""


class User(Protocol):
    """The object whose methods the event loop calls with the events of a connection."""

    def received(self, data: memoryview) -> int:
        """These bytes came, behind those of the last call that were not used; how many are used now."""

    def writable(self) -> None:
        """What was written has left for the socket: more can be written."""

    def ended(self, error: Exception | None) -> None:
        """The connection has ended, because the peer closed it or of this error."""


class DirectConnection(asyncio.BufferedProtocol):
    """One connection; :func:`connect` makes it.

    The socket writes into one buffer, from which the user takes whole frames: the bytes of a large answer are copied
    once. The buffer grows when it is full, so it has at most twice the size of the largest frame.
    """

    def __init__(self, user: User) -> None:
        self._user: User | None = user
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        """Between them are bytes that the user has not used."""
        self.blocked: bool = False
        """Whether the socket has not taken all that was written: write no more before ``User.writable``."""

    @property
    def local_host(self) -> str:
        """The address of this side."""
        assert self._transport is not None  # it is used when it is connected
        return str(self._transport.get_extra_info("sockname")[0])

    def write(self, data: bytes) -> None:
        """Write ``data``, at once as far as the socket takes it."""
        assert self._transport is not None
        self._transport.write(data)

    def call_soon(self, call: User) -> None:
        """Have ``call.writable()`` called in the next turn of the event loop."""
        self._loop.call_soon(call.writable)

    async def aclose(self) -> None:
        """Close the connection; what was not written is lost. The user gets no further callback."""
        self._user = None
        if self._transport is not None:
            if self.blocked:
                self._transport.abort()
            else:
                self._transport.close()
            with anyio.CancelScope(shield=True):
                await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it, like the ones that follow."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1, low=0)  # with 0 TLS would pause where nothing is left to write

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._user is not None:
            self._begin += self._user.received(self._buffer[self._begin : self._end])
            if self._begin < self._end:
                return
        self._begin = self._end = 0
        if len(self._buffer) > _BUFFER_KEPT_BYTES:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def _make_room(self) -> None:
        unused = self._buffer[self._begin : self._end]
        larger = memoryview(bytearray(max(_BUFFER_BYTES, 2 * len(unused))))
        larger[: len(unused)] = unused
        self._buffer, self._begin, self._end = larger, 0, len(unused)

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self._user is not None:
            self._user.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        if self._user is not None:
            self._user.ended(exc)


async def connect(
    host: str, port: int, user: User, timeout: float, tls: ssl.SSLContext | None = None
) -> DirectConnection:
    """A connection to one of the addresses of ``host``; OSError of the last one that was tried.

    Each but the last has its share of ``timeout`` (seconds), which the caller enforces for all of them. With ``tls``
    it is encrypted, and ssl.SSLError is raised as well.
    """
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl": tls, "server_hostname": host, "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS}
    addresses = await _addresses(host, port)
    failure: OSError = OSError(f"{host} has no address")
    for place, address in enumerate(addresses):
        connection = DirectConnection(user)
        is_last = place + 1 == len(addresses)
        with anyio.move_on_after(None if is_last else timeout / len(addresses)):
            try:
                await loop.create_connection(lambda made=connection: made, address, port, **options)  # type: ignore[misc]
                return connection
            except OSError as error:
                failure = error
    raise failure


async def _addresses(host: str, port: int) -> list[str]:
    try:
        ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))[:_ADDRESSES_MAX]
    return [host]

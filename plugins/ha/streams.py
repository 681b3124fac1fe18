"""The connections between a master and a slave: TCP, or TLS if the plugin ``tls`` says so."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

import trio

from gantrymq.plugins.ha.frames import BadFrame

if TYPE_CHECKING:
    from gantrymq.plugins.interfaces import EncryptedStream, Encryption

HANDSHAKE_S: Final = 10.0
PARTS_MAX: Final = 512
"""Linux accepts 1,024 buffers in one call."""

Bytes = memoryview | bytes


class Link:
    """One connection. ``stream`` sends and receives; ``sock`` is used instead where the connection is plain."""

    def __init__(
        self, stream: trio.SocketStream | EncryptedStream | trio.SSLStream[trio.SocketStream], sock: trio.SocketStream
    ) -> None:
        self._stream = stream
        self._sock = sock

    @property
    def _is_plain(self) -> bool:
        return self._stream is self._sock or getattr(self._stream, "is_plain", False)

    @property
    def refused(self) -> str:
        """Why the connection ended before its first byte, if TLS was the reason."""
        return str(getattr(self._stream, "refused", ""))

    async def receive_some(self, size: int) -> bytes | bytearray:
        """Received bytes; empty at the end."""
        return await self._stream.receive_some(size)

    async def receive_into(self, room: memoryview) -> int:
        """Fill ``room`` with what was received; returns how many bytes, 0 at the end."""
        if self._is_plain:
            return await self._sock.socket.recv_into(room)
        data = await self._stream.receive_some(len(room))
        room[: len(data)] = data
        return len(data)

    async def send(self, parts: list[Bytes]) -> None:
        """Send all buffers, plain ones with as few system calls as possible."""
        if not self._is_plain:
            await self._stream.send_all(b"".join(parts))
            return
        first = 0
        while first < len(parts):
            sent = await self._sock.socket.sendmsg(parts[first : first + PARTS_MAX])
            while first < len(parts) and sent >= len(parts[first]):
                sent -= len(parts[first])
                first += 1
            if sent:
                parts[first] = parts[first][sent:]


def accepted(sock: trio.SocketStream, encryption: Encryption | None) -> Link:
    """A connection of a slave. :class:`OSError` if the slave has reset it."""
    wrapped = None if encryption is None else encryption.wrap(sock, "replication")
    return Link(wrapped or sock, sock)


async def secured(sock: trio.SocketStream, context: ssl.SSLContext | None) -> Link:
    """A connection to the master, after the handshake. :class:`BadFrame` if that failed."""
    if context is None:
        return Link(sock, sock)
    stream = trio.SSLStream(sock, context, https_compatible=True)
    try:
        with trio.fail_after(HANDSHAKE_S):
            await stream.do_handshake()
    except trio.TooSlowError:
        raise BadFrame(f"no TLS handshake within {HANDSHAKE_S:g} s") from None
    except trio.BrokenResourceError as error:
        reason = getattr(error.__cause__, "reason", None) or "it has closed the connection"
        raise BadFrame(f"the TLS handshake failed: {str(reason).replace('_', ' ').lower()}") from None
    return Link(stream, sock)

"""A scripted peer: the far end of connections, on loopback, on trio and asyncio.

For tests of the client side: responses can be late, wrong, cut or missing, which no real broker does on demand.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import AnyByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.tasks import background_tasks


class PeerConnection:
    """One accepted connection, read and written a command at a time."""

    def __init__(self, stream: AnyByteStream) -> None:
        self.stream = stream
        self._buffer = bytearray()
        self._commands: list[Command] = []
        self._writing = anyio.Lock()

    async def read(self) -> Command:
        """The next command of the other side; anyio.EndOfStream when it has closed."""
        while not self._commands:
            self._buffer += await self.stream.receive()
            frames, used = cut_frames(self._buffer)
            del self._buffer[:used]
            self._commands += [decode(frame) for frame in frames]
        return self._commands.pop(0)

    async def write(self, command: Command) -> None:
        """Send one command; many tasks may."""
        async with self._writing:
            await self.stream.send(encode(command))

    async def wait_closed(self) -> None:
        """Return when the other side has closed; whatever else it sends is dropped."""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await self.stream.receive()


Script = Callable[[PeerConnection], Awaitable[None]]
"""The peer's script for one connection, which is closed when it returns."""


@asynccontextmanager
async def run_peer(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The address of a peer that follows ``script`` on every connection, by TLS where it has a context."""

    async def serve(stream: AnyByteStream) -> None:
        async with stream:
            # either side may go away at any time
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await script(PeerConnection(stream))

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port: int = plain.extra(SocketAttribute.local_port)
    listener = plain if tls is None else TLSListener(plain, tls, standard_compatible=False)
    async with listener, background_tasks() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"127.0.0.1:{port}"

"""Fixtures: one nameserver and requests to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import Header


class Peer:
    """The other end of a connection to a nameserver, over any trio stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.buffer = bytearray()

    async def send(self, command: Command) -> None:
        await self.stream.send_all(encode(command))

    async def receive(self) -> Command | None:
        """The next answer, or None when the nameserver closed."""
        while True:
            frames, taken = cut_frames(self.buffer)
            if frames:
                first = frames[0]
                del self.buffer[: 8 + len(first.header) + len(first.body)]
                return decode(first)
            assert taken == 0
            received = await self.stream.receive_some(65536)
            if not received:
                return None
            self.buffer += received

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"", **fields: object) -> Command:
        """Send a request and return its answer."""
        command = Command(code, None if header is None else header.to_ext(), body, opaque=7, **fields)  # type: ignore[arg-type]
        await self.send(command)
        response = await self.receive()
        assert response is not None
        assert response.is_response
        assert response.opaque == 7
        return response


@pytest.fixture
def config() -> NameServerConfig:
    return NameServerConfig(port=0)


@pytest.fixture
def server(config: NameServerConfig) -> NameServer:
    return NameServer(config)


@pytest.fixture
def connect(server: NameServer, nursery: trio.Nursery) -> Callable[[], Peer]:
    """Open a connection to the nameserver over a pipe in memory."""

    def open_one() -> Peer:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs, "memory")
        return Peer(ours)

    return open_one


@pytest.fixture
def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()

"""Requests of the broker to a client return its response, or the reason why there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gantrymq.kernel.network.connection import ASKED_MAX, Connection
from gantrymq.kernel.network.sweep import Sweep
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, RemoteFault
from gantrymq.remoting.frame import cut_frames
from gantrymq.testing.harness import make_broker, run_broker

ASK_S = 5.0
pytestmark = pytest.mark.trio


@attrs.define
class Peer:
    """A client that is asked, by hand."""

    stream: trio.SocketStream
    connection: Connection

    async def read(self, count: int = 1) -> list[Command]:
        data = b""
        while len(frames := cut_frames(data)[0]) < count:
            data += await self.stream.receive_some(65536)
        return [decode(frame) for frame in frames]

    async def answer(self, opaque: int, body: bytes) -> None:
        await self.stream.send_all(encode(Command(0, None, body, opaque, RESPONSE_FLAG)))


@asynccontextmanager
async def peer_of_a_broker(path: Path) -> AsyncIterator[Peer]:
    async with run_broker(make_broker(path)) as broker:
        host, _, port = broker.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            while not broker.connections:
                await trio.lowlevel.checkpoint()
            yield Peer(stream, broker.connections[0])


async def test_responses_reach_their_callers_in_any_order(tmp_path: Path):
    async with peer_of_a_broker(tmp_path) as peer, trio.open_nursery() as nursery:
        bodies: dict[bytes, bytes] = {}

        async def ask(body: bytes) -> None:
            bodies[body] = (await peer.connection.ask(Command(307, {"a": "b"}, body), ASK_S)).body

        for body in (b"one", b"two"):
            nursery.start_soon(ask, body)
        with trio.fail_after(ASK_S):
            asked = {command.body: command for command in await peer.read(2)}
            assert {command.code for command in asked.values()} == {307}
            await peer.answer(asked[b"two"].opaque, b"TWO")
            await peer.answer(asked[b"one"].opaque, b"ONE")
    assert bodies == {b"one": b"ONE", b"two": b"TWO"}


async def test_unexpected_and_duplicate_responses_are_dropped(tmp_path: Path):
    async with peer_of_a_broker(tmp_path) as peer, trio.open_nursery() as nursery:
        await peer.answer(99, b"never asked")

        @nursery.start_soon
        async def answer() -> None:
            (command,) = await peer.read()
            await peer.answer(command.opaque + 1, b"another's")
            await peer.answer(command.opaque, b"right")
            await peer.answer(command.opaque, b"again")

        assert (await peer.connection.ask(Command(307), ASK_S)).body == b"right"
        assert not peer.connection.closed


async def test_a_silent_peer_is_reported_after_the_timeout(tmp_path: Path):
    async with peer_of_a_broker(tmp_path) as peer:
        for _ in range(ASKED_MAX + 1):
            with pytest.raises(CallTimeout):
                await peer.connection.ask(Command(307), 0.0)
        with pytest.raises(CallTimeout):
            await peer.connection.ask(Command(307), -0.001)


async def test_a_peer_with_many_open_requests_gets_no_further_ones(tmp_path: Path):
    async with peer_of_a_broker(tmp_path) as peer, trio.open_nursery() as nursery:
        for _ in range(ASKED_MAX):
            nursery.start_soon(peer.connection.ask, Command(307), 60.0)
        await wait_all_tasks_blocked()
        with pytest.raises(RemoteFault, match="has 64 unanswered requests"):
            await peer.connection.ask(Command(307), ASK_S)
        nursery.cancel_scope.cancel()


async def test_closing_the_connection_ends_all_waits(tmp_path: Path):
    async with peer_of_a_broker(tmp_path) as peer:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def leave() -> None:
                await peer.read()
                await peer.stream.aclose()

            with pytest.raises(ChannelClosed, match="ended before"):
                await peer.connection.ask(Command(307), ASK_S)
        with pytest.raises(ChannelClosed, match="is closed"):
            await peer.connection.ask(Command(307), ASK_S)


async def test_a_response_makes_the_sweep_yield_to_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ways: list[None] = []
    async with peer_of_a_broker(tmp_path) as peer, trio.open_nursery() as nursery:
        monkeypatch.setattr(Sweep, "yield_to_tasks", lambda sweep: ways.append(None))

        @nursery.start_soon
        async def answer() -> None:
            (command,) = await peer.read()
            await peer.answer(command.opaque + 1, b"another's")
            await peer.answer(command.opaque, b"right")

        await peer.connection.ask(Command(307), ASK_S)
        assert len(ways) == 1, "once, and not for an answer that nobody waits for"

"""The limited share of the processor for TLS handshakes, and the waiting ones."""

from __future__ import annotations

import select
import socket
import ssl

import pytest
import trio
import trio.testing

from gantrymq.remoting import _server_handshake, handshakes
from gantrymq.remoting._server_handshake import accept_tls
from gantrymq.remoting.handshakes import HANDSHAKE_SECONDS, SLICE_SECONDS, HandshakeTime
from gantrymq.remoting.tls import ServerTls
from support.certificates import FOLDER, client_context
from support.tls_flood import client_hello, shake_hands_in_memory

SERVER = ServerTls(str(FOLDER / "server.pem"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_handshakes_have_no_time_left_in_a_slice_after_their_share(clock: Clock) -> None:
    time = HandshakeTime(clock)
    assert time.is_left()
    time.count(clock.now - HANDSHAKE_SECONDS * 0.6)
    assert time.is_left()
    time.count(clock.now - HANDSHAKE_SECONDS * 0.6)
    assert not time.is_left()
    clock.now += SLICE_SECONDS / 4
    assert time.wait_seconds() == pytest.approx(SLICE_SECONDS * 3 / 4)
    clock.now += SLICE_SECONDS
    assert time.is_left()


def test_handshakes_of_every_server_context_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    time = HandshakeTime()
    monkeypatch.setattr(handshakes, "HANDSHAKES", time)
    monkeypatch.setattr(handshakes, "SLICE_SECONDS", 3600.0)
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 1e-9)
    assert time.is_left()
    shake_hands_in_memory(SERVER.make_context(), client_context())
    assert not time.is_left()


def costly(time: HandshakeTime, seconds: float) -> type[ssl.SSLObject]:
    """A class of connections: the answer to a client's first bytes takes ``seconds``."""

    class Costly(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            finally:
                if self.shared_ciphers():
                    time.count(time.clock() - seconds)

    return Costly


@pytest.mark.trio
async def test_concurrent_handshakes_of_streams_share_the_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    time = HandshakeTime(clock)
    monkeypatch.setattr(_server_handshake, "HANDSHAKES", time)
    context = SERVER.make_context()
    context.sslobject_class = costly(time, HANDSHAKE_SECONDS * 0.6)
    answered: list[int] = []

    async def ask(number: int, peer: trio.abc.Stream) -> None:
        await peer.send_all(client_hello())
        if await peer.receive_some(1):
            answered.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(accept_tls, ours, context)
            nursery.start_soon(ask, number, theirs)
        for expected in (2, 4, 6, 8):
            await trio.testing.wait_all_tasks_blocked()
            assert len(answered) == expected
            clock.now += SLICE_SECONDS
            with trio.fail_after(20):
                while expected < 8 and len(answered) == expected:  # noqa: ASYNC110 - a real sleep ends meanwhile
                    await trio.sleep(SLICE_SECONDS)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_handshake_of_a_stream_whose_peer_has_left_is_not_computed(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    time = HandshakeTime(clock)
    monkeypatch.setattr(_server_handshake, "HANDSHAKES", time)
    context = SERVER.make_context()
    context.sslobject_class = costly(time, HANDSHAKE_SECONDS * 2)
    ours, theirs = socket.socketpair()
    with ours, theirs, trio.fail_after(20):
        theirs.sendall(client_hello())
        theirs.close()
        with pytest.raises(trio.BrokenResourceError) as failure:
            await accept_tls(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), context)
    assert isinstance(failure.value.__cause__, ssl.SSLEOFError)
    assert time.is_left(), "no answer was computed"


@pytest.mark.trio
async def test_a_handshake_succeeds_where_the_system_does_not_report_that_a_peer_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(select, "POLLRDHUP")
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in socket.socketpair())
    async with ours, theirs:
        client = trio.SSLStream(theirs, client_context(), server_hostname="localhost", https_compatible=True)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.do_handshake)
                server = await accept_tls(ours, SERVER.make_context())
            await server.send_all(b"hello")
            assert await client.receive_some(5) == b"hello"

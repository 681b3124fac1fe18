"""Connections to the dashboard without a token cannot harm others by their bytes or their silence."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")
pytest.importorskip("hypercorn", reason="hypercorn is not installed (gantrymq[dashboard])")

from h2.config import H2Configuration
from h2.connection import H2Connection

from gantrymq.dashboard import connection, server
from gantrymq.dashboard.access import Access
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.tls import ServerTls
from support.certificates import FOLDER, client_context
from support.handshakes import shakes_hands_when_there_is_time

pytestmark = [pytest.mark.timeout(120), pytest.mark.trio]

PATIENCE_S = 60
TOKENS = Access({"does-all-0123456789": "admin"})
QUESTION = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def dashboard(certificates: server.Certificates | None = None) -> AsyncIterator[tuple[str, int]]:
    """The address of a dashboard without a cluster; the block fails if the dashboard ends before it."""
    sock = server.listen("127.0.0.1:0", TOKENS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, sock, "", TOKENS, None, certificates)
        yield parse_address(server.address_of(sock))
        nursery.cancel_scope.cancel()


async def answer(stream: trio.abc.Stream, question: bytes = QUESTION) -> bytes:
    """All bytes until the end of the connection."""
    with trio.fail_after(PATIENCE_S):
        await stream.send_all(question)
        return await rest(stream)


async def rest(stream: trio.abc.Stream) -> bytes:
    found = b""
    try:
        while piece := await stream.receive_some():
            found += piece
    except trio.BrokenResourceError:
        pass
    return found


async def first_line(address: tuple[str, int], question: bytes = QUESTION) -> bytes:
    """The first line of the answer to a new connection."""
    async with await trio.open_tcp_stream(*address) as stream:
        return (await answer(stream, question)).partition(b"\r\n")[0].strip()


def upgrade(protocol: bytes, *fields: bytes) -> bytes:
    """A request that offers to go on with another protocol, and closes the connection if that is not accepted."""
    head = [b"GET / HTTP/1.1", b"Host: localhost", b"Connection: close, upgrade", b"Upgrade: " + protocol, *fields]
    return b"\r\n".join([*head, b"", b""])


def http2(method: bytes = b"GET", path: bytes = b"/", body: bytes | None = None) -> bytes:
    """A connection that begins with HTTP/2, with one request."""
    settings = H2Configuration(
        client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
    )
    made = H2Connection(settings)
    made.initiate_connection()
    fields = [(b":method", method), (b":path", path), (b":scheme", b"http"), (b":authority", b"localhost")]
    made.send_headers(1, fields, end_stream=body is None)
    if body is not None:
        made.send_data(1, body, end_stream=True)
    return bytes(made.data_to_send())


OFFERS = {
    "h2c with bad settings": upgrade(b"h2c", b"HTTP2-Settings: A"),
    "h2c": upgrade(b"h2c", b"HTTP2-Settings: AAEAAQ=="),
    "a WebSocket": upgrade(b"websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Sec-WebSocket-Version: 13"),
    "a WebSocket with a bad protocol": upgrade(b"websocket", b"Sec-WebSocket-Protocol: \xff"),
}


@pytest.mark.parametrize("question", OFFERS.values(), ids=OFFERS.keys())
async def test_an_offer_of_another_protocol_is_answered_in_http_1(question: bytes) -> None:
    async with dashboard() as address:
        assert await first_line(address, question) == b"HTTP/1.1 200"
        assert await first_line(address) == b"HTTP/1.1 200"


BEGINNINGS = {
    "HTTP/2": http2(),
    "HTTP/2 with a path that is not a text": http2(path=b"/\xff"),
    "HTTP/2 with a method that is not a text": http2(b"G\xff"),
    "HTTP/2 with a body after the refusal": http2(b"POST", b"/api/v1/topics", b"{}"),
    "no HTTP": b"\x16\x03\x01\x00\xff\xff\r\n\r\n",
    "a body that is no chunk": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
}


@pytest.mark.parametrize("question", BEGINNINGS.values(), ids=BEGINNINGS.keys())
async def test_bytes_of_another_protocol_end_their_connection_alone(question: bytes) -> None:
    with capture_logs() as logs:
        async with dashboard() as address:
            assert not (await first_line(address, question)).startswith(b"HTTP/1.1 2")
            assert await first_line(address) == b"HTTP/1.1 200"
    assert [each for each in logs if each["log_level"] != "debug"] == []


async def test_an_unexpected_error_ends_its_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: object, event: object) -> None:
        raise KeyError(1)

    with capture_logs() as logs:
        async with dashboard() as address:
            with monkeypatch.context() as patch:
                patch.setattr(connection._Http1, "handle", fail)
                assert await first_line(address) == b""
            assert await first_line(address) == b"HTTP/1.1 200"
    assert [(each["event"], each["log_level"]) for each in logs] == [("dashboard_connection_failed", "debug")]


async def test_more_connections_than_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    async with dashboard() as address:
        async with await trio.open_tcp_stream(*address) as first, await trio.open_tcp_stream(*address) as second:
            async with await trio.open_tcp_stream(*address) as third:
                with trio.fail_after(PATIENCE_S):
                    assert await rest(third) == b""
            for stream in (first, second):
                assert (await answer(stream)).startswith(b"HTTP/1.1 200")
        with trio.fail_after(PATIENCE_S):  # until the server has seen that they have ended
            while await ask_again(address) != b"HTTP/1.1 200":
                pass


async def ask_again(address: tuple[str, int]) -> bytes:
    try:
        return await first_line(address)
    except trio.BrokenResourceError:  # it was closed before the question
        return b""


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http", "https"])
async def test_a_connection_that_says_nothing_is_closed(is_encrypted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    certificates = server.Certificates(ServerTls(str(FOLDER / "server.pem"), "")) if is_encrypted else None
    async with dashboard(certificates) as address, await trio.open_tcp_stream(*address) as stream:
        with trio.fail_after(PATIENCE_S / 2):  # half of Hypercorn's own limit
            assert await rest(stream) == b""


@pytest.mark.parametrize("path", [b"/app.js", b"/api/v1/session", b"/nothing"])
async def test_a_connection_that_says_nothing_more_is_closed(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.2)
    async with dashboard() as address, await trio.open_tcp_stream(*address) as stream:
        found = await answer(stream, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 ")


async def unread_answers(address: tuple[str, int], context: ssl.SSLContext | None) -> Any:
    """A connection whose answers fill all buffers, because it reads none."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(address)
    stream: Any = trio.SocketStream(sock)
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname="localhost")
        await stream.do_handshake()
    question = QUESTION.replace(b"/ ", b"/app.js ").replace(b"Connection: close\r\n", b"")
    await stream.send_all(question * 300)
    return stream


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http", "https"])
async def test_unread_answers_do_not_delay_the_end_of_the_server(
    is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 3600)  # or the kernel ends the connection after 20 s
    certificates = server.Certificates(ServerTls(str(FOLDER / "server.pem"), "")) if is_encrypted else None
    with trio.fail_after(PATIENCE_S):
        async with dashboard(certificates) as address:
            stream = await unread_answers(address, client_context() if is_encrypted else None)
            await until_the_server_waits()
    await trio.aclose_forcefully(stream)


async def until_the_server_waits() -> None:
    """Wait until all tasks are blocked: on receiving from a peer, or on a peer that does not read."""
    with trio.fail_after(PATIENCE_S):
        await trio.testing.wait_all_tasks_blocked(0.05)


async def test_handshakes_wait_until_they_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dashboard(server.Certificates(ServerTls(str(FOLDER / "server.pem"), ""))) as (host, port):
        assert await shakes_hands_when_there_is_time(host, port, monkeypatch)

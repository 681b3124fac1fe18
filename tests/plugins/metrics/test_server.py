"""The web server serves one page over valid HTTP, and every other request ends with an error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.metrics.config import MetricsConfig
from gantrymq.plugins.metrics.exposition import Text
from gantrymq.plugins.metrics.server import HEAD_MAX_BYTES, MetricsServer, Render
from gantrymq.remoting.address import parse_address

pytestmark = pytest.mark.trio


async def page(accept: str) -> Text:
    return Text("text/plain; version=0.0.4", f"accepts [{accept}]\n".encode())


@asynccontextmanager
async def running(listen: str = "127.0.0.1:0", render: Render = page, **settings: float) -> AsyncIterator[str]:
    config = MetricsConfig(listen=listen, **settings)  # type: ignore[arg-type]
    server = MetricsServer(SystemEnv(), config, render)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        yield server.address
        nursery.cancel_scope.cancel()


async def connect(address: str) -> trio.SocketStream:
    return await trio.open_tcp_stream(*parse_address(address))


async def exchange(address: str, request: bytes) -> bytes:
    """All bytes until the server closes the connection, or the response is complete."""
    async with await connect(address) as stream:
        await stream.send_all(request)
        answer = b""
        with trio.fail_after(30):
            while piece := await stream.receive_some(65536):
                answer += piece
                if b"\r\nconnection: close\r\n" not in answer.lower() and answer.endswith(b"\n"):
                    break
        return answer


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_the_page_is_there_and_the_connection_stays() -> None:
    async with running() as address, await connect(address) as stream:
        for _ in range(2):
            await stream.send_all(
                b"GET /metrics?name=x HTTP/1.1\r\nHost: localhost\r\nAccept: a/b\r\nAccept: c/d\r\n\r\n"
            )
            answer = await stream.receive_some(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert body == b"accepts [a/b, c/d]\n"
            assert b"content-length: 19" in head.lower()
            assert b"content-type: text/plain; version=0.0.4" in head.lower()


async def test_requests_that_come_together_are_answered_in_turn() -> None:
    async with running() as address, await connect(address) as stream:
        await stream.send_all(GET * 3)
        answer = b""
        with trio.fail_after(30):
            while answer.count(b"accepts") < 3:
                answer += await stream.receive_some(65536)
        assert answer.count(b"HTTP/1.1 200") == 3


async def test_head_has_the_length_and_no_body() -> None:
    async with running() as address:
        answer = await exchange(address, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: 11" in head.lower()
        assert body == b""


@pytest.mark.parametrize(
    ("request_line", "status", "words"),
    [
        (b"GET / HTTP/1.1", 404, b"nothing but /metrics"),
        (b"GET /metrics/ HTTP/1.1", 404, b"nothing but /metrics"),
        (b"POST /other HTTP/1.1", 404, b"nothing but /metrics"),
        (b"POST /metrics HTTP/1.1", 405, b"GET or HEAD"),
        (b"DELETE /metrics HTTP/1.1", 405, b"GET or HEAD"),
    ],
)
async def test_anything_else_is_refused_with_a_text(request_line: bytes, status: int, words: bytes) -> None:
    async with running() as address:
        answer = await exchange(address, request_line + b"\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert words in answer
        assert (b"allow: get, head" in answer.lower()) == (status == 405)


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        ("127.0.0.1:0", b"attacker.example:5557", 421),
        ("127.0.0.1:0", b"192.0.2.1", 421),
        ("127.0.0.1:0", b"LocalHost:5557", 200),
        ("127.0.0.1:0", b"[::1]:5557", 200),
        ("0.0.0.0:0", b"broker-1.example:5557", 200),
    ],
)
async def test_the_page_of_this_machine_is_not_for_other_names(listen: str, host: bytes, status: int) -> None:
    """Otherwise a web page could read the metrics through a browser of this machine (DNS rebinding)."""
    async with running(listen) as address:
        port = address.rpartition(":")[2]
        answer = await exchange(f"127.0.0.1:{port}", b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert (b"accepts" in answer) is (status == 200)


async def test_a_body_is_not_read() -> None:
    async with running() as address:
        answer = await exchange(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x00\x00\x10\x00\x00\x00\x0c{}",  # a frame of the broker's own protocol is no HTTP
        b"GET /metrics HTTP/1.1\r\nHost : here\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_invalid_http_request_closes_the_connection(request_bytes: bytes) -> None:
    async with running() as address:
        answer = await exchange(address, request_bytes + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in answer.lower()


async def test_a_head_without_end_is_cut_off() -> None:
    async with running() as address:
        answer = await exchange(address, b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * (HEAD_MAX_BYTES + 1))
        assert answer.startswith(b"HTTP/1.1 431")


async def test_a_page_that_cannot_be_made_is_answered_with_500_and_the_connection_stays() -> None:
    async def fail(accept: str) -> Text:
        if accept == "bad":
            raise TypeError("'>=' not supported")
        return await page(accept)

    with capture_logs() as logs:
        async with running(render=fail) as address, await connect(address) as stream:
            for _ in range(2):
                await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: bad\r\n\r\n")
                answer = await stream.receive_some(65536)
                assert answer.startswith(b"HTTP/1.1 500 ")
                assert b"the log has the reason" in answer
            await stream.send_all(GET)
            assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200 ")
    (failure,) = [line for line in logs if line["log_level"] == "error"]
    assert (failure["event"], failure["error"]) == ("metrics_page_failed", """TypeError("'>=' not supported")""")


async def test_a_media_type_that_http_does_not_allow_costs_only_its_own_connection() -> None:
    async def odd(accept: str) -> Text:
        return Text(accept, b"odd\n")

    with capture_logs() as logs:
        async with running(render=odd) as address, await connect(address) as other:
            request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: a/b; version=\xb2\r\n\r\n"
            assert await exchange(address, request) == b""
            await other.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: a/b\r\n\r\n")
            assert (await other.receive_some(65536)).startswith(b"HTTP/1.1 200 ")
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["connection_failed"]


@pytest.mark.parametrize("begun", [b"", b"GET /metr"])
async def test_silent_connections_are_closed(begun: bytes) -> None:
    async with running(timeout=0.1) as address, await connect(address) as stream:
        await stream.send_all(begun or b"\r\n"[:0])
        with trio.fail_after(5):
            assert await stream.receive_some(10) == b""


async def test_one_too_many_is_closed_and_the_others_stay() -> None:
    async with running(connections_max=2) as address:
        async with await connect(address) as first, await connect(address) as second:
            for stream in (first, second):
                await stream.send_all(GET)
                assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200")
            async with await connect(address) as third:
                with trio.fail_after(30):
                    assert await third.receive_some(10) == b""
            await first.send_all(GET)
            assert (await first.receive_some(65536)).startswith(b"HTTP/1.1 200")
        await trio.testing.wait_all_tasks_blocked()
        assert (await exchange(address, GET)).startswith(b"HTTP/1.1 200")


async def test_an_address_that_is_taken_is_named() -> None:
    async with running() as address:
        with pytest.raises(StartError, match=rf"{address}: Address already in use; set plugin.metrics.listen"):
            MetricsServer(SystemEnv(), MetricsConfig(listen=address), page)

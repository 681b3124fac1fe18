"""Peers without a token that send no body or read no response do not block others."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")
pytest.importorskip("hypercorn", reason="hypercorn is not installed (gantrymq[dashboard])")

from starlette.applications import Starlette

from gantrymq.dashboard import server
from gantrymq.dashboard.access import REQUESTS_AT_ONCE, Access
from gantrymq.dashboard.api import BODY_S, PREFIX, Source, make_app
from gantrymq.remoting.address import parse_address
from support.dashboard import check_answer
from support.processes import wait_for

pytestmark = [pytest.mark.timeout(60), pytest.mark.trio]


async def ask(app: Starlette, method: str, path: str, receive: Any) -> tuple[int, Any]:
    """Status and body of the answer to a request from this machine, whose body comes from ``receive``."""
    headers = [(b"host", b"localhost"), (b"x-gantrymq-change", b"1"), (b"content-length", b"9")]
    scope = {
        "type": "http", "method": method, "scheme": "http", "path": PREFIX + path, "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    answer = json.loads(sent[1]["body"])
    check_answer(method, PREFIX + path, sent[0]["status"], answer)
    return sent[0]["status"], answer


async def trickle() -> dict[str, Any]:
    """A piece each second, and never the last one."""
    await trio.sleep(1)
    return {"type": "http.request", "body": b" ", "more_body": True}


@pytest.mark.parametrize("receive", [trio.sleep_forever, trickle], ids=["silent", "trickling"])
async def test_logins_without_a_body_do_not_block_the_dashboard(
    receive: Any, autojump_clock: trio.testing.MockClock
) -> None:
    app = make_app(Source(), Access({"does-all-0123456789": "admin"}))
    statuses: list[int] = []

    async def log_in() -> None:
        statuses.append((await ask(app, "POST", "/session", receive))[0])

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(REQUESTS_AT_ONCE):
            nursery.start_soon(log_in)
        await trio.sleep(BODY_S / 2)
        assert (await ask(app, "GET", "/session", trio.sleep_forever))[0] == 503
    assert trio.current_time() - began == pytest.approx(BODY_S)
    assert statuses == [408] * REQUESTS_AT_ONCE
    assert (await ask(app, "GET", "/session", trio.sleep_forever))[0] == 200


async def test_a_change_without_a_body_is_refused_in_time(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    status, answer = await ask(make_app(Source(), Access()), "POST", "/topics", trio.sleep_forever)
    assert (status, answer["error"]["code"]) == (408, "body")
    assert trio.current_time() - began == pytest.approx(BODY_S)


@pytest.mark.parametrize("path", ["/session", "/topics"])
async def test_a_sender_that_leaves_before_the_end_of_its_body_is_no_failure_of_the_dashboard(path: str) -> None:
    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with capture_logs() as logs:
        status, answer = await ask(make_app(Source(), Access()), "POST", path, leave)
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert logs == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has TCP_USER_TIMEOUT")
async def test_peers_that_do_not_read_do_not_block_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 4.0)
    access = Access({"does-all-0123456789": "admin"})
    sock = server.listen("127.0.0.1:0", access)
    address = parse_address(server.address_of(sock))

    def status() -> int:
        connection = HTTPConnection(*address, timeout=20)
        try:
            connection.request("GET", f"{PREFIX}/session")
            return connection.getresponse().status
        finally:
            connection.close()

    def visit() -> None:
        with ExitStack() as stack:
            for _ in range(REQUESTS_AT_ONCE):
                peer = stack.enter_context(socket.socket())
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                peer.connect(address)
                peer.sendall(b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            wait_for(lambda: status() == 503)
            wait_for(lambda: status() == 200)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, sock, "127.0.0.1:1", access)
        await trio.to_thread.run_sync(visit)
        nursery.cancel_scope.cancel()

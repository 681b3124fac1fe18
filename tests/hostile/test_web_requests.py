"""The servers of metrics and health answer odd HTTP requests and stay available."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.cli.nameserver_metrics import serve_metrics
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.plugins.interfaces import HttpPages
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send

pytestmark = [pytest.mark.trio, pytest.mark.once]

ODD_VERSIONS = (
    b"x", b"\xb2.0", b"1.\xb2", b"1.0.0.\xe9", b"1.0.0\x80", b"", b'"1.0.0"', b"1.0.0-rc1", b"1..0", b".", b"-1",
    b"1e9", b"1 .0", b"9" * 5_000, b"1." * 3_000,
)  # fmt: skip
ODD_ACCEPTS = (
    *(b"%s;version=%s" % (kind, version) for kind in (b"text/plain", b"application/openmetrics-text")
      for version in ODD_VERSIONS),
    b"text/plain;version=x, application/openmetrics-text;version=1.0.0", b"text/plain;version=1.0.0;escaping=\xff",
    b"\xff", b",", b";", b"text/plain;=;version", b"application/openmetrics-text;version=x;version=1.0.0",
)  # fmt: skip


async def scrape(address: str, accept: bytes = b"*/*") -> bytes:
    """The status line of ``/metrics``."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\nConnection: close\r\n\r\n" % accept
    with trio.fail_after(60):
        async with await trio.open_tcp_stream(*parse_address(address)) as stream:
            await stream.send_all(request)
            answer = b"".join([piece async for piece in stream])
    return answer.partition(b"\r\n")[0]


@asynccontextmanager
async def nameserver_metrics() -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        server = NameServer(NameServerConfig(port=0))
        await nursery.start(server.serve)
        yield await nursery.start(serve_metrics, server, "127.0.0.1:0", None)
        nursery.cancel_scope.cancel()


async def test_a_broker_answers_every_accept_header_with_its_metrics(tmp_path: Path) -> None:
    listen = {"plugin.metrics.listen": "127.0.0.1:0", "plugin.http.listen": "127.0.0.1:0"}
    with capture_logs() as logs:
        async with run_broker(make_broker(tmp_path, settings=listen, enable=["metrics"])) as broker:
            own = next(info.plugin.address for info in broker.manager.plugins if info.name == "metrics")
            for address in (own, broker.registry.get(HttpPages).address):
                for accept in ODD_ACCEPTS:
                    assert await scrape(address, accept) == b"HTTP/1.1 200 OK", accept[:80]
            async with open_channel(broker.address) as channel:
                assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
    assert [line for line in logs if line["log_level"] in ("warning", "error")] == []


async def test_a_nameserver_answers_every_accept_header_with_its_metrics() -> None:
    with capture_logs() as logs:
        async with nameserver_metrics() as address:
            for accept in ODD_ACCEPTS:
                assert await scrape(address, accept) == b"HTTP/1.1 200 OK", accept[:80]
    assert [line for line in logs if line["log_level"] in ("warning", "error")] == []

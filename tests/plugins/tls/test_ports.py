"""Metrics and health pages over TLS."""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.api import Broker
from gantrymq.plugins.interfaces import Replication
from gantrymq.remoting.address import parse_address
from gantrymq.testing.harness import make_broker, run_broker
from support.certificates import FOLDER, client_context
from support.handshakes import shakes_hands_when_there_is_time

pytestmark = pytest.mark.trio

HEALTH_CHECK = Path(__file__).resolve().parents[3] / "deploy" / "docker" / "healthcheck.py"
PLUGINS = [
    "gantrymq.plugins.tls:TlsPlugin", "gantrymq.plugins.metrics:MetricsPlugin", "gantrymq.plugins.ha:HaPlugin",
]  # fmt: skip


def make(path: Path, **settings: str) -> Broker:
    given = {
        "plugin.tls.certificate": str(FOLDER / "server.pem"), "plugin.metrics.listen": "127.0.0.1:0",
        "plugin.http.listen": "127.0.0.1:0", **{f"plugin.tls.{key}": value for key, value in settings.items()},
    }  # fmt: skip
    return make_broker(path / "store", settings=given, enable=PLUGINS)


def addresses(broker: Broker) -> list[tuple[str, str]]:
    """The addresses of the two ports, each with a path."""
    info: dict[str, str] = {}
    for _, call in broker.manager.calls("runtime_info", broker=broker):
        info |= call() or {}
    return [(info["metricsAddress"], "/metrics"), (info["httpAddress"], "/healthz")]


async def get(address: str, path: str, context: ssl.SSLContext | None) -> bytes:
    stream: trio.abc.Stream = await trio.open_tcp_stream(*parse_address(address))
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)  # type: ignore[arg-type]
    received = b""
    async with stream:
        with trio.fail_after(20):
            try:
                await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                while data := await stream.receive_some(65536):
                    received += bytes(data)
            except trio.BrokenResourceError:
                pass
    return received


async def test_metrics_and_health_pages_speak_tls_as_the_brokers_port_does(tmp_path: Path) -> None:
    async with run_broker(make(tmp_path)) as broker:
        for address, path in addresses(broker):
            assert (await get(address, path, client_context())).startswith(b"HTTP/1.1 200"), path
            assert await get(address, path, None) == b"", path
        metrics = await get(*addresses(broker)[0], client_context())
        assert b"gantrymq_tls_handshakes_total{" in metrics
        counted = {line.split(b'result="')[1].split(b'"')[0]: line.split()[-1] for line in metrics.splitlines()
                   if line.startswith(b"gantrymq_tls_handshakes_total{")}  # fmt: skip
        assert (float(counted[b"ok"]), float(counted[b"plain"])) == (3, 2)


@pytest.mark.parametrize(
    ("settings", "scheme"), [({}, "https"), ({"mode": "permissive"}, "https"), ({"pages": "plain"}, "http")]
)
async def test_the_log_has_the_urls_with_the_scheme_that_is_served(
    tmp_path: Path, settings: dict[str, str], scheme: str
) -> None:
    with capture_logs() as logs:
        async with run_broker(make(tmp_path, **settings)) as broker:
            expected = [f"{scheme}://{address}{path.removesuffix('/healthz')}" for address, path in addresses(broker)]
            for address, path in addresses(broker):  # a server that answers has logged
                context = client_context() if scheme == "https" else None
                assert (await get(address, path, context)).startswith(b"HTTP/1.1 200")
    assert urls(logs) == sorted(expected)


def urls(logs: list[Any]) -> list[str]:
    return sorted(each["url"] for each in logs if each["event"] in ("metrics_listening", "http_listening"))


@pytest.mark.parametrize(("settings", "encrypted"), [({"mode": "permissive"}, True), ({"pages": "plain"}, False)])
async def test_plain_pages_are_served_if_the_configuration_allows_it(
    tmp_path: Path, settings: dict[str, str], encrypted: bool
) -> None:
    async with run_broker(make(tmp_path, **settings)) as broker:
        for address, path in addresses(broker):
            assert (await get(address, path, None)).startswith(b"HTTP/1.1 200"), path
            if encrypted:
                assert (await get(address, path, client_context())).startswith(b"HTTP/1.1 200"), path


async def test_a_handshake_that_does_not_end_is_limited_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.plugins.tls.HANDSHAKE_S", 0.3)
    async with run_broker(make(tmp_path)) as broker:
        for address, path in addresses(broker):
            async with await trio.open_tcp_stream(*parse_address(address)) as stream:
                await stream.send_all(b"\x16\x03\x01")
                with trio.fail_after(20):
                    assert await stream.receive_some(100) == b""
            assert (await get(address, path, client_context())).startswith(b"HTTP/1.1 200")


async def test_handshakes_at_all_ports_wait_until_they_have_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_broker(make(tmp_path)) as broker:
        ports = [broker.address, broker.registry.get(Replication).ha_address, *(each for each, _ in addresses(broker))]
        waited = {port: await shakes_hands_when_there_is_time(*parse_address(port), monkeypatch) for port in ports}
    assert list(waited.values()) == [True] * 4, waited


@pytest.mark.parametrize("settings", [{}, {"mode": "permissive"}, {"pages": "plain"}, {"mode": "disabled"}])
async def test_the_images_health_check_works_with_and_without_tls(tmp_path: Path, settings: dict[str, str]) -> None:
    async with run_broker(make(tmp_path, **settings)) as broker:
        metrics, health = (address for address, _ in addresses(broker))
        assert await health_check(health) == 0
        if not settings:
            counted = (await get(metrics, "/metrics", client_context())).decode()
            assert re.search(r'^gantrymq_tls_handshakes_total{.*result="plain".*} 0', counted, re.MULTILINE), (
                "no refusal in the log and in the audit"
            )
        assert await health_check(metrics) == 1, "it has no such page"


async def health_check(address: str) -> int:
    command = [sys.executable, str(HEALTH_CHECK), str(parse_address(address)[1])]
    with trio.fail_after(60):
        return (await trio.run_process(command, check=False)).returncode

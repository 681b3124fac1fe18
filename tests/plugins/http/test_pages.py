"""The health pages of a running broker, read over real connections."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.sections import build_config
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import LogPoisoned, StartError
from gantrymq.kernel.loading import load_plugins
from gantrymq.kernel.plugin_activity import PluginActivity
from gantrymq.kernel.registry import Registry
from gantrymq.plugins import DEFAULT_PLUGINS
from gantrymq.plugins.http import HttpPlugin
from gantrymq.plugins.http.health import BrokerHealth
from gantrymq.plugins.http.pages import health_pages
from gantrymq.plugins.http.server import HEAD_MAX_BYTES
from gantrymq.plugins.interfaces import Health, HttpPages
from gantrymq.remoting.address import parse_address
from gantrymq.testing.harness import make_broker, run_broker
from support.failing_task import Archive
from support.tls_flood import client_hello

pytestmark = pytest.mark.trio

ANYWHERE = {"plugin.http.listen": "127.0.0.1:0"}


def plugin_of(broker: Broker) -> HttpPlugin:
    return next(info.plugin for info in broker.manager.plugins if isinstance(info.plugin, HttpPlugin))


def address_of(broker: Broker) -> str:
    server = plugin_of(broker).server
    assert server is not None
    return server.address


@asynccontextmanager
async def running(folder: Path, enable: Sequence[Any] = (), **settings: str) -> AsyncIterator[Broker]:
    broker = make_broker(folder, settings={**ANYWHERE, **settings}, enable=enable)
    async with run_broker(broker):
        yield broker


async def exchange(broker: Broker, request: bytes) -> bytes:
    """All bytes until the server closes the connection."""
    with trio.fail_after(30):
        async with await trio.open_tcp_stream(*parse_address(address_of(broker))) as stream:
            await stream.send_all(request)
            return b"".join([piece async for piece in stream])


async def get(broker: Broker, path: str) -> tuple[int, str]:
    """Status and body."""
    answer = await exchange(broker, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_a_working_broker_is_healthy_and_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert await get(broker, "/healthz") == (200, "ok\n")
        assert await get(broker, "/readyz?verbose") == (200, "ok\n")
        status, text = await get(broker, "/status.json")
        state = json.loads(text)
        assert status == 200
        assert state["alive"]
        assert state["ready"]
        assert state["reasons"] == {}
        assert state["broker"]["name"] == broker.name
        assert state["broker"]["address"] == broker.address
        assert state["broker"]["role"] == "master"
        assert state["log"] == {"begin": 0, "end": 0, "durable": 0, "readable": 0}
        assert "http" in state["plugins"]


async def test_a_full_disk_is_not_ready_but_alive(tmp_path: Path) -> None:
    settings = {
        "plugin.retention.disk_full": "1", "plugin.retention.disk_force": "1",
        "plugin.retention.enough_free": "1000000 GiB", "plugin.retention.check_interval": "10ms",
    }  # fmt: skip
    async with running(tmp_path, **settings) as broker:
        with trio.fail_after(30):
            while (await get(broker, "/readyz"))[0] == 200:  # noqa: ASYNC110 - the check of the disk tells nobody
                await trio.sleep(0.01)
        status, text = await get(broker, "/readyz")
        assert status == 503
        assert text.startswith("disk: service not available now")
        assert await get(broker, "/healthz") == (200, "ok\n")
        assert not json.loads((await get(broker, "/status.json"))[1])["ready"]


async def test_a_poisoned_log_is_not_alive() -> None:
    def check() -> None:
        raise LogPoisoned("flushing the commit log failed: Input/output error")

    manager = SimpleNamespace(activity=PluginActivity(lambda: 0.0))
    broker: Any = SimpleNamespace(
        env=SystemEnv(), log=SimpleNamespace(check=check), manager=manager, unacknowledged_for=lambda: 11.0
    )
    health = BrokerHealth(broker)
    health.is_serving = True
    pages = health_pages(health)
    for path in ("/healthz", "/readyz"):
        status, _, text = await pages[path]("")
        assert status == 503
        assert text.startswith(b"log: flushing the commit log failed: Input/output error\n")
    assert b"acknowledgments: the oldest message has waited 11 s" in text


async def test_a_failed_task_of_a_skipped_plugin_leaves_the_broker_alive_and_is_reported(tmp_path: Path) -> None:
    reason = "failed tasks of the plugin 'archive': 'archiving'; see the log"
    async with running(tmp_path, enable=[Archive]) as broker:
        with trio.fail_after(30):
            while (await get(broker, "/readyz"))[1] == "ok\n":  # noqa: ASYNC110 - the task tells nobody
                await trio.sleep(0.01)
        assert await get(broker, "/healthz") == (200, "ok\n")
        assert await get(broker, "/readyz") == (200, f"ok\ntask:archive: {reason}\n")
        state = json.loads((await get(broker, "/status.json"))[1])
        assert (state["alive"], state["ready"], state["degraded"]) == (True, True, {"task:archive": reason})


async def test_all_failed_tasks_of_a_plugin_are_named() -> None:
    activity = PluginActivity(lambda: 0.0)
    activity.tasks["archive"] = {"sending": "failed", "archiving": "failed", "waiting": "running"}
    broker: Any = SimpleNamespace(env=SystemEnv(), manager=SimpleNamespace(activity=activity))
    reason = "failed tasks of the plugin 'archive': 'archiving', 'sending'; see the log"
    assert BrokerHealth(broker).degraded() == {"task:archive": reason}


async def test_conditions_of_plugins_count_and_one_that_raises_is_a_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        health = broker.registry.get(Health)
        reason = "too warm"
        health.add("weather", lambda: reason)
        health.add("odd", lambda: str(1 // 0))
        status, text = await get(broker, "/readyz")
        assert status == 503
        assert text.splitlines()[0] == "weather: too warm"
        assert "ZeroDivisionError" in text
        reason = ""
        assert "weather" not in (await get(broker, "/readyz"))[1]


async def test_a_broker_that_stops_is_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        plugin_of(broker).stopping(broker)
        assert await get(broker, "/readyz") == (503, "serving: the broker starts or stops\n")
        assert await get(broker, "/healthz") == (200, "ok\n")


async def test_other_plugins_add_pages_and_a_page_that_fails_costs_only_its_reader(tmp_path: Path) -> None:
    async def page(accept: str) -> tuple[int, str, bytes]:
        return 200, "text/plain", f"for {accept}\n".encode()

    async def broken(accept: str) -> tuple[int, str, bytes]:
        raise OSError("gone")

    async with running(tmp_path) as broker:
        broker.registry.get(HttpPages).add("/own", page)
        broker.registry.get(HttpPages).add("/broken", broken)
        answer = await exchange(broker, b"GET /own HTTP/1.1\r\nHost: [::1]:8558\r\naccept:a/b\r\nAccept: c/d\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nfor a/b, c/d\n")
        assert (await get(broker, "/broken"))[0] == 500
        assert (await get(broker, "/"))[0] == 200
        assert "/own" in (await get(broker, "/"))[1]


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"GET healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET /status.json HTTP/1.1\r\nHost: attacker.example:8558\r\n\r\n", 421),
        (b"GET /status.json HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:8558\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"x" * HEAD_MAX_BYTES, 431),
    ],
)
async def test_each_request_has_a_clear_end(tmp_path: Path, request_bytes: bytes, status: int) -> None:
    async with running(tmp_path) as broker:
        answer = await exchange(broker, request_bytes)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert b"Connection: close" in answer
        if request_bytes.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n")


async def test_readers_beyond_the_limit_are_closed_while_others_stay(tmp_path: Path) -> None:
    async with running(tmp_path, **{"plugin.http.timeout": "10m", "plugin.http.connections_max": "2"}) as broker:
        address = parse_address(address_of(broker))
        async with await trio.open_tcp_stream(*address) as first, await trio.open_tcp_stream(*address):
            async with await trio.open_tcp_stream(*address) as third:
                with trio.fail_after(30):
                    assert await third.receive_some(10) == b""
            await first.send_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with trio.fail_after(30):
                assert (await first.receive_some(4096)).startswith(b"HTTP/1.1 200")


async def test_slow_and_excess_readers_are_closed(tmp_path: Path) -> None:
    settings = {"plugin.http.timeout": "500ms", "plugin.http.connections_max": "2"}
    async with running(tmp_path, **settings) as broker:
        address = parse_address(address_of(broker))
        streams = [await trio.open_tcp_stream(*address) for _ in range(4)]
        with trio.fail_after(30):
            for stream in streams:
                async with stream:
                    with suppress(trio.BrokenResourceError):  # closed before the bytes arrived
                        await stream.send_all(b"GET /healthz HT")
                        assert await stream.receive_some(10) == b""
        assert (await get(broker, "/healthz"))[0] == 200


class NoAddress(SystemEnv):
    """Every address is in use."""

    def bind(self, host: str, port: int) -> Any:
        raise OSError(errno.EADDRINUSE, "Address already in use")


@pytest.mark.parametrize("sets", [(), ("plugin.http.listen=127.0.0.1:8558",)])
async def test_only_an_address_that_was_set_stops_the_start_if_it_is_in_use(sets: tuple[str, ...]) -> None:
    manager = load_plugins(DEFAULT_PLUGINS)
    config = build_config(read_settings(sets=sets, environ={}), manager)
    plugin = next(info.plugin for info in manager.plugins if isinstance(info.plugin, HttpPlugin))
    broker: Any = SimpleNamespace(env=NoAddress(), registry=Registry())
    if sets:
        with pytest.raises(StartError, match=r"Address already in use; set plugin\.http\.listen to another address"):
            plugin.configure(broker, config)
    else:
        with structlog.testing.capture_logs() as logged:
            plugin.configure(broker, config)
        assert [entry["event"] for entry in logged] == ["http_not_served"]
        assert plugin.register_tasks(broker) == []
    assert broker.registry.find(Health) is not None


async def test_without_an_address_nothing_listens(tmp_path: Path) -> None:
    async with running(tmp_path, **{"plugin.http.listen": ""}) as broker:
        assert plugin_of(broker).server is None
        assert plugin_of(broker).runtime_info(broker) == {"httpAddress": "", "notReady": ""}


async def test_a_client_that_speaks_tls_to_the_plain_port_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, **{"plugin.http.timeout": "60s"}) as broker:
        assert (await exchange(broker, client_hello())).startswith(b"HTTP/1.1 400 ")

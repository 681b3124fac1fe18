"""Sources of nameserver addresses: the environment, and a URL that is polled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

import gantrymq
import gantrymq.sync
from gantrymq.client.discovery import RESPONSE_MAX_BYTES

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


class Directory:
    """An HTTP server that answers with ``text``; ``paths`` are those that were asked for."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.paths: list[str] = []
        directory = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                directory.paths.append(self.path)
                self.send_response(directory.status)
                self.end_headers()
                self.wfile.write(directory.text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/rocketmq/nsaddr"


@pytest.fixture
def directory() -> Iterator[Directory]:
    found = Directory()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def test_nameservers_are_read_from_the_environment(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_cluster(T=1) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", f"{cluster.address};127.0.0.1:1")
        async with gantrymq.connect() as client:
            assert await client.admin.topics() == ["T"]


async def test_a_missing_nameserver_setting_is_an_error_that_names_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ValueError, match=r"pass host:port to connect, or set NAMESRV_ADDR"):
        async with gantrymq.connect():
            pass


async def test_nameservers_are_fetched_from_a_url(fake_cluster: Cluster, directory: Directory) -> None:
    async with fake_cluster(T=1) as cluster:
        directory.text = f"\n{cluster.address};{cluster.address}\r\nmore"
        async with gantrymq.connect(directory.url) as client:
            assert await client.admin.topics() == ["T"]
            assert client.client_id.count("@") == 1
    assert directory.paths == ["/rocketmq/nsaddr"]


async def test_the_unit_name_selects_its_nameservers(
    fake_cluster: Cluster, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", directory.url)
    async with fake_cluster(T=1) as cluster:
        directory.text = cluster.address
        async with gantrymq.connect(unit_name="east") as client:
            assert client.client_id.endswith("@east")
    assert directory.paths == ["/rocketmq/nsaddr-east?nofix=1"]


def test_the_blocking_client_fetches_nameservers_from_a_url(fake_in_thread: Any, directory: Directory) -> None:
    directory.text = fake_in_thread.address
    with gantrymq.sync.connect(directory.url, unit_name="west") as client:
        assert client.admin.topics() == ["T"]
    assert directory.paths == ["/rocketmq/nsaddr-west?nofix=1"]


async def test_new_nameserver_addresses_are_used_and_old_connections_closed(
    fake_cluster: Cluster, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.client.cluster.DISCOVERY_INTERVAL_SECONDS", 0.01)
    async with fake_cluster(T=1) as old, fake_cluster(N=1) as new:
        directory.text = old.address
        async with gantrymq.connect(directory.url) as client:
            assert await client.admin.topics() == ["T"]
            with capture_logs() as logs, anyio.fail_after(20):
                directory.status = 500
                while not logs:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                assert await client.admin.topics() == ["T"]
                directory.text, directory.status = new.address, 200
                while client._cluster.nameservers.addresses != (new.address,):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert await client.admin.topics() == ["N"]
            assert client._cluster.connections.open_one(old.address) is None
    assert logs[0]["event"] == "nameserver_discovery_failed"
    assert logs[0]["reason"] == "no nameservers: HTTP status 500"


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (404, "", "HTTP status 404"),
        (204, "", "HTTP status 204"),
        (200, "", "its response names no nameservers: no nameserver given"),
        (200, "<html>hello</html>", "its response names no nameservers: '<html>hello</html>' is not an address"),
        (200, "x" * (RESPONSE_MAX_BYTES + 1), "more than 65536 bytes"),
    ],
)
async def test_an_invalid_response_of_the_url_is_reported(
    directory: Directory, status: int, text: str, reason: str
) -> None:
    directory.status, directory.text = status, text
    with pytest.raises(gantrymq.ConnectFailed, match=reason):
        async with gantrymq.connect(directory.url):
            pass


async def test_an_unreachable_url_is_reported() -> None:
    with pytest.raises(gantrymq.ConnectFailed, match=r"http://127\.0\.0\.1:1/rocketmq/nsaddr.*refused"):
        async with gantrymq.connect("http://127.0.0.1:1/rocketmq/nsaddr"):
            pass


@pytest.mark.parametrize("given", [["http://h:1/a", "h:2"], "ftp://h:1/a", "https://h:1"])
async def test_a_url_must_be_the_only_address_and_have_a_path(given: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a nameserver: give its host:port"):
        async with gantrymq.connect(given):
            pass


@pytest.mark.parametrize("unit", ["a b", "a@b", "a/b", 5])
async def test_a_unit_name_with_illegal_url_characters_is_rejected(unit: Any) -> None:
    with pytest.raises(ValueError, match="unit_name"):
        async with gantrymq.connect("127.0.0.1:1", unit_name=unit):
            pass

"""A nameserver with TLS: at the same port as plain text, or alone."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.metrics import Metrics
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver import server as nameserver_module
from gantrymq.nameserver.live import MinimumChange
from gantrymq.nameserver.server import REFUSALS_REPORT_SECONDS
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ChannelClosed, ConnectFailed
from gantrymq.remoting.tls import ServerTls, TlsUnusable
from support.authority import Authority
from support.certificates import CA, FOLDER, OTHER_CA, client_context
from support.handshakes import shakes_hands_when_there_is_time
from support.tls_flood import flood

pytestmark = pytest.mark.trio

FILES = ServerTls(str(FOLDER / "server.pem"))
TOPICS = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@asynccontextmanager
async def secured(files: ServerTls = FILES, **options: Any) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(port=0, tls=files, **{"plain": False, **options}))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()


async def asks(server: NameServer, context: ssl.SSLContext | None) -> int:
    async with open_channel(server.address, tls=context) as channel:
        codes = [(await channel.call(Command(TOPICS), 10.0)).code for _ in range(3)]
        body = bytes(1_000_000)  # of many records of TLS; no broker's registration
        codes.append((await channel.call(Command(12345, None, body), 10.0)).code)
        return codes[0] if codes == [0, 0, 0, 3] else -1


async def test_clients_are_served_over_tls() -> None:
    async with secured() as server:
        assert await asks(server, client_context()) == 0


async def test_plain_connections_are_served_in_permissive_mode_only() -> None:
    async with secured(plain=True) as server:
        assert (await asks(server, client_context()), await asks(server, None)) == (0, 0)
    with capture_logs() as logs:
        async with secured() as server:
            with pytest.raises(ChannelClosed, match="connect with tls=True"):
                await asks(server, None)
            assert await asks(server, client_context()) == 0
    assert [each["reason"] for each in logs if each["event"] == "tls_refused"] == [
        "the peer speaks plain text, and this port takes TLS only"
    ]


async def test_a_client_rejects_a_server_of_another_authority() -> None:
    async with secured() as server:
        with pytest.raises(ConnectFailed, match="its certificate is not accepted"):
            await asks(server, client_context(OTHER_CA))


async def test_clients_need_a_certificate_if_one_is_required() -> None:
    files = ServerTls(FILES.certificate, ca=str(CA), client_certificates="required")
    async with secured(files) as server:
        with pytest.raises((ConnectFailed, ChannelClosed)):
            await asks(server, client_context())


@pytest.mark.parametrize("first", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 500])
async def test_broken_and_unfinished_handshakes_affect_no_other_connection(first: bytes) -> None:
    async with secured(frame_seconds=0.5) as server:
        stream = await trio.open_tcp_stream(*parse_address(server.address))
        async with stream:
            await stream.send_all(first)
            assert await asks(server, client_context()) == 0
            with trio.fail_after(20), suppress(trio.BrokenResourceError):
                while await stream.receive_some(1000):
                    pass


async def test_handshakes_are_counted_by_result() -> None:
    async with secured(frame_seconds=1.0) as server:
        for _ in range(2):
            assert await asks(server, client_context()) == 0
        with pytest.raises(ChannelClosed):
            await asks(server, None)
        for first in (b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01"):  # the second one waits for more
            async with await trio.open_tcp_stream(*parse_address(server.address)) as stream:
                await stream.send_all(first)
                with trio.fail_after(20), suppress(trio.BrokenResourceError):
                    while await stream.receive_some(1000):
                        pass
        metrics = Metrics(100)
        server.collect_metrics(metrics)
    handshakes = metrics.families["gantrymq_nameserver_tls_handshakes_total"].series
    assert handshakes == {("ok",): 2, ("failed",): 1, ("unfinished",): 1, ("plain",): 1}


@pytest.mark.slow
async def test_a_thousand_handshakes_do_not_keep_others_from_reading_routes(tmp_path: Path) -> None:
    with capture_logs() as logs:
        await read_beside_a_flood(tmp_path / "audit")
    events = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert sum(event["count"] for event in events if event["request"] == "TLS_HANDSHAKE") == 1000
    assert len([each for each in logs if each["event"] == "tls_refused"]) <= 1 + 60 / REFUSALS_REPORT_SECONDS


async def read_beside_a_flood(audit: Path) -> None:
    async with secured(audit=audit) as server, open_channel(server.address, tls=client_context()) as channel:
        read = 0

        async def keep_reading() -> None:
            nonlocal read
            while True:
                assert (await channel.call(Command(TOPICS), 20.0)).code == 0
                read += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_reading)
            with trio.fail_after(60):
                await flood(server.address)
            nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            while len(server.connections) > 1:  # noqa: ASYNC110 - ends of the flood are on their way
                await trio.sleep(0.02)
        assert server.totals.handshakes["ok"] == 1
        assert sum(server.totals.handshakes.values()) == 1001
        assert read >= 20, "one for fifty handshakes: a busy machine delays both alike"


async def serve_subjects(context: ssl.SSLContext, nursery: trio.Nursery) -> tuple[str, trio.MemoryReceiveChannel[str]]:
    """The address of a broker that only shakes hands, and the subjects of its clients, "left" for one
    that does not accept its certificate."""
    send, seen = trio.open_memory_channel[str](10)

    async def broker(stream: trio.SocketStream) -> None:
        encrypted = trio.SSLStream(stream, context, server_side=True)
        try:
            await encrypted.do_handshake()
            await send.send(str(encrypted.getpeercert()["subject"]))
        except trio.BrokenResourceError:
            await send.send("left")

    (listener,) = await nursery.start(partial(trio.serve_tcp, broker, 0, host="127.0.0.1"))
    return f"127.0.0.1:{listener.socket.getsockname()[1]}", seen


async def test_notices_do_not_trust_a_removed_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(nameserver_module, "WATCH_SECONDS", 0.05)
    stolen, new, trusted = Authority(tmp_path, "stolen"), Authority(tmp_path, "new"), tmp_path / "trusted.pem"
    trusted.write_bytes(stolen.file.read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(new.file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(stolen.issue("broker"))
    address, seen = await serve_subjects(context, nursery)
    with capture_logs() as logs, trio.fail_after(60):
        async with secured(ServerTls(str(new.issue("names")), ca=str(trusted))) as server:
            server._notices.add(MinimumChange("b", 0, "a:1", (address,), ha_address="a:2"))
            assert "names" in await seen.receive()
            trusted.write_bytes(new.file.read_bytes())
            while not any(each["event"] == "tls_files_loaded" for each in logs):  # noqa: ASYNC110 - a thread
                await trio.sleep(0.02)
            server._notices.add(MinimumChange("b", 0, "a:1", (address,), ha_address="a:2"))
            assert await seen.receive() == "left"
    nursery.cancel_scope.cancel()


async def test_notices_to_brokers_show_a_changed_certificate_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(nameserver_module, "WATCH_SECONDS", 0.05)
    authority, file = Authority(tmp_path), tmp_path / "current.pem"
    file.write_bytes(authority.issue("old").read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.issue("broker"))
    address, seen = await serve_subjects(context, nursery)
    with capture_logs() as logs, trio.fail_after(60):
        async with secured(ServerTls(str(file), ca=str(authority.file))) as server:
            for name in ("old", "renewed"):
                if name == "renewed":
                    file.write_bytes(authority.issue(name).read_bytes())
                    while not any(each["event"] == "tls_files_loaded" for each in logs):  # noqa: ASYNC110 - a thread
                        await trio.sleep(0.02)
                server._notices.add(MinimumChange("b", 0, "a:1", (address,), ha_address="a:2"))
                assert name in await seen.receive()
    nursery.cancel_scope.cancel()


async def test_a_reload_that_failed_is_tried_again_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nameserver_module, "WATCH_SECONDS", 0.05)
    authority, file, calls = Authority(tmp_path), tmp_path / "current.pem", 0
    file.write_bytes((FOLDER / "server.pem").read_bytes())
    make_context = ServerTls.make_context

    def refuse_twice(files: ServerTls) -> ssl.SSLContext:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise TlsUnusable("too many open files")
        return make_context(files)

    with capture_logs() as logs, trio.fail_after(20):
        async with secured(ServerTls(str(file))) as server:
            monkeypatch.setattr(ServerTls, "make_context", refuse_twice)
            file.write_bytes(authority.issue("renewed").read_bytes())
            while not any(each["event"] == "tls_files_loaded" for each in logs):  # noqa: ASYNC110 - a thread
                await trio.sleep(0.02)
            assert await asks(server, client_context(authority.file)) == 0
            assert server.totals.failed_reloads == 1
    assert len([each for each in logs if each["event"] == "tls_files_refused"]) == 1


async def test_files_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ValueError, match=r"'/nowhere\.pem'.*No such file"):
        NameServer(NameServerConfig(tls=ServerTls("/nowhere.pem")))


async def test_handshakes_wait_until_they_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with secured() as server:
        assert await shakes_hands_when_there_is_time(*parse_address(server.address), monkeypatch)

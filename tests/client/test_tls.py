"""Clients encrypt all connections, and report the fault of a rejected certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

import gantrymq
import gantrymq.sync
from gantrymq.cli.connecting import connect_settings
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.certificates import CA, OTHER_CA, client_context, server_context
from support.peer import PeerConnection, run_peer

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


def by_name(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    return context


async def test_all_client_operations_work_over_tls(fake_cluster: Cluster) -> None:
    async with (
        fake_cluster(T=2, tls=server_context()) as cluster,
        gantrymq.connect(cluster.address, tls=client_context()) as client,
        client.producer() as producer,
        client.consumer("T", "g", start="first") as messages,
    ):
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(producer.send, "T", b"%d" % number * 1000)
        got = {(await anext(messages)).body for _ in range(50)}
        assert got == {b"%d" % number * 1000 for number in range(50)}
        large = bytes(range(256)) * 8192
        await producer.send("T", large)
        assert (await anext(messages)).body == large
        assert client.client_id.startswith("127.0.0.1@")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_blocking_client_supports_tls(fake_cluster: Cluster, backend: Any) -> None:
    with start_blocking_portal() as portal:
        served = portal.wrap_async_context_manager(fake_cluster(T=1, tls=server_context()))
        with served as cluster, gantrymq.sync.connect(cluster.address, tls=client_context(), backend=backend) as client:
            with client.producer() as producer, client.consumer("T", "g", start="first") as messages:
                producer.send("T", b"x")
                assert next(messages).body == b"x"


@pytest.mark.parametrize(
    ("certificate", "context", "reason"),
    [
        ("server", lambda: client_context(OTHER_CA), r"not accepted: unable to get local issuer.*trusts its authority"),
        ("server", lambda: True, r"its certificate is not accepted: .*trusts its authority"),
        ("expired", client_context, r"not accepted: certificate has expired \(renew it on the server\)"),
        ("elsewhere", client_context, r"IP address mismatch.*127\.0\.0\.1.*check_hostname"),
    ],
)
async def test_an_untrusted_certificate_is_reported(
    fake_cluster: Cluster, certificate: str, context: Callable[[], ssl.SSLContext], reason: str
) -> None:
    async with fake_cluster(T=1, tls=server_context(certificate)) as cluster:
        with anyio.fail_after(20), pytest.raises(gantrymq.TlsFailed, match=reason) as caught:
            async with gantrymq.connect(cluster.address, tls=context()):
                pass
    assert isinstance(caught.value, gantrymq.ConnectFailed)
    assert cluster.address in str(caught.value)


async def test_a_different_host_name_is_accepted_if_verification_is_off(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context("elsewhere")) as cluster:
        async with gantrymq.connect(cluster.address, tls=by_name(client_context())) as client:
            assert await client.admin.topics() == ["T"]


async def test_a_port_that_closes_tls_connections_is_reported(fake_cluster: Cluster) -> None:
    async def hang_up(connection: PeerConnection) -> None:
        await connection.stream.receive()

    async with run_peer(hang_up) as address:
        with pytest.raises(gantrymq.TlsFailed, match=r"closed the connection in the TLS handshake: does this port"):
            async with gantrymq.connect(address, tls=client_context()):
                pass


async def test_a_port_without_tls_is_reported(fake_cluster: Cluster) -> None:
    async def http(connection: PeerConnection) -> None:
        await connection.stream.receive()
        await connection.stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await connection.wait_closed()

    async with run_peer(http) as address:
        with pytest.raises(gantrymq.TlsFailed, match="what answers there does not speak TLS"):
            async with gantrymq.connect(address, tls=client_context()):
                pass


async def test_a_missing_client_certificate_is_reported(fake_cluster: Cluster) -> None:
    strict = server_context()
    strict.verify_mode = ssl.CERT_REQUIRED
    strict.load_verify_locations(CA)
    async with fake_cluster(T=1, tls=strict) as cluster:
        with (
            anyio.fail_after(20),
            pytest.raises(gantrymq.ConnectError, match=r"(?i)certif|closed|broke|reset"),
        ):
            async with gantrymq.connect(cluster.address, tls=client_context()) as client:
                await client.admin.topics()


async def test_a_plain_client_at_a_tls_port_gets_a_clear_error(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context()) as cluster:
        with anyio.fail_after(20), pytest.raises(gantrymq.ConnectError, match=r"connect with tls=True"):
            async with gantrymq.connect(cluster.address) as client:
                await client.admin.topics()


@pytest.mark.slow
async def test_a_broker_with_a_bad_certificate_fails_the_send_with_its_reason(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context()) as good, fake_cluster(T=1, tls=server_context("expired")) as bad:
        good.nameserver.brokers[:] = bad.brokers
        async with gantrymq.connect(good.address, tls=client_context()) as client, client.producer() as producer:
            with pytest.raises(gantrymq.TlsFailed, match="certificate has expired"):
                await producer.send("T", b"x", timeout=2.0)


@pytest.mark.slow
async def test_a_send_reports_why_no_connection_was_made_when_the_last_attempt_hangs(fake_cluster: Cluster) -> None:
    connections = 0

    async def close_first(stream: anyio.abc.ByteStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            if connections > 1:
                await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, fake_cluster(T=1, tls=server_context()) as cluster, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, close_first)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        cluster.broker.address = f"127.0.0.1:{port}"
        async with gantrymq.connect(cluster.address, tls=client_context()) as client, client.producer() as producer:
            with pytest.raises(gantrymq.TlsFailed, match="closed the connection in the TLS handshake"):
                await producer.send("T", b"x", timeout=2.0)
        assert connections > 1
        tasks.cancel_scope.cancel()


async def test_a_client_asks_its_function_for_the_settings_of_each_connection(
    fake_cluster: Cluster, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(CA.read_bytes())
    async with (
        fake_cluster(brokers=2, T=1, tls=server_context()) as cluster,
        gantrymq.connect(cluster.address, tls=lambda: client_context(trusted)) as client,
    ):
        one, other = (broker.address for broker in cluster.brokers)
        await client.admin.request(one, Command(RequestCode.CHECK_CLIENT_CONFIG))
        trusted.write_bytes(b"no certificate")
        with pytest.raises(gantrymq.ConnectFailed, match=r"the settings of TLS cannot be loaded"):
            await client.admin.request(other, Command(RequestCode.CHECK_CLIENT_CONFIG))
        trusted.write_bytes(OTHER_CA.read_bytes())
        with pytest.raises(gantrymq.TlsFailed, match="its certificate is not accepted"):
            await client.admin.request(other, Command(RequestCode.CHECK_CLIENT_CONFIG))
        trusted.write_bytes(CA.read_bytes())
        await client.admin.request(other, Command(RequestCode.CHECK_CLIENT_CONFIG))
        await client.admin.request(one, Command(RequestCode.CHECK_CLIENT_CONFIG))


async def test_invalid_tls_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"tls is True, False, an ssl\.SSLContext or a function of one, not str"):
        async with gantrymq.connect("127.0.0.1:1", tls="yes"):  # type: ignore[arg-type]
            pass


def test_the_command_line_reads_tls_settings_from_the_environment() -> None:
    assert connect_settings({}) == {}
    assert connect_settings({"GANTRYMQ_TLS": "off"}) == {}
    assert connect_settings({"GANTRYMQ_TLS": "1"})["tls"].verify_mode == ssl.CERT_REQUIRED
    assert connect_settings({"GANTRYMQ_TLS_CA": str(CA)})["tls"]().get_ca_certs()[0]["subject"]
    with pytest.raises(Exception, match=r"GANTRYMQ_TLS_CA: /nowhere holds no certificates"):
        connect_settings({"GANTRYMQ_TLS_CA": "/nowhere"})


async def test_a_connection_to_a_peer_that_no_longer_reads_ends_soon() -> None:
    async def never_read(connection: PeerConnection) -> None:
        await anyio.sleep_forever()

    async with run_peer(never_read, server_context()) as address:
        with anyio.fail_after(20):  # event loops give the peer half a minute to end TLS by default
            async with open_channel(address, tls=client_context()) as channel:
                await channel.send_oneway(Command(10))


async def test_frames_larger_than_any_buffer_go_both_ways_by_tls() -> None:
    async def echo(connection: PeerConnection) -> None:
        while True:
            request = await connection.read()
            await connection.write(request.answer(0, body=request.body))

    bodies = [bytes([number]) * 5_000_000 for number in range(4)]
    got: dict[int, bytes] = {}

    async def call(channel: Channel, number: int) -> None:
        got[number] = (await channel.call(Command(10, body=bodies[number]), 20.0)).body

    async with run_peer(echo, server_context()) as address, open_channel(address, tls=client_context()) as channel:
        async with anyio.create_task_group() as tasks:
            for number in range(len(bodies)):
                tasks.start_soon(call, channel, number)
    assert got == dict(enumerate(bodies))

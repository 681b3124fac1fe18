"""Clients over TLS: all connections are encrypted, and what is wrong with a certificate is said."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

import gantrymq
import gantrymq.sync
from gantrymq.cli.connecting import connect_settings
from support.certificates import CA, OTHER_CA, client_context, server_context
from support.peer import PeerConnection, run_peer

pytestmark = pytest.mark.anyio

Cluster = Callable[..., Any]


def by_name(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname = False
    return context


async def test_everything_works_over_tls(fake_cluster: Cluster) -> None:
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
def test_the_blocking_client_speaks_tls(fake_cluster: Cluster, backend: Any) -> None:
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
async def test_a_certificate_that_is_not_accepted(
    fake_cluster: Cluster, certificate: str, context: Callable[[], ssl.SSLContext], reason: str
) -> None:
    async with fake_cluster(T=1, tls=server_context(certificate)) as cluster:
        with anyio.fail_after(20), pytest.raises(gantrymq.TlsFailed, match=reason) as caught:
            async with gantrymq.connect(cluster.address, tls=context()):
                pass
    assert isinstance(caught.value, gantrymq.ConnectFailed)
    assert cluster.address in str(caught.value)


async def test_another_name_is_accepted_where_names_are_not_checked(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context("elsewhere")) as cluster:
        async with gantrymq.connect(cluster.address, tls=by_name(client_context())) as client:
            assert await client.admin.topics() == ["T"]


async def test_a_port_that_closes_on_tls(fake_cluster: Cluster) -> None:
    async def hang_up(connection: PeerConnection) -> None:
        await connection.stream.receive()

    async with run_peer(hang_up) as address:
        with pytest.raises(gantrymq.TlsFailed, match=r"closed the connection in the TLS handshake: does this port"):
            async with gantrymq.connect(address, tls=client_context()):
                pass


async def test_a_port_that_answers_something_else(fake_cluster: Cluster) -> None:
    async def http(connection: PeerConnection) -> None:
        await connection.stream.receive()
        await connection.stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await connection.wait_closed()

    async with run_peer(http) as address:
        with pytest.raises(gantrymq.TlsFailed, match="what answers there does not speak TLS"):
            async with gantrymq.connect(address, tls=client_context()):
                pass


async def test_a_server_that_wants_a_certificate_and_gets_none(fake_cluster: Cluster) -> None:
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


async def test_a_client_without_tls_at_a_port_that_speaks_nothing_else(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context()) as cluster:
        with anyio.fail_after(20), pytest.raises(gantrymq.ConnectError, match=r"connect with tls=True"):
            async with gantrymq.connect(cluster.address) as client:
                await client.admin.topics()


async def test_a_broker_with_a_bad_certificate_fails_the_send_with_its_reason(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, tls=server_context()) as good, fake_cluster(T=1, tls=server_context("expired")) as bad:
        good.nameserver.brokers[:] = bad.brokers
        async with gantrymq.connect(good.address, tls=client_context()) as client, client.producer() as producer:
            with pytest.raises(gantrymq.TlsFailed, match="certificate has expired"):
                await producer.send("T", b"x", timeout=2.0)


async def test_what_is_no_tls_setting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tls is True, False or an ssl\.SSLContext, not str"):
        async with gantrymq.connect("127.0.0.1:1", tls="yes"):  # type: ignore[arg-type]
            pass


def test_the_command_line_takes_tls_from_its_environment() -> None:
    assert connect_settings({}) == {}
    assert connect_settings({"GANTRYMQ_TLS": "off"}) == {}
    assert connect_settings({"GANTRYMQ_TLS": "1"})["tls"].verify_mode == ssl.CERT_REQUIRED
    assert connect_settings({"GANTRYMQ_TLS_CA": str(CA)})["tls"].get_ca_certs()[0]["subject"]
    with pytest.raises(Exception, match=r"GANTRYMQ_TLS_CA: /nowhere holds no certificates"):
        connect_settings({"GANTRYMQ_TLS_CA": "/nowhere"})

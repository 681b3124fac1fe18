"""A master and a slave that enforce TLS and keys, with a nameserver that does so too; refused slaves."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.api import Broker
from gantrymq.kernel.metrics import Metrics
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.plugins.ha.frames import REPORT, TICKET_MARK
from gantrymq.plugins.interfaces import Registration, Replication, TopicTable
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import Credentials
from gantrymq.remoting.tls import ServerTls
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import send
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER
from support.authority import Authority

pytestmark = pytest.mark.trio

HA = "gantrymq.plugins.ha:HaPlugin"
TLS = "gantrymq.plugins.tls:TlsPlugin"


class Secured:
    """Files of a cluster: an authority, accounts, keys of brokers, and the nameserver's identities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.files = ServerTls(str(self.authority.issue("server")), ca=str(self.authority.file))
        self.context = self.files.make_client_context()
        self.nameserver = ""

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.write_text(text)
        return str(file)

    @asynccontextmanager
    async def names(self) -> AsyncIterator[NameServer]:
        access = self.write("access.toml", '[identities.the-admin]\nsecret = "admin-secret"\nbrokers = ["broker-*"]\n')
        server = NameServer(NameServerConfig(port=0, tls=self.files, plain=False, access=Path(access)))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            self.nameserver = server.address
            yield server
            nursery.cancel_scope.cancel()

    def make(self, home: str, *, keys: Credentials | None = ADMIN, **settings: str) -> Broker:
        given = {
            "broker.name": "broker-a",
            "plugin.tls.certificate": self.files.certificate,
            "plugin.tls.ca": self.files.ca,
            "plugin.acl.file": self.write(f"{home}.yml", ACCOUNTS),
            "plugin.ha.listen": "127.0.0.1:0",
            "plugin.ha.sync_tables": "100ms",
            "broker.id": "0" if home == "master" else "1",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        if keys is not None:
            text = f"accessKey: {keys.access_key}\nsecretKey: {keys.secret_key}\n"
            given["plugin.acl.keys"] = self.write(f"{home}-tools.yml", text)
        return make_broker(self.folder / home, [self.nameserver], settings=given, enable=[HA, TLS, ACL])

    async def send(self, broker: Broker, body: bytes) -> None:
        """Send until it is acknowledged: the broker may have no lease yet, or no slave."""
        async with open_channel(broker.address, sign=WORKER.sign, tls=self.context) as channel:
            with trio.fail_after(40):
                while (answer := await channel.call(send("T", body), 20.0)).code:
                    assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE), answer
                    await trio.sleep(0.05)


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


def count(broker: Broker, name: str) -> dict[str, object]:
    metrics = Metrics(1000)
    for _, call in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
        call()
    return {labels[0]: value for labels, value in metrics.families[name].series.items()}


async def eventually(condition: Callable[[], object]) -> None:
    with trio.fail_after(40):
        while not condition():  # noqa: ASYNC110 - other tasks change what is awaited
            await trio.sleep(0.02)


async def test_a_cluster_that_enforces_tls_and_keys_registers_and_replicates(secured: Secured) -> None:
    """No address is listed anywhere: nameserver, master and slave know each other by keys."""
    async with secured.names() as names, run_broker(secured.make("master", plugin__ha__role="sync_master")) as master:
        assert await master.registry.get(Registration).wait_first(20.0)
        async with run_broker(secured.make("slave")) as slave:
            await eventually(lambda: names.routes.member_group("broker-a").keys() == {0, 1})
            for number in range(20):
                await secured.send(master, b"%d" % number * 1000)
            await eventually(lambda: slave.store.dispatched == master.log.end)
            await eventually(lambda: slave.registry.get(TopicTable).get("T") is not None)
            end = master.log.end
            assert bytes(slave.log.view(0, end)) == bytes(master.log.view(0, end))
        async with run_broker(secured.make("slave")) as slave:
            await secured.send(master, b"after a restart")
            await eventually(lambda: slave.store.dispatched == master.log.end)
        assert count(master, "gantrymq_ha_refused_slaves_total")["ticket"] == 0


@pytest.mark.parametrize("keys", [None, WORKER, Credentials("the-admin", "wrong-secret")])
async def test_a_slave_without_an_administrators_key_gets_no_byte(secured: Secured, keys: Credentials | None) -> None:
    async with secured.names(), run_broker(secured.make("master")) as master:
        await secured.send(master, b"x")
        settings = {
            "plugin__ha__master": master.registry.get(Replication).ha_address,
            "plugin__ha__master_broker": master.address,
        }
        with capture_logs() as logs:
            async with run_broker(secured.make("slave", keys=keys, **settings)) as slave:
                await eventually(lambda: [each for each in logs if each["event"] == "master_not_connected"])
                assert slave.log.end == 0


async def talk(master: Broker, context: ssl.SSLContext | None, data: bytes) -> bytes:
    """The response of the replication port to ``data``."""
    stream: trio.abc.Stream = await trio.open_tcp_stream(*parse_address(master.registry.get(Replication).ha_address))
    if context is not None:
        stream = trio.SSLStream(stream, context, https_compatible=True)  # type: ignore[arg-type]
    async with stream:
        with trio.move_on_after(10):
            try:
                await stream.send_all(data)
                return bytes(await stream.receive_some(4096))
            except trio.BrokenResourceError:
                return b""
    raise AssertionError("the master keeps the connection and sends nothing")


async def test_connections_without_a_valid_ticket_are_refused_and_counted(secured: Secured) -> None:
    async with secured.names(), run_broker(secured.make("master")) as master:
        await secured.send(master, b"x")
        async with open_channel(master.address, sign=ADMIN.sign, tls=secured.context) as channel:
            answer = await channel.call(Command(RequestCode.GET_SLAVE_TICKET))
        ticket = TICKET_MARK + bytes.fromhex((answer.ext or {})["ticket"])
        report = REPORT.pack(0)
        for wrong in (report, TICKET_MARK + bytes(32) + report, ticket[:-1] + b"\x00" + report, b"\xff" * 60):
            assert await talk(master, secured.context, wrong) == b""
        assert await talk(master, None, ticket + report) == b"", "plain text, although TLS is enforced"
        assert len(await talk(master, secured.context, ticket + report)) > 12
        assert await talk(master, secured.context, ticket + report) == b"", "a ticket is valid once"
        assert count(master, "gantrymq_ha_refused_slaves_total") == {"address": 0, "limit": 0, "tls": 1, "ticket": 5}
        assert count(master, "gantrymq_tls_handshakes_total")["plain"] == 1


async def test_a_reset_connection_to_the_replication_port_does_not_stop_the_master(secured: Secured) -> None:
    async with secured.names(), run_broker(secured.make("master")) as master:
        await secured.send(master, b"x")
        # No await in between: the master accepts a connection that was reset before.
        peer = socket.create_connection(parse_address(master.registry.get(Replication).ha_address))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await secured.send(master, b"x")
        assert await talk(master, None, REPORT.pack(0)) == b"", "it accepts and refuses further connections"


async def test_a_worker_gets_no_ticket(secured: Secured) -> None:
    async with secured.names(), run_broker(secured.make("master")) as master:
        for sign in (WORKER.sign, None):
            async with open_channel(master.address, sign=sign, tls=secured.context) as channel:
                assert (await channel.call(Command(RequestCode.GET_SLAVE_TICKET))).code == 1


async def test_a_certificate_identifies_brokers_without_keys(secured: Secured) -> None:
    """mTLS: the subject is listed at the nameserver and in the account of an administrator."""
    authority = secured.authority
    secured.files = ServerTls(str(authority.issue("broker-a")), ca=str(authority.file), client_certificates="required")
    subject = "CN=broker-a,O=GantryMQ tests"
    accounts = ACCOUNTS.replace("admin: true", f'admin: true, subjects: ["{subject}"]')
    access = secured.write("mtls.toml", f'[identities."{subject}"]\nbrokers = ["broker-a"]\n')
    server = NameServer(NameServerConfig(port=0, tls=secured.files, plain=False, access=Path(access)))
    settings = {"plugin__tls__client_certificates": "required"}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        secured.nameserver = server.address
        master = secured.make("master", keys=None, **settings)
        secured.write("master.yml", accounts)
        async with run_broker(master):
            assert await master.registry.get(Registration).wait_first(20.0)
            secured.context = secured.files.make_client_context()
            await secured.send(master, b"x")
            async with run_broker(secured.make("slave", keys=None, **settings)) as slave:
                await eventually(lambda: slave.log.end and slave.store.dispatched == master.log.end)
            other = ServerTls(str(authority.issue("stranger")), ca=str(authority.file)).make_client_context()
            async with open_channel(master.address, tls=other) as channel:
                assert (await channel.call(Command(RequestCode.GET_SLAVE_TICKET))).code == 1
        nursery.cancel_scope.cancel()


async def test_without_access_control_slaves_need_no_ticket_unless_it_is_set(tmp_path: Path) -> None:
    for setting, refused in (("auto", False), ("required", True), ("none", False)):
        settings = {"plugin.ha.listen": "127.0.0.1:0", "plugin.ha.authentication": setting}
        async with run_broker(make_broker(tmp_path / setting, settings=settings, enable=[HA])) as master:
            async with open_channel(master.address) as channel:
                assert (await channel.call(send("T", b"x"))).code == 0
            assert (await talk(master, None, REPORT.pack(0)) == b"") is refused

"""TLS at the port of a running broker: valid clients are served, and attacks affect nobody else."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.kernel.network.connection import ConnectionsBatch
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.plugins.interfaces import Encryption, Registration
from gantrymq.plugins.tls import TlsPlugin
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.errors import ChannelClosed, ConnectFailed, TlsFailed
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.tls import ServerTls, TlsUnusable
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.authority import Authority
from support.certificates import CA, FOLDER, OTHER_CA, client_context
from support.tls_flood import client_hello, flood, shake_hands, shake_hands_in_memory

pytestmark = pytest.mark.trio

TLS = "gantrymq.plugins.tls:TlsPlugin"
SERVER = FOLDER / "server.pem"


@asynccontextmanager
async def secured(path: Path, *plugins: object, **settings: object) -> AsyncIterator[Broker]:
    given = {"plugin.tls.certificate": str(SERVER), "plugin.tls.interval": "100ms"}
    given |= {name.replace("__", "."): str(value) for name, value in settings.items()}
    async with run_broker(make_broker(path / "store", settings=given, enable=[TLS, *plugins])) as broker:
        yield broker


@asynccontextmanager
async def encrypted(broker: Broker, context: ssl.SSLContext | None = None) -> AsyncIterator[Channel]:
    async with open_channel(broker.address, tls=context or client_context()) as channel:
        yield channel


def handshakes(broker: Broker, name: str = "gantrymq_tls_handshakes_total") -> dict[str, object]:
    metrics = Metrics(1000)
    for _, call in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
        call()
    return {labels[0]: value for labels, value in metrics.families[name].series.items()}


async def test_messages_are_sent_and_received_over_tls(tmp_path: Path) -> None:
    large = bytes(range(256)) * 8192
    async with secured(tmp_path) as broker, encrypted(broker) as channel, encrypted(broker) as other:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon((channel, other)[number % 2].call, send("T", b"%d" % number))
        assert (await channel.call(send("T", large))).code == 0
        offset, bodies = 0, []
        while offset < 201:
            records = decode_records((await other.call(pull("T", offset=offset))).body)
            bodies += [record.body for record in records]
            offset += len(records)
        assert sorted(bodies[:200]) == sorted(b"%d" % number for number in range(200))
        assert bodies[200] == large
        assert handshakes(broker) == {"ok": 2, "failed": 0, "unfinished": 0, "plain": 0}


async def test_a_peer_that_reads_late_gets_every_byte(tmp_path: Path) -> None:
    body = bytes(range(256)) * 2048
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        for _ in range(6):
            await channel.call(send("T", body))
        stream = await trio.open_tcp_stream(*parse_address(broker.address))
        async with trio.SSLStream(stream, client_context(), server_hostname="127.0.0.1") as tls:
            for number in range(6):
                command = pull("T", offset=number, limit=1)
                command.opaque = number
                await tls.send_all(encode(command))
            await trio.sleep(0.2)
            received = bytearray()
            with trio.fail_after(20):
                while len(received) < 6 * len(body):
                    received += await tls.receive_some(50_000)
                while received.count(body) < 6:
                    received += await tls.receive_some(50_000)


async def test_permissive_serves_plain_connections_at_the_same_port(tmp_path: Path) -> None:
    async with secured(tmp_path, plugin__tls__mode="permissive") as broker:
        async with encrypted(broker) as channel, open_channel(broker.address) as plain:
            assert (await channel.call(send("T", b"encrypted"))).code == 0
            assert (await plain.call(send("T", b"plain"))).code == 0
            records = decode_records((await plain.call(pull("T"))).body)
            assert [record.body for record in records] == [b"encrypted", b"plain"]
            kinds = {type(connection.sock).__name__ for connection in broker.connections}
            assert kinds == {"TlsSocket", "socket"}, "a plain connection costs nothing more"
            assert handshakes(broker)["plain"] == 0


async def test_enforcing_refuses_plain_connections(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        with capture_logs() as logs:
            for _ in range(3):
                async with open_channel(broker.address) as plain:
                    with pytest.raises(ChannelClosed, match="connect with tls=True"):
                        await plain.call(send("T", b"x"))
        assert broker.log.end == 0
        assert handshakes(broker)["plain"] == 3
        assert len([each for each in logs if each["event"] == "tls_refused"]) == 1
        assert (await channel.call(send("T", b"x"))).code == 0


async def test_a_broker_with_tls_disabled_accepts_no_handshake(tmp_path: Path) -> None:
    async with secured(tmp_path, plugin__tls__mode="disabled", plugin__tls__certificate="/nowhere") as broker:
        async with open_channel(broker.address) as plain:
            assert (await plain.call(send("T", b"x"))).code == 0
        with pytest.raises(ConnectFailed), trio.fail_after(20):
            async with encrypted(broker):
                pass


# --------------------------------------------------------------------------------------------------- certificates


class Doorman:
    """Notes who is identified."""

    name = "doorman"

    def __init__(self) -> None:
        self.seen: list[object] = []

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        self.seen += [connection.identity for connection in batch.identified]


@pytest.mark.parametrize("kind", ["optional", "required"])
async def test_the_subject_of_a_client_certificate_is_the_identity(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path)
    context = client_context()
    context.load_cert_chain(authority.issue("worker"))
    settings = {"plugin__tls__ca": authority.file, "plugin__tls__client_certificates": kind}
    doorman = Doorman()
    async with secured(tmp_path, doorman, **settings) as broker:
        async with encrypted(broker, context) as channel:
            assert (await channel.call(send("T", b"x"))).code == 0
            assert [connection.identity for connection in broker.connections] == ["CN=worker,O=GantryMQ tests"]
    assert doorman.seen == ["CN=worker,O=GantryMQ tests"]


async def test_a_name_with_a_comma_is_not_the_subject_of_another_organization(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = client_context()
    context.load_cert_chain(authority.issue("worker,O=GantryMQ tests"))
    settings = {"plugin__tls__ca": authority.file, "plugin__tls__client_certificates": "required"}
    async with secured(tmp_path, **settings) as broker, encrypted(broker, context) as channel:
        assert (await channel.call(send("T", b"x"))).code == 0
        assert [connection.identity for connection in broker.connections] == [
            "CN=worker\\,O=GantryMQ tests,O=GantryMQ tests"
        ]


@pytest.mark.parametrize("stranger", [True, False], ids=["another authority", "none"])
async def test_a_client_without_a_certificate_of_the_authority_is_refused(tmp_path: Path, stranger: bool) -> None:
    settings = {
        "plugin__tls__ca": Authority(tmp_path).file, "plugin__tls__client_certificates": "required",
    }  # fmt: skip
    context = client_context()
    if stranger:
        context.load_cert_chain(Authority(tmp_path, "other").issue("mallory"))
    async with secured(tmp_path, **settings) as broker:
        with pytest.raises((ConnectFailed, ChannelClosed)), trio.fail_after(20):
            async with encrypted(broker, context) as channel:
                await channel.call(send("T", b"x"))
        assert handshakes(broker)["failed"] == 1
        assert broker.log.end == 0


async def test_a_client_that_trusts_another_authority_does_not_connect(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        with pytest.raises(ConnectFailed, match="its certificate is not accepted"):
            async with encrypted(broker, client_context(OTHER_CA)):
                pass
        async with encrypted(broker) as channel:
            assert (await channel.call(send("T", b"x"))).code == 0


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def content(file: Path) -> bytes:
    return file.read_bytes()


async def eventually(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - what is awaited is a file that a thread reads
            await trio.sleep(0.02)


async def test_a_changed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    file, authority = tmp_path / "current.pem", Authority(tmp_path)
    write(file, content(SERVER))
    with capture_logs() as logs:
        async with secured(tmp_path, plugin__tls__certificate=file) as broker, encrypted(broker) as before:
            write(file, b"nonsense")
            await eventually(lambda: [each for each in logs if each["event"] == "tls_files_refused"])
            async with encrypted(broker) as channel:
                assert (await channel.call(send("T", b"with the certificate of before"))).code == 0
            write(file, content(authority.issue("renewed")))
            await eventually(lambda: [each for each in logs if each["event"] == "tls_files_loaded"])
            async with encrypted(broker, client_context(authority.file)) as channel:
                assert (await channel.call(send("T", b"with the new one"))).code == 0
            assert (await before.call(send("T", b"open connections stay"))).code == 0


@pytest.mark.parametrize("is_pinned", [False, True], ids=["authority", "own certificate"])
async def test_connections_of_the_broker_do_not_trust_what_was_removed(tmp_path: Path, is_pinned: bool) -> None:
    """The key of the nameserver's certificate was stolen, and the authority replaced; without ``ca``, the certificate
    of all servers."""
    stolen, new = Authority(tmp_path, "stolen"), Authority(tmp_path, "new")
    names = NameServer(NameServerConfig(port=0, tls=ServerTls(str(stolen.issue("names"))), plain=False))
    file, trusted = tmp_path / "current.pem", tmp_path / "trusted.pem"
    write(file, content(tmp_path / "names.pem"))
    write(trusted, content(stolen.file))
    settings = {"plugin.tls.certificate": file, "plugin.tls.interval": "100ms"}
    settings |= {} if is_pinned else {"plugin.tls.ca": trusted}
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(names.serve)
            broker = make_broker(tmp_path / "store", [names.address], settings=settings, enable=[TLS])
            async with run_broker(broker):
                assert await broker.registry.get(Registration).wait_first(20.0)
                write(*((file, content(new.issue("renewed"))) if is_pinned else (trusted, content(new.file))))
                await eventually(lambda: [each for each in logs if each["event"] == "tls_files_loaded"])
                ended = names.totals.handshakes
                ok = ended["ok"]
                for connection in names.connections:
                    connection.close()
                await eventually(lambda: ended["failed"] + ended["unfinished"])
                assert (ended["ok"], names.routes.count_brokers()) == (ok, 0), "the broker leaves the connection"
                context = broker.registry.get(Encryption).client_context()  # for replication
                with pytest.raises(TlsFailed, match="its certificate is not accepted"):
                    async with open_channel(names.address, tls=context):
                        pytest.fail("it connects")
            nursery.cancel_scope.cancel()


async def test_a_reload_that_failed_is_tried_again_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, authority = tmp_path / "current.pem", Authority(tmp_path)
    write(file, content(SERVER))

    def refuse(_: ServerTls) -> ssl.SSLContext:
        raise TlsUnusable("too many open files")

    with capture_logs() as logs:
        async with secured(tmp_path, plugin__tls__certificate=file, plugin__tls__interval="1h") as broker:
            plugin = broker.registry.get(Encryption)
            assert isinstance(plugin, TlsPlugin)
            write(file, content(authority.issue("renewed")))
            with monkeypatch.context() as patched:
                patched.setattr(ServerTls, "make_context", refuse)
                for _ in range(2):
                    await plugin.reload()
            assert plugin._failed_reloads == 1
            assert len([each for each in logs if each["event"] == "tls_files_refused"]) == 1
            await plugin.reload()
            async with encrypted(broker, client_context(authority.file)) as channel:
                assert (await channel.call(send("T", b"with the new one"))).code == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"plugin__tls__certificate": ""}, "no certificate is configured"),
        ({"plugin__tls__certificate": "/nowhere.pem"}, "No such file"),
        ({"plugin__tls__certificate": str(CA)}, "with the key ''"),
        ({"plugin__tls__client_certificates": "required"}, "need the authority"),
        ({"plugin__tls__client_certificates": "required", "plugin__tls__ca": "/nowhere.pem"}, "No such file"),
    ],
)
async def test_files_that_cannot_be_used_refuse_the_start(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with secured(tmp_path, **settings):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)


async def test_an_encrypted_key_refuses_the_start_without_a_prompt(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    command = ["openssl", "pkey", "-in", str(SERVER), "-aes256", "-passout", "pass:hush", "-out", str(key)]
    await trio.run_process(command)
    with pytest.raises(ExceptionGroup) as failed:
        async with secured(tmp_path, plugin__tls__key=key):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match="the key is encrypted: decrypt it")


async def encrypted_key(folder: Path) -> Path:
    key = folder / "encrypted-key.pem"
    command = ["openssl", "pkey", "-in", str(SERVER), "-aes256", "-passout", "pass:hush-hush", "-out", str(key)]
    await trio.run_process(command)
    return key


async def test_rocketmqs_tls_properties_set_mode_certificate_password_and_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    properties = tmp_path / "tls.properties"
    text = (
        f"tls.test.mode.enable=false\ntls.server.mode=permissive\ntls.server.certPath={SERVER}\n"
        f"tls.server.keyPath={await encrypted_key(tmp_path)}\ntls.server.keyPassword=hush-hush\n"
        f"tls.server.need.client.auth=optional\ntls.server.trustCertPath={authority.file}\n"
    )
    write(properties, text.encode())
    context = client_context()
    context.load_cert_chain(authority.issue("worker"))
    with capture_logs() as logs:
        async with secured(tmp_path, plugin__tls__properties=properties, plugin__tls__certificate="/nowhere") as broker:
            async with encrypted(broker, context) as channel, open_channel(broker.address) as plain:
                assert (await channel.call(send("T", b"x"))).code == 0
                assert (await plain.call(send("T", b"x"))).code == 0
                assert "CN=worker,O=GantryMQ tests" in {connection.identity for connection in broker.connections}
                answer = await plain.call(Command(RequestCode.GET_BROKER_CONFIG))
    assert b"hush-hush" not in answer.body
    assert "hush-hush" not in str(logs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tls.test.mode.enable=true\ntls.server.need.client.auth=require", "the test mode verifies no certificate"),
        ("tls.server.mode=loud", "one of disabled, permissive, enforcing"),
        ("tls.server.need.client.auth=maybe", "one of none, optional, require"),
        ("tls.server.need.client.auth=require", "needs tls.server.trustCertPath"),
        ("tls.server.certPath=/nowhere.pem", "No such file"),
        ("tls.server.keyPath=ENCRYPTED\ntls.server.keyPassword=hush-wrong", "with the key"),
        ("tls.server.keyPath=ENCRYPTED", "the key is encrypted: decrypt it"),
        ("#" + "x" * 70_000, "are the limit"),
        (None, "No such file"),
    ],
)
async def test_wrong_tls_properties_refuse_the_start_without_the_password(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    properties = tmp_path / "tls.properties"
    if text is not None:
        key = await encrypted_key(tmp_path) if "ENCRYPTED" in text else ""
        write(properties, text.replace("ENCRYPTED", str(key)).encode())
    with pytest.raises(ExceptionGroup) as failed:
        async with secured(tmp_path, plugin__tls__properties=properties):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)
    assert not failed.group_contains(StartError, match="hush-wrong")


def trust_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("is_in_file", [False, True], ids=["setting", "tls.properties"])
async def test_in_test_mode_the_broker_makes_a_new_certificate_at_each_start(tmp_path: Path, is_in_file: bool) -> None:
    properties = tmp_path / "tls.properties"
    write(properties, b"tls.test.mode.enable=true\ntls.server.certPath=/nowhere.pem\n")  # RocketMQ ignores it too
    settings = {"plugin__tls__properties": properties} if is_in_file else {"plugin__tls__test_mode": "true"}
    seen = set()
    for name in ("first", "second"):
        with capture_logs() as logs:
            async with secured(tmp_path / name, plugin__tls__certificate="", **settings) as broker:
                async with encrypted(broker, trust_all()) as channel:
                    assert (await channel.call(send("T", b"x"))).code == 0
                with pytest.raises(ConnectFailed, match="its certificate is not accepted"):
                    async with encrypted(broker):
                        pass
                _, text = await openssl(broker)
                assert b"CN=gantrymq-test-mode" in text.replace(b" = ", b"="), text
                seen.add(text.partition(b"BEGIN CERTIFICATE")[2].partition(b"END")[0])
        assert [each["log_level"] for each in logs if each["event"] == "tls_in_test_mode"] == ["warning"]
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "remove the settings of certificates, or the mode"),
        ({"plugin__tls__certificate": "", "plugin__tls__client_certificates": "required"}, "remove the settings"),
        ({"plugin__tls__certificate": "", "without": "cryptography"}, r"pip install 'gantrymq\[tls\]'"),
    ],
)
async def test_a_test_mode_that_cannot_be_had_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], reason: str
) -> None:
    settings = dict(settings)
    if missing := settings.pop("without", ""):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExceptionGroup) as failed:
        async with secured(tmp_path, plugin__tls__test_mode="true", **settings):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=f"plugin.tls.test_mode: .*{reason}")


async def test_brokers_and_nameservers_in_test_mode_accept_each_others_certificates(tmp_path: Path) -> None:
    server = NameServer(NameServerConfig(port=0, tls=ServerTls("", test_mode=True), plain=False))
    settings = {"plugin.tls.test_mode": "true"}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        async with run_broker(make_broker(tmp_path / "s", [server.address], settings=settings, enable=[TLS])) as broker:
            assert await broker.registry.get(Registration).wait_first(20.0)
        nursery.cancel_scope.cancel()


# -------------------------------------------------------------------------------------------------------- attacks


async def test_broken_handshakes_affect_no_other(tmp_path: Path) -> None:
    hello = client_hello()
    attacks = [hello[:size] for size in (1, 2, 5, 6, 40, len(hello) - 1)]
    attacks += [hello[:at] + bytes([hello[at] ^ 0xFF]) + hello[at + 1 :] for at in (1, 3, 5, 6, 9, 43)]
    attacks += [b"\x16" * 4096, b"\x16\x03\x01\xff\xff" + bytes(4096), hello + hello, hello + b"GET / HTTP/1.1\r\n\r\n"]
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        for attack in attacks:
            stream = await trio.open_tcp_stream(*parse_address(broker.address))
            await stream.send_all(attack)
            await stream.send_eof()
            with trio.fail_after(20):
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some(65536):
                        pass
            await stream.aclose()
            assert (await channel.call(send("T", b"x"))).code == 0
        await eventually(lambda: len(broker.connections) == 1)
        assert handshakes(broker)["ok"] == 1


async def test_a_handshake_that_does_not_end_is_limited_in_time(tmp_path: Path) -> None:
    """Whether the client sends a part of it now and then, or nothing."""
    hello = client_hello()
    async with secured(tmp_path, limits__first_frame="1s") as broker, encrypted(broker) as channel:
        assert (await channel.call(send("T", b"x"))).code == 0
        for first in (b"", hello[:1], hello[:-1]):
            stream = await trio.open_tcp_stream(*parse_address(broker.address))
            if first:
                await stream.send_all(first)
            with trio.fail_after(20):
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(1) == b""
            await stream.aclose()
        assert (await channel.call(send("T", b"x"))).code == 0
        await eventually(lambda: len(broker.connections) == 1)
        assert handshakes(broker) == {"ok": 1, "failed": 0, "unfinished": 2, "plain": 0}


async def openssl(broker: Broker, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes]:
    """The result of ``openssl s_client``, and what it has printed."""
    command = ["openssl", "s_client", "-connect", broker.address, "-CAfile", str(CA), *arguments]
    with trio.fail_after(60):
        done = await trio.run_process(command, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout + done.stderr


async def test_renegotiation_is_refused_and_other_clients_are_served(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        code, text = await openssl(broker, "-tls1_2", "-no_ign_eof", stdin=b"R\n")
        assert b"RENEGOTIATING" in text, text
        assert b"no renegotiation" in text, text
        assert code != 0
        assert (await channel.call(send("T", b"x"))).code == 0
        await eventually(lambda: len(broker.connections) == 1)
        assert handshakes(broker)["ok"] == 2, "the first handshake of each, and no other"
        assert handshakes(broker, "gantrymq_tls_violations_total") == {"altered": 0, "renegotiation": 1}


async def test_a_client_that_asks_for_new_keys_gets_them_and_is_served(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        code, text = await openssl(broker, "-tls1_3", "-no_ign_eof", stdin=b"K\n")  # K: new keys in both directions
        assert (code, text.count(b"KEYUPDATE")) == (0, 1), text
        assert b"alert" not in text, text
        assert (await channel.call(send("T", b"x"))).code == 0
        await eventually(lambda: len(broker.connections) == 1)
        assert handshakes(broker, "gantrymq_tls_violations_total") == {"altered": 0, "renegotiation": 0}


class Recorder:
    """A client that keeps its TLS records, to send them again."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context().wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    @classmethod
    async def connect(cls, broker: Broker) -> Recorder:
        found = cls(await trio.open_tcp_stream(*parse_address(broker.address)))
        while True:
            try:
                found._tls.do_handshake()
            except ssl.SSLWantReadError:
                await found.stream.send_all(found._outgoing.read())
                found._incoming.write(await found.stream.receive_some(65536))
            else:
                await found.stream.send_all(found._outgoing.read())
                return found

    def record(self, data: bytes) -> bytes:
        """The record of these bytes."""
        self._tls.write(data)
        return self._outgoing.read()

    async def is_closed_after(self, data: bytes) -> bool:
        """Send, and wait until the broker ends the connection."""
        async with self.stream:
            await self.stream.send_all(data)
            with trio.move_on_after(20) as limit, suppress(trio.BrokenResourceError):
                while await self.stream.receive_some(65536):
                    pass
        return not limit.cancelled_caught


async def test_records_that_are_sent_again_or_altered_end_the_connection_and_are_counted(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        first = await Recorder.connect(broker)
        request = first.record(encode(send("T", b"once")))
        await first.stream.send_all(request)
        await eventually(lambda: broker.log.end)
        end = broker.log.end
        assert await first.is_closed_after(request), "again on its own connection"
        assert await (await Recorder.connect(broker)).is_closed_after(request), "on another one"
        other = await Recorder.connect(broker)
        altered = bytearray(other.record(encode(send("T", b"x"))))
        altered[-1] ^= 1
        assert await other.is_closed_after(bytes(altered))
        assert broker.log.end == end
        assert handshakes(broker, "gantrymq_tls_violations_total") == {"altered": 3, "renegotiation": 0}
        assert (await channel.call(send("T", b"x"))).code == 0


async def test_a_downgrade_that_the_client_reports_is_refused_and_counted(tmp_path: Path) -> None:
    """A client that retries with TLS 1.2 because somebody broke its TLS 1.3 handshake marks that (RFC 7507)."""
    async with secured(tmp_path) as broker, encrypted(broker) as channel:
        code, text = await openssl(broker, "-tls1_2", "-fallback_scsv")
        assert (code != 0, b"inappropriate fallback" in text) == (True, True), text
        await eventually(lambda: handshakes(broker)["failed"] == 1)
        assert (await channel.call(send("T", b"x"))).code == 0


async def test_old_versions_and_weak_ciphers_are_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        for arguments, works in (
            (["-tls1_3"], True),
            (["-tls1_2"], True),
            (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], True),
            (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"], False),
            (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], False),
            (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], False),
        ):
            command = ["openssl", "s_client", "-connect", broker.address, "-CAfile", str(CA), "-verify_return_error",
                       *arguments]  # fmt: skip
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
            assert (done.returncode == 0) is works, (arguments, done.stdout, done.stderr)
            assert not works or b"Verify return code: 0 (ok)" in done.stdout


@pytest.mark.slow
async def test_a_thousand_handshakes_do_not_keep_others_from_sending(tmp_path: Path) -> None:
    """Judged by what a busy machine does not change: at least one message for fifty handshakes."""
    async with secured(tmp_path, plugin__flush__mode="async") as broker, encrypted(broker) as channel:
        sent = 0

        async def keep_sending() -> None:
            nonlocal sent
            while True:
                assert (await channel.call(send("T", b"x"), 20.0)).code == 0
                sent += 1

        assert (await channel.call(send("T", b"x"), 20.0)).code == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_sending)
            with trio.fail_after(60):
                await flood(broker.address)
            nursery.cancel_scope.cancel()
        assert sent >= 20
        await eventually(lambda: handshakes(broker)["unfinished"] == 1000)


@pytest.mark.slow
async def test_plain_and_tls_producers_work_beside_a_thousand_handshakes_a_second(tmp_path: Path) -> None:
    """Judged by what a busy machine does not change: a connection with its handshake costs the broker not much more
    than OpenSSL's work, and each producer sends at least one message for fifty handshakes.
    ``make bench GROUP=security`` has the rate."""
    authority = Authority(tmp_path)
    certificate = authority.issue("broker")
    trusting = ssl.create_default_context(cafile=authority.file)
    sent = {"plain": 0, "tls": 0}
    offsets: set[int] = set()
    is_over = False

    async def produce(kind: str, channel: Channel) -> None:
        while not is_over:
            answer = await channel.call(send("T", b"x"), 20.0)  # CallTimeout fails the test
            assert answer.code == 0
            assert answer.ext is not None
            offsets.add(int(answer.ext["queueOffset"]))
            sent[kind] += 1

    settings = {
        "plugin__tls__mode": "permissive", "plugin__tls__certificate": certificate, "plugin__flush__mode": "async",
    }  # fmt: skip
    async with secured(tmp_path, **settings) as broker:
        with capture_logs():  # printing a line for each connection costs as much as its handshake
            begun = time.process_time()  # of this process, so of the broker
            await shake_hands(broker.address, authority.file, 400)
            used = (time.process_time() - begun) / 400
        context = ServerTls(str(certificate)).make_context()
        begun = time.process_time()
        for _ in range(50):
            shake_hands_in_memory(context, trusting)
        both_parts = (time.process_time() - begun) / 50
        async with encrypted(broker, trusting) as over_tls, open_channel(broker.address) as plain:
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(produce, "tls", over_tls)
                    nursery.start_soon(produce, "plain", plain)
                    await shake_hands(broker.address, authority.file, 1000)
                    is_over = True
        assert used < 2 * both_parts
        assert handshakes(broker) == {"ok": 1401, "failed": 0, "unfinished": 0, "plain": 0}
        assert offsets == set(range(sum(sent.values())))
        assert min(sent.values()) >= 20, sent


async def test_a_client_gets_the_certificate_of_the_name_that_it_asks_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    named = tmp_path / "named.pem"
    write(named, content(authority.issue("named")))

    async def subject(broker: Broker, *arguments: str) -> bytes:
        _, text = await openssl(broker, *arguments)
        return next(line for line in text.splitlines() if line.startswith(b"subject="))

    with capture_logs() as logs:
        async with secured(tmp_path, plugin__tls__names=f"MQ.example.org={named}") as broker:
            assert b"CN = named" in (await subject(broker, "-servername", "mq.EXAMPLE.org")).replace(b"CN=", b"CN = ")
            for others in (("-servername", "other.example.org"), ("-noservername",)):
                assert b"named" not in await subject(broker, *others)
            write(named, content(authority.issue("renewed")))
            await eventually(lambda: [each for each in logs if each["event"] == "tls_files_loaded"])
            assert b"renewed" in await subject(broker, "-servername", "mq.example.org")


@pytest.mark.parametrize(
    ("mode", "outgoing", "registers"),
    [
        ("enforcing", "auto", True),
        ("permissive", "tls", True),
        ("disabled", "tls", True),
        ("permissive", "auto", False),
        ("enforcing", "plain", False),
    ],
)
async def test_the_broker_reaches_a_nameserver_with_tls(
    tmp_path: Path, mode: str, outgoing: str, registers: bool
) -> None:
    server = NameServer(NameServerConfig(port=0, tls=ServerTls(str(SERVER)), plain=False))
    settings = {"plugin.tls.certificate": str(SERVER), "plugin.tls.mode": mode, "plugin.tls.outgoing": outgoing}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        broker = make_broker(tmp_path / "store", [server.address], settings=settings, enable=[TLS])
        async with run_broker(broker):
            assert await broker.registry.get(Registration).wait_first(20.0) is registers
        nursery.cancel_scope.cancel()


async def test_the_broker_does_not_register_where_another_authority_signed(tmp_path: Path) -> None:
    server = NameServer(NameServerConfig(port=0, tls=ServerTls(str(Authority(tmp_path).issue("other"))), plain=False))
    settings = {"plugin.tls.certificate": str(SERVER), "plugin.tls.ca": str(CA)}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        async with run_broker(make_broker(tmp_path / "s", [server.address], settings=settings, enable=[TLS])) as broker:
            assert not await broker.registry.get(Registration).wait_first(20.0)
        nursery.cancel_scope.cancel()

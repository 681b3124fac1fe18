"""The TLS socket delivers every byte once and in order, however few bytes the network takes at a time."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gantrymq.plugins.tls.tls_socket import TlsSocket
from gantrymq.remoting.tls import CIPHERS, ServerTls
from support.certificates import FOLDER, client_context, server_context
from support.tls_flood import client_hello


class Holder:
    """A connection as far as its socket knows it."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.identity: object = None


class Network:
    """A socket that takes and gives few bytes, and sometimes none."""

    def __init__(self, sock: socket.socket, seed: int) -> None:
        self._sock = sock
        self._chance = random.Random(seed)
        self.is_open = True

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, size: int) -> bytes:
        return self._sock.recv(min(size, self._chance.choice((1, 5, 100, 20_000, 262_144))))

    def send(self, data: bytes) -> int:
        most = self._chance.choice((0, 1, 5, 100, 20_000, 262_144))
        if not most:
            raise BlockingIOError
        return self._sock.send(data[:most])

    def close(self) -> None:
        self.is_open = False
        self._sock.close()


class Owner:
    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []
        self.is_free = True

    def may_work(self) -> bool:
        return self.is_free

    def ended(self, _connection: Any, result: str, reason: str) -> None:
        self.results.append((result, reason))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


class Client:
    """The peer, with its own TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = client_context().wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.is_open = False
        self.got = bytearray()

    def step(self) -> None:
        try:
            data = self.sock.recv(65536)
            self.incoming.write(data) if data else self.incoming.write_eof()
        except BlockingIOError:
            pass
        try:
            if not self.is_open:
                self.tls.do_handshake()
                self.is_open = True
            while part := self.tls.read(65536):
                self.got += part
        except ssl.SSLWantReadError:
            pass
        data = self.outgoing.read()
        while data:
            data = data[self.sock.send(data) :]


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_arrives_once_and_in_order(pair: tuple[socket.socket, socket.socket], seed: int) -> None:
    chance = random.Random(seed)
    network, owner = Network(pair[0], seed), Owner()
    holder = Holder(network)
    server = holder.sock = TlsSocket(holder, owner, server_context, allows_plain=False)  # type: ignore[arg-type]
    network.send = pair[0].send  # type: ignore[method-assign]  # a handshake's answer always finds room
    client = Client(pair[1])
    to_server, to_client = (chance.randbytes(chance.randrange(1, 900_000)) for _ in range(2))
    received, sent, written = bytearray(), 0, 0
    for _ in range(200_000):
        client.step()
        if client.is_open and written < len(to_server) and client.outgoing.pending < 16_384:
            written += client.tls.write(to_server[written : written + 16_384])
        with suppress(BlockingIOError):
            received += server.recv(262_144)
        if owner.results and network.send != Network.send:
            network.send = Network.send.__get__(network)  # type: ignore[method-assign]
        if owner.results and sent < len(to_client):
            with suppress(BlockingIOError):
                sent += server.send(to_client[sent:])
        if len(client.got) == len(to_client) and len(received) == len(to_server):
            break
    assert bytes(received) == to_server
    assert bytes(client.got) == to_client
    assert sent == len(to_client)
    assert [result for result, _ in owner.results] == ["ok"]


def test_the_handshake_of_a_peer_that_has_left_is_not_computed(pair: tuple[socket.socket, socket.socket]) -> None:
    owner, holder = Owner(), Holder(pair[0])
    context = server_context()
    context.sslobject_class = Computed
    server = TlsSocket(holder, owner, lambda: context, allows_plain=False)  # type: ignore[arg-type]
    Computed.count = 0
    pair[1].send(client_hello())
    pair[1].close()
    assert server.recv(262_144) == b""
    server.close()
    assert Computed.count == 0
    assert [result for result, _ in owner.results] == ["unfinished"]


class Computed(ssl.SSLObject):
    """Counts the steps of handshakes."""

    count = 0

    def do_handshake(self) -> None:
        Computed.count += 1
        super().do_handshake()


def test_a_peer_that_leaves_with_an_alert_is_refused_with_its_reason(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    owner, holder = Owner(), Holder(pair[0])
    server = TlsSocket(holder, owner, server_context, allows_plain=False)  # type: ignore[arg-type]
    client = Client(pair[1])
    client.tls = ssl.create_default_context().wrap_bio(client.incoming, client.outgoing, server_hostname="127.0.0.1")
    client.step()
    with pytest.raises(BlockingIOError):
        server.recv(262_144)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.step()
    pair[1].send(client.outgoing.read())
    pair[1].close()
    with pytest.raises(ConnectionError, match="unknown ca"):
        server.recv(262_144)
    assert [result for result, _ in owner.results] == ["failed"]


class CountingTls:
    """The TLS of a socket, with the number of its reads."""

    def __init__(self, tls: ssl.SSLObject) -> None:
        self.tls = tls
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tls, name)

    def read(self, *arguments: Any) -> Any:
        self.reads += 1
        return self.tls.read(*arguments)


def test_one_record_is_read_once_and_sends_do_not_count_as_handshakes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A read that finds nothing raises, which costs as much as the read; and while the system sends a handshake's
    answer, it may let the peer work."""
    owner, holder = Owner(), Holder(pair[0])
    clock, spent = [0.0], [0.0]
    owner.now = lambda: clock[0]  # type: ignore[method-assign]
    owner.worked = lambda begun: spent.append(clock[0] - begun)  # type: ignore[method-assign]
    network = Network(pair[0], 1)
    network.recv = pair[0].recv  # type: ignore[method-assign]

    def send_slowly(data: bytes) -> int:
        clock[0] += 1.0
        return pair[0].send(data)

    network.send = send_slowly  # type: ignore[method-assign]
    holder.sock = network
    server: Any = TlsSocket(holder, owner, server_context, allows_plain=False)  # type: ignore[arg-type]
    client = Client(pair[1])
    for _ in range(4):
        client.step()
        with suppress(BlockingIOError):
            server.recv(262_144)
    assert [result for result, _ in owner.results] == ["ok"]
    assert clock[0] > 0
    assert sum(spent) == 0
    counting = server.tls = CountingTls(server.tls)
    client.tls.write(b"x" * 16_384)
    client.step()
    assert server.recv(262_144) == b"x" * 16_384
    assert counting.reads == 1
    for piece in (b"a" * 16_384, b"b", b"c" * 100):
        client.tls.write(piece)
    client.step()
    assert server.recv(262_144) == b"a" * 16_384 + b"b" + b"c" * 100
    assert counting.reads == 4


def accepted(server: ssl.SSLContext, version: ssl.TLSVersion, ciphers: str) -> str | None:
    """The cipher on which a client with this version and these ciphers agrees with the server; None: on none."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.minimum_version = client.maximum_version = version
    client.set_ciphers(ciphers)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
    found = ends[0].cipher()
    return None if found is None else found[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["ECDSA", "RSA"])
def test_a_scan_finds_no_protocol_and_cipher_beyond_mozillas_intermediate_ones(tmp_path: Path, kind: str) -> None:
    """The scan offers each cipher of OpenSSL alone, by version, as testssl.sh does."""
    certificate = FOLDER / "server.pem"
    if kind == "RSA":
        certificate = tmp_path / "rsa.pem"
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=rsa -keyout {certificate} -out {tmp_path}/rsa"
        subprocess.run(command.split(), capture_output=True, check=True)
        certificate.write_bytes(certificate.read_bytes() + (tmp_path / "rsa").read_bytes())
    server = ServerTls(str(certificate)).make_context()
    every = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    every.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    names = [each["name"] for each in every.get_ciphers() if not each["name"].startswith("TLS_")]
    assert len(names) > 50
    found = {name for name in names if accepted(server, ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0")}
    assert found == {name for name in CIPHERS.split(":") if name.startswith(f"ECDHE-{kind}-")}
    assert accepted(server, ssl.TLSVersion.TLSv1_3, "ALL") in {"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"}
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        assert accepted(server, old, "ALL:@SECLEVEL=0") is None

"""Both twins of the TLS loop return the same bytes and errors, and the kernel's loops lose none of them."""

from __future__ import annotations

import random
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import pytest

from gantrymq.kernel import fast
from gantrymq.kernel.fast import Readers
from gantrymq.plugins.tls import plain
from gantrymq.plugins.tls.tls_socket import TlsSocket
from gantrymq.remoting.command import Command, encode
from support.certificates import client_context, server_context

pytestmark = pytest.mark.once  # it runs both twins

compiled = pytest.importorskip("gantrymq.plugins.tls._fast", reason="the extension is not built")

RECORD = 16_384
FRAME_BYTES = 1024 * 1024


def layer(twin: Any) -> Any:
    """A server's layer of one twin, whose answers to the peer stay in ``unsent``."""

    class Layer(twin.RecordLayer):  # type: ignore[misc]
        def refuse(self, error: ssl.SSLError) -> OSError:
            self.is_open = False
            return ConnectionError(error.reason)

        def answer_peer(self) -> None:
            self.unsent += self.outgoing.read()

    return Layer()


def shake_hands(version: ssl.TLSVersion, server: Any) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Connect a client to the layer; returns its end, and what it sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context()
    context.minimum_version = context.maximum_version = version
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    server.tls = server_context().wrap_bio(server.incoming, server.outgoing, server_side=True)
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.feed(outgoing.read())
        with suppress(ssl.SSLWantReadError):
            server.tls.do_handshake()
        incoming.write(server.outgoing.read())
    server.open(-1)
    return client, outgoing


def received(server: Any, data: bytes, cuts: list[int]) -> tuple[bytes, str, bool, str]:
    """The layer after ``data`` in pieces: its bytes, its end, whether it is open, its error."""
    got, last, end = b"", 0, "none"
    for cut in [*cuts, len(data)]:
        if server.is_open:
            part = server.decrypt(data[last:cut])
            if server.failure is not None:
                return b"", "failed", server.is_open, str(server.failure)
            if part is not None:
                got += part
                end = "data" if part else "end"
        last = cut
    return got, "end" if server.has_ended else end, server.is_open, ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("damage", ["none", "end", "altered", "cut off", "no record", "long record", "short head"])
@pytest.mark.parametrize("seed", range(3))
def test_both_twins_return_the_same_bytes_and_errors(version: ssl.TLSVersion, damage: str, seed: int) -> None:
    chance = random.Random(seed)
    results = []
    sizes = [chance.choice((1, 100, 5000, RECORD)) for _ in range(9)]
    for twin in (compiled, plain):
        server = layer(twin)
        client, outgoing = shake_hands(version, server)
        if damage == "end":
            with suppress(ssl.SSLError):
                client.write(b"before")
                client.unwrap()
        sent = b""
        for number, size in enumerate(sizes):
            if damage != "end":
                sent += bytes([number]) * size
                client.write(bytes([number]) * size)
        data = bytearray(outgoing.read())
        if damage == "altered":
            data[-1] ^= 1
        elif damage == "cut off":
            del data[-1]
        elif damage == "no record":
            data += b"GET / HTTP/1.1\r\n\r\n"
        elif damage == "long record":
            data += b"\x17\x03\x03\xff\xff" + bytes(100)
        elif damage == "short head":
            data += b"\x17\x03"
        cuts = sorted(random.Random(seed).choices(range(1, len(data)), k=12))
        results.append(received(server, bytes(data), cuts if seed else []))
        if damage in ("none", "short head"):
            assert results[-1] == (sent, "data", True, "")
        elif damage in ("altered", "no record", "long record"):
            assert results[-1][1:3] == ("failed", False)
    assert results[0] == results[1]


def test_the_compiled_twin_keeps_no_more_than_a_record_in_memory() -> None:
    """OpenSSL's buffer in memory never becomes smaller, so all bytes of a turn must not be written to it at once."""
    server = layer(compiled)
    client, outgoing = shake_hands(ssl.TLSVersion.TLSv1_3, server)
    most = 0

    class Incoming:
        """The buffer, with the most bytes that it had."""

        def write(self, data: Any) -> int:
            nonlocal most
            written = buffer.write(data)
            most = max(most, buffer.pending)
            return int(written)

        def __getattr__(self, name: str) -> Any:
            return getattr(buffer, name)

    buffer, server.incoming = server.incoming, Incoming()
    for size in (RECORD, RECORD, 10, 10, 100_000):
        for place in range(0, size, RECORD):
            client.write(b"x" * min(RECORD, size - place))
    data = outgoing.read()
    assert server.decrypt(data[:-7]) + server.decrypt(data[-7:]) == b"x" * (2 * RECORD + 20 + 100_000)
    assert most <= RECORD + 300


@attrs.define(eq=False)
class Connection:
    """The part of a connection that the kernel's loops use, and the client's end."""

    sock: Any
    client: Any
    peer_end: socket.socket
    identity: object = None
    inbound: bytearray = attrs.field(factory=bytearray)
    outbound: list[bytes] = attrs.field(factory=list)
    outbound_bytes: int = 0
    largest_response: int = 0
    active_at: float = 0.0
    silent_since: float | None = 1.0
    closed: bool = False
    is_paused: bool = False
    wants_write: bool = False


class Owner:
    """A plugin that permits everything."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def may_work(self) -> bool:
        return True

    def ended(self, _connection: Any, result: str, _reason: str) -> None:
        self.events.append(result)

    def violated(self, _connection: Any, kind: str, _reason: str) -> None:
        self.events.append(kind)


@pytest.fixture
def connections() -> Iterator[list[Connection]]:
    """Three connections after their handshakes."""
    made = []
    for _ in range(3):
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        connection = Connection(ours, None, theirs)
        owner: Any = Owner()
        connection.sock = server = TlsSocket(connection, owner, server_context, False)  # type: ignore[arg-type]
        client = client_context().wrap_socket(theirs, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        for _ in range(4):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            with suppress(BlockingIOError):
                server.recv(65536)
        assert server.is_open
        connection.client = client
        made.append(connection)
    yield made
    for connection in made:
        connection.client.close()
        connection.sock.close()


def receive(connections: list[Connection]) -> tuple[list[bytes], list[bytes], int]:
    """Receive with the loop in use: the requests' bodies, what the caller had to read, and the next position."""
    requests: list[Any] = []
    rest: list[bytes] = []
    by_descriptor: Any = {each.sock.fileno(): each for each in connections}
    events = [(descriptor, select.EPOLLIN) for descriptor in by_descriptor]
    read_all = lambda _connection, data, *_: rest.append(data)  # noqa: E731
    position, _ = fast.read_ready(events, 0, by_descriptor, requests, 7.0, read_all, FRAME_BYTES, Readers(), 10**6, 99)
    return [one.body for one in requests], rest, position


def frames(*numbers: int) -> bytes:
    return b"".join(encode(Command(10, {"a": "b"}, b"body %d" % number, number)) for number in numbers)


@pytest.mark.skipif(fast.KIND == "plain", reason="the plain twin leaves all to the caller")
def test_one_loop_receives_the_usual_requests_of_all_encrypted_connections(connections: list[Connection]) -> None:
    for number, connection in enumerate(connections):
        connection.client.send(frames(2 * number, 2 * number + 1))
    assert receive(connections) == ([b"body %d" % number for number in range(6)], [], 3)
    assert {each.active_at for each in connections} == {7.0}
    # A part of a record is no request and no end; with the rest of the record it is read.
    connections[0].client.send(frames(7))
    raw = connections[0].sock._raw
    record = raw.recv(65536)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        connections[0].sock._raw = theirs
        ours.send(record[:20])
        assert receive(connections[:1]) == ([], [], 1)
        ours.send(record[20:])
        assert receive(connections[:1]) == ([b"body 7"], [], 1)
        connections[0].sock._raw = raw


@pytest.mark.skipif(fast.KIND == "plain", reason="the plain twin leaves all to the caller")
def test_an_altered_record_ends_its_own_connection_only(connections: list[Connection]) -> None:
    for number, connection in enumerate(connections):
        connection.client.send(frames(number))
    altered, raw = connections[1], connections[1].sock._raw
    record = bytearray(raw.recv(65536))
    record[-1] ^= 1
    ours, theirs = socket.socketpair()
    with ours, theirs:
        altered.sock._raw = theirs
        theirs.setblocking(False)
        ours.send(record)
        bodies, rest, position = receive(connections)
        assert (bodies, rest, position) == ([b"body 0"], [], 1)
        with pytest.raises(ConnectionError, match="bad record mac"):
            altered.sock.recv(65536)
        with pytest.raises(ConnectionError, match="bad record mac"):
            altered.sock.send(b"never")
        assert altered.sock._owner.events == ["ok", "altered"]
        altered.sock._raw = raw
    assert receive(connections[2:]) == ([b"body 2"], [], 1)


@pytest.mark.skipif(fast.KIND == "plain", reason="the plain twin leaves all to the caller")
def test_responses_to_a_slow_peer_are_sent_once_and_in_order(connections: list[Connection]) -> None:
    slow, fine, _ = connections
    slow.sock._raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = b""

    def send(connection: Connection, data: bytes) -> list[Connection]:
        connection.outbound.append(data)
        connection.outbound_bytes += len(data)
        connection.largest_response = len(data)
        return fast.write_ready([each for each in connections if each.outbound])[0]  # type: ignore[misc,return-value]

    for number in range(40):
        data = bytes([number]) * 40_000
        sent += data
        if send(slow, data):
            break
    else:
        raise AssertionError("the socket took everything")
    assert slow.outbound == [data]
    assert slow.sock.in_flight == len(data)
    assert slow.sock.unsent
    assert send(fine, b"response") == [slow]
    assert (fine.outbound, fine.outbound_bytes, fine.largest_response) == ([], 0, 0)
    assert fine.client.recv(100) == b"response"
    got = b""
    while len(got) < len(sent):
        with suppress(ssl.SSLWantReadError):
            got += slow.client.recv(65536)
        if slow.outbound:
            with suppress(BlockingIOError):
                assert slow.sock.send(slow.outbound[0]) == len(slow.outbound.pop())
    assert got == sent
    slow.outbound_bytes = 0
    assert send(slow, b"again") == []
    assert slow.client.recv(100) == b"again"

"""Receiving from and sending to many sockets at once, in the twin in use and in the plain one: nothing is lost."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from gantrymq.kernel import fast
from gantrymq.kernel.fast import Readers, plain_requests
from gantrymq.remoting.command import Command, encode

FRAME_BYTES = 1024 * 1024


@attrs.define(eq=False)
class Peer:
    """The attributes of a connection that the loops use, and the other end of its socket."""

    sock: Any
    other: socket.socket
    inbound: bytearray = attrs.field(factory=bytearray)
    outbound: list[bytes] = attrs.field(factory=list)
    outbound_bytes: int = 0
    largest_answer: int = 0
    active_at: float = 0.0
    silent_since: float | None = 1.0
    closed: bool = False
    is_paused: bool = False
    wants_write: bool = False

    def queue(self, data: bytes) -> None:
        self.outbound.append(data)
        self.outbound_bytes += len(data)
        self.largest_answer = len(data)


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made = []
    for _ in range(3):
        ours, other = socket.socketpair()
        ours.setblocking(False)
        made.append(Peer(ours, other))
    yield made
    for peer in made:
        peer.sock.close()
        peer.other.close()


@pytest.fixture(params=["in use", "plain"])
def twin(request: pytest.FixtureRequest) -> Any:
    return fast if request.param == "in use" else plain_requests


def receive(
    twin: Any, peers: list[Peer], events: list[tuple[int, int]], most: int = FRAME_BYTES, rows: int = 100
) -> Any:
    """Receive; returns the requests' bodies, the data that the caller had to read, and the next position."""
    requests: list[Any] = []
    read: list[bytes] = []
    readers = Readers() if twin is fast else plain_requests.Readers()
    connections = {peer.sock.fileno(): peer for peer in peers}
    read_all = lambda _peer, data, *_: read.append(data)  # noqa: E731
    position, _ = twin.read_ready(events, 0, connections, requests, 7.0, read_all, FRAME_BYTES, readers, most, rows)
    return [one.body for one in requests], read, position


def test_usual_requests_are_read_and_others_left_to_the_caller(twin: Any, peers: list[Peer]) -> None:
    frames = [encode(Command(10, {"a": "b"}, b"body %d" % number, number)) for number in range(4)]
    peers[0].other.sendall(frames[0] + frames[1])
    peers[1].other.sendall(frames[2] + frames[3][:9])  # an incomplete frame
    peers[2].other.sendall(frames[0])
    events = [(peer.sock.fileno(), select.EPOLLIN) for peer in peers]
    bodies, read, position = receive(twin, peers, events)
    left = b"".join(peer.sock.recv(65536) for peer in peers[position:])
    assert b"".join(read) + left == b"".join(frames[2 if position else 0 : 3]) + frames[3][:9] + frames[0]
    assert bodies == ([b"body 0", b"body 1"] if position else [])
    if position:
        assert (peers[0].active_at, peers[0].silent_since) == (7.0, None)


@pytest.mark.parametrize("odd", ["paused", "partial", "hung up", "unknown", "other socket"])
def test_events_that_need_the_caller_are_not_touched(twin: Any, peers: list[Peer], odd: str) -> None:
    peer = peers[0]
    peer.other.sendall(encode(Command(10, None, b"x", 1)))
    event = select.EPOLLIN | (select.EPOLLHUP if odd == "hung up" else 0)
    events = [(peer.sock.fileno(), event)]
    peer.is_paused = odd == "paused"
    peer.inbound += b"\0" if odd == "partial" else b""
    known = [] if odd == "unknown" else [peer]
    plain_socket = peer.sock
    if odd == "other socket":
        peer.sock = type("Tls", (), {"fileno": lambda _: plain_socket.fileno()})()
    assert receive(twin, known, events) == ([], [], 0)
    peer.sock = plain_socket
    assert peer.sock.recv(65536)


def test_the_limits_of_a_turn_end_the_receiving(twin: Any, peers: list[Peer]) -> None:
    for peer in peers:
        peer.other.sendall(encode(Command(10, None, b"x", 1)))
    events = [(peer.sock.fileno(), select.EPOLLIN) for peer in peers]
    assert receive(twin, peers, events, rows=0) == ([], [], 0)
    assert receive(twin, peers, events, most=0) == ([], [], 0)
    bodies, _, position = receive(twin, peers, events, most=1)
    assert len(bodies) == position <= 1


def test_unsent_bytes_of_a_full_socket_are_kept(twin: Any, peers: list[Peer]) -> None:
    full, closed, fine = peers
    full.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = bytes(range(256)) * 250
    sent = 0
    while sent < 40 and not full.outbound:
        full.queue(data)
        sent += 1
        left, _ = twin.write_ready([full])
        if left:
            break
    closed.queue(b"never")
    closed.closed = True
    fine.queue(b"response")
    left, size = twin.write_ready({full: None, closed: None, fine: None})
    assert full in left
    assert closed not in left or twin is plain_requests or fast.KIND == "plain"
    if fine not in left:
        assert fine.other.recv(100) == b"response"
        assert size == 8
        assert (fine.outbound, fine.outbound_bytes, fine.largest_answer) == ([], 0, 0)
    received = b""
    full.other.setblocking(False)
    while True:
        try:
            received += full.other.recv(65536)
        except BlockingIOError:
            break
    assert received + b"".join(full.outbound) == data * sent
    assert full.outbound_bytes == sum(map(len, full.outbound))

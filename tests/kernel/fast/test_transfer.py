"""Receiving from and sending to many sockets at once loses nothing, with either twin."""

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
    largest_response: int = 0
    active_at: float = 0.0
    silent_since: float | None = 1.0
    partial_since: float | None = None
    closed: bool = False
    is_paused: bool = False
    wants_write: bool = False

    def queue(self, data: bytes) -> None:
        self.outbound.append(data)
        self.outbound_bytes += len(data)
        self.largest_response = len(data)


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
    assert not read
    if position:
        assert (bodies, left) == ([b"body 0", b"body 1", b"body 2", b"body 0"], b"")
        assert bytes(peers[1].inbound) == frames[3][:9]
        assert (peers[0].active_at, peers[0].silent_since) == (7.0, None)
    else:
        assert (bodies, left) == ([], b"".join(frames[:3]) + frames[3][:9] + frames[0])


@pytest.mark.parametrize("body_bytes", [5, 5_000])
def test_frames_that_arrive_in_parts_are_read_when_they_are_whole(
    twin: Any, peers: list[Peer], body_bytes: int
) -> None:
    peer = peers[0]
    event = [(peer.sock.fileno(), select.EPOLLIN)]
    bodies = [b"%02d" % number * body_bytes for number in range(6)]
    stream = b"".join(encode(Command(10, {"a": "b"}, body, 1)) for body in bodies)
    sizes = [3, 5, 40, 1, len(stream) // 2, 7, 2 * len(stream)]
    found: list[bytes] = []
    frames_end = 0
    for size in sizes:
        part, stream = stream[:size], stream[size:]
        if not part:
            break
        peer.other.sendall(part)
        had = bytes(peer.inbound)
        got, read, position = receive(twin, peers, event)
        found += got
        if not position:
            assert twin.read_ready is plain_requests.read_ready
            return
        if read:
            assert (read, got) == ([part], []), "nothing is whole: the caller keeps the part"
            peer.inbound += part
            peer.partial_since = 3.0
        else:
            frames_end = sum(len(encode(Command(10, {"a": "b"}, body, 1))) for body in got)
            assert bytes(peer.inbound) == (had + part)[frames_end:]
            assert peer.partial_since == (7.0 if peer.inbound else None)
            assert peer.silent_since is None
    assert found == bodies
    assert not peer.inbound


def test_a_part_with_a_whole_frame_waits_for_its_turn(twin: Any, peers: list[Peer]) -> None:
    peer = peers[0]
    peer.inbound += encode(Command(10, None, b"x", 1))
    peer.other.sendall(encode(Command(10, None, b"y", 1)))
    assert receive(twin, peers, [(peer.sock.fileno(), select.EPOLLIN)]) == ([], [], 0)


@pytest.mark.parametrize("odd", ["paused", "long part", "hung up", "unknown", "other socket"])
def test_events_that_need_the_caller_are_not_touched(twin: Any, peers: list[Peer], odd: str) -> None:
    peer = peers[0]
    peer.other.sendall(encode(Command(10, None, b"x", 1)))
    event = select.EPOLLIN | (select.EPOLLHUP if odd == "hung up" else 0)
    events = [(peer.sock.fileno(), event)]
    peer.is_paused = odd == "paused"
    peer.inbound += (200_000).to_bytes(4, "big") + bytes(150_000) if odd == "long part" else b""
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
        assert (fine.outbound, fine.outbound_bytes, fine.largest_response) == ([], 0, 0)
    received = b""
    full.other.setblocking(False)
    while True:
        try:
            received += full.other.recv(65536)
        except BlockingIOError:
            break
    assert received + b"".join(full.outbound) == data * sent
    assert full.outbound_bytes == sum(map(len, full.outbound))

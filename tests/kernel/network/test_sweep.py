"""One task serves all sockets fairly and within limits, and bytes of one peer affect no other."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import structlog
from structlog.testing import capture_logs

from gantrymq.kernel.config.declarations import LimitsSection
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.fast import plain_requests
from gantrymq.kernel.network.adaptive_wait import TRIAL_BLOCKS
from gantrymq.kernel.network.connection import Connection, ConnectionsBatch
from gantrymq.kernel.network.sweep import LONE_TURNS, TRIAL_TURNS, Sweep
from gantrymq.kernel.processors import Request
from gantrymq.remoting.bad_bytes import QUIET_SECONDS
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.outages import REPEAT_SECONDS
from support.processes import free_ports

REAL_EPOLL = select.epoll


class ClockedEnv(SystemEnv):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@attrs.define
class Bench:
    """A sweep on a real listener, driven turn by turn; every request is answered with its own body."""

    sweep: Sweep
    env: ClockedEnv
    port: int
    sweeps: list[list[Request]]
    changes: list[ConnectionsBatch]

    def connect(self) -> socket.socket:
        before = self.opened
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.turns(lambda: self.opened > before)
        return peer

    def turns(self, until: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if until():
                return
            self.sweep.turn()
        raise AssertionError("nothing happened")

    def wait(self, seconds: float, *, receive: bool = True) -> None:
        """Let time pass in which the sweep runs, as it does in a broker."""
        for _ in range(round(seconds * 2)):
            self.env.now += 0.5
            self.sweep.turn(receive=receive)
            self.sweep.check_deadlines()

    @property
    def opened(self) -> int:
        return sum(len(change.opened) for change in self.changes)

    @property
    def requests(self) -> list[Request]:
        return [request for sweep in self.sweeps for request in sweep]


def make_bench(*, is_listening: bool = True, port: int = 0, **limits: int | float) -> Bench:
    sweeps: list[list[Request]] = []
    changes: list[ConnectionsBatch] = []

    def handle(requests: list[Request]) -> None:
        sweeps.append(requests)
        for request in requests:
            request.answer(0, body=request.command.body)

    env = ClockedEnv()
    sweep = Sweep(env, LimitsSection(**limits), handle, changes.append, lambda: None)  # type: ignore[arg-type]
    _, port = sweep.bind("127.0.0.1", port)
    if is_listening:
        sweep.listen()
    return Bench(sweep, env, port, sweeps, changes)


def test_an_address_that_another_process_takes_after_the_bind_refuses_the_start() -> None:
    """Two sockets may bind a given port until one of them listens."""
    bench = make_bench(is_listening=False, port=free_ports()[0])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", bench.port))
        other.listen()
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{bench.port}: Address already in use"):
            bench.sweep.listen()
    bench.sweep.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = make_bench()
    yield made
    made.sweep.close()


def request(opaque: int, body: bytes = b"", flag: int = 0, kind: int = 0) -> bytes:
    return encode(Command(1, {"a": "b"}, body, opaque, flag, kind=kind))


def answers(peer: socket.socket, count: int) -> list[Command]:
    data = bytearray()
    found: list[Command] = []
    while len(found) < count:
        received = peer.recv(65536)
        assert received, "closed"
        data += received
        frames, taken = cut_frames(data)
        del data[:taken]
        found += [decode(frame) for frame in frames]
    return found


def test_all_ready_requests_are_one_call_and_each_peer_gets_its_responses(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    first.sendall(request(1, b"x") + request(2, b"y", kind=1))
    second.sendall(request(1, b"z"))
    bench.turns(lambda: len(bench.requests) == 3)
    assert [(answer.opaque, answer.body, answer.kind) for answer in answers(first, 2)] == [(1, b"x", 0), (2, b"y", 1)]
    assert [answer.body for answer in answers(second, 1)] == [b"z"]
    first.close()
    second.close()


def test_a_request_is_complete_when_its_last_byte_arrives(bench: Bench) -> None:
    peer = bench.connect()
    data = request(7, b"slow")
    for byte in data[:-1]:
        peer.sendall(bytes((byte,)))
        bench.sweep.turn()
    assert bench.requests == []
    peer.sendall(data[-1:] + request(8))
    bench.turns(lambda: len(bench.requests) == 2)
    assert [answer.opaque for answer in answers(peer, 2)] == [7, 8]
    peer.close()


def test_oneway_requests_are_handled_and_never_answered(bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(request(1, flag=ONEWAY_FLAG) + request(2))
    bench.turns(lambda: len(bench.requests) == 2)
    assert [answer.opaque for answer in answers(peer, 1)] == [2]
    peer.close()


def test_an_unexpected_response_is_dropped(bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(request(1, flag=RESPONSE_FLAG) + request(2))
    bench.turns(lambda: len(bench.requests) == 1)
    assert [answer.opaque for answer in answers(peer, 1)] == [2]
    peer.close()


BAD = [
    b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x03", b"\x01\x00\x00\x00", b"\x7f\xff\xff\xff",
    b"\x00\x00\x00\x08\x00\x00\x00\xff", b"\x00\x00\x00\x06\x02\x00\x00\x02{}", b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
    b"\x00\x00\x00\x07\x00\x00\x00\x03\xff{}", b"GET / HTTP/1.1\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=[bad.hex() for bad in BAD])
def test_invalid_bytes_close_their_connection_only(bench: Bench, bad: bytes) -> None:
    guilty, innocent = bench.connect(), bench.connect()
    guilty.sendall(bad)
    bench.turns(lambda: any(change.closed for change in bench.changes))
    assert guilty.recv(1) == b""
    innocent.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    assert answers(innocent, 1)[0].opaque == 1
    guilty.close()
    innocent.close()


def test_a_peer_that_does_not_read_is_closed_at_the_limit_and_others_are_served() -> None:
    bench = make_bench(write_buffer_bytes=64 * 1024)
    greedy, other = bench.connect(), bench.connect()
    greedy.setblocking(False)
    closed = False
    for _ in range(10_000):
        try:
            greedy.send(request(1, bytes(60_000)))
        except BlockingIOError:
            pass
        except OSError:
            break
        bench.sweep.turn()
        closed = any(change.closed for change in bench.changes)
        if closed:
            break
    assert closed
    other.sendall(request(1))
    bench.turns(lambda: bench.requests[-1].connection.closed is False)
    assert answers(other, 1)[0].opaque == 1
    greedy.close()
    other.close()
    bench.sweep.close()


def test_a_turn_takes_at_most_its_limit_of_rows_and_the_rest_follows() -> None:
    bench = make_bench(sweep_rows=10)
    peers = [bench.connect() for _ in range(4)]
    for peer in peers:
        peer.sendall(request(1) * 8)
    bench.turns(lambda: len(bench.requests) == 32)
    # A connection is received whole, so the limit is exceeded by one connection's frames at most.
    assert max(len(sweep) for sweep in bench.sweeps) <= 16
    for peer in peers:
        assert len(answers(peer, 8)) == 8
        peer.close()
    bench.sweep.close()


def test_idle_peers_and_peers_with_unfinished_frames_are_disconnected(bench: Bench) -> None:
    idle, trickling, busy = bench.connect(), bench.connect(), bench.connect()
    idle.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    assert len(answers(idle, 1)) == 1
    trickling.sendall(request(1)[:-1])
    bench.turns(lambda: any(connection.inbound for connection in bench.sweep.connections))
    bench.env.now += 16.0
    busy.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 2)
    bench.sweep.check_deadlines()
    assert trickling.recv(1) == b""
    assert len(bench.sweep.connections) == 2
    bench.wait(110.0)
    assert idle.recv(1) == b""
    assert len(bench.sweep.connections) == 1
    for peer in (idle, trickling, busy):
        peer.close()


def test_a_new_connection_without_a_frame_is_closed_within_ten_seconds(bench: Bench) -> None:
    silent, honest = bench.connect(), bench.connect()
    honest.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    bench.wait(9.0)
    assert len(bench.sweep.connections) == 2
    bench.wait(2.0)
    assert silent.recv(1) == b""
    assert [connection.peer for connection in bench.sweep.connections] == [honest.getsockname()]
    for peer in (silent, honest):
        peer.close()


def three_waiting(bench: Bench) -> list[socket.socket]:
    """A new peer, one in the middle of a frame and one between two frames: the sweep has not read what each sends
    next."""
    new, begun, quiet = (bench.connect() for _ in range(3))
    quiet.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    begun.sendall(request(2)[:-1])
    bench.turns(lambda: any(connection.inbound for connection in bench.sweep.connections))
    bench.sweep.check_deadlines()
    begun.sendall(request(2)[-1:])
    for peer in (new, quiet):
        peer.sendall(request(3))
    return [new, begun, quiet]


def test_a_sweep_that_does_not_read_closes_no_peer_for_being_silent(bench: Bench) -> None:
    peers = three_waiting(bench)
    bench.wait(130.0, receive=False)
    assert len(bench.sweep.connections) == 3
    bench.turns(lambda: len(bench.requests) == 4)
    bench.wait(119.0)
    assert len(bench.sweep.connections) == 3
    bench.wait(2.0)
    assert bench.sweep.connections == []
    for peer in peers:
        peer.close()


def test_a_process_that_did_not_run_reads_before_it_closes_a_peer_for_being_silent(bench: Bench) -> None:
    peers = three_waiting(bench)
    bench.env.now += 130.0
    bench.sweep.check_deadlines()
    assert len(bench.sweep.connections) == 3
    bench.turns(lambda: len(bench.requests) == 4)
    for peer in peers:
        peer.close()


def test_a_peer_that_is_silent_when_the_sweep_reads_again_is_closed_within_the_limit(bench: Bench) -> None:
    peer = bench.connect()
    bench.wait(60.0, receive=False)
    bench.wait(9.0)
    assert len(bench.sweep.connections) == 1
    bench.wait(2.0)
    assert peer.recv(1) == b""
    peer.close()


def test_short_interruptions_of_reading_do_not_extend_the_limits_of_peers(bench: Bench) -> None:
    peer = bench.connect()
    for _ in range(11):
        bench.wait(0.5, receive=False)
        bench.wait(0.5)
    assert peer.recv(1) == b""
    peer.close()


def test_a_new_connection_that_is_not_read_is_not_closed_for_sending_no_frame(bench: Bench) -> None:
    peer = bench.connect()
    (connection,) = bench.sweep.connections
    connection.throttle(True)
    peer.sendall(request(1))
    bench.wait(12.0)
    connection.throttle(False)
    bench.sweep.check_deadlines()
    bench.turns(lambda: len(bench.requests) == 1)
    peer.close()


def connect_from(bench: Bench, host: str) -> socket.socket:
    """A connection from another address of the loopback network."""
    peer = socket.socket()
    peer.bind((host, 0))
    peer.settimeout(5)
    peer.connect(("127.0.0.1", bench.port))
    for _ in range(10):
        bench.sweep.turn()
    return peer


def test_one_address_cannot_take_every_connection() -> None:
    bench = make_bench(connections=4)
    greedy = [connect_from(bench, "127.0.0.2") for _ in range(4)]
    modest = [connect_from(bench, "127.0.0.3") for _ in range(3)]
    hosts = sorted(connection.peer[0] for connection in bench.sweep.connections)
    assert hosts == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2, "each has its half"
    assert greedy[3].recv(1) == greedy[2].recv(1) == b"", "the newest of the greedy address gave way"
    assert modest[2].recv(1) == b""
    modest[0].sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    for peer in (*greedy, *modest):
        peer.close()
    bench.sweep.close()


class ListenerFirst:
    """An epoll that returns the listener's event before all others."""

    def __init__(self, epoll: Any, listener: int) -> None:
        self._epoll = epoll
        self._listener = listener

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        return sorted(self._epoll.poll(timeout, most), key=lambda event: event[0] != self._listener)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def test_an_event_of_a_displaced_connection_is_not_applied_to_the_next_one_with_its_descriptor() -> None:
    """Plugins change a new connection (for TLS, for example) before its first byte is received."""
    bench = make_bench(connections=4)
    sweep = bench.sweep
    greedy = [connect_from(bench, "127.0.0.2") for _ in range(4)]
    descriptor = next(each.sock.fileno() for each in sweep.connections if each.peer == greedy[3].getsockname())
    unreported: list[Request] = []

    def handle(requests: list[Request]) -> None:
        reported = {connection for change in bench.changes for connection in change.opened}
        unreported.extend(asked for asked in requests if asked.connection not in reported)
        bench.sweeps.append(requests)

    sweep._handle = handle
    sweep._epoll = ListenerFirst(sweep._epoll, sweep._accepting_on)  # type: ignore[assignment]
    new = []
    for _ in range(2):
        peer = socket.socket()
        peer.bind(("127.0.0.3", 0))
        peer.connect(("127.0.0.1", bench.port))
        new.append(peer)
    new[1].sendall(request(1))
    greedy[3].sendall(request(2))
    sweep.turn()
    last = next(each for each in sweep.connections if each.peer == new[1].getsockname())
    assert last.sock.fileno() == descriptor, "it has another descriptor: nothing is tested"
    assert unreported == []
    bench.turns(lambda: any(asked.command.opaque == 1 for asked in bench.requests))
    assert unreported == []
    for peer in (*greedy, *new):
        peer.close()
    sweep.close()


def test_the_limit_for_each_address_applies_below_the_total_limit() -> None:
    bench = make_bench(connections=10, connections_per_address=2)
    with structlog.testing.capture_logs() as lines:
        greedy = [connect_from(bench, "127.0.0.2") for _ in range(5)]
        other = connect_from(bench, "127.0.0.3")
        bench.env.now += 11.0
        greedy.append(connect_from(bench, "127.0.0.2"))
    assert sorted(connection.peer[0] for connection in bench.sweep.connections) == ["127.0.0.2"] * 2 + ["127.0.0.3"]
    refusals = [line for line in lines if line["event"] == "connection_refused"]
    assert [line["refused"] for line in refusals] == [1, 3], "one line for many"
    assert refusals[0]["setting"] == "limits.connections_per_address"
    for peer in (*greedy, other):
        peer.close()
    bench.sweep.close()


def test_connections_beyond_the_limit_are_closed() -> None:
    bench = make_bench(connections=1)
    first = bench.connect()
    second = socket.create_connection(("127.0.0.1", bench.port), timeout=5)
    second.setblocking(False)

    def refused() -> bool:
        try:
            return second.recv(1) == b""
        except BlockingIOError:
            return False

    bench.turns(refused)
    first.sendall(request(1))
    bench.turns(lambda: len(bench.requests) == 1)
    first.close()
    second.close()
    bench.sweep.close()


def test_a_port_in_use_is_a_clear_error(bench: Bench) -> None:
    other = Sweep(SystemEnv(), LimitsSection(), lambda requests: None, lambda batch: None, lambda: None)
    with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{bench.port}.*--listen"):
        other.bind("127.0.0.1", bench.port)
    other.close()


def test_a_closed_peer_is_reported_once_and_gets_no_more_responses(bench: Bench) -> None:
    peer = bench.connect()
    connection = bench.sweep.connections[0]
    peer.close()
    bench.turns(lambda: any(change.closed for change in bench.changes))
    connection.send(Command(1))
    connection.close("again")
    bench.sweep.turn()
    assert [closed for change in bench.changes for closed in change.closed] == [connection]


def test_unread_responses_share_a_limit_and_the_largest_holder_is_closed() -> None:
    bench = make_bench(buffered_bytes=4 * 1024 * 1024)
    quiet = bench.connect()
    greedy = [bench.connect() for _ in range(4)]
    one, *others = greedy
    sent = 0
    while bench.sweep.connections[1:] and not any(change.closed for change in bench.changes):
        for peer in (one, one, *others):
            peer.sendall(request(1, bytes(100_000)))
        sent += 5
        bench.turns(lambda wanted=sent: len(bench.requests) == wanted or any(change.closed for change in bench.changes))
        assert sum(connection.outbound_bytes for connection in bench.sweep.connections) <= 4 * 1024 * 1024
    assert [closed.peer for change in bench.changes for closed in change.closed] == [one.getsockname()]
    assert sent * 100_000 > 4 * 1024 * 1024
    quiet.sendall(request(7))
    bench.turns(lambda: bench.requests[-1].command.opaque == 7)
    assert answers(quiet, 1)[0].opaque == 7
    for peer in (quiet, *greedy):
        peer.close()
    bench.sweep.close()


def test_unfinished_frames_share_a_limit_and_the_largest_holder_is_closed() -> None:
    bench = make_bench(buffered_bytes=256 * 1024)
    large, small, quiet = (bench.connect() for _ in range(3))
    frame = request(1, bytes(1_000_000))
    large.sendall(frame[:200_000])
    small.sendall(frame[:100_000])
    bench.turns(lambda: sum(len(connection.inbound) for connection in bench.sweep.connections) == 300_000)
    bench.sweep.check_deadlines()
    assert [connection.peer for connection in bench.sweep.connections] == [small.getsockname(), quiet.getsockname()]
    bench.sweep.check_deadlines()
    assert len(bench.sweep.connections) == 2
    for peer in (large, small, quiet):
        peer.close()
    bench.sweep.close()


@pytest.mark.parametrize("whole_frames", [0, 1])
def test_unfinished_frames_exceed_their_limit_by_at_most_a_turn_between_two_checks(whole_frames: int) -> None:
    bench = make_bench(buffered_bytes=1024 * 1024, sweep_bytes=64 * 1024)
    peers = [bench.connect() for _ in range(20)]
    quiet = bench.connect()
    for peer in peers:
        peer.sendall(request(1) * whole_frames + request(2, bytes(1_000_000))[:100_000])
    largest = 0
    for _ in range(200):
        bench.sweep.turn()
        largest = max(largest, sum(len(connection.inbound) for connection in bench.sweep.connections))
    assert 1024 * 1024 - 100_000 < largest <= (1024 + 64) * 1024
    assert 5 <= len(bench.sweep.connections) < 20
    assert len(bench.requests) == 20 * whole_frames
    quiet.sendall(request(3))
    assert quiet.getsockname() in [connection.peer for connection in bench.sweep.connections]
    bench.turns(lambda: bool(bench.requests) and bench.requests[-1].command.opaque == 3)
    for peer in (*peers, quiet):
        peer.close()
    bench.sweep.close()


def test_unfinished_frames_just_below_their_limit_are_not_counted_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = 0
    count = Sweep._count_unread

    def counted(self: Sweep) -> None:
        nonlocal counts
        counts += 1
        count(self)

    monkeypatch.setattr(Sweep, "_count_unread", counted)
    bench = make_bench(buffered_bytes=256 * 1024, sweep_bytes=64 * 1024)
    holder, other = bench.connect(), bench.connect()
    holder.sendall(request(1, bytes(1_000_000))[: 255 * 1024])
    bench.turns(lambda: len(bench.sweep.connections[0].inbound) == 255 * 1024)
    for number in range(100):
        other.sendall(request(number, bytes(8 * 1024)))
        bench.turns(lambda wanted=number + 1: len(bench.requests) == wanted)
        answers(other, 1)
    assert 10 <= counts <= 15, "once for 64 KiB"
    assert len(bench.sweep.connections) == 2
    holder.close()
    other.close()
    bench.sweep.close()


def test_a_full_write_buffer_ends_the_turn_of_its_peer_only() -> None:
    """One turn limits the bytes and rows of requests, not of their responses."""
    bench = make_bench(write_buffer_bytes=64 * 1024)
    peer = bench.connect()
    connection = bench.sweep.connections[0]
    most = 0

    def flood(requests: list[Request]) -> None:
        nonlocal most
        for asked in requests:
            asked.answer(0, body=bytes(1_000_000))
            most = max(most, connection.outbound_bytes)

    bench.sweep._handle = flood
    peer.sendall(b"".join(request(number) for number in range(200)))
    bench.turns(lambda: connection.closed)
    assert most < 2_000_000
    peer.close()
    bench.sweep.close()


def test_a_single_response_of_any_size_is_sent_and_a_second_exceeds_the_buffer() -> None:
    bench = make_bench(write_buffer_bytes=64 * 1024)
    peer = bench.connect()
    connection = bench.sweep.connections[0]
    for sock, option in ((peer, socket.SO_RCVBUF), (connection.sock, socket.SO_SNDBUF)):
        sock.setsockopt(socket.SOL_SOCKET, option, 256 * 1024)  # otherwise they grow until they take a whole response
    body = bytes(range(256)) * 40_000
    for _ in range(2):
        connection.send(Command(0, body=body))
        bench.sweep.turn()
        assert connection.outbound_bytes > 64 * 1024, "the sockets took all of it: nothing is tested"
        received = bytearray()
        while len(received) < len(body):
            received += peer.recv(100_000)
            bench.sweep.turn()
            held = sum(len(memoryview(part).obj) for part in connection.outbound)
            assert held <= 2 * connection.outbound_bytes, "the last bytes keep the whole answer in memory"
        bench.turns(lambda: not connection.outbound_bytes)
        while not received.endswith(body):
            received += peer.recv(100_000)
    connection.send(Command(0, body=body))
    assert not connection.closed
    connection.send(Command(0, body=body))
    assert connection.closed
    peer.close()
    bench.sweep.close()


def test_many_connections_are_scanned_in_parts_and_none_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.kernel.network.sweep.CHECKED_AT_ONCE", 2)
    monkeypatch.setattr("gantrymq.kernel.network.reading_time.UNREAD_S", 60.0)  # the clock makes a large step
    bench = make_bench(idle=10, buffered_bytes=256 * 1024)
    peers = [bench.connect() for _ in range(5)]
    peers[0].sendall(request(1, bytes(1_000_000))[:300_000])
    bench.turns(lambda: len(bench.sweep.connections[0].inbound) == 300_000)
    bench.sweep.check_deadlines()
    bench.sweep.check_deadlines()
    assert len(bench.sweep.connections) == 5
    bench.sweep.check_deadlines()
    assert len(bench.sweep.connections) == 4, "at the end of a round it is known that unfinished frames are too large"
    bench.env.now += 11
    left = []
    for _ in range(3):
        bench.sweep.check_deadlines()
        left.append(len(bench.sweep.connections))
    assert left == [2, 0, 0]
    for peer in peers:
        peer.close()
    bench.sweep.close()


class CountingEpoll:
    """An epoll that keeps for how long each poll would have waited, and never waits."""

    waits: list[float] = []  # noqa: RUF012 - of the only one that a test has

    def __init__(self) -> None:
        self._epoll = REAL_EPOLL()

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.waits.append(timeout)
        return self._epoll.poll(0, most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timeouts of the waits of a bench that is made later."""
    monkeypatch.setattr(CountingEpoll, "waits", [])
    monkeypatch.setattr(select, "epoll", CountingEpoll)
    return CountingEpoll.waits


def test_the_sweep_polls_without_sleeping_after_a_single_request(waits: list[float], bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(request(1))
    while not bench.requests:
        bench.sweep.turn(linger=False)
    waits.clear()
    assert not bench.sweep.turn(linger=True)
    assert not any(waits[:-1])
    assert len(waits) > 10, "it looks again and again"
    assert waits[-1] > 0, "it lingers then"
    waits.clear()
    bench.sweep.turn(linger=True)
    assert len(waits) == 1, "what was in vain is not done again at once"
    peer.close()


@pytest.mark.parametrize("is_faster", [True, False])
def test_the_sweep_polls_for_a_lone_sender_only_where_that_is_faster(
    waits: list[float], bench: Bench, *, is_faster: bool
) -> None:
    peer = bench.connect()
    for number in range(TRIAL_TURNS * (TRIAL_BLOCKS + 2)):
        waits.clear()
        peer.sendall(request(number))
        while len(bench.requests) == number:
            bench.sweep.turn(linger=True)
        bench.env.now += 0.002 if (waits[-1] == 0) == is_faster else 0.003
        answers(peer, 1)
    assert (waits[-1] == 0) == is_faster
    peer.close()


def test_the_sweep_lingers_only_when_that_finds_requests(waits: list[float], bench: Bench) -> None:
    peer = bench.connect()
    waits.clear()
    assert not any(bench.sweep.turn(linger=True) for _ in range(400))
    assert 1 <= sum(wait > 0 for wait in waits) < 20
    for number in range(100):
        peer.sendall(request(number) + request(number))
        while not bench.sweep.turn(linger=True):
            pass
    assert len(bench.requests) == 200
    assert all(waits[-30:]), "what came while it lingered lets it linger again"
    peer.close()


def test_the_sweep_does_not_linger_without_a_response_or_beside_other_tasks(waits: list[float], bench: Bench) -> None:
    peer = bench.connect()
    bench.sweep.wake()
    assert not bench.sweep.turn(), "the waker alone promises no requests"
    peer.sendall(request(1) + request(2))
    while not bench.sweep.turn():
        pass
    bench.sweep.yield_to_tasks()
    bench.sweep.turn()
    waits.clear()
    bench.sweep.turn(linger=True)
    bench.sweep.turn(linger=True)
    assert [wait > 0 for wait in waits] == [False, True], "the other task had its turn"
    peer.close()


def test_the_sweep_announces_progress_while_it_hands_over_requests() -> None:
    seen: list[tuple[str, bool]] = []

    def handle(requests: list[Request]) -> None:
        seen.append(("handle", sweep.is_handling))

    def progress() -> None:
        seen.append(("progress", sweep.is_handling))

    sweep = Sweep(ClockedEnv(), LimitsSection(), handle, lambda changes: None, progress)
    _, port = sweep.bind("127.0.0.1", 0)
    sweep.listen()
    peer = socket.create_connection(("127.0.0.1", port), timeout=5)
    peer.sendall(encode(Command(999)))
    for _ in range(100_000):
        if ("handle", True) in seen:
            break
        sweep.turn()
    peer.close()
    sweep.close()
    assert seen[-2:] == [("handle", True), ("progress", False)]


def test_the_sweep_serves_one_client_while_only_one_connection_sends_one_request_a_turn() -> None:
    seen: list[bool] = []
    sweep = Sweep(
        ClockedEnv(), LimitsSection(), lambda requests: seen.append(sweep.serves_one_client), lambda _: None, int
    )
    _, port = sweep.bind("127.0.0.1", 0)
    sweep.listen()
    alone, other = (socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(2))

    def send(peer: socket.socket, count: int = 1) -> bool:
        """Whether the sweep served one client while it handled the request of ``peer``."""
        before = len(seen)
        peer.sendall(encode(Command(999)) * count)
        while len(seen) == before:
            sweep.turn()
        return seen[-1]

    try:
        assert [send(alone) for _ in range(LONE_TURNS + 3)] == [False] * LONE_TURNS + [True] * 3
        assert not sweep.serves_one_client, "nothing is handled now"
        assert not send(other)
        assert [send(alone) for _ in range(LONE_TURNS + 1)] == [False] * LONE_TURNS + [True]
        assert not send(alone, 2)
        assert not send(alone)
    finally:
        alone.close()
        other.close()
        sweep.close()


HELLO = bytes.fromhex("16030100C8010000C40303") + bytes(32)


def test_a_tls_handshake_is_logged_once_an_hour_for_each_host(bench: Bench) -> None:
    with capture_logs() as logs:
        for number in range(3):
            if number == 2:
                bench.env.now += QUIET_SECONDS
            peer = bench.connect()
            peer.sendall(HELLO)
            bench.turns(lambda n=number: sum(len(change.closed) for change in bench.changes) > n)  # type: ignore[misc]
            assert peer.recv(10) == b""
            peer.close()
    events = [one for one in logs if one["log_level"] == "warning"]
    assert [one["event"] for one in events] == ["tls_handshake_on_plaintext_port"] * 2
    assert "turn TLS off" in events[0]["reason"]
    assert events[0]["peer"].startswith("127.0.0.1:")


def test_other_bad_bytes_are_logged_each_half_minute_for_each_host(bench: Bench) -> None:
    with capture_logs() as logs:
        for number in range(3):
            if number == 2:
                bench.env.now += REPEAT_SECONDS
            with bench.connect() as peer:
                peer.sendall(b"GET / HTTP/1.1")
                bench.turns(lambda n=number: sum(len(change.closed) for change in bench.changes) > n)  # type: ignore[misc]
    events = [one for one in logs if one["log_level"] == "warning"]
    assert [(one["event"], one["repeated"]) for one in events] == [("bad_bytes_received", 0), ("bad_bytes_received", 1)]


def odd_frame(opaque: int, kind: str = "dialect") -> bytes:
    """A request whose header Python reads: 500 values."""
    values = ",".join(map(str, range(495)))
    if kind == "dialect":
        header = f"{{code:1,opaque:{opaque},extFields:{{a:[{values}]}}}}".encode()
    else:
        header = f'{{"code":1,"opaque":{opaque},"extFields":{{"a":[{values}]}}}}'.encode()
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize("kind", ["dialect", "nested"])
def test_headers_that_take_long_to_read_are_read_a_few_a_turn(bench: Bench, kind: str) -> None:
    guilty, other = bench.connect(), bench.connect()
    guilty.sendall(b"".join(odd_frame(number, kind) for number in range(60)))
    bench.turns(lambda: len(bench.requests) > 0)
    other.sendall(request(1000))
    bench.turns(lambda: len(bench.requests) == 61)
    assert max(map(len, bench.sweeps)) <= 5
    assert [row.command.opaque for row in bench.requests].index(1000) < 12
    assert [answer.opaque for answer in answers(guilty, 60)] == list(range(60))
    guilty.close()
    other.close()


def test_frames_of_a_paused_connection_are_read_after_it_resumes(bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(b"".join(map(odd_frame, range(20))))
    bench.turns(lambda: len(bench.requests) > 0)
    connection = bench.requests[0].connection
    connection.pause()
    for _ in range(50):
        bench.sweep.turn()
    paused_at = len(bench.requests)
    assert paused_at < 20
    connection.resume()
    bench.turns(lambda: len(bench.requests) == 20)
    assert [answer.opaque for answer in answers(peer, 20)] == list(range(20))
    peer.close()


def test_a_connection_that_a_plugin_throttles_is_not_read_although_the_broker_resumes_it(bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(b"".join(map(odd_frame, range(20))))
    bench.turns(lambda: len(bench.requests) > 0)
    connection = bench.requests[0].connection
    connection.throttle(True)
    connection.pause()
    connection.resume()
    count = len(bench.requests)
    for _ in range(20):
        bench.sweep.turn()
    assert len(bench.requests) == count < 20
    connection.pause()
    connection.throttle(False)
    bench.sweep.turn()
    assert len(bench.requests) == count
    connection.resume()
    bench.turns(lambda: len(bench.requests) == 20)
    peer.close()


def test_a_closed_connection_drops_its_remaining_frames(bench: Bench) -> None:
    peer = bench.connect()
    peer.sendall(b"".join(map(odd_frame, range(20))))
    bench.turns(lambda: len(bench.requests) > 0)
    bench.requests[0].connection.close("a test")
    count = len(bench.requests)
    for _ in range(50):
        bench.sweep.turn()
    assert len(bench.requests) == count
    peer.close()


def test_peers_deferred_by_a_full_turn_come_first_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    peers = [bench.connect() for _ in range(3)]
    served: list[int] = []

    def receive(self: Sweep, connection: Connection, requests: list[Request], now: float) -> int:
        served.append(connection.id)  # all that a turn may take; more is there
        return LimitsSection().sweep_bytes

    monkeypatch.setattr(Sweep, "_receive", receive)
    monkeypatch.setattr("gantrymq.kernel.network.sweep.read_ready", plain_requests.read_ready)
    for peer in peers:
        peer.sendall(request(1))
    bench.turns(lambda: len(served) == 30)
    assert all(served.count(number) == 10 for number in set(served))
    assert len(set(served)) == 3
    for peer in peers:
        peer.close()
    bench.sweep.close()

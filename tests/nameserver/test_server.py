"""The nameserver's connections: limits, bad bytes, timeouts, and the routes of brokers behind them.

Time is trio's mock clock: it jumps when all tasks wait, so connections are streams in memory wherever time matters.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.nameserver.server import Connection
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import Frame
from gantrymq.remoting.headers.nameserver import RegisterBrokerHeader

from .conftest import Peer

pytestmark = pytest.mark.trio

C = RequestCode
TOPICS = Command(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=7)
BODY = RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TopicConfig("T")}, DataVersion(1, 1))).encode()


async def register(peer: Any, name: str = "broker-a", port: int = 1) -> None:
    header = RegisterBrokerHeader(
        broker_name=name, broker_addr=f"10.0.0.1:{port}", cluster_name="c", ha_server_addr="h:1", broker_id=0
    )
    assert (await peer.ask(C.REGISTER_BROKER, header, BODY)).code == 0


# ---- brokers and their connections


@pytest.mark.parametrize("how", ["aclose", "garbage"])
async def test_a_brokers_routes_are_removed_with_its_connection(server: NameServer, connect: Any, how: str) -> None:
    broker, other = connect(), connect()
    await register(broker)
    await register(other, "broker-b", 2)
    if how == "aclose":
        await broker.stream.aclose()
    else:
        await broker.stream.send_all(b"\xff" * 100)
    await trio.testing.wait_all_tasks_blocked()
    route = server.routes.route("T")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["broker-b"]
    assert len(server.connections) == 1


async def test_a_broker_without_heartbeats_expires_and_is_disconnected(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = NameServer(NameServerConfig(port=0, idle_seconds=10_000))
    await nursery.start(server.serve)
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs, "memory")
    from_broker = Command(
        C.REGISTER_BROKER,
        RegisterBrokerHeader(
            broker_name="b", broker_addr="a:1", cluster_name="c", ha_server_addr="h:1", broker_id=0
        ).to_ext(),
        BODY,
    )
    await ours.send_all(encode(from_broker))
    await ours.receive_some()
    start = trio.current_time()
    await trio.sleep(119)
    assert server.routes.route("T") is not None
    assert await ours.receive_some() == b""
    # scans happen at 5 s and each 10 s from then on
    assert 120 < trio.current_time() - start <= 130
    assert server.routes.route("T") is None
    nursery.cancel_scope.cancel()


# ---- frames in any shape


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_requests_split_anywhere_are_answered(peer: Any, size: int) -> None:
    data = encode(TOPICS) * 3
    for at in range(0, len(data), size):
        await peer.stream.send_all(data[at : at + size])
    for _ in range(3):
        answer = await peer.receive()
        assert (answer.code, answer.opaque, answer.body) == (0, 7, b'{"topicList":[]}')


async def test_responses_have_the_order_of_the_requests(peer: Any) -> None:
    for opaque in range(50):
        await peer.send(Command(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=opaque))
    assert [(await peer.receive()).opaque for _ in range(50)] == list(range(50))


async def test_a_oneway_request_takes_effect_without_a_response(server: NameServer, peer: Any) -> None:
    header = RegisterBrokerHeader(
        broker_name="b", broker_addr="a:1", cluster_name="c", ha_server_addr="h:1", broker_id=0
    )
    await peer.send(Command(C.REGISTER_BROKER, header.to_ext(), BODY, opaque=1, flag=ONEWAY_FLAG))
    await peer.send(Command(9999, opaque=2, flag=ONEWAY_FLAG))
    await peer.send(TOPICS)
    assert (await peer.receive()).body == b'{"topicList":["T"]}'


async def test_an_unexpected_response_is_ignored(peer: Any) -> None:
    await peer.send(Command(0, opaque=1, flag=RESPONSE_FLAG))
    await peer.send(TOPICS)
    assert (await peer.receive()).opaque == 7


# ---- bad bytes


async def test_a_tls_handshake_is_logged_once_for_each_host(server: NameServer) -> None:
    with capture_logs() as logs:
        for peer in ("10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000"):
            ours, theirs = trio.testing.memory_stream_pair()
            await ours.send_all(bytes.fromhex("16030100C8010000C40303"))
            await server.serve_stream(theirs, peer)
    events = [(one["event"], one["peer"]) for one in logs if one["log_level"] == "warning"]
    assert events == [
        ("tls_handshake_on_plaintext_port", "10.0.0.1:5000"), ("tls_handshake_on_plaintext_port", "10.0.0.2:5000"),
    ]  # fmt: skip


async def test_a_name_of_100_000_characters_gets_a_response_and_the_connection_stays_open(peer: Any) -> None:
    await peer.send(Command(C.GET_ROUTEINFO_BY_TOPIC, {"topic": "x" * 100_000}, opaque=1))
    await peer.send(Command(C.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"}, opaque=2))
    assert [((await peer.receive()).code) for _ in range(2)] == [17, 17]


def frame(length: int, mark: int, rest: bytes = b"") -> bytes:
    return struct.pack(">iI", length, mark) + rest


BAD_BYTES = {
    "negative length": frame(-1, 0),
    "zero length": frame(0, 0),
    "length of three": frame(3, 0),
    "length of 2 GiB": frame(0x7FFFFFFF, 2),
    "length over 16 MiB": frame(16 * 1024 * 1024 - 3, 2),
    "header longer than the frame": frame(10, 7, b"{}{}{}"),
    "header over 64 KiB": frame(100_000, 70_000),
    "unknown kind of header": frame(6, 7 << 24 | 2, b"{}"),
    "broken JSON": frame(6, 2, b"{]"),
    "no JSON at all": frame(4, 0),
    "JSON of the wrong type": frame(6, 2, b"[]"),
    "code that is not a number": frame(16, 12, b'{"code":"x"}'),
    "endless nesting": frame(60_004, 60_000, b"[" * 60_000),
    "invalid UTF-8": frame(6, 2, b"\xff\xfe"),
    "short binary header": frame(6, 1 << 24 | 2, b"{}"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD_BYTES.values(), ids=BAD_BYTES.keys())
async def test_bad_bytes_close_their_connection_only(
    autojump_clock: trio.testing.MockClock, connect: Any, data: bytes
) -> None:
    bad, good = connect(), connect()
    await bad.stream.send_all(data)
    assert await bad.receive() is None
    assert (await good.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
async def test_any_bytes_leave_the_nameserver_working(data: bytes) -> None:
    server = NameServer()
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs, "memory")
        await ours.send_all(data)
        await ours.aclose()
    assert not server.connections


# ---- time-outs and limits


async def test_an_idle_connection_is_closed_after_120_seconds(
    autojump_clock: trio.testing.MockClock, peer: Any
) -> None:
    await trio.sleep(100)
    assert (await peer.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0
    start = trio.current_time()
    assert await peer.receive() is None
    assert trio.current_time() - start == pytest.approx(120)


async def test_a_frame_must_be_complete_within_15_seconds_of_its_first_byte(
    autojump_clock: trio.testing.MockClock, peer: Any
) -> None:
    data = encode(TOPICS)
    start = trio.current_time()
    await peer.stream.send_all(data + data[:1])
    assert (await peer.receive()).code == 0
    for byte in data[1:15]:
        await trio.sleep(1)
        await peer.stream.send_all(bytes([byte]))
    assert await peer.receive() is None
    assert trio.current_time() - start == pytest.approx(15)


async def test_a_slow_frame_within_the_time_is_answered(autojump_clock: trio.testing.MockClock, peer: Any) -> None:
    data = encode(TOPICS)
    await peer.stream.send_all(data[:10])
    await trio.sleep(14)
    await peer.stream.send_all(data[10:])
    assert (await peer.receive()).code == 0


async def test_a_peer_that_does_not_read_is_closed(autojump_clock: trio.testing.MockClock, server: NameServer) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs, "memory")
        await ours.send_all(encode(TOPICS))
    assert trio.current_time() - start == pytest.approx(15)
    assert not server.connections


class TestBufferedLimit:
    @pytest.fixture
    def config(self) -> NameServerConfig:
        return NameServerConfig(port=0, buffered_max=1000)

    async def test_unfinished_frames_share_a_limit(self, connect: Callable[[], Any], server: NameServer) -> None:
        first, second = connect(), connect()
        await first.stream.send_all(frame(5000, 10) + b"x" * 600)
        await trio.testing.wait_all_tasks_blocked()
        await second.stream.send_all(frame(5000, 10) + b"x" * 600)
        assert await second.receive() is None
        assert len(server.connections) == 1
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        third = connect()
        for _ in range(30):  # what was answered does not count
            assert (await third.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0

    async def test_the_connection_with_the_most_is_closed_and_a_broker_keeps_its_routes(
        self, connect: Callable[[], Any], server: NameServer
    ) -> None:
        broker, hog = connect(), connect()
        await register(broker)
        await hog.stream.send_all(frame(5000, 10) + b"x" * 960)
        await trio.testing.wait_all_tasks_blocked()
        with capture_logs() as logs:
            assert (await broker.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0
        assert await hog.receive() is None
        assert server.routes.count_brokers() == 1
        closed = [each for each in logs if each["event"] == "unfinished_frames_limit_reached"]
        assert [(each["log_level"], each["buffered"], each["limit"]) for each in closed] == [("warning", 968, 1000)]
        for _ in range(30):  # what the closed connection had does not count
            assert (await broker.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0

    async def test_requests_count_until_they_are_answered(self, connect: Callable[[], Any], server: NameServer) -> None:
        header = RegisterBrokerHeader(
            broker_name="b", broker_addr="b:1", cluster_name="c", ha_server_addr="", broker_id=0
        )
        request = Command(C.REGISTER_BROKER, header.to_ext(), BODY + b" " * (600 - len(BODY)), opaque=7)
        small, large = connect(), connect()
        async with server.requests._registering:
            await small.send(request)
            await trio.testing.wait_all_tasks_blocked()
            request.body += b" "
            await large.send(request)
            with trio.fail_after(10):  # before the frame's own time is over
                assert await large.receive() is None
            assert len(server.connections) == 1
        response = await small.receive()
        assert response is not None
        assert response.code == 0
        for _ in range(30):  # what was answered does not count
            assert (await small.ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0

    async def test_the_connection_whose_request_waits_is_closed_if_it_has_the_most(
        self, connect: Callable[[], Any], server: NameServer
    ) -> None:
        header = RegisterBrokerHeader(
            broker_name="b", broker_addr="b:1", cluster_name="c", ha_server_addr="", broker_id=0
        )
        hog, other = connect(), connect()
        async with server.requests._registering:
            await hog.send(Command(C.REGISTER_BROKER, header.to_ext(), b" " * 700, opaque=7))
            await trio.testing.wait_all_tasks_blocked()
            await other.stream.send_all(frame(5000, 10) + b"x" * 500)
            with trio.fail_after(10):  # before the frame's own time is over
                assert await hog.receive() is None
            assert len(server.connections) == 1
        await other.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server._buffered == 0

    async def test_the_rest_of_a_frame_that_arrives_while_its_connection_is_closed_is_dropped(
        self, connect: Callable[[], Any], server: NameServer
    ) -> None:
        hog = connect()
        await hog.stream.send_all(frame(5000, 10) + b"x" * 900)
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = server.connections
        with capture_logs() as logs:
            await hog.stream.send_all(b"x" * 200)  # wakes the connection's task, which has not run yet
            connection.close()
            assert await hog.receive() is None
        assert [each for each in logs if each["log_level"] != "debug"] == []


class TestUnreadLimit:
    @pytest.fixture
    def config(self) -> NameServerConfig:
        return NameServerConfig(port=0, unread_max=1500)

    @pytest.fixture
    def stall(self, server: NameServer, nursery: trio.Nursery) -> Callable[[], Any]:
        """Returns a peer that has asked for the topics, and whose response waits until it reads."""

        async def ask() -> Peer:
            ours, theirs = trio.testing.lockstep_stream_pair()
            nursery.start_soon(server.serve_stream, theirs, "memory")
            await ours.send_all(encode(TOPICS))
            await trio.testing.wait_all_tasks_blocked()
            return Peer(ours)

        return ask

    def add_topics(self, server: NameServer, name: str, characters: int) -> None:
        wrapper = TopicConfigSerializeWrapper({f"{number:0{characters}}": TopicConfig() for number in range(5)})
        server.routes.register(BrokerIdentity("c", name, 0, f"{name}:1"), wrapper)

    async def test_unread_responses_share_a_limit_and_others_are_served(
        self, server: NameServer, connect: Callable[[], Peer], stall: Any
    ) -> None:
        self.add_topics(server, "a", 100)
        with capture_logs() as logs:
            for _ in range(2):
                await stall()
            assert len(server.connections) == 2
            for _ in range(5):
                assert len((await connect().ask(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body) > 500
            await trio.testing.wait_all_tasks_blocked()
        closed = [each for each in logs if each["event"] == "unread_responses_limit_reached"]
        assert [(each["log_level"], each["peer"]) for each in closed] == [("warning", "memory")]
        assert len(server.connections) == 5 + 1, "one of the two was enough"

    async def test_responses_that_peers_have_read_do_not_count(self, server: NameServer, stall: Any) -> None:
        self.add_topics(server, "a", 100)
        for _ in range(10):
            peer = await stall()
            assert (await peer.receive()).code == 0
        assert len(server.connections) == 10

    async def test_a_response_beyond_the_limit_closes_its_own_connection(
        self, server: NameServer, connect: Callable[[], Peer]
    ) -> None:
        self.add_topics(server, "a", 400)
        small, large = connect(), connect()
        await large.send(TOPICS)
        assert await large.receive() is None
        assert (await small.ask(C.GET_ROUTEINFO_BY_TOPIC, None)).code == 1


async def test_a_waiting_response_keeps_no_frame_of_its_peer_in_memory(
    server: NameServer, nursery: trio.Nursery
) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    connection = Connection(theirs, "memory")
    frames = [Frame(0, encode(Command(9999, opaque=number))[8:], b"x" * 1000) for number in range(3)]
    nursery.start_soon(server._answer_all, connection, frames)
    await trio.testing.wait_all_tasks_blocked()
    assert frames == []
    assert await ours.receive_some()
    nursery.cancel_scope.cancel()


# ---- real sockets


async def test_the_nameserver_listens_on_loopback_and_reports_its_address(
    server: NameServer, nursery: trio.Nursery
) -> None:
    address = await nursery.start(server.serve)
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.1"
    assert address == server.address
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(encode(TOPICS))
        assert b'{"topicList":[]}' in await stream.receive_some()
    nursery.cancel_scope.cancel()


async def test_a_port_in_use_is_an_os_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = NameServer(NameServerConfig(port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            await server.serve()


async def test_connections_past_the_limit_are_closed_at_once(nursery: trio.Nursery) -> None:
    server = NameServer(NameServerConfig(port=0, connections_max=1))
    host, _, port = (await nursery.start(server.serve)).rpartition(":")
    first = await trio.open_tcp_stream(host, int(port))
    await first.send_all(encode(TOPICS))
    assert await first.receive_some()
    async with await trio.open_tcp_stream(host, int(port)) as second:
        assert await second.receive_some() == b""
    await first.send_all(encode(TOPICS))
    assert await first.receive_some()
    await first.aclose()
    nursery.cancel_scope.cancel()


async def test_a_reset_connection_is_survived(server: NameServer, nursery: trio.Nursery) -> None:
    host, _, port = (await nursery.start(server.serve)).rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.send_all(encode(TOPICS)[:9])
    while not server.connections:
        await trio.lowlevel.checkpoint()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
    while server.connections:
        await trio.lowlevel.checkpoint()
    assert not server.connections
    nursery.cancel_scope.cancel()


async def test_a_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{")
    with pytest.raises(ValueError, match=r"kvConfig\.json"):
        NameServer(NameServerConfig(kv_path=path))

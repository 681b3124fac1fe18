from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import FRAME_MAX_BYTES
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.records import decode_records
from gantrymq.spark import wire as wire_module
from gantrymq.spark.errors import Refused, UnknownTopic, Unreachable
from gantrymq.spark.wire import Pulled, Queue, Wire
from support.processes import wait_for

if TYPE_CHECKING:
    from conftest import FakeCluster


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_queues_come_from_the_first_nameserver_that_answers(cluster: FakeCluster, wire: Wire, closed_port: int) -> None:
    cluster.add_topic("orders", queues=2)
    nameservers = (("127.0.0.1", closed_port), parse_address(cluster.address))
    assert wire.find_queues(nameservers, "orders") == [
        Queue("orders", "broker-a", 0, cluster.address),
        Queue("orders", "broker-a", 1, cluster.address),
    ]


def test_the_nameserver_that_answered_is_asked_first_the_next_time(
    cluster: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each request of a stream would wait for a lost nameserver."""
    cluster.add_topic("orders")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nameservers = (("127.0.0.1", silent.getsockname()[1]), parse_address(cluster.address))
        monkeypatch.setattr(wire, "_timeout", 0.05)
        for _ in range(3):
            assert wire.find_queues(nameservers, "orders")
        assert wire.find_topics(nameservers) == ["orders"]
        connections = 0
        silent.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                connections += 1
    assert connections == 1


def test_unreachable_nameservers_are_all_named(wire: Wire, closed_port: int) -> None:
    address = f"127.0.0.1:{closed_port}"
    with pytest.raises(Unreachable, match=f"no nameserver answers: cannot connect to {address}: Connection refused"):
        wire.find_queues((("127.0.0.1", closed_port),), "orders")


def test_a_host_that_does_not_exist_is_unreachable(wire: Wire) -> None:
    with pytest.raises(Unreachable, match=r"cannot connect to nowhere\.invalid:9876"):
        wire.find_queues((("nowhere.invalid", 9876),), "orders")


def test_a_request_to_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Wire(timeout=0.05) as wire:
        address = ("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(Unreachable, match="it stays silent"):
            wire.find_queues((address,), "orders")


def test_an_unknown_topic_is_named(cluster: FakeCluster, wire: Wire) -> None:
    with pytest.raises(UnknownTopic, match=f"'nope' is not known to the nameserver {cluster.address}"):
        wire.find_queues((parse_address(cluster.address),), "nope")


def test_an_unreadable_topic_has_no_queues(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")
    cluster.perm = 2
    with pytest.raises(UnknownTopic, match="no queue that may be read"):
        wire.find_queues((parse_address(cluster.address),), "orders")


def test_a_slave_is_read_if_there_is_no_master(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")
    cluster.broker_ids = (2, 1)
    assert [queue.address for queue in wire.find_queues((parse_address(cluster.address),), "orders")] == [
        cluster.address
    ]


def test_a_refused_route_has_the_text_of_the_server(cluster: FakeCluster, wire: Wire) -> None:
    cluster.script = lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "out of order")
    with pytest.raises(Refused, match=r"refused the route of 'orders': \[1\] out of order"):
        wire.find_queues((parse_address(cluster.address),), "orders")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"queueDatas":3}', b"\xff"])
def test_a_broken_route_is_a_clear_error(cluster: FakeCluster, wire: Wire, body: bytes) -> None:
    cluster.script = lambda request: request.answer(ResponseCode.SUCCESS, body=body)
    with pytest.raises(Unreachable, match=r"the route of 'orders': .* answered what cannot be read"):
        wire.find_queues((parse_address(cluster.address),), "orders")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "the server closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame length"),
        ((FRAME_MAX_BYTES + 1).to_bytes(4, "big"), "frame length"),
        (b"\0\0\0\x08\0\0\0\x04{]{]", "unreadable JSON header"),
    ],
)
def test_an_invalid_response_ends_the_connection(cluster: FakeCluster, wire: Wire, answer: bytes, says: str) -> None:
    cluster.script = lambda request: answer
    with pytest.raises(Unreachable, match=f"no answer from {cluster.address}: .*{says}"):
        wire.find_queues((parse_address(cluster.address),), "orders")


def test_server_requests_and_late_responses_are_ignored(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")

    def script(request: Command) -> bytes | None:
        if request.code != RequestCode.GET_MAX_OFFSET:
            return None
        notice = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, opaque=request.opaque)
        late = Command(0, {"offset": "999"}, opaque=request.opaque - 1, flag=1)
        return encode(notice) + encode(late) + encode(request.answer(0, ext={"offset": "7"}))

    cluster.script = script
    assert wire.find_bounds(Queue("orders", "broker-a", 0, cluster.address)) == (0, 7)


def test_an_unwritten_queue_has_no_messages(cluster: FakeCluster, wire: Wire) -> None:
    cluster.script = lambda request: request.answer(
        0, ext={"offset": "-1" if request.code == RequestCode.GET_MIN_OFFSET else "0"}
    )
    assert wire.find_bounds(Queue("orders", "broker-a", 0, cluster.address)) == (0, 0)


def test_requests_to_a_busy_broker_are_retried(
    cluster: FakeCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "BUSY_PAUSES_SECONDS", (0.0, 0.0))
    cluster.add_topic("orders")
    cluster.put("orders", 0, b"x")
    queue = Queue("orders", "broker-a", 0, cluster.address)
    cluster.busy = 2
    assert wire.pull(queue, 0).code == ResponseCode.SUCCESS
    cluster.busy = 3
    with pytest.raises(Unreachable, match=r"\[2\] \[TIMEOUT_CLEAN_QUEUE\]broker busy"):
        wire.pull(queue, 0)
    cluster.busy = 1
    with pytest.raises(Unreachable, match="broker busy"):
        wire.pull(queue, 0, patient=False)


def test_a_broken_connection_is_reopened(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")
    queue = Queue("orders", "broker-a", 0, cluster.address)
    wire.find_bounds(queue)
    hang_ups = [b""]
    cluster.script = lambda request: hang_ups.pop() if hang_ups else None
    assert wire.find_bounds(queue) == (0, 0)
    assert not hang_ups


@pytest.mark.parametrize("ext", [None, {"offset": "many"}, {"offset": str(2**63)}])
def test_an_answer_without_its_fields_is_reported(cluster: FakeCluster, wire: Wire, ext: dict[str, str] | None) -> None:
    cluster.script = lambda request: request.answer(0, ext=ext)
    queue = Queue("orders", "broker-a", 0, cluster.address)
    with pytest.raises(Unreachable, match="answered what cannot be read"):
        wire.find_bounds(queue)
    with pytest.raises(Unreachable, match="answered what cannot be read"):
        wire.pull(queue, 0)


def test_a_broker_registered_without_an_address_is_named(wire: Wire) -> None:
    with pytest.raises(Unreachable, match="broker broker-a is registered with 'somewhere', no address"):
        wire.find_bounds(Queue("orders", "broker-a", 0, "somewhere"))


def test_a_pull_never_waits_and_commits_nothing(cluster: FakeCluster, wire: Wire) -> None:
    cluster.add_topic("orders")
    assert wire.pull(Queue("orders", "broker-a", 0, cluster.address), 0).code == ResponseCode.PULL_NOT_FOUND
    fields = cluster.requests[-1].ext
    assert fields is not None
    assert (fields["sysFlag"], fields["suspendTimeoutMillis"], fields["subscription"]) == ("4", "0", "*")
    assert fields["gantrymqMaxBytes"] == "1048576", "or a pull of a GantryMQ broker would get 32 messages"


@pytest.fixture
def pulled(cluster: FakeCluster) -> list[int]:
    """The offsets of the pulls that the cluster got."""
    cluster.add_topic("orders")
    for number in range(8):
        cluster.put("orders", 0, b"%d" % number)
    offsets: list[int] = []

    def note(request: Command) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            offsets.append(read_header(PullMessageHeader, request.ext).queue_offset)

    cluster.script = note
    return offsets


def bodies(answer: Pulled) -> list[bytes]:
    return [record.body for record in decode_records(answer.records)]


def test_the_next_pull_is_sent_before_the_caller_asks_for_it(
    cluster: FakeCluster, wire: Wire, pulled: list[int]
) -> None:
    queue = Queue("orders", "broker-a", 0, cluster.address)
    assert bodies(wire.pull(queue, 0, until=8)) == [b"0", b"1", b"2"]
    wait_for(lambda: pulled == [0, 3], 10.0)
    assert bodies(wire.pull(queue, 3, until=8)) == [b"3", b"4", b"5"]
    wait_for(lambda: pulled == [0, 3, 6], 10.0)
    assert bodies(wire.pull(queue, 6, until=8)) == [b"6", b"7"]
    assert wire.find_end(queue) == 8
    assert pulled == [0, 3, 6], "nothing is pulled twice, and nothing behind the end"


def test_a_pull_ahead_that_nobody_took_or_that_broke_is_pulled_again(
    cluster: FakeCluster, wire: Wire, pulled: list[int]
) -> None:
    queue = Queue("orders", "broker-a", 0, cluster.address)
    wire.pull(queue, 0, until=8)
    assert wire.find_end(queue) == 8
    assert bodies(wire.pull(queue, 3, until=8)) == [b"3", b"4", b"5"]
    assert bodies(wire.pull(queue, 1, until=8)) == [b"1", b"2", b"3"]
    hung_up = []

    def hang_up_once(request: Command) -> bytes | None:
        if hung_up:
            return None
        hung_up.append(request)
        return b""

    wait_for(lambda: pulled[-1] == 4, 10.0)
    assert bodies(wire.pull(queue, 4, 2)) == [b"4", b"5"]
    wire.pull(queue, 0, 2, until=8)
    wait_for(lambda: pulled[-1] == 2, 10.0)
    cluster.script = hang_up_once
    assert bodies(wire.pull(queue, 2, 2, until=8)) == [b"2", b"3"]
    wait_for(lambda: bool(hung_up), 10.0)
    assert bodies(wire.pull(queue, 4, 2)) == [b"4", b"5"]

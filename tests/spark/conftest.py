"""Fixtures: a scripted cluster on loopback, and one Spark session for all tests that need one."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.record import encode as encode_stored
from gantrymq.remoting.address import encode_host
from gantrymq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import RouteHeader
from gantrymq.remoting.headers.offsets import (
    OffsetResponse,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from gantrymq.remoting.headers.pull import PullMessageHeader, PullMessageResponse
from gantrymq.remoting.properties import encode_properties
from gantrymq.spark.wire import Wire
from support.object_storage import run_s3
from support.object_storage import s3_settings as settings_of_s3
from support.spark_session import run_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BORN_MILLIS = 1_700_000_000_123


@attrs.define
class FakeQueue:
    """The stored records of one queue by offset, and where it begins."""

    records: dict[int, bytes] = attrs.field(factory=dict)
    min_offset: int = 0
    max_offset: int = 0


class FakeCluster:
    """A nameserver and its one broker behind one port: answers what RocketMQ answers, or what a test says.

    ``committed`` has offsets by group, topic and queue; ``found_by_time`` is the answer to a search by time.
    ``busy`` answers are SYSTEM_BUSY first; ``script`` may answer a request itself, or return None. With ``tls`` it
    speaks TLS.
    """

    broker = "broker-a"

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.found_by_time = 0
        self.perm = 6
        self.broker_ids = (0,)
        self.pull_rows = 3
        self.busy = 0
        self.requests: list[Command] = []
        self.script: Callable[[Command], Command | bytes | None] = lambda request: None
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add_topic(self, topic: str, queues: int = 1) -> None:
        for queue_id in range(queues):
            self.queues[topic, queue_id] = FakeQueue()

    def put(self, topic: str, queue_id: int, body: bytes, **fields: Any) -> int:
        """Store a message; its offset."""
        queue = self.queues[topic, queue_id]
        offset = queue.max_offset
        queue.records[offset] = encode_record(topic, queue_id, offset, body, **fields)
        queue.max_offset += 1
        return offset

    def fill(self, count: int, topic: str = "orders", **fields: Any) -> None:
        """Store messages in the topic's first two queues by turns."""
        for number in range(count):
            self.put(topic, number % 2, b"body %d" % number, **fields)

    def everything(self, topic: str | None = None) -> Counter[tuple[str, int, int]]:
        """Topic, queue and offset of each message, of all topics or of one."""
        return Counter(
            (name, queue_id, offset)
            for (name, queue_id), queue in self.queues.items()
            if topic in (None, name)
            for offset in queue.records
        )

    def answer(self, request: Command) -> Command | bytes:
        self.requests.append(request)
        scripted = self.script(request)
        if scripted is not None:
            return scripted
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(request)
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            names = sorted({name for name, _ in self.queues})
            return request.answer(ResponseCode.SUCCESS, body=TopicList(names).to_bytes())
        if self.busy:
            self.busy -= 1
            return request.answer(ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy")
        if request.code == RequestCode.PULL_MESSAGE:
            return self._pull(request)
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            update = read_header(UpdateConsumerOffsetHeader, request.ext)
            self.committed[update.consumer_group, update.topic, update.queue_id] = update.commit_offset
            return request.answer(ResponseCode.SUCCESS)
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            assert read_header(SearchOffsetHeader, request.ext).timestamp > 0
            return request.answer(ResponseCode.SUCCESS, ext=OffsetResponse(offset=self.found_by_time).to_ext())
        header = read_header(QueueHeader, request.ext)
        queue = self.queues.get((header.topic, header.queue_id), FakeQueue())  # brokers answer 0 for a missing queue
        offset = queue.min_offset if request.code == RequestCode.GET_MIN_OFFSET else queue.max_offset
        return request.answer(ResponseCode.SUCCESS, ext=OffsetResponse(offset=offset).to_ext())

    def _route(self, request: Command) -> Command:
        topic = read_header(RouteHeader, request.ext).topic
        count = sum(1 for name, _ in self.queues if name == topic)
        if not count:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
        route = TopicRouteData(
            queue_datas=[QueueData(self.broker, count, count, self.perm)],
            broker_datas=[BrokerData("c", self.broker, dict.fromkeys(self.broker_ids, self.address))],
        )
        return request.answer(ResponseCode.SUCCESS, body=route.to_bytes())

    def _pull(self, request: Command) -> Command:
        header = read_header(PullMessageHeader, request.ext)
        queue = self.queues[header.topic, header.queue_id]
        offset = header.queue_offset
        code, next_offset, records = ResponseCode.SUCCESS, offset, b""
        if offset < queue.min_offset:
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, queue.min_offset
        elif offset > queue.max_offset:
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, queue.max_offset
        elif offset == queue.max_offset:
            code = ResponseCode.PULL_NOT_FOUND
        else:
            next_offset = min(offset + min(self.pull_rows, header.max_msg_nums), queue.max_offset)
            records = b"".join(queue.records.get(number, b"") for number in range(offset, next_offset))
        bounds = PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=next_offset,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
        )
        return request.answer(code, "FOUND", bounds.to_ext(), records)

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        cluster = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                buffer = bytearray()
                while piece := self.request.recv(65536):
                    buffer += piece
                    frames, taken = cut_frames(buffer)
                    del buffer[:taken]
                    for frame in frames:
                        answer = cluster.answer(decode(frame))
                        self.request.sendall(answer if isinstance(answer, bytes) else encode(answer))
                        if answer == b"":  # a script's way to hang up
                            return

        return Handler


def encode_record(
    topic: str, queue_id: int, offset: int, body: bytes, properties: dict[str, str] | None = None, **fields: Any
) -> bytes:
    """A record as the commit log has it: born at 127.0.0.1:5000, stored at 10.0.0.1:10911 one second later."""
    given: dict[str, Any] = {
        "offset": 1000 + offset * 100,
        "born_timestamp": BORN_MILLIS,
        "born_host": encode_host("127.0.0.1", 5000),
        "store_timestamp": BORN_MILLIS + 1000,
        "store_host": encode_host("10.0.0.1", 10911),
        **fields,
    }
    pairs = encode_properties(properties or {}).encode()
    return encode_stored(Record(topic, queue_id, body, pairs, queue_offset=offset, **given))


@pytest.fixture(scope="session")
def make_record() -> Callable[..., bytes]:
    return encode_record


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def start_cluster() -> Iterator[Callable[[ssl.SSLContext], FakeCluster]]:
    """Starts a cluster that speaks TLS."""
    with ExitStack() as stack:

        def start(tls: ssl.SSLContext) -> FakeCluster:
            cluster = FakeCluster(tls)
            stack.callback(cluster.close)
            return cluster

        yield start


@pytest.fixture
def orders(cluster: FakeCluster) -> FakeCluster:
    """20 messages in two queues of ``orders``."""
    cluster.add_topic("orders", queues=2)
    cluster.fill(20)
    return cluster


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire(timeout=5.0) as wire:
        yield wire


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of the test run."""
    with run_spark() as running:
        yield running


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 with the bucket ``bucket``."""
    pytest.importorskip("moto", reason="pip install 'moto[s3]' flask-cors")
    with run_s3() as address:
        yield address


@pytest.fixture
def s3_settings(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that the how-to guide names, for the S3 on loopback."""
    for name, value in settings_of_s3(s3).items():
        monkeypatch.setenv(name, value)

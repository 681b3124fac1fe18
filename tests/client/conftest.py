"""A scripted cluster: a nameserver and brokers on loopback, whose state is in plain lists.

It answers as a RocketMQ cluster does; ``broker.answers[code]`` replaces a response for a test.
"""

from __future__ import annotations

import ssl
import struct
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gantrymq.remoting.bodies.clients import ConsumerList, HeartbeatData
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData
from gantrymq.remoting.bodies.routes import TopicRouteData as Route
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.tasks import background_tasks
from gantrymq.testing.harness import cluster_in_thread
from support.batches import rows_of
from support.foreign import (
    JAVA_VERSIONS,
    ToolMissing,
    cache_folder,
    find_java,
    start_broker,
    start_nameserver,
)
from support.peer import PeerConnection, run_peer

STORED_AT = 1_700_000_000_000
MAY_SUSPEND = 2


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


class Fake:
    """A server that logs its requests and answers them through a method or what a test put into ``answers``."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Command] = []
        self.answers: dict[int, Callable[[Command], Any]] = {}
        self.connections: list[PeerConnection] = []
        self.changed = anyio.Event()

    def seen(self, code: int) -> list[Command]:
        """The requests of one code that have come."""
        return [request for request in self.requests if request.code == code]

    async def wait_for(self, code: int, count: int = 1) -> list[Command]:
        """Wait until ``count`` requests of a code have come."""
        with anyio.fail_after(20):
            while len(self.seen(code)) < count:
                await self.changed.wait()
        return self.seen(code)

    def stir(self) -> None:
        """Wake everything that waits for a change."""
        self.changed.set()
        self.changed = anyio.Event()

    async def script(self, connection: PeerConnection) -> None:
        self.connections.append(connection)
        async with background_tasks() as tasks:
            while True:
                request = await connection.read()
                self.requests.append(request)
                self.stir()
                if not request.is_response:
                    tasks.start_soon(self.serve, connection, request)

    async def serve(self, connection: PeerConnection, request: Command) -> None:
        own = self.answers.get(request.code) or getattr(self, f"on_{RequestCode(request.code).name.lower()}")
        answer = own(request)
        if isawaitable(answer):
            answer = await answer
        if answer is not None and not request.is_oneway:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client may be gone by now
                await connection.write(answer)


class FakeBroker(Fake):
    """Stores what it is sent, answers pulls from it, and holds those that find nothing."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: dict[str, list[str]] = defaultdict(list)
        self.locks: dict[tuple[str, MessageQueue], str] = {}
        self.gone: set[str] = set()
        self.stored_at = STORED_AT
        """The store time of the first message of a queue; the others follow 10 ms apart."""

    def sent(self) -> list[bytes]:
        """The bodies of all messages that came, alone or in batches, stored or not."""
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return [body for request in self.requests if request.code in codes for body, _ in rows_of(request)]

    async def wait_sent(self, count: int) -> None:
        """Wait until ``count`` messages have come."""
        with anyio.fail_after(20):
            while len(self.sent()) < count:
                await self.changed.wait()

    def store(self, topic: str, queue_id: int, body: bytes, properties: str = "", sys_flag: int = 0) -> int:
        """Append a record; its queue offset."""
        queue = self.queues[topic, queue_id]
        raw = properties.encode()
        at = self.stored_at + 10 * len(queue)
        head = struct.pack(">iiiqqiq", zlib.crc32(body) & 0x7FFFFFFF, queue_id, 0, len(queue), 0, sys_flag, at)
        head += b"\x7f\0\0\x01\0\0\x13\x88" + struct.pack(">q", at) + b"\x7f\0\0\x01\0\0\x2a\x9f"
        tail = struct.pack(">iqi", 0, 0, len(body)) + body + bytes([len(topic)]) + topic.encode()
        tail += struct.pack(">H", len(raw)) + raw
        queue.append(struct.pack(">iI", 8 + len(head) + len(tail), 0xDAA320A7) + head + tail)
        self.stir()
        return len(queue) - 1

    def _stored(self, request: Command, offset: int, ids: str) -> Command:
        ext = {"msgId": ids, "queueId": request.ext["e"], "queueOffset": str(offset), "MSG_REGION": "DefaultRegion"}
        return request.answer(0, ext=ext)

    def on_send_message_v2(self, request: Command) -> Command:
        ext = request.ext
        offset = self.store(ext["b"], int(ext["e"]), request.body, ext["i"], int(ext["f"]))
        return self._stored(request, offset, f"ID{offset}")

    def on_send_batch_message(self, request: Command) -> Command:
        topic, queue_id = request.ext["b"], int(request.ext["e"])
        offsets = [self.store(topic, queue_id, body, properties) for body, properties in rows_of(request)]
        return self._stored(request, offsets[0], ",".join(f"ID{offset}" for offset in offsets))

    async def on_pull_message(self, request: Command) -> Command:
        ext = request.ext
        queue = self.queues[ext["topic"], int(ext["queueId"])]
        offset = int(ext["queueOffset"])
        while offset == len(queue) and int(ext["sysFlag"]) & MAY_SUSPEND:
            await self.changed.wait()
        found = queue[offset : offset + int(ext["maxMsgNums"])] if 0 <= offset < len(queue) else []
        return self.pulled(request, 0 if found else 21, b"".join(found), offset + len(found) if found else len(queue))

    def pulled(self, request: Command, code: int, body: bytes, following: int) -> Command:
        """An answer to a pull."""
        end = len(self.queues[request.ext["topic"], int(request.ext["queueId"])])
        ext = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(following), "minOffset": "0", "maxOffset": str(end),
        }  # fmt: skip
        return request.answer(code, ext=ext, body=body)

    def on_query_consumer_offset(self, request: Command) -> Command:
        ext = request.ext
        offset = self.offsets.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
        if offset is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "no offset of this group")
        return request.answer(0, ext={"offset": str(offset)})

    def on_update_consumer_offset(self, request: Command) -> Command:
        ext = request.ext
        self.offsets[ext["consumerGroup"], ext["topic"], int(ext["queueId"])] = int(ext["commitOffset"])
        self.stir()
        return request.answer(0)

    def on_get_all_consumer_offset(self, request: Command) -> Command:
        table: dict[str, dict[int, int]] = defaultdict(dict)
        for (group, topic, queue_id), offset in self.offsets.items():
            table[f"{topic}@{group}"][queue_id] = offset
        return request.answer(0, body=ConsumerOffsetSerializeWrapper(offset_table=table).to_bytes())

    def on_get_min_offset(self, request: Command) -> Command:
        return request.answer(0, ext={"offset": "0"})

    def on_get_max_offset(self, request: Command) -> Command:
        queue = self.queues[request.ext["topic"], int(request.ext["queueId"])]
        return request.answer(0, ext={"offset": str(len(queue))})

    def on_search_offset_by_timestamp(self, request: Command) -> Command:
        return request.answer(0, ext={"offset": "1"})

    def on_heart_beat(self, request: Command) -> Command:
        data = HeartbeatData.from_bytes(request.body)
        for consumer in data.consumer_data_set:
            if data.client_id not in (*self.groups[consumer.group_name], *self.gone):
                self.groups[consumer.group_name].append(data.client_id)
        return request.answer(0)

    def on_lock_batch_mq(self, request: Command) -> Command:
        body = LockBatchRequestBody.from_bytes(request.body)
        mine = {
            queue
            for queue in body.mq_set
            if body.client_id not in self.gone
            and self.locks.setdefault((body.consumer_group, queue), body.client_id) == body.client_id
        }
        return request.answer(0, body=LockBatchResponseBody(lock_ok_mq_set=mine).to_bytes())

    def on_unlock_batch_mq(self, request: Command) -> Command:
        body = LockBatchRequestBody.from_bytes(request.body)
        for queue in body.mq_set:
            if self.locks.get((body.consumer_group, queue)) == body.client_id:
                del self.locks[body.consumer_group, queue]
        self.stir()
        return request.answer(0)

    def forget(self, client_id: str) -> None:
        """The client's connection has been gone for so long that it is no longer a member and has no locks."""
        self.gone.add(client_id)  # a request of it may still lie in a socket
        for members in self.groups.values():
            if client_id in members:
                members.remove(client_id)
        for key in [key for key, owner in self.locks.items() if owner == client_id]:
            del self.locks[key]

    def on_check_client_config(self, request: Command) -> Command:
        return request.answer(0)

    def on_unregister_client(self, request: Command) -> Command:
        members = self.groups[request.ext.get("consumerGroup", "")]
        if request.ext["clientID"] in members:
            members.remove(request.ext["clientID"])
        return request.answer(0)

    def on_get_consumer_list_by_group(self, request: Command) -> Command:
        members = self.groups[request.ext["consumerGroup"]]
        if not members:
            return request.answer(1, "no consumer for this group")
        return request.answer(0, body=ConsumerList(consumer_id_list=members).to_bytes())

    def on_get_topic_config(self, request: Command) -> Command:
        return request.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker.")

    def on_update_and_create_topic(self, request: Command) -> Command:
        return request.answer(0)

    def on_end_transaction(self, request: Command) -> None:
        self.stir()

    async def ask(self, group: str, key: str, *, offset: int = 7, body: bytes = b"half") -> None:
        """Ask every client what became of the half message with this unique key, at this log offset."""
        properties = f"UNIQ_KEY\x01{key}\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02"
        self.store("T", 99, body, properties)
        record = self.queues["T", 99].pop()
        await self.ask_with(record, {"tranStateTableOffset": "3", "commitLogOffset": str(offset), "msgId": key})

    async def ask_with(self, body: bytes, ext: dict[str, str]) -> None:
        """Send CHECK_TRANSACTION_STATE to every client as it stands."""
        for connection in self.connections:
            await connection.write(Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body, flag=2))

    async def notify(self, group: str) -> None:
        """Tell every client that the members of ``group`` changed."""
        for connection in self.connections:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await connection.write(Command(40, {"consumerGroup": group}, flag=2))


class FakeNameserver(Fake):
    """Knows the brokers and the topics that a test adds."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers: list[FakeBroker] = []
        self.topics: dict[str, int] = {}
        self.places: dict[str, list[FakeBroker]] = {}
        """The brokers that have a topic, where not all have it."""
        self.perm = 6

    def broker_datas(self) -> list[BrokerData]:
        return [
            BrokerData(cluster="C", broker_name=broker.name, broker_addrs={0: broker.address})
            for broker in self.brokers
        ]

    def on_get_routeinfo_by_topic(self, request: Command) -> Command:
        topic = request.ext["topic"]
        count, brokers = self.topics.get(topic), self.places.get(topic, self.brokers)
        if count is None:
            return request.answer(17, "No topic route info in name server")
        queues = [
            QueueData(broker_name=broker.name, read_queue_nums=count, write_queue_nums=count, perm=self.perm)
            for broker in brokers
        ]
        names = {broker.name for broker in brokers}
        datas = [data for data in self.broker_datas() if data.broker_name in names]
        return request.answer(0, body=Route(queue_datas=queues, broker_datas=datas).to_bytes(quoted_keys=True))

    def on_get_broker_cluster_info(self, request: Command) -> Command:
        table = {data.broker_name: data for data in self.broker_datas()}
        return request.answer(
            0, body=ClusterInfo(broker_addr_table=table, cluster_addr_table={"C": list(table)}).to_bytes()
        )

    def on_get_all_topic_list_from_nameserver(self, request: Command) -> Command:
        return request.answer(0, body=TopicList(topic_list=list(self.topics)).to_bytes())


class FakeCluster:
    """One nameserver and some brokers; ``address`` is the nameserver's."""

    def __init__(self, nameserver: FakeNameserver, brokers: list[FakeBroker]) -> None:
        self.nameserver = nameserver
        self.brokers = brokers
        self.broker = brokers[0]
        self.address = nameserver.address
        self.portal: BlockingPortal | None = None


@asynccontextmanager
async def run_fake_cluster(
    brokers: int = 1, *, tls: ssl.SSLContext | None = None, **topics: int
) -> AsyncIterator[FakeCluster]:
    async with AsyncExitStack() as stack:
        nameserver = FakeNameserver()
        nameserver.topics = topics or {"T": 2}
        nameserver.address = await stack.enter_async_context(run_peer(nameserver.script, tls))
        for number in range(brokers):
            broker = FakeBroker(f"broker-{'abc'[number]}")
            broker.address = await stack.enter_async_context(run_peer(broker.script, tls))
            nameserver.brokers.append(broker)
        yield FakeCluster(nameserver, nameserver.brokers)


@pytest.fixture
def fake_cluster() -> Callable[..., Any]:
    """``async with fake_cluster(brokers=2, T=4) as cluster``: two brokers with four queues of topic T each."""
    return run_fake_cluster


@pytest.fixture
def fake_in_thread() -> Iterator[FakeCluster]:
    """A fake cluster with one broker and two queues of topic T, for tests that block."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(run_fake_cluster(T=2)) as cluster:
        cluster.portal = portal
        yield cluster


INTEROP = Path(__file__).parents[1] / "interop"
ONLY_OTHERS = [pytest.mark.interop, pytest.mark.once, pytest.mark.soak(1, of="anyio_backend")]
"""RocketMQ's answers are the same for asyncio and for trio, with both of which each test runs on our broker."""
SYSTEMS = ["gantrymq", *(pytest.param(version, marks=ONLY_OTHERS) for version in JAVA_VERSIONS)]


@pytest.fixture(scope="module", params=SYSTEMS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The nameserver's address of a real cluster: ours, and RocketMQ's own of each version."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "gantrymq":
        soon = {"plugin.transaction.check_interval": "500ms", "plugin.transaction.timeout": "500ms"}
        with cluster_in_thread(home, settings=soon) as ours:
            yield ours.nameserver
        return
    try:
        java = find_java(request.param, INTEROP / "java", cache_folder(INTEROP / ".cache"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    nameserver = start_nameserver(java, home / "nameserver")
    try:
        # 5.x writes how transactions ended some time later, and asks about them until then
        soon = {"transactionCheckInterval": "500", "transactionTimeOut": "500", "transactionOpBatchInterval": "50"}
        soon |= {"timerWheelEnable": "true", "recallMessageEnable": "true"}
        soon["enablePropertyFilter"] = "true"
        broker = start_broker(java, home / "broker", nameserver.address, **soon)
        try:
            yield nameserver.address
        finally:
            broker.discard()
    finally:
        nameserver.discard()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries that wait for a second happen at once."""
    monkeypatch.setattr("gantrymq.client.puller.PAUSE_AFTER_ERROR_SECONDS", 0)
    monkeypatch.setattr("gantrymq.client.consumer.REBALANCE_RETRY_SECONDS", 0)

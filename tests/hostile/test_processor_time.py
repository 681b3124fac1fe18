"""Requests that are cheap to send and expensive to answer delay other clients by a bounded time."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from gantrymq.kernel.network.requests import RequestTable
from gantrymq.kernel.network.time_slices import Pace
from gantrymq.plugins.admin.clients import ClientAdmin
from gantrymq.plugins.admin.consumers import ConsumerAdmin
from gantrymq.plugins.admin.topics import TopicAdmin
from gantrymq.plugins.clients.heartbeat import TAGS_MAX
from gantrymq.plugins.consume import subscriptions
from gantrymq.plugins.consume.postponed import TURN_BYTES, Postponed
from gantrymq.plugins.consume.pull import PullProcessor
from gantrymq.plugins.filter.sql92 import compile_sql92
from gantrymq.plugins.filter.tags import EXPRESSION_MAX
from gantrymq.remoting.bodies.clients import CheckClientConfig, ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.offsets import ClientStatus
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.testing.harness import Cluster, broker_and_channel, cluster_in_thread
from gantrymq.testing.requests import pull, send
from gantrymq.testing.simulated.cluster import Cluster as SimulatedCluster
from gantrymq.testing.simulated.network import Process, on
from gantrymq.testing.simulated.run import simulate
from support.processes import wait_for
from support.rawpeer import RawPeer

DIGITS = 32_000
PROCESSOR_S = 5.0
"""Far more than any of these may take on a slow machine, and far less than it took when time grew with the square."""


def sql_pull(expression: str, offset: int = 0) -> Command:
    command = pull("T", 0, offset, expression=expression)
    assert command.ext is not None
    command.ext["expressionType"] = "SQL92"
    return command


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a > 0.5", "1" * DIGITS + "x"), ("a > 0.5", "0x" + "1" * DIGITS + "x"), ("a > 5", "1" * DIGITS + "x"),
        ("a > 5", "0" * DIGITS + "x"), ("a > b", "1" * DIGITS + "." + "1" * DIGITS + "x"), ("a > 5", "9" * DIGITS),
    ],
)  # fmt: skip
def test_a_property_of_many_digits_is_parsed_in_linear_time(expression: str, value: str) -> None:
    wanted = compile_sql92(expression)
    before = time.thread_time()
    assert wanted.select([f"a\1{value}\2b\1{value}".encode()]) == [False]
    assert time.thread_time() - before < PROCESSOR_S


def test_a_long_property_is_parsed_once_for_an_expression() -> None:
    wanted = compile_sql92(" OR ".join(["a > 0.5", "a > 7"] * 600))
    properties = f"a\1{'0' * (DIGITS - 1)}".encode()
    before = time.thread_time()
    assert wanted.select([properties] * 20) == [False] * 20
    assert time.thread_time() - before < PROCESSOR_S


@pytest.mark.trio
@pytest.mark.parametrize("value", ["0" * 20_000, "9" * 20_000, "-" + "0" * 4301 + "7", "0" * 20_000 + "x"])
async def test_a_number_of_any_length_does_not_block_a_queue(tmp_path: Path, value: str) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        for body, properties in ((b"bad", f"a\1{value}\2"), (b"good", "a\x017\2")):
            assert (await channel.call(send("T", body, properties=properties))).code == ResponseCode.SUCCESS
        answer = await channel.call(sql_pull("a > 5"))
        assert answer.code == ResponseCode.SUCCESS
        assert answer.body.endswith(b"a\x017\2") or b"good" in answer.body
        assert b"bad" not in answer.body
        assert answer.ext is not None
        assert answer.ext["nextBeginOffset"] == "2"


ALMOST_JSON = {
    "a comma too many": b'{"clientID":"c","x":[' + b"0," * 500_000 + b",]}",
    "keys without quotes": b'{clientID:"c","x":[' + b"{a:1}," * 100_000 + b"]}",
    "escapes": b"{clientID:'" + b"\\v" * 500_000 + b"'}",
    "JSON of another form": b"[" + b"[]," * 300_000 + b"[]]",
}


@pytest.mark.trio
@pytest.mark.parametrize("text", ALMOST_JSON)
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ],
)  # fmt: skip
async def test_a_large_invalid_json_body_is_refused_before_the_slow_parser(
    tmp_path: Path, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Any) -> Any:
        pytest.fail("the tolerant reader was asked")

    monkeypatch.setattr("gantrymq.remoting.fastjson.Reader.read", read)
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(Command(code, body=ALMOST_JSON[text]))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert any(words in (answer.remark or "") for words in ("values", "are the limit", "at most"))
        assert len(answer.remark or "") < 1000


@pytest.mark.trio
async def test_a_heartbeat_in_fastjsons_dialect_with_a_thousand_subscriptions_is_accepted(tmp_path: Path) -> None:
    subscriptions = [{"Topic": f"T{number}", "SubString": "*", "SubVersion": number} for number in range(1000)]
    data = {"ClientID": "c", "ConsumerDataSet": [{"GroupName": "g", "SubscriptionDataSet": subscriptions}]}
    async with broker_and_channel(tmp_path) as (_, channel):
        answer = await channel.call(Command(RequestCode.HEART_BEAT, body=json.dumps(data).encode()))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


QUEUES = 1024
SPANS = Command(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "g"})
STATS = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"})
PROGRESS = Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "Wide"})


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a topic of 1,024 queues."""
    with cluster_in_thread(tmp_path_factory.mktemp("wide")) as running:
        with RawPeer(running.address) as peer:
            header = {
                "topic": "Wide", "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
                "perm": "6", "topicFilterType": "SINGLE_TAG",
            }  # fmt: skip
            assert peer.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
            for queue_id in range(0, QUEUES, 16):
                assert peer.ask(send("Wide", b"x", queue_id=queue_id)).code == ResponseCode.SUCCESS
        yield running


def frames(request: Command, count: int) -> bytes:
    return b"".join(
        encode(Command(request.code, request.ext, request.body, opaque=number)) for number in range(1, count + 1)
    )


def arrived(peer: RawPeer) -> list[Command]:
    """The answers that are here already."""
    answers: list[Command] = []
    peer.sock.setblocking(False)
    try:
        while more := peer.receive():
            answers += more
    except BlockingIOError:
        pass
    peer.sock.settimeout(60)
    return answers


@pytest.mark.parametrize("request_of_many", [SPANS, STATS, PROGRESS], ids=["303", "202", "208"])
def test_a_send_is_answered_before_earlier_heavy_requests(wide: Cluster, request_of_many: Command) -> None:
    count = 40
    before: list[int] = []
    with RawPeer(wide.address, timeout=60) as attacker, RawPeer(wide.address, timeout=60) as other:
        assert other.ask(send("Light", b"x")).code == ResponseCode.SUCCESS
        for _ in range(5):  # a busy machine may delay the send itself
            attacker.send_bytes(frames(request_of_many, count))
            answers = attacker.receive()
            assert other.ask(send("Light", b"x")).code == ResponseCode.SUCCESS
            answers += arrived(attacker)
            before.append(len(answers))
            while len(answers) < count:
                more = attacker.receive()
                assert more
                answers += more
            assert [answer.opaque for answer in answers] == list(range(1, count + 1))
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert min(before) < count // 2, "they were not in its way"


@pytest.mark.slow
def test_a_send_is_answered_before_pulls_with_slow_expressions(wide: Cluster) -> None:
    count = 40
    pulls = [
        sql_pull(" OR ".join(f"a{number} > {part}" for part in range(1200))) for number in range(1, count + 1)
    ]  # fmt: skip
    with RawPeer(wide.address, timeout=60) as attacker, RawPeer(wide.address, timeout=60) as other:
        assert other.ask(send("T", b"x")).code == ResponseCode.SUCCESS
        for number, request in enumerate(pulls, start=1):
            request.opaque = number
        attacker.send_bytes(b"".join(map(encode, pulls)))
        answers = attacker.receive()
        assert other.ask(send("T", b"x")).code == ResponseCode.SUCCESS
        answers += arrived(attacker)
        assert len(answers) < count // 2, "they were not in its way"
        while len(answers) < count:
            answers += attacker.receive()
    assert {answer.code for answer in answers} == {ResponseCode.PULL_RETRY_IMMEDIATELY}


DENSE = {
    "SQL92": ["(0=0)OR" * 2300 + f" a={number}" for number in range(10, 14)],
    "TAG": ["||".join(f"\u00e4{number}" for number in range(one, one + 8000)) for one in (10_000, 30_000, 50_000)],
}  # fmt: skip


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector looks at all objects of all tests, which a broker's does not (``gantrymq.cli.servers``)."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", DENSE)
def test_slow_expressions_are_compiled_in_steps_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Processor time of this thread only, and each turn's part of it: a loaded machine changes neither."""
    turns: list[float] = []
    compiling: set[int] = set()
    handle, next_step = PullProcessor.handle, subscriptions.Subscriptions.work

    def timed(self: PullProcessor, requests: list[Any]) -> Any:
        before = time.thread_time()
        left = handle(self, requests)
        turns.append(time.thread_time() - before)
        return left

    def watched(self: Any, until: float) -> None:
        compiling.add(id(self._current))
        next_step(self, until)

    monkeypatch.setattr(PullProcessor, "handle", timed)
    monkeypatch.setattr(subscriptions.Subscriptions, "work", watched)
    with cluster_in_thread(tmp_path, settings={"limits.turn_budget": "1ms"}) as cluster:
        peers = [RawPeer(cluster.address, timeout=60) for _ in DENSE[kind]]
        assert peers[0].ask(send("T", b"x")).code == ResponseCode.SUCCESS
        for peer, expression in zip(peers, DENSE[kind], strict=True):
            request = sql_pull(expression)
            assert request.ext is not None
            request.ext["expressionType"] = kind
            peer.send(request)
        for peer in peers:
            [answer] = peer.receive()
            expected = ResponseCode.SUCCESS if kind == "SQL92" else ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.code == expected, answer.remark
            peer.sock.close()
    assert max(turns) < sum(turns) / 8, "about 1 ms of 100"


def test_a_client_that_disconnects_during_a_compilation_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    work = subscriptions.Subscriptions.work

    def watched(self: Any, until: float) -> None:
        begun.set()
        work(self, until)

    monkeypatch.setattr(subscriptions.Subscriptions, "work", watched)
    with cluster_in_thread(tmp_path, settings={"limits.turn_budget": "1ms"}) as cluster:
        with RawPeer(cluster.address, timeout=60) as other:
            assert other.ask(send("T", b"x")).code == ResponseCode.SUCCESS
            with RawPeer(cluster.address) as attacker:
                attacker.send(sql_pull(DENSE["SQL92"][0]))
                assert begun.wait(60)
            assert other.ask(sql_pull(DENSE["SQL92"][1])).code == ResponseCode.SUCCESS


@pytest.mark.trio
async def test_a_long_invalid_expression_is_refused_and_its_pull_commits_nothing(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
        request = sql_pull("(0=0)OR" * 2300 + " a=")
        assert request.ext is not None
        request.ext |= {"commitOffset": "1", "sysFlag": str(int(request.ext["sysFlag"]) | 1)}
        for _ in range(2):
            answer = await channel.call(request)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "cannot be read at its end" in (answer.remark or "")
        asked = {"consumerGroup": request.ext["consumerGroup"], "topic": "T", "queueId": "0"}
        answer = await channel.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, asked | {"setZeroIfNotFound": "false"}))
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_the_check_of_a_long_expression_yields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests = 0
    checkpoint = Pace.checkpoint

    async def counted(self: Pace) -> None:
        nonlocal rests
        rests += 1
        await checkpoint(self)

    monkeypatch.setattr(Pace, "checkpoint", counted)
    with cluster_in_thread(tmp_path) as cluster, RawPeer(cluster.address, timeout=60) as peer:
        for text, code in (
            (DENSE["SQL92"][0], ResponseCode.SUCCESS),
            ("a >" * 1000, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ):
            body = CheckClientConfig("c", "g", SubscriptionData("T", text, expression_type="SQL92")).to_bytes()
            assert peer.ask(Command(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code
    assert rests > 100


@pytest.mark.trio
async def test_postponed_pulls_of_one_connection_delay_no_other() -> None:
    answered: list[tuple[int, int]] = []

    class Peer:
        closed = False

        def __init__(self, number: int) -> None:
            self.number = number

    def pull_of(peer: Peer, offset: int) -> Any:
        return SimpleNamespace(request=SimpleNamespace(connection=peer), offset=offset)

    def answer(given: Any, wait: bool) -> int:
        answered.append((given.request.connection.number, given.offset))
        return TURN_BYTES  # each takes a whole turn

    postponed = Postponed(answer, lambda given: None)
    attacker, other, late = Peer(0), Peer(1), Peer(2)
    for offset in range(50):
        postponed.until_next_turn(pull_of(attacker, offset))
    for offset in range(3):
        postponed.until_next_turn(pull_of(other, offset))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(postponed.run)
        while len(answered) < 20:
            await trio.lowlevel.checkpoint()
        postponed.until_next_turn(pull_of(late, 0))
        while len(postponed):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert answered[:6] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert answered.index((2, 0)) <= 22
    assert [offset for number, offset in answered if number == 0] == list(range(50))


@pytest.mark.trio
async def test_a_pull_examines_fewer_messages_if_each_is_expensive(tmp_path: Path) -> None:
    properties = "".join(f"b{number}\x01{number}\x02" for number in range(2500))
    async with broker_and_channel(tmp_path) as (_, channel):
        for _ in range(20):
            assert (await channel.call(send("T", b"x", properties=properties))).code == ResponseCode.SUCCESS
        reached = []
        for expression in ("b1 = 'x'", " OR ".join(f"a{number} = 'x'" for number in range(1000))):
            answer = await channel.call(sql_pull(expression))
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            reached.append(int((answer.ext or {})["nextBeginOffset"]))
    assert reached[0] == 20
    assert 1 <= reached[1] < 5


def lock_request(code: int, client: int) -> Command:
    queues = {MessageQueue(f"topic-{client}-{number}", "broker-a", number) for number in range(10_000)}
    return Command(code, body=LockBatchRequestBody(f"g{client}", f"c{client}", queues).to_bytes())


def large_heartbeat(client: int) -> Command:
    groups = [
        ConsumerData(
            f"g{client}-{group}",
            subscription_data_set=[SubscriptionData(f"topic-{group}-{number}", "*") for number in range(1000)],
        )
        for group in range(25)
    ]
    return Command(RequestCode.HEART_BEAT, body=HeartbeatData(f"c{client}", [], groups).to_bytes())


def heartbeat_of_tags(client: int) -> Command:
    """One group, whose subscriptions have 200,000 tags together."""
    subscriptions = [
        SubscriptionData(
            f"topic-{number}", "*", {f"t{tag}" for tag in range(10_000)}, set(range(10_000)), expression_type="TAG"
        )
        for number in range(20)
    ]
    body = HeartbeatData(f"c{client}", [], [ConsumerData(f"g{client}", subscription_data_set=subscriptions)])
    return Command(RequestCode.HEART_BEAT, body=body.to_bytes())


LARGE = {
    "34 tags": heartbeat_of_tags,
    "41": lambda client: lock_request(RequestCode.LOCK_BATCH_MQ, client),
    "42": lambda client: lock_request(RequestCode.UNLOCK_BATCH_MQ, client),
    "34": large_heartbeat,
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.slow
def test_a_large_request_is_processed_in_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Processor time, and each turn's part of it: see above."""
    turns: list[float] = []
    handle = RequestTable.handle

    def timed(self: RequestTable, requests: list[Any]) -> None:
        before = time.thread_time()
        handle(self, requests)
        turns.append(time.thread_time() - before)

    requests = [LARGE[kind](client) for client in range(6)]
    monkeypatch.setattr(RequestTable, "handle", timed)
    with cluster_in_thread(tmp_path) as cluster:
        peers = [RawPeer(cluster.address, timeout=60) for _ in requests]
        if kind == "42":
            for client, peer in enumerate(peers):
                peer.ask(lock_request(RequestCode.LOCK_BATCH_MQ, client))
        turns.clear()
        for peer, request in zip(peers, requests, strict=True):
            peer.send(request)
        for peer in peers:
            answers: list[Command] = []
            while not answers:
                answers = [command for command in peer.receive() if command.is_response]
            [answer] = answers
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            peer.sock.close()
        wait_for(lambda: cluster.broker.requests.waiting.bytes == 0)
    assert max(turns) < sum(turns) / 12, "a third or less of one request"


def subscription(**fields: Any) -> bytes:
    wanted = {"topic": "T", "subString": "*", **fields}
    return (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
        + json.dumps(wanted, separators=(",", ":")).encode()
        + b"]}]}"
    )


EMPTY = b"{}," * 600_000 + b"{}]"
OF_MANY = {
    "producers": (34, b'{"clientID":"c","producerDataSet":[' + EMPTY + b"}"),
    "consumers": (34, b'{"clientID":"c","consumerDataSet":[' + EMPTY + b"}"),
    "tags": (34, subscription(tagsSet=[f"{tag}" for tag in range(200_000)])),
    "codes": (34, subscription(codeSet=list(range(200_000)))),
    "as many tags as there may be": (34, subscription(tagsSet=[f"{tag}" for tag in range(TAGS_MAX)])),
    "queues": (41, b'{"consumerGroup":"g","clientId":"c","mqSet":[' + EMPTY + b"}"),
    "queues to unlock": (42, b'{"consumerGroup":"g","clientId":"c","mqSet":[' + EMPTY + b"}"),
    "commas": (41, b'{"consumerGroup":"g","clientId":"c","x":[' + b"0," * 600_000 + b"0]}"),
    "check": (46, b'{"subscriptionData":{"codeSet":[' + b"1," * 600_000 + b"1]}}"),
}


@pytest.mark.trio
@pytest.mark.parametrize("kind", OF_MANY)
async def test_a_request_of_too_many_parts_is_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    decoded: list[int] = []
    decode_json = msgspec.json.decode

    def decode(data: Any, **kinds: Any) -> Any:
        # Frames leave the parts undecoded.
        name = getattr(kinds.get("type"), "__name__", "")  # tasks of the broker decode without a type
        if name in ("HeartbeatData", "ConsumerData", "SubscriptionData", "LockBatchRequestBody"):
            decoded.append(len(data))
        return decode_json(data, **kinds)

    code, body = OF_MANY[kind]
    async with broker_and_channel(tmp_path) as (_, channel):
        monkeypatch.setattr(msgspec.json, "decode", decode)
        answer = await channel.call(Command(code, body=body))
        monkeypatch.undo()
    if kind == "as many tags as there may be":
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "limit" in (answer.remark or "") or "at most" in (answer.remark or "")
    assert not decoded


STATUS = b'{"messageQueueTable":{' + b",".join(
    b'{"brokerName":"broker-a","queueId":%d,"topic":"T"}:7' % number for number in range(1024)
) + b"}}"  # fmt: skip
ANSWERS = {
    "whole": STATUS,
    "almost JSON": b"{messageQueueTable:{" + b"{a:1}:1," * 10_000 + b"}}",
    "long": b'{"messageQueueTable":{' + b",".join(b'"%d":1' % number for number in range(100_000)) + b"}}",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_clients_description_of_itself_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    converted: list[int] = []
    convert = ClientStatus.from_value.__func__  # type: ignore[attr-defined]

    def counted(cls: type[ClientStatus], value: Any) -> Any:
        converted.append(len(value["messageQueueTable"]))
        return convert(cls, value)

    monkeypatch.setattr(ClientStatus, "from_value", classmethod(counted))
    heartbeat = HeartbeatData("c", [], [ConsumerData("g", subscription_data_set=[SubscriptionData("T", "*")])])
    asked = Command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    with (
        cluster_in_thread(tmp_path) as cluster,
        RawPeer(cluster.address, timeout=60) as client,
        RawPeer(cluster.address, timeout=60) as administrator,
    ):
        assert client.ask(Command(RequestCode.HEART_BEAT, body=heartbeat.to_bytes())).code == ResponseCode.SUCCESS
        administrator.send(asked)
        while RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT not in (rows := {row.code: row for row in client.receive()}):
            pass
        question = rows[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT]
        client.send(question.answer(ResponseCode.SUCCESS, body=ANSWERS[kind]))
        [answer] = administrator.receive()
    assert answer.code == ResponseCode.SUCCESS
    assert (b'"c"' in answer.body) is (kind == "whole")
    assert converted == ([1024] if kind == "whole" else [])


def test_a_subscription_may_have_as_many_tags_as_a_pull_expression() -> None:
    assert len(("||".join("a" * (EXPRESSION_MAX // 3 + 1)))[:EXPRESSION_MAX].split("||")) == TAGS_MAX


def slow_down(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let requests for the system topics take 2 ms each; the connections of those that were begun."""
    begun: list[int] = []
    work = TopicAdmin.system_topics

    def slow(self: TopicAdmin, request: Any) -> Command:
        begun.append(request.connection.id)
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
        return work(self, request)

    monkeypatch.setattr(TopicAdmin, "system_topics", slow)
    return begun


SLOW = Command(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)


def test_heavy_requests_of_a_closed_connection_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for setting in ("5ms", "1s"):
        begun = slow_down(monkeypatch)
        with (
            cluster_in_thread(tmp_path / setting, settings={"limits.turn_budget": setting}) as cluster,
            RawPeer(cluster.address) as other,
        ):
            with RawPeer(cluster.address) as attacker:
                attacker.send_bytes(frames(SLOW, 2000))
                wait_for(lambda begun=begun: bool(begun))  # a close discards what the broker has not received
            wait_for(lambda: len(cluster.broker.connections) == 1)
            assert other.is_served()
            counts[setting] = len(begun)
            wait_for(lambda: cluster.broker.requests.waiting.bytes == 0)
            assert not cluster.broker.requests.waiting
        monkeypatch.undo()
    assert counts["5ms"] < counts["1s"] < 2000
    assert counts["5ms"] < 500


@pytest.mark.parametrize("setting", ["1 MiB", "64 MiB"])
def test_waiting_requests_have_a_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    slow_down(monkeypatch)
    request = Command(SLOW.code, body=bytes(60_000))
    codes: list[int] = []
    with cluster_in_thread(tmp_path, settings={"limits.waiting_bytes": setting}) as cluster:
        peers = [RawPeer(cluster.address, timeout=60) for _ in range(40)]
        for peer in peers:
            peer.send_bytes(frames(request, 4))
        for peer in peers:
            answers = peer.receive()
            while len(answers) < 4:
                answers += peer.receive()
            codes += [answer.code for answer in answers]
            peer.sock.close()
    assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    assert (ResponseCode.SYSTEM_BUSY in codes) is (setting == "1 MiB")


@pytest.mark.parametrize("setting", ["3", "64"])
def test_tasks_process_a_limited_number_of_a_connections_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    running, most = 0, 0

    async def slow(self: ClientAdmin, request: Any) -> Command:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(0.2)
        running -= 1
        answer: Command = request.command.answer(ResponseCode.SUCCESS)
        return answer

    monkeypatch.setattr(ClientAdmin, "running_info", slow)
    with (
        cluster_in_thread(tmp_path, settings={"limits.requests_in_flight": setting}) as cluster,
        RawPeer(cluster.address, timeout=60) as peer,
    ):
        peer.send_bytes(frames(Command(RequestCode.GET_CONSUMER_RUNNING_INFO), 20))
        answers = peer.receive()
        while len(answers) < 20:
            answers += peer.receive()
        wait_for(lambda: cluster.broker.requests.waiting.bytes == 0)
    assert most == min(int(setting), 20)


def test_oneway_offset_commits_of_a_stopping_client_are_stored(wide: Cluster) -> None:
    ext = {"consumerGroup": "oneway", "topic": "Wide", "queueId": "0", "commitOffset": "1"}
    last = encode(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext, flag=2))
    with RawPeer(wide.address) as stopping:
        stopping.send_bytes(frames(SPANS, 5) + last)
    with RawPeer(wide.address) as other:
        asked = Command(
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": "oneway", "topic": "Wide", "queueId": "0", "setZeroIfNotFound": "false"},
        )
        wait_for(lambda: other.ask(asked).code == ResponseCode.SUCCESS)


@pytest.mark.parametrize("setting", [None, "1"])
def test_few_heavy_requests_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None) -> None:
    running: list[int] = []
    most: list[int] = []
    work = ConsumerAdmin.group_stats

    async def counted(self: ConsumerAdmin, request: Any) -> Command:
        running.append(request.connection.id)
        assert len(set(running)) == len(running), "one of each connection"
        most.append(len(running))
        try:
            return await work(self, request)
        finally:
            running.remove(request.connection.id)

    monkeypatch.setattr(ConsumerAdmin, "group_stats", counted)
    settings = {} if setting is None else {"limits.heavy_requests": setting}
    with cluster_in_thread(tmp_path, settings=settings) as cluster:
        peers = [RawPeer(cluster.address) for _ in range(6)]
        assert peers[0].ask(send("Wide", b"x", queues=8)).code == ResponseCode.SUCCESS
        for peer in peers:
            peer.send_bytes(frames(PROGRESS, 10))
        for peer in peers:
            answers = peer.receive()
            while len(answers) < 10:
                answers += peer.receive()
            peer.sock.close()
    assert len(most) == 60
    assert max(most) == (2 if setting is None else int(setting))


def test_a_search_by_time_does_not_wait_behind_heavy_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    async def hang(self: ConsumerAdmin, request: Any) -> None:
        begun.append(request.connection.id)
        await trio.sleep_forever()

    monkeypatch.setattr(ConsumerAdmin, "group_stats", hang)
    search = Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": "0"})

    async def scenario(cluster: SimulatedCluster) -> None:
        broker = await cluster.start_broker("10.0.0.10", settings={"limits.heavy_requests": "1"})
        with on(Process("10.0.0.20")):
            async with (
                open_channel(broker.address) as first, open_channel(broker.address) as second,
                trio.open_nursery() as nursery,
            ):  # fmt: skip
                assert (await second.call(send("T", b"x"))).code == ResponseCode.SUCCESS
                for channel in (first, second):
                    nursery.start_soon(channel.call, Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}))
                    await cluster.until(lambda: bool(begun))
                    await trio.testing.wait_all_tasks_blocked()
                answer = await second.call(search)
                assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {"offset": "0"})
                assert len(begun) == 1, "the second one waits for the first"
                nursery.cancel_scope.cancel()

    simulate(scenario, seed=1)


def test_a_body_without_a_message_has_its_own_limit(tmp_path: Path) -> None:
    with (
        cluster_in_thread(tmp_path, settings={"limits.request_body_bytes": "64 KiB"}) as cluster,
        RawPeer(cluster.address) as peer,
    ):
        answer = peer.ask(Command(RequestCode.LOCK_BATCH_MQ, body=b" " * 65_536 + b"{}"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "limits.request_body_bytes" in (answer.remark or "")
        assert peer.ask(send("T", bytes(100_000))).code == ResponseCode.SUCCESS

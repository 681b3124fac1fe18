"""A flood of requests to the nameserver slows down its sender only."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.nameserver import NameServer
from gantrymq.nameserver.live import BrokerIdentity
from gantrymq.nameserver.routes import Routes
from gantrymq.nameserver.server import NameServerConfig
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.registration import INFLATED_MAX_BYTES, REGISTERED_TOPICS_MAX, RegisterBrokerBody
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.nameserver import RegisterBrokerHeader

TOPICS = 2_000
REQUESTS = 200


async def register(channel: Channel) -> None:
    table = {f"topic-{number:06}": TopicConfig(f"topic-{number:06}") for number in range(TOPICS)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table))
    header = RegisterBrokerHeader(
        broker_name="a", broker_addr="127.0.0.1:1", cluster_name="c", ha_server_addr="", broker_id=0
    )
    answer = await channel.call(Command(RequestCode.REGISTER_BROKER, header.to_ext(), body.encode(compressed=False)))
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.trio
async def test_a_client_gets_its_route_beside_hundreds_of_queries_for_a_clusters_topics(
    nursery: trio.Nursery,
) -> None:
    server = NameServer(NameServerConfig(port=0))
    address = await nursery.start(server.serve)
    handle = server.requests.handlers[RequestCode.GET_TOPICS_BY_CLUSTER]
    answered = 0
    done = trio.Event()

    async def counted(request: Command, connection: object) -> Command:
        nonlocal answered
        answered += 1
        if answered == REQUESTS:
            done.set()
        return await handle(request, connection)

    server.requests.handlers[RequestCode.GET_TOPICS_BY_CLUSTER] = counted
    # One way: there are no answers whose writing would give others a turn.
    flood = encode(Command(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, flag=ONEWAY_FLAG)) * REQUESTS
    async with open_channel(address) as client:
        await register(client)
        async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as attacker:
            await attacker.send_all(flood)
            route = await client.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-000001"}))
            before = answered
            assert route.code == ResponseCode.SUCCESS
            assert before < REQUESTS / 2
            with trio.fail_after(60):
                await done.wait()
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_routes_for_long_zones_do_not_stay_in_memory(nursery: trio.Nursery) -> None:
    server = NameServer(NameServerConfig(port=0))
    address = await nursery.start(server.serve)
    asked = {"topic": "topic-000001", "__ZONE_MODE": "true"}
    async with open_channel(address) as client:
        await register(client)
        for number in range(100):
            zone = f"{number:0100000}"
            response = await client.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {**asked, "__ZONE_NAME": zone}))
            assert response.code == ResponseCode.SUCCESS
        cached = [view.zone or "" for views in server._cache._texts.values() for view in views]
        assert sum(map(len, cached)) < 100_000
    nursery.cancel_scope.cancel()


def sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


ALMOST_JSON = b"[" + b"[]," * 300_000 + b"[]]"
VERSION = sized(b"{}")
MAPPING = b"{x:[" + b"0," * 1000 + b"]}"
REGISTRATIONS = {
    "plain": (ALMOST_JSON, "false", 500),
    "topics only": (ALMOST_JSON, "false", 0),
    "data version": (zlib.compress(sized(ALMOST_JSON)), "true", 500),
    "filter servers": (zlib.compress(VERSION + bytes(4) + sized(ALMOST_JSON)), "true", 500),
    "mapping": (
        zlib.compress(VERSION + bytes(4) + sized(b"[]") + (1).to_bytes(4, "big") + sized(ALMOST_JSON)), "true", 500,
    ),
    "mappings": (
        zlib.compress(VERSION + bytes(4) + sized(b"[]") + (300).to_bytes(4, "big") + sized(MAPPING) * 300), "true", 500,
    ),
}  # fmt: skip


@pytest.mark.trio
@pytest.mark.parametrize("kind", REGISTRATIONS)
async def test_a_large_invalid_registration_is_refused_before_the_slow_parser(
    kind: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, compressed, version = REGISTRATIONS[kind]
    read = fastjson.Reader.read

    def read_short(self: Any) -> Any:
        assert len(self.text) < 10_000, "the tolerant reader was asked"
        return read(self)

    monkeypatch.setattr(fastjson.Reader, "read", read_short)
    address = await nursery.start(NameServer(NameServerConfig(port=0)).serve)
    header = RegisterBrokerHeader(
        broker_name="a", broker_addr="127.0.0.1:1", cluster_name="c", ha_server_addr="", broker_id=0
    )
    async with open_channel(address) as client:
        ext = header.to_ext() | {"compressed": compressed}
        answer = await client.call(Command(RequestCode.REGISTER_BROKER, ext, body, version=version))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "values" in (answer.remark or "") or "are the limit" in (answer.remark or "")
        assert len(answer.remark or "") < 1000
    nursery.cancel_scope.cancel()


MANY = 60_000


@pytest.mark.trio
@pytest.mark.parametrize("compressed", [True, False])
async def test_routes_are_served_while_a_large_registration_is_processed(
    compressed: bool, nursery: trio.Nursery
) -> None:
    table = {f"topic-{number:06}": TopicConfig(f"topic-{number:06}") for number in range(MANY)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table)).encode(compressed)
    header = RegisterBrokerHeader(
        broker_name="b", broker_addr="127.0.0.1:2", cluster_name="c", ha_server_addr="", broker_id=0,
        compressed=compressed,
    )  # fmt: skip
    server = NameServer(NameServerConfig(port=0))
    address = await nursery.start(server.serve)
    asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-000001"})
    answered: list[int] = []
    handle = server.requests.handlers[RequestCode.REGISTER_BROKER]

    async def counted(request: Command, connection: object) -> Command:
        answered.clear()  # its frame took turns as well
        return await handle(request, connection)

    async with open_channel(address) as client, open_channel(address) as broker:
        await register(client)
        server.requests.handlers[RequestCode.REGISTER_BROKER] = counted
        with trio.CancelScope() as asking:

            async def take() -> None:
                answer = await broker.call(Command(RequestCode.REGISTER_BROKER, header.to_ext(), body), 60)
                assert answer.code == ResponseCode.SUCCESS
                asking.cancel()

            async with trio.open_nursery() as tasks:
                tasks.start_soon(take)
                while True:
                    answered.append((await client.call(asked)).code)
        names = (await client.call(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))).body
        assert names.count(b"topic-") == MANY
    assert len(answered) > 3  # one for each turn of 5 ms: how many there are depends on the machine
    assert set(answered) == {ResponseCode.SUCCESS}
    nursery.cancel_scope.cancel()


def test_a_broker_that_disconnects_during_its_registration_leaves_no_topics() -> None:
    routes = Routes(lambda: 0.0)
    identity = BrokerIdentity("c", "b", 0, "127.0.0.1:2")
    table = {f"topic-{number:06}": TopicConfig(f"topic-{number:06}") for number in range(TOPICS)}
    steps = routes.register_in_steps(identity, TopicConfigSerializeWrapper(table), connection=identity)
    for _ in range(2):
        next(steps)
    assert 0 < len(routes.topics().topic_list) < TOPICS
    assert routes.remove_connection(identity)
    assert list(steps) == []
    assert routes.topics().topic_list == []


def numbered(count: int) -> bytes:
    return zlib.compress(VERSION + count.to_bytes(4, "big") + sized(b"T 1 1 6 SINGLE_TAG") * count)


BOMBS = {
    "topics": numbered(REGISTERED_TOPICS_MAX + 1),
    "bytes": zlib.compress(VERSION + (1).to_bytes(4, "big") + sized(bytes(INFLATED_MAX_BYTES))),
    "mappings": zlib.compress(
        VERSION + bytes(4) + sized(b"[]") + (REGISTERED_TOPICS_MAX + 1).to_bytes(4, "big")
        + sized(b"{}") * (REGISTERED_TOPICS_MAX + 1)
    ),
    "objects": b'{"topicConfigSerializeWrapper":{"x":[' + b"{}," * 800_000 + b"{}]}}",
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_a_registration_beyond_the_limits_is_refused_before_its_topics_are_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicConfig, "from_text", lambda _: pytest.fail("a topic was read"))
    with pytest.raises(RemoteFault, match=r"limit|grows beyond"):
        RegisterBrokerBody.decode(BOMBS[kind], compressed=kind != "objects")

"""The switches of a nameserver and their effects, over a stream in memory."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver.switches import KEYS, Switches, read_switches
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.routes import QueueData, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicQueueMapping
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, decode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.nameserver import BrokerHeader, ClusterHeader, PutKVConfigHeader, RegisterBrokerHeader
from gantrymq.remoting.headers.replication import MinimumChangedHeader
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader, TopicHeader

C = RequestCode


async def register(peer: Any, *topics: str, zone: str | None = None, body: bytes | None = None, **fields: Any) -> Any:
    values = {"cluster_name": "c", "broker_name": "broker-a", "broker_addr": "10.0.0.1:1", "broker_id": 0, **fields}
    ext = RegisterBrokerHeader(ha_server_addr="10.0.0.1:2", **values).to_ext()
    if zone is not None:
        ext["__ZONE_NAME"] = zone
    wrapper = TopicConfigSerializeWrapper({name: TopicConfig(name) for name in topics}, DataVersion(len(topics), 7))
    await peer.send(Command(C.REGISTER_BROKER, ext, RegisterBrokerBody(wrapper).encode() if body is None else body))
    answer = await peer.receive()
    assert answer.code == 0
    return answer


async def route(peer: Any, topic: str = "T", **ext: str) -> Any:
    await peer.send(Command(C.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext}))
    return await peer.receive()


async def switch(peer: Any, text: str) -> None:
    assert (await peer.ask(C.UPDATE_NAMESRV_CONFIG, None, text.encode())).code == 0


def brokers(answer: Any) -> list[str]:
    return [data.broker_name for data in TopicRouteData.from_bytes(answer.body).broker_datas]


def test_settings_are_parsed_by_rocketmqs_names() -> None:
    assert read_switches([]) == Switches()
    assert read_switches(["supportActingMaster=true", "enableTopicList = false"]) == Switches(
        support_acting_master=True, enable_topic_list=False
    )
    assert set(KEYS) == {
        "orderMessageEnable", "returnOrderTopicConfigToBroker", "supportActingMaster", "notifyMinBrokerIdChanged",
        "enableAllTopicList", "enableTopicList", "deleteTopicWithBrokerRegistration", "needWaitForService",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("supportActingMaster", "name=true or name=false is expected"),
        ("supportActingMaster=yes", "allowed: true or false"),
        ("listenPort=1", "cannot be changed; these can: orderMessageEnable, "),
        ("kvConfigPath=/x", "Can not update config path"),
    ],
)
def test_an_invalid_setting_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_switches([text])


@pytest.mark.trio
async def test_cached_routes_change_with_their_brokers_and_topics(peer: Any, connect: Any) -> None:
    for name, expected in (("broker-a", ["broker-a"]), ("broker-b", ["broker-a", "broker-b"])):
        await register(peer, "T", broker_name=name, broker_addr=f"{name}:1")
        assert brokers(await route(peer)) == brokers(await route(peer)) == expected
    header = DeleteTopicInNameserverHeader(topic="T")
    assert (await peer.ask(C.DELETE_TOPIC_IN_NAMESRV, header)).code == 0
    assert (await route(peer)).code == 17


@pytest.mark.trio
async def test_a_client_of_a_zone_gets_the_brokers_of_that_zone_only(peer: Any) -> None:
    await register(peer, "T", zone="north")
    await register(peer, "T", zone="south", broker_name="broker-b", broker_addr="10.0.0.2:1")
    assert brokers(await route(peer)) == ["broker-a", "broker-b"]
    assert brokers(await route(peer, __ZONE_NAME="south", __ZONE_MODE="true")) == ["broker-b"]
    assert brokers(await route(peer, __ZONE_NAME="south", __ZONE_MODE="false")) == ["broker-a", "broker-b"]
    assert brokers(await route(peer, __ZONE_MODE="true")) == ["broker-a", "broker-b"]


@pytest.mark.trio
async def test_acting_masters_are_shown_only_if_enabled(peer: Any) -> None:
    await register(peer, "T", enable_acting_master=True)
    slave: dict[str, Any] = {"broker_id": 1, "broker_addr": "10.0.0.2:1"}
    await register(peer, "T", enable_acting_master=True, **slave)
    away = BrokerHeader(cluster_name="c", broker_name="broker-a", broker_addr="10.0.0.1:1", broker_id=0)
    assert (await peer.ask(C.UNREGISTER_BROKER, away)).code == 0
    for value, addresses in (("false", {1: "10.0.0.2:1"}), ("true", {0: "10.0.0.2:1"})):
        await switch(peer, f"supportActingMaster={value}")
        assert TopicRouteData.from_bytes((await route(peer)).body).broker_datas[0].broker_addrs == addresses


@pytest.mark.trio
@pytest.mark.parametrize(
    ("name", "codes"),
    [("enableAllTopicList", [206]), ("enableTopicList", [224, 311, 312, 313])],
)
async def test_lists_of_topics_can_be_refused(peer: Any, name: str, codes: list[int]) -> None:
    cluster = ClusterHeader(cluster="c")
    for value, expected in (("true", (0, None)), ("false", (1, "disable"))):
        await switch(peer, f"{name}={value}")
        for code in codes:
            answer = await peer.ask(code, cluster)
            assert (answer.code, answer.remark) == expected


@pytest.mark.trio
async def test_order_configurations_can_be_withheld_from_brokers(peer: Any) -> None:
    header = PutKVConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    await peer.ask(C.PUT_KV_CONFIG, header)
    assert (await register(peer, "T")).body
    await switch(peer, "returnOrderTopicConfigToBroker=false")
    assert not (await register(peer, "T")).body


@pytest.mark.trio
async def test_omitted_topics_are_deleted_if_configured(peer: Any) -> None:
    await register(peer, "T", "U")
    await register(peer, "T")
    assert (await route(peer, "U")).code == 0
    await switch(peer, "deleteTopicWithBrokerRegistration=true")
    await register(peer, "T")
    assert (await route(peer, "U")).code == 17


@pytest.mark.trio
async def test_a_new_nameserver_withholds_routes_for_the_configured_time(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    server = NameServer(NameServerConfig(port=0, switches=Switches(need_wait_for_service=True)))
    await nursery.start(server.serve)
    command = Command(C.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    await trio.sleep(44.9)
    answer = await server.requests.answer(command, None)
    assert (answer.code, answer.remark) == (1, "name server not ready")
    await trio.sleep(0.2)
    assert (await server.requests.answer(command, None)).code == 17
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_single_topic_is_registered(peer: Any) -> None:
    body = TopicRouteData([QueueData("broker-a", 2, 2, 6)]).to_bytes()
    header = TopicHeader(topic="T")
    assert (await peer.ask(C.REGISTER_TOPIC_IN_NAMESRV, header, body)).code == 0
    assert (await route(peer)).code == 17, "its broker is unknown"
    await register(peer)
    for data, code in ((body, 0), (b"", 0), (b"[1]", 1)):
        assert (await peer.ask(C.REGISTER_TOPIC_IN_NAMESRV, header, data)).code == code
    assert TopicRouteData.from_bytes((await route(peer)).body).queue_datas[0].read_queue_nums == 2


@pytest.mark.trio
@pytest.mark.parametrize("compressed", [False, True])
async def test_static_topic_mappings_are_part_of_the_route(peer: Any, compressed: bool) -> None:
    mapping = TopicQueueMapping("T", total_queues=1, bname="broker-a", curr_id_map={0: 3})
    wrapper = TopicConfigSerializeWrapper({"T": TopicConfig("T")}, DataVersion(1, 1), {"T": mapping})
    await register(peer, body=RegisterBrokerBody(wrapper).encode(compressed))
    found = TopicRouteData.from_bytes((await route(peer)).body)
    assert found.topic_queue_mapping_by_broker == {"broker-a": mapping}


@pytest.mark.trio
@pytest.mark.parametrize("acting", [True, False])
async def test_brokers_are_notified_of_a_new_lowest_id_if_enabled(nursery: trio.Nursery, acting: bool) -> None:
    server = NameServer(NameServerConfig(port=0, switches=Switches(notify_min_broker_id_changed=True)))
    await nursery.start(server.serve)
    send, heard = trio.open_memory_channel[Command](10)

    async def broker(stream: trio.SocketStream) -> None:
        data = b"".join([part async for part in stream])
        await send.send(decode(cut_frames(data)[0][0]))

    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    nursery.start_soon(trio.serve_listeners, broker, [listener])
    address = f"127.0.0.1:{listener.socket.getsockname()[1]}"

    def ask(**fields: Any) -> Callable[[], Awaitable[Command]]:
        values = {"cluster_name": "c", "broker_name": "b", "ha_server_addr": "ha:1", **fields}
        header = RegisterBrokerHeader(enable_acting_master=acting, **values)
        return lambda: server.requests.answer(Command(C.REGISTER_BROKER, header.to_ext()), None)

    await ask(broker_id=1, broker_addr=address)()
    await ask(broker_id=0, broker_addr="127.0.0.1:1")()
    with trio.fail_after(10):
        received = await heard.receive()
    header = read_header(MinimumChangedHeader, received.ext)
    assert (received.code, received.is_oneway) == (C.NOTIFY_MIN_BROKER_ID_CHANGE, True)
    assert header == MinimumChangedHeader(min_broker_id=0, min_broker_addr="127.0.0.1:1", ha_broker_addr="ha:1")
    away = BrokerHeader(cluster_name="c", broker_name="b", broker_addr="127.0.0.1:1", broker_id=0)
    await server.requests.answer(Command(C.UNREGISTER_BROKER, away.to_ext()), None)
    await ask(broker_id=0, broker_addr="no address")()  # is sent to the one that is left, and does no harm
    with trio.fail_after(10):
        received = await heard.receive()
    if acting:
        expected = MinimumChangedHeader(min_broker_id=1, min_broker_addr=address, offline_broker_addr="127.0.0.1:1")
        assert read_header(MinimumChangedHeader, received.ext) == expected
    else:
        assert read_header(MinimumChangedHeader, received.ext).min_broker_id == 0
    nursery.cancel_scope.cancel()

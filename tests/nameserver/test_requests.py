"""The nameserver's response to each request, over a stream in memory."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio.testing
from structlog.testing import capture_logs

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver.switches import Switches
from gantrymq.remoting.bodies.registration import RegisterBrokerBody, body_crc32
from gantrymq.remoting.bodies.routes import BrokerMemberGroupBody, ClusterInfo, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion, KVTable
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.frame import BINARY_HEADER, JSON_HEADER
from gantrymq.remoting.headers.nameserver import (
    BrokerGroupHeader,
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerNameHeader,
    ClusterHeader,
    KVConfigHeader,
    NamespaceHeader,
    PutKVConfigHeader,
    RegisterBrokerHeader,
    RouteHeader,
)
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.headers.topics import DeleteTopicInNameserverHeader
from gantrymq.remoting.javaproperties import read_properties

pytestmark = pytest.mark.trio

C = RequestCode
WRAPPER = TopicConfigSerializeWrapper({"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 1, 1)}, DataVersion(1, 7))
BODY = RegisterBrokerBody(WRAPPER)
IDENTITY: dict[str, Any] = {
    "cluster_name": "c",
    "broker_name": "broker-a",
    "broker_addr": "10.0.0.1:10911",
    "broker_id": 0,
}


async def register(peer: Any, compressed: bool = False, body: bytes | None = None, **fields: Any) -> Any:
    data = BODY.encode(compressed) if body is None else body
    crc = fields.pop("crc", body_crc32(data))
    version = fields.pop("version", 407)
    values = {**IDENTITY, "ha_server_addr": "10.0.0.1:10912", **fields}
    header = RegisterBrokerHeader(compressed=compressed, body_crc32=crc, **values)
    return await peer.ask(C.REGISTER_BROKER, header, data, version=version)


async def route(peer: Any, topic: str = "T", **fields: Any) -> Any:
    strict = fields.pop("strict", None)
    header = RouteHeader(topic=topic, accept_standard_json_only=strict)
    return await peer.ask(C.GET_ROUTEINFO_BY_TOPIC, header, **fields)


async def topic_list(peer: Any, code: int, header: Any = None) -> list[str]:
    answer = await peer.ask(code, header)
    assert answer.code == 0
    return TopicList.from_bytes(answer.body).topic_list


async def test_the_lists_of_topics_and_brokers_are_encoded_once_until_they_change(
    server: NameServer, peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    def count(name: str) -> None:
        method = getattr(server.routes, name)
        monkeypatch.setattr(server.routes, name, lambda: (encoded.append(name), method())[1])

    async def lists() -> tuple[list[str], ClusterInfo]:
        info = [(await peer.ask(C.GET_BROKER_CLUSTER_INFO)).body for _ in range(3)]
        found = [await topic_list(peer, C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) for _ in range(3)]
        assert len(set(info)) == 1
        assert found[0] == found[1] == found[2]
        assert len(encoded) <= 2, "each once"
        encoded.clear()
        assert found[0] == server.routes.topics().topic_list
        assert ClusterInfo.from_bytes(info[0]) == server.routes.cluster_info()
        encoded.clear()
        return found[0], ClusterInfo.from_bytes(info[0])

    count("topics")
    count("cluster_info")
    assert await lists() == ([], ClusterInfo())
    await register(peer)
    topics, info = await lists()
    assert (topics, info.cluster_addr_table) == (["T", "U"], {"c": ["broker-a"]})
    await register(peer, broker_name="broker-b", broker_addr="10.0.0.2:1", cluster_name="d")
    assert list((await lists())[1].broker_addr_table) == ["broker-a", "broker-b"]
    await register(peer, broker_name="broker-b", broker_addr="10.0.0.2:1", cluster_name="e")
    assert list((await lists())[1].cluster_addr_table) == ["c", "e"]
    await peer.ask(C.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameserverHeader(topic="T"))
    assert (await lists())[0] == ["U"]
    await peer.ask(C.UNREGISTER_BROKER, BrokerHeader(**IDENTITY))
    await peer.ask(
        C.UNREGISTER_BROKER, BrokerHeader(**{**IDENTITY, "broker_name": "broker-b", "broker_addr": "10.0.0.2:1"})
    )
    assert await lists() == ([], ClusterInfo())


async def test_every_nameserver_code_of_the_table_has_a_handler(server: NameServer) -> None:
    assert set(server.requests.handlers) == {code for code, spec in REQUESTS.items() if spec.server == "nameserver"}


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_broker_has_a_route(peer: Any, compressed: bool) -> None:
    answer = await register(peer, compressed)
    assert (answer.code, answer.ext, answer.body) == (0, {}, b"")
    answer = await route(peer)
    assert answer.code == 0
    data = TopicRouteData.from_bytes(answer.body)
    assert data.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert data.queue_datas[0].read_queue_nums == 4


async def test_compressed_bodies_are_detected_without_a_flag(peer: Any) -> None:
    # as a 5.3.3 broker with compressedRegister=true sends it
    assert (await register(peer, body=BODY.encode(compressed=True))).code == 0
    assert (await route(peer)).code == 0


async def test_a_slave_gets_its_masters_address(peer: Any) -> None:
    await register(peer)
    answer = await register(peer, broker_id=1, broker_addr="10.0.0.2:10911")
    assert answer.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


async def test_a_body_with_the_wrong_checksum_is_refused(peer: Any) -> None:
    answer = await register(peer, crc=1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert (await register(peer, crc=0)).code == 0


async def test_a_registration_without_topics_is_accepted(peer: Any) -> None:
    assert (await register(peer, body=b"")).code == 0
    info = ClusterInfo.from_bytes((await peer.ask(C.GET_BROKER_CLUSTER_INFO)).body)
    assert info.cluster_addr_table == {"c": ["broker-a"]}


async def test_a_registration_of_a_broker_before_3_0_11_has_bare_topics(peer: Any) -> None:
    assert (await register(peer, body=WRAPPER.to_bytes(), version=36)).code == 0
    assert (await route(peer)).code == 0


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_broken_registration_is_refused(peer: Any, compressed: bool) -> None:
    answer = await register(peer, compressed, body=b"{nonsense")
    assert answer.code == 1
    assert "RegisterBrokerBody" in answer.remark
    assert await topic_list(peer, C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []


async def test_a_missing_or_wrong_header_field_is_named(peer: Any) -> None:
    answer = await peer.ask(C.GET_ROUTEINFO_BY_TOPIC)
    assert answer.code == 1
    assert "topic" in answer.remark
    answer = await register(peer, broker_id="master")
    assert answer.code == 1
    assert "brokerId" in answer.remark


async def test_an_unregistered_broker_has_no_route(peer: Any) -> None:
    await register(peer)
    assert (await peer.ask(C.UNREGISTER_BROKER, BrokerHeader(**IDENTITY))).code == 0
    answer = await route(peer)
    assert (answer.code, answer.remark) == (17, "No topic route info in name server for the topic: T")


@pytest.mark.parametrize(
    ("version", "strict", "quoted"),
    [(317, None, False), (400, None, False), (401, None, True), (485, False, True), (317, True, True)],
)
async def test_routes_have_quoted_keys_for_clients_that_need_them(
    peer: Any, version: int, strict: bool | None, quoted: bool
) -> None:
    await register(peer)
    answer = await route(peer, version=version, strict=strict)
    assert (b'{"0":"10.0.0.1:10911"}' in answer.body) is quoted
    assert (b'{0:"10.0.0.1:10911"}' in answer.body) is not quoted
    assert b" " not in answer.body


@pytest.mark.parametrize("kind", [JSON_HEADER, BINARY_HEADER])
async def test_responses_have_the_header_form_of_their_request(peer: Any, kind: int) -> None:
    await register(peer)
    answer = await route(peer, kind=kind)
    assert (answer.kind, answer.code) == (kind, 0)


async def test_cluster_info_has_unquoted_numeric_keys(peer: Any) -> None:
    await register(peer)
    answer = await peer.ask(C.GET_BROKER_CLUSTER_INFO)
    assert answer.body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["broker-a"]}}'
    )


async def test_each_list_of_topics_is_served(peer: Any) -> None:
    wrapper = TopicConfigSerializeWrapper(
        {"unit": TopicConfig("unit", topic_sys_flag=1), "sub": TopicConfig("sub", topic_sys_flag=2)}
    )
    await register(peer, body=RegisterBrokerBody(wrapper).encode())
    assert await topic_list(peer, C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["unit", "sub"]
    assert await topic_list(peer, C.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster="c")) == ["unit", "sub"]
    assert await topic_list(peer, C.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster="x")) == []
    assert await topic_list(peer, C.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["c", "broker-a"]
    assert await topic_list(peer, C.GET_UNIT_TOPIC_LIST) == ["unit"]
    assert await topic_list(peer, C.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["sub"]
    assert await topic_list(peer, C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]


async def test_a_topic_is_deleted(peer: Any) -> None:
    await register(peer)
    header = DeleteTopicInNameserverHeader(topic="T", cluster_name="other")
    await peer.ask(C.DELETE_TOPIC_IN_NAMESRV, header)
    assert (await route(peer)).code == 0
    await peer.ask(C.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameserverHeader(topic="T"))
    assert (await route(peer)).code == 17


async def test_write_permission_is_revoked_and_granted(peer: Any) -> None:
    await register(peer)
    header = BrokerNameHeader(broker_name="broker-a")
    assert (await peer.ask(C.WIPE_WRITE_PERM_OF_BROKER, header)).ext == {"wipeTopicCount": "2"}
    assert TopicRouteData.from_bytes((await route(peer)).body).queue_datas[0].perm == 4
    assert (await peer.ask(C.ADD_WRITE_PERM_OF_BROKER, header)).ext == {"addTopicCount": "2"}
    assert TopicRouteData.from_bytes((await route(peer)).body).queue_datas[0].perm == 6


async def test_a_data_version_query_returns_whether_to_register(peer: Any) -> None:
    async def query(version: DataVersion) -> Any:
        return await peer.ask(C.QUERY_DATA_VERSION, BrokerHeader(**IDENTITY), version.to_bytes())

    answer = await query(DataVersion(1, 7))
    assert (answer.code, answer.ext, answer.body) == (0, {"changed": "true"}, b"")
    await register(peer)
    answer = await query(DataVersion(1, 7))
    assert answer.ext == {"changed": "false"}
    assert DataVersion.from_bytes(answer.body) == DataVersion(1, 7)
    assert (await query(DataVersion(2, 7))).ext == {"changed": "true"}


async def test_requests_of_5x_brokers_are_served(peer: Any) -> None:
    await register(peer, heartbeat_timeout_millis=1000, enable_acting_master=False)
    heartbeat = BrokerHeartbeatHeader(cluster_name="c", broker_name="broker-a", broker_addr=IDENTITY["broker_addr"])
    assert (await peer.ask(C.BROKER_HEARTBEAT, heartbeat)).code == 0
    header = BrokerGroupHeader(cluster_name="c", broker_name="broker-a")
    answer = await peer.ask(C.GET_BROKER_MEMBER_GROUP, header)
    group = BrokerMemberGroupBody.from_bytes(answer.body).broker_member_group
    assert group is not None
    assert group.broker_addrs == {0: "10.0.0.1:10911"}


async def test_the_kv_config_is_read_and_written(peer: Any) -> None:
    key = KVConfigHeader(namespace="n", key="k")
    answer = await peer.ask(C.GET_KV_CONFIG, key)
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: n Key: k")
    answer = await peer.ask(C.GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace="n"))
    assert (answer.code, answer.remark) == (22, "No config item, Namespace: n")
    assert (await peer.ask(C.PUT_KV_CONFIG, PutKVConfigHeader(namespace="n", key="k", value="v"))).code == 0
    assert (await peer.ask(C.GET_KV_CONFIG, key)).ext == {"value": "v"}
    answer = await peer.ask(C.GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace="n"))
    assert KVTable.from_bytes(answer.body).table == {"k": "v"}
    assert (await peer.ask(C.DELETE_KV_CONFIG, key)).code == 0
    assert (await peer.ask(C.GET_KV_CONFIG, key)).code == 22


class TestWithOrderedTopics:
    @pytest.fixture
    def config(self) -> NameServerConfig:
        return NameServerConfig(switches=Switches(order_message_enable=True))

    async def test_a_route_has_the_order_configuration_and_brokers_get_all_of_them(self, peer: Any) -> None:
        header = PutKVConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        await peer.ask(C.PUT_KV_CONFIG, header)
        answer = await register(peer)
        assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}
        assert TopicRouteData.from_bytes((await route(peer)).body).order_topic_conf == "broker-a:4"
        assert TopicRouteData.from_bytes((await route(peer, "U")).body).order_topic_conf is None


@pytest.mark.parametrize("code", [0, 10, 320, 9999, -1, 2**31 - 1])
async def test_an_unknown_code_gets_response_code_3(peer: Any, code: int) -> None:
    answer = await peer.ask(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


async def test_an_internal_error_gets_a_response_and_the_nameserver_continues(
    peer: Any, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(topic: str) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.routes, "route", broken)
    answer = await route(peer)
    assert (answer.code, answer.remark) == (1, "internal error: ZeroDivisionError")
    monkeypatch.undo()
    assert (await route(peer)).code == 17


async def test_nameserver_settings_have_rocketmqs_names(peer: Any, server: NameServer) -> None:
    found = read_properties((await peer.ask(C.GET_NAMESRV_CONFIG)).body)
    assert found["listenPort"] == str(server.config.port)
    assert found["orderMessageEnable"] == "false"


async def test_order_in_routes_can_be_enabled_and_disabled(peer: Any) -> None:
    await register(peer)
    header = PutKVConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    assert (await peer.ask(C.PUT_KV_CONFIG, header)).code == 0
    for value, expected in ((b"true", True), (b"false", False)):
        assert (await peer.ask(C.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=" + value)).code == 0
        assert (b"orderTopicConf" in (await route(peer)).body) is expected


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"kvConfigPath=/etc/passwd", 16, "Can not update config path"),
        (b"configStorePath=/etc/passwd\norderMessageEnable=true", 16, "Can not update config path"),
        (b"rocketmqHome=/tmp", 1, "cannot be changed; these can: orderMessageEnable"),
        (b"orderMessageEnable=true\nlistenPort=1", 1, "'listenPort' cannot be changed"),
        (b"orderMessageEnable=maybe", 1, "allowed: true or false"),
        (b"a=\\u1", 1, "string2Properties error"),
    ],
)
async def test_no_other_setting_may_be_changed(peer: Any, body: bytes, code: int, said: str) -> None:
    answer = await peer.ask(C.UPDATE_NAMESRV_CONFIG, None, body)
    assert (answer.code, said in answer.remark) == (code, True)
    assert read_properties((await peer.ask(C.GET_NAMESRV_CONFIG)).body)["orderMessageEnable"] == "false"


# ---- logs of refusals


def refusals(logs: Any) -> list[tuple[str, str, int]]:
    """The levels, peers and request codes that were logged."""
    return [(one["log_level"], one["peer"], one["code"]) for one in logs if one["event"] == "request_refused"]


async def test_a_refused_query_is_logged_for_debugging_without_most_of_its_text(peer: Any) -> None:
    topic = "x" * 1_000_000
    with capture_logs() as logs:
        answer = await route(peer, topic)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark.endswith(topic), "as RocketMQ's nameserver does"
    assert refusals(logs) == [("debug", "memory", C.GET_ROUTEINFO_BY_TOPIC)]
    assert len(str(logs)) < 1000


async def test_refused_changes_are_logged_once_an_hour_for_each_host_and_code(
    server: NameServer, mock_clock: trio.testing.MockClock
) -> None:
    async def change(peer: str, code: int = C.REGISTER_BROKER, may_change: bool = False) -> None:
        answer = await server.requests.answer(Command(code), SimpleNamespace(peer=peer, may_change=may_change))
        assert answer.code == (ResponseCode.SYSTEM_ERROR if may_change else ResponseCode.NO_PERMISSION)

    with capture_logs() as logs:
        for peer in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "[fd00::1]:1", "[fd00::2]:1"):
            await change(peer)
        assert refusals(logs) == [("info", peer, 103) for peer in ("10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1")]
        logs.clear()
        await change("10.0.0.1:3", C.PUT_KV_CONFIG)
        await change("10.0.0.1:4", may_change=True)
        assert refusals(logs) == [("info", "10.0.0.1:3", 100)]
        logs.clear()
        mock_clock.jump(3600.0)
        await change("10.0.0.1:5", may_change=True)
        assert refusals(logs) == [("info", "10.0.0.1:5", 103)]


async def test_the_log_of_a_refused_change_has_the_beginning_of_its_remark(peer: Any) -> None:
    with capture_logs() as logs:
        answer = await peer.ask(C.UPDATE_NAMESRV_CONFIG, body=b"name=\\u" + b"x" * 1_000_000)
    assert answer.remark.startswith("string2Properties error")
    (refused,) = (one for one in logs if one["event"] == "request_refused")
    assert refused["remark"] == answer.remark[:300]

"""RocketMQ's nameservers, 4.9.7 and 5.3.3, and ours give the same responses to a script of raw requests.

Where RocketMQ's two differ, ours answers as the newer one; differences from both are listed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.routes import QueueData, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicQueueMapping
from gantrymq.remoting.codes import RequestCode as Code
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import cut_frames
from support.foreign import Java, start_nameserver
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OLDER, NEWER = 407, 485
"""Version numbers in requests: 4.9.7, 5.3.3."""
NEWER_CODES = {Code.GET_BROKER_MEMBER_GROUP, Code.BROKER_HEARTBEAT, Code.REGISTER_TOPIC_IN_NAMESRV}
"""RocketMQ 4.9.7 does not answer a request that it does not know, not even that."""
UNLIKE = {
    "4.9.7": {
        "route in a zone": "has no zones",
        "route of a single topic": "takes topics with all others only",
        "route with a mapping": "knows no static topics",
        "topics that a slave brought": "slaves bring no topics",
        "route after older state": "the last one is returned, whatever its state",
        "all topics": "of the slave, and the single one",
        "topics of the cluster": "of the slave, and the single one",
    },
    "5.3.3": {
        "member group": 'says "not set any response code" with code 0',
    },
}
"""Steps whose answers differ, and what RocketMQ does there."""


@attrs.frozen
class Step:
    """A request by name, and over which of the connections."""

    name: str
    command: Command
    link: int = 0


def register(name: str, number: int, *topics: str, link: int = 0, **more: Any) -> Step:
    """A registration; ``more``: counter, state, zone, flag, mappings, and header fields by their Java names."""
    counter, state, flag = more.pop("counter", 1), more.pop("state", None), more.pop("flag", 0)
    zone, mappings, label = more.pop("zone", None), more.pop("mappings", None), more.pop("label", "registered")
    rows = {topic: TopicConfig(topic, 4, 8, topic_sys_flag=flag) for topic in topics}
    wrapper = TopicConfigSerializeWrapper(rows, DataVersion(counter, 7, state), mappings)
    host = f"10.0.{'abcdefgh'.index(name[-1])}.{number}"
    ext = {
        "brokerName": name, "brokerId": str(number), "clusterName": "C", "brokerAddr": f"{host}:10911",
        "haServerAddr": f"{host}:10912", "compressed": "false", "bodyCrc32": "0",
    }  # fmt: skip
    ext |= {key: str(value) for key, value in more.items()}
    if zone:
        ext["__ZONE_NAME"] = zone
    body = RegisterBrokerBody(wrapper).encode()
    return Step(f"{label} {name} {number}", Command(Code.REGISTER_BROKER, ext, body, version=NEWER), link)


def ask(name: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> Step:
    """Any other request."""
    return Step(name, Command(code, ext, body, version=more.pop("version", NEWER)), **more)


def route(name: str, topic: str, version: int = NEWER, **ext: str) -> Step:
    """Where a topic is."""
    return ask(name, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext}, version=version)


def broker(name: str, number: int) -> dict[str, str]:
    """The registration fields of a broker."""
    host = f"10.0.{'abcdefgh'.index(name[-1])}.{number}"
    return {"brokerName": name, "brokerId": str(number), "clusterName": "C", "brokerAddr": f"{host}:10911"}


KEY = {"namespace": "N", "key": "k"}
SCRIPT = [
    route("no route", "T"),
    register("broker-a", 0, "T", "U"),
    register("broker-a", 1, "T", "U", "S"),
    register("broker-b", 0, "T", "More"),
    route("route", "T"),
    route("route for an old client", "T", OLDER),
    route("route in strict JSON", "T", OLDER, acceptStandardJsonOnly="true"),
    ask("version that is known", Code.QUERY_DATA_VERSION, broker("broker-a", 0), DataVersion(1, 7).to_bytes()),
    ask("version that is another", Code.QUERY_DATA_VERSION, broker("broker-a", 0), DataVersion(2, 7).to_bytes()),
    ask("version of a stranger", Code.QUERY_DATA_VERSION, broker("broker-h", 0), DataVersion(2, 7).to_bytes()),
    ask("cluster", Code.GET_BROKER_CLUSTER_INFO),
    ask("member group", Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "broker-a"}),
    ask("heartbeat", Code.BROKER_HEARTBEAT, broker("broker-a", 0)),
    register("broker-c", 0, "Unit", "Unit2", flag=1, counter=3),
    register("broker-d", 0, "Sub", "Sub2", flag=2),
    register("broker-e", 0, "Both", "Both2", flag=3),
    ask("unit topics", Code.GET_UNIT_TOPIC_LIST),
    ask("unit sub topics", Code.GET_HAS_UNIT_SUB_TOPIC_LIST),
    ask("unit sub topics of no unit", Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    ask("wiped", Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    route("route without the permission", "T"),
    ask("added", Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    route("route with the permission", "T"),
    ask("wiped of a stranger", Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"}),
    register("broker-f", 1, "Slaves", "More", enableActingMaster="false"),
    route("topics that a slave brought", "Slaves"),
    register("broker-g", 0, "Zoned", "More", zone="north"),
    route("route in a zone", "Zoned", __ZONE_MODE="true", __ZONE_NAME="south"),
    ask("single topic", 217, {"topic": "Single"}, TopicRouteData([QueueData("broker-b", 3, 3, 6)]).to_bytes()),
    route("route of a single topic", "Single"),
    register(
        "broker-b", 0, "T", "Static", counter=2,
        mappings={"Static": TopicQueueMapping("Static", total_queues=1, bname="broker-b", curr_id_map={0: 0})},
    ),
    route("route with a mapping", "Static"),
    register("broker-h", 0, "State", "More", state=5, label="registered newer state"),
    register(
        "broker-h", 0, "State", "More", state=4, label="registered older state", brokerAddr="10.9.9.9:10911"
    ),
    route("route after older state", "State"),
    ask("all topics", Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    ask("topics of the cluster", Code.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}),
    ask("nothing in the KV config", Code.GET_KV_CONFIG, KEY),
    ask("put", Code.PUT_KV_CONFIG, {**KEY, "value": "v"}),
    ask("got", Code.GET_KV_CONFIG, KEY),
    ask("listed", Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}),
    ask("deleted", Code.DELETE_KV_CONFIG, KEY),
    ask("deleted again", Code.DELETE_KV_CONFIG, KEY),
    ask("listed nothing", Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "Never"}),
    ask("topic deleted in a cluster", Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "U", "clusterName": "C"}),
    route("route of a deleted topic", "U"),
    ask("unregistered", Code.UNREGISTER_BROKER, broker("broker-b", 0)),
]  # fmt: skip


@pytest.fixture(scope="module")
def nameservers(java: Java, java5: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Ours and both of RocketMQ's, without brokers."""
    home: Path = tmp_path_factory.mktemp("same")
    ours = f"127.0.0.1:{free_ports()[0]}"
    with ExitStack() as stack:
        child = stack.enter_context(gantrymq_child(("nameserver", "--listen", ours), home / "ours.err"))
        child.wait_line(lambda line: line.startswith("ready"))
        found = {"ours": ours}
        for each in (java, java5):
            server = start_nameserver(each, home / each.version)
            stack.callback(server.discard)
            found[each.version] = server.address
        yield found


@pytest.fixture(scope="module")
def answers(nameservers: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The responses of each nameserver by the name of the step."""
    return {name: play(address, name == "4.9.7") for name, address in nameservers.items()}


def play(address: str, older: bool) -> dict[str, Any]:
    """The script's responses; an ``older`` nameserver does not get the newer requests."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as link:
        asked = [step for step in SCRIPT if not older or step.command.code not in NEWER_CODES]
        found = {step.name: normalized(call(link, step.command)) for step in asked}
        # 5.3.3 forgets a broker a moment after it has said so
        gone = route("", "T").command
        wait_for(lambda: "10.0.1.0" not in str(normalized(call(link, gone))))
        found["route after that"] = normalized(call(link, gone))
    return found


def call(link: socket.socket, command: Command) -> Command:
    link.sendall(encode(command))
    data = b""
    while not (frames := cut_frames(data)[0]):
        received = link.recv(65536)
        assert received, "the nameserver closed the connection"
        data += received
    return decode(frames[0])


def normalized(answer: Command) -> dict[str, Any]:
    """The answer without what may differ: order, fields that say nothing, and the advice at the end of a remark."""
    body = plain(fastjson.loads(answer.body)) if answer.body else None
    remark = None if answer.remark is None else answer.remark.partition("\nSee ")[0]
    return {"code": answer.code, "remark": remark, "ext": answer.ext or {}, "body": body}


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or value == [] or value == {}


def plain(value: Any) -> Any:
    """The value without order and without what says nothing."""
    if isinstance(value, dict):
        kept = {str(key): plain(item) for key, item in value.items() if not _says_nothing(item)}
        kept.pop("stateVersion", None)
        kept.pop("topicSynFlag", None)  # up to 4.8.0, said beside the other for old clients
        return kept
    return sorted(map(plain, value), key=str) if isinstance(value, list) else value


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_both_nameservers_answer_each_step_the_same_except_the_listed_ones(
    answers: dict[str, dict[str, Any]], version: str
) -> None:
    ours = answers["ours"]
    unlike = {name: (ours[name], theirs) for name, theirs in answers[version].items() if ours[name] != theirs}
    assert {name: pair for name, pair in unlike.items() if name not in UNLIKE[version]} == {}
    assert UNLIKE[version].keys() == unlike.keys(), "what is listed differs"


def test_a_first_registration_with_one_topic_is_accepted(nameservers: dict[str, str]) -> None:
    """5.3.3 refuses it when it comes for the first time: one topic is what comes later. 4.9.7 takes it, as we do."""
    codes = {}
    for name, address in nameservers.items():
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as link:
            codes[name] = call(link, register("alone-a", 0, "One").command).code
    assert codes == {"ours": 0, "4.9.7": 0, "5.3.3": 1}

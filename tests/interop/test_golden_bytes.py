"""Bytes of RocketMQ's own jars, compared with ours.

``tests/golden/*.json`` holds what to encode (``order``) and the bytes that each release made of it (``hex``).
The tests without a marker need no Java. Those with one run the jars again, so that the files cannot get out of date;
``GANTRYMQ_GOLDEN_WRITE=1`` makes them write the files instead.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log import record as records
from gantrymq.plugins.produce.validate import split_batch
from gantrymq.remoting import fastjson
from gantrymq.remoting.address import encode_host
from gantrymq.remoting.bodies.clients import ConsumerList, HeartbeatData
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion, KVTable
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper, TopicList
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import decode, encode
from gantrymq.remoting.frame import cut_frames
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.send import read_send_header
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.remoting.properties import decode_properties, encode_properties, java_hash
from support.clients import ForeignClient
from support.content import content
from support.foreign import Java, start_broker
from support.processes import wait_for
from support.stores import expected_queues, log_records, read_records, written_queues

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = ("frames", "bodies", "records")
WRITE = os.environ.get("GANTRYMQ_GOLDEN_WRITE") == "1"


class Entry(msgspec.Struct):
    name: str
    order: dict[str, Any]
    hex: dict[str, str]


class StoredFiles(msgspec.Struct):
    """A log from its start, and the consume queue of each ``topic/queue id``, in hex."""

    log: str
    queues: dict[str, str]


def load(file: str) -> list[Entry]:
    return msgspec.json.decode((GOLDEN / f"{file}.json").read_bytes(), type=list[Entry])


def cases(file: str, *kinds: str) -> list[Any]:
    """Every order of these kinds with the bytes of each release."""
    return [
        pytest.param(entry.order, bytes.fromhex(text), id=f"{entry.name}-{version}")
        for entry in load(file)
        for version, text in entry.hex.items()
        if entry.order["what"] in kinds
    ]


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("version", ["java", "java5"])
def test_the_jars_produce_the_recorded_bytes(
    request: pytest.FixtureRequest, homes: Callable[[str], Path], version: str, file: str
):
    java: Java = request.getfixturevalue(version)
    entries = load(file)
    with java.program(homes("golden"), "golden") as child:
        for entry in entries:
            child.say(msgspec.json.encode(entry.order).decode())
        made = [str(child.wait_event("golden")["hex"]) for _ in entries]
    if WRITE:
        for entry, text in zip(entries, made, strict=True):
            entry.hex[java.version] = text
        (GOLDEN / f"{file}.json").write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
    assert {entry.name: entry.hex[java.version] for entry in entries} == dict(
        zip([entry.name for entry in entries], made, strict=True)
    )


@pytest.mark.interop
@pytest.mark.slow
def test_the_java_broker_still_stores_the_records_that_we_store(
    java: Java, own_nameserver: str, java4_client: ForeignClient, homes: Callable[[str], Path]
):
    home = homes("golden-store")
    broker = start_broker(java, home, own_nameserver, name=home.name)
    try:
        java4_client.produce(own_nameserver, "GoldenTopic", 6, seed=51, modes="sync,batch")
        wait_for(lambda: sum(map(len, written_queues(home / "store").values())) == 12 * ENTRY.size)
    finally:
        broker.discard()
    records_of_log = list(log_records(home / "store"))
    queues = written_queues(home / "store")
    assert len(records_of_log) == 12
    assert expected_queues(iter(records_of_log)) == queues
    if WRITE:
        stored = StoredFiles(b"".join(raw for _, raw in records_of_log).hex(), {q: v.hex() for q, v in queues.items()})
        (GOLDEN / "store.json").write_bytes(msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")


@pytest.mark.twins
def test_recorded_records_of_the_java_broker_equal_ours():
    golden = msgspec.json.decode((GOLDEN / "store.json").read_bytes(), type=StoredFiles)
    stored = list(read_records(bytes.fromhex(golden.log)))
    assert expected_queues(iter(stored)) == {name: bytes.fromhex(text) for name, text in golden.queues.items()}
    found = {int(properties["index"]): (properties, record) for properties, record in map(_properties, stored)}
    assert sorted(found) == list(range(12))
    for index, (properties, record) in found.items():
        wanted = content(51, index)
        body = zlib.decompress(record.body) if record.sys_flag & 1 else record.body
        assert body == wanted.body
        assert wanted.all_properties.items() <= properties.items()
    assert {record.sys_flag & 1 for _, record in found.values()} == {0, 1}


def _properties(pair: tuple[records.Record, bytes]) -> tuple[dict[str, str], records.Record]:
    return decode_properties(pair[0].properties.decode()), pair[0]


@pytest.mark.parametrize(("order", "golden"), cases("frames", "frame"))
def test_frames_are_decoded_and_encoded_as_by_java(order: dict[str, Any], golden: bytes):
    (frame,), used = cut_frames(golden)
    assert used == len(golden)
    command = decode(frame)
    assert (command.code, command.opaque, command.version) == (order["code"], order["opaque"], order["version"])
    assert (command.remark, command.body.hex()) == (order.get("remark"), order.get("body", ""))
    assert (command.is_response, command.is_oneway) == (order.get("response", False), order.get("oneway", False))
    assert command.language == "JAVA"
    assert encode(command) == golden


@pytest.mark.parametrize(("order", "golden"), cases("frames", "frame"))
def test_typed_headers_have_the_fields_of_java(order: dict[str, Any], golden: bytes):
    (frame,), _ = cut_frames(golden)
    command = decode(frame)
    if "fields" not in order:
        assert not command.ext
        return
    wanted = {name: _text(value) for name, value in order["fields"].items()}
    if order.get("response"):
        kind = next(
            spec.response
            for spec in REQUESTS.values()
            if spec.response is not None
            and set(wanted) <= {field.encode_name for field in msgspec.structs.fields(spec.response)}
        )
        header: Any = read_header(kind, command.ext)
    elif order["code"] == RequestCode.SEND_MESSAGE:
        assert read_send_header(order["code"], command.ext) == read_send_header(
            RequestCode.SEND_MESSAGE_V2, dict(zip("abcdefghijklm", wanted.values(), strict=True))
        )
        return
    else:
        spec = REQUESTS[RequestCode(order["code"])]
        assert spec.header is not None
        header = read_header(spec.header, command.ext)
    got = header.to_ext()
    assert wanted.items() <= got.items()
    # what 5.3.3 adds by itself (committed, force) is nothing that we read
    added = {name for name in command.ext or {} if name not in wanted}
    assert all((command.ext or {})[name] in ("true", "false") for name in added)
    assert {name: got[name] for name in got if name in (command.ext or {})} == {
        name: value for name, value in (command.ext or {}).items() if name not in added or name in got
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


BODIES = {
    "heartbeat.HeartbeatData": HeartbeatData,
    "header.GetConsumerListByGroupResponseBody": ConsumerList,
    "route.TopicRouteData": TopicRouteData,
    "body.ClusterInfo": ClusterInfo,
    "body.TopicList": TopicList,
    "body.KVTable": KVTable,
    "body.TopicConfigSerializeWrapper": TopicConfigSerializeWrapper,
    "body.SubscriptionGroupWrapper": SubscriptionGroupWrapper,
    "body.ConsumerOffsetSerializeWrapper": ConsumerOffsetSerializeWrapper,
}


@pytest.mark.parametrize(("order", "golden"), cases("bodies", "body"))
def test_bodies_of_java_are_decoded(order: dict[str, Any], golden: bytes):
    kind = BODIES[order["type"]]
    wanted = fastjson.loads(kind.from_value(order["fields"]).to_bytes())
    assert _within(wanted, fastjson.loads(kind.from_bytes(golden).to_bytes()))


def _within(wanted: Any, got: Any) -> bool:
    """Whether ``got`` says what is ``wanted``; 5.3.3 adds keys of its own."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return all(name in got and _within(value, got[name]) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(_within, wanted, got))
    return bool(wanted == got)


@pytest.mark.parametrize(
    ("order", "golden"), [case for case in cases("bodies", "body") if str(case.id).endswith("4.9.7")]
)
def test_bodies_are_encoded_as_by_java(order: dict[str, Any], golden: bytes):
    ours = BODIES[order["type"]].from_bytes(golden).to_bytes()
    # The one key that we add on purpose: up to 4.8.0, and in the Go client, topicSysFlag has this other name.
    assert ours.replace(b'"topicSynFlag":0,', b"") == golden


@pytest.mark.parametrize(("order", "golden"), cases("bodies", "register-body"))
def test_registrations_are_decoded_and_encoded_as_by_java(order: dict[str, Any], golden: bytes):
    body = RegisterBrokerBody.decode(golden, order["compressed"])
    topic = body.topic_config_serialize_wrapper.topic_config_table["TopicTest"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (8, 8, 6)
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(3, 1700000000123)
    ours = body.encode(order["compressed"])
    if order["compressed"]:
        ours, golden = zlib.decompress(ours), zlib.decompress(golden)
    assert (
        RegisterBrokerBody.decode(ours if not order["compressed"] else zlib.compress(ours), order["compressed"]) == body
    )
    if b"stateVersion" not in golden and b"mappingDataVersion" not in golden and b"topicQueueMapping" not in golden:
        assert golden.startswith(ours) if order["compressed"] else golden == ours


@pytest.mark.twins
@pytest.mark.parametrize(("order", "golden"), cases("records", "record"))
def test_records_are_decoded_and_encoded_as_by_java(order: dict[str, Any], golden: bytes):
    record, end = records.decode(golden)
    assert end == len(golden)
    wanted = order["fields"]
    got = {
        "topic": record.topic, "flag": record.flag, "body": record.body.hex(), "queueId": record.queue_id,
        "properties": decode_properties(record.properties.decode()), "queueOffset": record.queue_offset,
        "physicalOffset": record.offset, "sysFlag": record.sys_flag, "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp, "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_offset,
    }  # fmt: skip
    assert got == {name: wanted[name] for name in got}
    for name, host in (("bornHost", record.born_host), ("storeHost", record.store_host)):
        address, _, port = wanted[name].rpartition(":")
        assert host == encode_host(address, int(port))
    assert records.encode(record) == golden


@pytest.mark.twins
@pytest.mark.parametrize(("order", "golden"), cases("records", "batch"))
def test_batches_encoded_by_java_are_split(order: dict[str, Any], golden: bytes):
    got = [
        {"topic": "TopicTest", "flag": flag, "body": body.hex(), "properties": decode_properties(properties.decode())}
        for flag, body, properties in split_batch(golden)
    ]
    assert got == order["messages"]
    for (_, _, properties), message in zip(split_batch(golden), order["messages"], strict=True):
        assert properties.rstrip(b"\x02") == encode_properties(message["properties"]).encode()


@pytest.mark.twins
@pytest.mark.parametrize(("order", "golden"), cases("records", "hash"))
def test_the_tag_code_is_java_s_string_hash(order: dict[str, Any], golden: bytes):
    assert java_hash(order["text"]).to_bytes(4, "big", signed=True) == golden

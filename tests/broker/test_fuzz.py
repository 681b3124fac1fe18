"""Any bytes are answered or close their own connection, and affect no other client.

Each example sends something hostile on a connection of its own; then an honest connection that was there all the time
must still be served, and no processor may have raised an unexpected error (``conftest.logged``).
"""

from __future__ import annotations

import itertools
import os
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.headers.send import SEND_LETTERS
from gantrymq.remoting.headers.table import REQUESTS
from gantrymq.testing.harness import Cluster
from support.rawpeer import RawPeer
from support.slices import is_whole

SHARE = min(int(os.environ.get("GANTRYMQ_FUZZ_INPUTS", "10000" if is_whole() else "4000")) / 10_000, 1)
"""The share of the examples: ``make soak`` and ``make fuzz`` have all, and sanitizers are ten times as slow."""
EXAMPLES = settings(
    max_examples=max(round(150 * SHARE), 30),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}


def field_names(code: RequestCode) -> list[str]:
    """The header fields of a request as they travel."""
    header = REQUESTS[code].header
    if header is None:
        return []
    if code == RequestCode.SEND_MESSAGE:
        return list(SEND_LETTERS)
    return list(header.__struct_encode_fields__)


GOOD = {
    "topic": "Fuzz", "b": "Fuzz", "consumerGroup": "fuzzers", "producerGroup": "fuzzers", "a": "fuzzers",
    "defaultTopic": "TBW102", "c": "TBW102", "topicFilterType": "SINGLE_TAG", "subscription": "*",
    "expressionType": "TAG", "i": "TAGS\x01a\x02", "properties": "TAGS\x01a\x02", "groupName": "fuzzers",
    "clientID": "fuzzer", "cluster": "DefaultCluster", "clusterName": "DefaultCluster", "brokerName": "broker-f",
    "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2", "namespace": "n", "key": "k", "value": "v",
    "suspendTimeoutMillis": "0", "maxMsgNums": "32",
}  # fmt: skip
"""Values with which a request goes far; every other field is a number that may be 1."""

NASTY = st.one_of(
    st.sampled_from(
        [
            "", " ", "-1", "0", "1", "3", "9", "1e3", "-0", "NaN", "true", "null", "TBW102", "../x", "a/b", ".", "..",
            "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 60_000, "a\x00b", "%RETRY%fuzzers", "%RETRY%", "%DLQ%x",
            "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "CID_RMQ_SYS_x", "2147483647", "2147483648", "-2147483649",
            "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + "0" * 4000, "1" + "0" * 5000,
            "\U0001f600" * 40, "DELAY\x013", "TRAN_MSG\x01true", "\x01\x02\x01\x02", "\x02\x02", "WAIT\x01false",
            "CLUSTER\x01", "a||b", "||", "  ||  ", "SQL92", "'", "*",
        ]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=40),
)  # fmt: skip


def subscription(topic: str = "Fuzz") -> SubscriptionData:
    return SubscriptionData.for_tags(topic, "a || b", 1)


def inner(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties


BODIES: dict[int, bytes] = {
    RequestCode.HEART_BEAT: HeartbeatData(
        "fuzzer",
        [ProducerData("fuzzers")],
        [ConsumerData("fuzzers", subscription_data_set=[subscription(), subscription("%RETRY%fuzzers")])],
    ).to_bytes(),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig("fuzzers").to_bytes(),
    RequestCode.SEND_BATCH_MESSAGE: inner(b"one", b"TAGS\x01a") + inner(b"two", b""),
    RequestCode.REGISTER_BROKER: RegisterBrokerBody(
        TopicConfigSerializeWrapper({"Fuzz": TopicConfig("Fuzz", 4, 4)}, DataVersion(1, 1)), ["127.0.0.1:3"]
    ).encode(),
    RequestCode.QUERY_DATA_VERSION: DataVersion(1, 1).to_bytes(),
}

JSON_PIECES = st.sampled_from(
    [
        b"null", b"[", b"{", b"}", b'"', b"0", b"-1", b"1e999", b"9" * 30, b"true", b"NaN", b'{"$ref":"$"}',
        b'{"$ref":".."}', b"[" * 200, b'{"a":' * 200, b"\xff", b"\xef\xbb\xbf", b"'x'", b"\\ud800", b'"\\ud800"', b",,",
        b'""', b'"../x"', b'"x\\u0000"', b"[[]]", b"{{}:1}", b":",
    ]
)  # fmt: skip


ANYTHING = st.binary(max_size=8)


@st.composite
def mutated(draw: st.DrawFn, source: bytes, pieces: st.SearchStrategy[bytes] = ANYTHING) -> bytes:
    """``source`` with a few places overwritten, cut out, or filled in."""
    data = bytearray(source)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        data[start:end] = draw(pieces)
    return bytes(data)


@st.composite
def hostile_requests(draw: st.DrawFn, code: RequestCode) -> Command:
    """A request of this code some fields of which are missing, of another type, huge or negative; any body."""
    ext = {}
    for name in field_names(code):
        kind = draw(st.integers(0, 7))
        if kind == 0:
            continue
        ext[name] = draw(NASTY) if kind < 3 else GOOD.get(name, "1")
    if code in PULLS:
        ext["suspendTimeoutMillis"] = "0"
    good = BODIES.get(code, b"")
    bodies = st.one_of(st.just(good), mutated(good, st.one_of(JSON_PIECES, ANYTHING)), st.binary(max_size=200))
    # what the other kind of header cannot hold is not sent
    kind = draw(st.sampled_from([0, 1]))
    command = Command(int(code), ext, draw(bodies), version=draw(st.sampled_from([0, 36, 317, 407])), kind=kind)
    if sum(len(name) + len(value.encode()) + 12 for name, value in ext.items()) > 60_000:
        command.ext = {name: value[:1000] for name, value in ext.items()}
    return command


UNANSWERED = {RequestCode.END_TRANSACTION}
"""Requests without a response, as in RocketMQ: an end that neither commits nor rolls back."""
BROKER_CODES = sorted(code for code, row in REQUESTS.items() if row.server != "nameserver" and code not in UNANSWERED)
NAMESERVER_CODES = sorted(code for code, row in REQUESTS.items() if row.server == "nameserver")


@pytest.mark.parametrize("code", BROKER_CODES, ids=lambda code: RequestCode(code).name.lower())
def test_the_broker_answers_requests_with_any_header_and_body(
    code: RequestCode, cluster: Cluster, bystander: RawPeer
) -> None:
    answers_each_request(code, cluster.address, bystander)


@pytest.mark.parametrize("code", NAMESERVER_CODES, ids=lambda code: RequestCode(code).name.lower())
def test_the_nameserver_answers_requests_with_any_header_and_body(
    code: RequestCode, cluster: Cluster, bystander: RawPeer
) -> None:
    answers_each_request(code, cluster.nameserver, bystander)


def answers_each_request(code: RequestCode, address: str, bystander: RawPeer) -> None:
    @settings(EXAMPLES, max_examples=max(round(60 * SHARE), 20))
    @given(hostile_requests(code))
    def run(command: Command) -> None:
        # A connection for each: the nameserver closes one whose broker lives as shortly as it asked for.
        with RawPeer(address) as peer:
            answer = peer.ask(command)
        assert answer is not None, "a whole frame that can be read is answered"
        assert answer.kind == command.kind

    run()
    assert bystander.is_served()


def test_a_frame_with_any_bytes_changed_is_answered_or_closes_its_connection(
    target: str, bystander: RawPeer, recorded: list[bytes]
) -> None:
    @settings(EXAMPLES, max_examples=max(round(400 * SHARE), 100))
    @given(st.sampled_from(recorded).flatmap(mutated))
    def run(data: bytes) -> None:
        with RawPeer(target) as peer:
            peer.send_bytes(data)
            peer.sock.shutdown(1)
            while peer.receive():
                pass
        assert bystander.is_served()

    run()


def test_any_bytes_get_a_response_or_close_their_connection(target: str, bystander: RawPeer) -> None:
    small_lengths = st.integers(0, 40).map(lambda length: struct.pack(">i", length))

    @EXAMPLES
    @given(st.lists(st.one_of(st.binary(max_size=64), small_lengths), max_size=6).map(b"".join))
    def run(data: bytes) -> None:
        with RawPeer(target) as peer:
            peer.send_bytes(data)
            peer.sock.shutdown(1)
            while peer.receive():
                pass
        assert bystander.is_served()

    run()


def test_frames_cut_and_joined_anywhere_are_answered_in_their_order(target: str) -> None:
    frames = [encode(Command(9999, opaque=number, kind=number % 2)) for number in range(40)]
    stream = b"".join(frames)

    @settings(EXAMPLES, max_examples=30)
    @given(st.lists(st.integers(0, len(stream)), max_size=8))
    def run(cuts: list[int]) -> None:
        with RawPeer(target) as peer:
            for start, end in itertools.pairwise([0, *sorted(cuts), len(stream)]):
                peer.send_bytes(stream[start:end])
            got: list[int] = []
            while len(got) < len(frames):
                commands = peer.receive()
                assert commands
                got += [command.opaque for command in commands]
            assert got == list(range(len(frames)))

    run()


HEADERS: dict[str, bytes] = {
    "deep": b'{"code":9999,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "fields": msgspec.json.encode({"code": 9999, "extFields": {f"f{number}": "" for number in range(10_000)}}),
    "double keys": b'{"code":1,"code":9999,"extFields":{"a":"1","a":"2"}}',
    "not a number": b'{"code":NaN}',
    "lone surrogate": b'{"code":9999,"remark":"\\ud800"}',
    "lone surrogate in a field": b'{"code":11,"extFields":{"topic":"\\udfff"}}',
    "surrogates in utf-8": b'{"code":9999,"remark":"\xed\xa0\x80"}',
    "huge number": b'{"code":1' + b"0" * 4000 + b"}",
    "huger number": b'{"code":1' + b"0" * 50_000 + b"}",
    "huge opaque": b'{"code":9999,"opaque":1' + b"0" * 4000 + b"}",
    "huge flag": b'{"code":9999,"flag":1' + b"0" * 400 + b"}",
    "byte order mark": b'\xef\xbb\xbf{"code":9999}',
    "no code": b"{}",
    "no object": b"null",
    "nothing": b"",
    "null field": b'{"code":9999,"extFields":{"a":null}}',
    "long remark": b'{"code":9999,"remark":"' + b"r" * 65_000 + b'"}',
    "remark of 15 MiB": b'{"code":9999,"remark":"' + b"r" * (15 << 20) + b'"}',
}


@pytest.mark.parametrize("name", HEADERS)
def test_forged_headers_get_a_response_or_close_their_connection(name: str, target: str, bystander: RawPeer) -> None:
    header = HEADERS[name]
    with RawPeer(target) as peer:
        peer.send_bytes(struct.pack(">iI", 4 + len(header), len(header)) + header)
        commands = peer.receive()
        assert [command.code for command in commands] in ([], [3], [1])
        assert peer.closed or peer.is_served()


BAD_PREFIXES: dict[str, bytes] = {
    "negative": struct.pack(">i", -1),
    "zero": struct.pack(">i", 0),
    "three": struct.pack(">i", 3),
    "over 16 MiB": struct.pack(">i", 16 * 1024 * 1024 + 1),
    "2 GiB": struct.pack(">i", 2**31 - 1),
    "header longer than frame": struct.pack(">iI", 100, 97),
    "header of 16 MiB": struct.pack(">iI", 16 * 1024 * 1024 - 5, 0xFFFFFF),
    "unknown kind of header": struct.pack(">iI", 100, 2 << 24 | 20),
}


@pytest.mark.parametrize("name", BAD_PREFIXES)
def test_invalid_frame_lengths_close_their_connection_at_once(name: str, target: str, bystander: RawPeer) -> None:
    with RawPeer(target) as peer:
        peer.send_bytes(BAD_PREFIXES[name])
        assert peer.receive() == []


BINARY_FIXED = struct.pack(">hBhii", 9999, 12, 407, 7, 0)
BAD_BINARY: dict[str, bytes] = {
    "negative remark": BINARY_FIXED + struct.pack(">i", -1),
    "remark beyond the header": BINARY_FIXED + struct.pack(">i", 2**31 - 1) + b"x",
    "negative fields": BINARY_FIXED + struct.pack(">ii", 0, -5),
    "fields beyond the header": BINARY_FIXED + struct.pack(">ii", 0, 60) + b"ab",
    "negative key": BINARY_FIXED + struct.pack(">iih", 0, 2, -1),
    "key beyond the fields": BINARY_FIXED + struct.pack(">iih", 0, 4, 999) + b"ab",
    "negative value": BINARY_FIXED + struct.pack(">iih1si", 0, 7, 1, b"a", -9),
    "bytes left over": BINARY_FIXED + struct.pack(">ii", 0, 0) + b"more",
    "10,000 empty fields": BINARY_FIXED + struct.pack(">ii", 0, 60_000) + bytes(60_000),
    "cut": BINARY_FIXED[:5],
}


@pytest.mark.parametrize("name", BAD_BINARY)
def test_an_inconsistent_binary_header_closes_its_connection(name: str, target: str, bystander: RawPeer) -> None:
    header = BAD_BINARY[name]
    with RawPeer(target) as peer:
        peer.send_bytes(struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
        assert peer.receive() == []


def test_a_remark_with_invalid_utf_8_is_decoded_as_in_java(target: str) -> None:
    header = BINARY_FIXED + struct.pack(">i1si", 1, b"\xff", 0)
    with RawPeer(target) as peer:
        peer.send_bytes(struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
        (answer,) = peer.receive()
        assert (answer.code, answer.opaque) == (3, 7)
        assert peer.is_served()


@pytest.fixture(scope="module")
def recorded(cluster: Cluster) -> list[bytes]:
    """The frames of a real client's life: routes, topic, sends, heartbeat, pulls, offsets, farewell."""
    return record_client(cluster)


def record_client(cluster: Cluster) -> list[bytes]:
    import gantrymq.remoting.channel as channel
    import gantrymq.sync as sync

    frames: list[bytes] = []

    def recording(command: Command) -> bytes:
        frames.append(encode(command))
        return frames[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "encode", recording)
        with sync.connect(cluster.nameserver) as client, client.producer("recorded") as producer:
            client.admin.create_topic("Recorded", queues=1)
            producer.send("Recorded", b"body", keys=["key"], tags="tag")
            with client.consumer("Recorded", "recorded", start="first") as consumer:
                message: Any = next(iter(consumer))
                message.ack()
    assert len({frame[4:60] for frame in frames}) > 5
    return frames

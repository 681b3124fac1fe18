"""The typed bodies: wire names, bodies of foreign clients, and refused ones."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.remoting.bodies import registration
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.registration import RegisterBrokerBody, body_crc32
from gantrymq.remoting.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from gantrymq.remoting.bodies.tables import DataVersion, KVTable
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicList
from gantrymq.remoting.errors import RemoteFault

ROUTE = TopicRouteData(
    [QueueData("broker-a", 4, 4, 6)],
    [BrokerData("DefaultCluster", "broker-a", {0: "1.2.3.4:10911", 1: "1.2.3.5:10911"})],
)


def test_a_route_is_encoded_in_the_form_that_the_go_client_reads() -> None:
    assert ROUTE.to_bytes() == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"1.2.3.4:10911",1:"1.2.3.5:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSynFlag":0,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_a_route_in_strict_form_is_valid_json() -> None:
    assert json.loads(ROUTE.to_bytes(quoted_keys=True))["brokerDatas"][0]["brokerAddrs"]["0"] == "1.2.3.4:10911"
    assert TopicRouteData.from_bytes(ROUTE.to_bytes(quoted_keys=True)) == ROUTE
    assert TopicRouteData.from_bytes(ROUTE.to_bytes()) == ROUTE


def test_both_spellings_of_the_system_flag_are_read() -> None:
    assert QueueData.from_bytes(b'{"topicSynFlag":1}').topic_sys_flag == 1
    assert QueueData.from_bytes(b'{"topicSysFlag":2}').topic_sys_flag == 2


def test_a_heartbeat_of_the_java_client_is_decoded() -> None:
    data = (
        b'{"clientID":"10.0.0.1@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
        b'{"classFilterMode":false,"codeSet":[2653],"expressionType":"TAG","subString":"T1","subVersion":5,'
        b'"tagsSet":["T1"],"topic":"t"}],"unitMode":false}],"producerDataSet":[{"groupName":"p"}]}'
    )
    heartbeat = HeartbeatData.from_bytes(data)
    subscription = SubscriptionData.for_tags("t", "T1", 5)
    assert heartbeat == HeartbeatData(
        "10.0.0.1@1",
        [ProducerData("p")],
        [ConsumerData("g", consume_from_where="CONSUME_FROM_FIRST_OFFSET", subscription_data_set=[subscription])],
    )
    assert heartbeat.to_bytes() == data


def test_a_heartbeat_with_numbers_for_enums_and_texts_for_numbers_is_decoded() -> None:
    heartbeat = HeartbeatData.from_bytes(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":0,"messageModel":0,"consumeFromWhere":4,'
        b'"subscriptionDataSet":[{"topic":"t","codeSet":["7"],"tagsSet":null}]}],"producerDataSet":null}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type == "CONSUME_ACTIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set[0].code_set == {7}
    assert consumer.subscription_data_set[0].tags_set == set()


def test_a_shared_subscription_set_is_decoded_from_a_reference() -> None:
    heartbeat = HeartbeatData.from_bytes(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]},'
        b'{"groupName":"h","subscriptionDataSet":{"$ref":"$.consumerDataSet[0].subscriptionDataSet"}}]}'
    )
    assert [len(consumer.subscription_data_set) for consumer in heartbeat.consumer_data_set] == [1, 1]


def test_tag_subscriptions_are_built() -> None:
    assert SubscriptionData.for_tags("t").sub_string == "*"
    assert SubscriptionData.for_tags("t", "").sub_string == "*"
    both = SubscriptionData.for_tags("t", "A || B||")
    assert (both.sub_string, both.tags_set, both.code_set) == ("A || B||", {"A", "B"}, {65, 66})
    with pytest.raises(ValueError, match="no tag"):
        SubscriptionData.for_tags("t", "||")


def test_data_versions_compare_by_all_fields_and_step() -> None:
    version = DataVersion(7, 100)
    assert version.next(200) == DataVersion(8, 200)
    assert DataVersion.from_bytes(b'{"counter":7,"timestamp":100,"stateVersion":0}') == version
    assert DataVersion.from_bytes(b'{"counter":7,"timestamp":100,"stateVersion":1}') != version
    assert version.to_bytes() == b'{"counter":7,"timestamp":100}'
    assert DataVersion(1, 2, 3).to_bytes() == b'{"counter":1,"stateVersion":3,"timestamp":2}'


def test_message_queues_sort_and_serve_as_keys() -> None:
    queues = [MessageQueue("t", "b", 1), MessageQueue("t", "a", 2), MessageQueue("s", "c", 3)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]
    assert len({*queues, MessageQueue("t", "b", 1)}) == 3


def test_topics_are_encoded_in_text_form() -> None:
    topic = TopicConfig("T", 4, 8, 6)
    assert topic.to_text() == "T 4 8 6 SINGLE_TAG"
    assert TopicConfig.from_text("T 4 8 6 SINGLE_TAG") == topic
    assert TopicConfig.from_text('T 4 8 6 SINGLE_TAG {"message.type":"NORMAL"}') == topic


@pytest.mark.parametrize("text", ["", "T", "T 4 8 6", "T x 8 6 SINGLE_TAG", "T 4 99999999999 6 SINGLE_TAG"])
def test_unreadable_topic_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteFault, match="TopicConfig") as caught:
        TopicConfig.from_text(text)
    assert caught.value.code == 1


BODIES: list[Body] = [
    MessageQueue("t", "b", 3),
    TopicConfigSerializeWrapper({"T": TopicConfig("T", order=True)}, DataVersion(1, 2)),
    SubscriptionGroupWrapper({"g": SubscriptionGroupConfig("g", consume_broadcast_enable=False)}, DataVersion(1, 2)),
    ConsumerOffsetSerializeWrapper({"T@g": {0: 5, 3: 7}}, DataVersion(1, 2)),
    ConsumerOffsetSerializeWrapper({"T@g": {0: 5}}),
    HeartbeatData("c", [ProducerData("p")], [ConsumerData("g")], 5, True),
    ConsumerList(["a", "b"]),
    ROUTE,
    ClusterInfo({"b": BrokerData("c", "b", {0: "x:1"})}, {"c": ["b"]}),
    TopicList(["T"], "x:1"),
    TopicList([]),
    KVTable({"k": "v"}),
    BrokerMemberGroupBody(BrokerMemberGroup("c", "b", {0: "x:1"})),
    RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TopicConfig("T")}), ["f:1"]),
]
KINDS = list(dict.fromkeys(type(body) for body in BODIES))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_bodies_are_decoded_as_they_were_encoded(body: Body) -> None:
    assert type(body).from_bytes(body.to_bytes()) == body
    assert type(body).from_bytes(body.to_bytes(quoted_keys=True)) == body


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unknown_keys_are_ignored_and_missing_keys_have_defaults(kind: type[Body]) -> None:
    assert kind.from_bytes(b'{"unheardOf":{0:[1]}}') == kind()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("data", [b"", b"[]", b"7", b'"x"', b"{", b"\xff\xfe", b"[" * 5000, b"\0" * 10])
def test_an_invalid_body_is_refused_with_code_1(kind: type[Body], data: bytes) -> None:
    with pytest.raises(RemoteFault, match=kind.__name__) as caught:
        kind.from_bytes(data)
    assert caught.value.code == 1


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (TopicConfig, b'{"topicName":[5]}'),
        (TopicConfig, b'{"readQueueNums":1.5}'),
        (TopicConfig, b'{"readQueueNums":2147483648}'),
        (TopicConfig, b'{"readQueueNums":"many"}'),
        (HeartbeatData, b'{"consumerDataSet":""}'),
        (HeartbeatData, b'{"consumerDataSet":[{"consumeType":99}]}'),
        (TopicRouteData, b'{"brokerDatas":[{"brokerAddrs":{"x":"y"}}]}'),
        (ConsumerOffsetSerializeWrapper, b'{"offsetTable":{"T@g":[]}}'),
        (DataVersion, b'{"counter":9223372036854775808}'),
    ],
)
def test_a_field_of_the_wrong_type_is_named(kind: type[Body], data: bytes) -> None:
    with pytest.raises(RemoteFault, match=r"\$") as caught:
        kind.from_bytes(data)
    assert caught.value.code == 1


def test_defaults_equal_those_of_the_java_classes() -> None:
    assert json.loads(TopicConfig("T").to_bytes()) == {
        "order": False, "perm": 6, "readQueueNums": 16, "topicFilterType": "SINGLE_TAG", "topicName": "T",
        "topicSysFlag": 0, "writeQueueNums": 16,
    }  # fmt: skip
    assert json.loads(SubscriptionGroupConfig("g").to_bytes()) == {
        "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True, "consumeFromMinEnable": True,
        "groupName": "g", "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip


names = st.text("abcXYZ_-%09", min_size=1, max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
topics = st.builds(TopicConfig, names, int32, int32, int32, st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]))
registrations = st.builds(
    lambda rows, version, filters: RegisterBrokerBody(
        TopicConfigSerializeWrapper({topic.topic_name: topic for topic in rows}, version), filters
    ),
    st.lists(topics, max_size=8),
    st.builds(DataVersion, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    st.lists(st.text(max_size=10), max_size=3),
)


@given(registrations, st.booleans())
def test_a_registration_is_decoded_from_both_forms(body: RegisterBrokerBody, compressed: bool) -> None:
    assert RegisterBrokerBody.decode(body.encode(compressed), compressed) == body


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_the_compressed_form_equals_the_recorded_bytes() -> None:
    body = RegisterBrokerBody(TopicConfigSerializeWrapper({"T": TopicConfig("T", 4, 4)}, DataVersion(1, 2)))
    data = body.encode(compressed=True)
    assert data[:2] == b"\x78\xda"
    inflated = zlib.decompress(data)
    assert inflated == (
        sized(b'{"counter":1,"timestamp":2}') + struct.pack(">i", 1) + sized(b"T 4 4 6 SINGLE_TAG") + sized(b"[]")
    )
    # 5.x appends its mapping information
    longer = zlib.compress(inflated + struct.pack(">i", 0))
    assert RegisterBrokerBody.decode(longer, compressed=True) == body


WHOLE = sized(b"{}") + struct.pack(">i", 1) + sized(b"T 4 4 6 SINGLE_TAG") + sized(b"[]")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not zlib",
        zlib.compress(WHOLE)[:-5],
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 0x7FFFFFFF)),
        zlib.compress(sized(b"{}") + struct.pack(">i", -1)),
        zlib.compress(sized(b"{}") + struct.pack(">i", 0x7FFFFFFF)),
        zlib.compress(sized(b"[]") + struct.pack(">i", 0) + sized(b"[]")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"\xff") + sized(b"[]")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 0) + sized(b"{}")),
    ],
)
def test_a_broken_compressed_registration_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        RegisterBrokerBody.decode(data, compressed=True)
    assert caught.value.code == 1


@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_registration_is_refused(length: int) -> None:
    with pytest.raises(RemoteFault):
        RegisterBrokerBody.decode(zlib.compress(WHOLE[:length]), compressed=True)


def test_a_decompression_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_MAX_BYTES", 1000)
    with pytest.raises(RemoteFault, match="grows beyond"):
        RegisterBrokerBody.decode(zlib.compress(WHOLE + b"\0" * 2000), compressed=True)


def test_the_checksum_omits_its_highest_bit() -> None:
    assert body_crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert body_crc32(b"") == 0


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_heartbeat_or_raise_a_fault(data: bytes) -> None:
    results: list[Any] = []
    try:
        results.append(HeartbeatData.from_bytes(data))
    except RemoteFault as fault:
        results.append(fault.code)
    assert results[0] == 1 or isinstance(results[0], HeartbeatData)

"""JSON bodies in other spellings and types than the Java client's.

fastjson 1.2.69 as RocketMQ 4.9.7 has it, and 1.2.83 as 5.3.3 has it, gave each result.
"""

from __future__ import annotations

import msgspec
import pytest

from gantrymq.remoting.bodies.body import TOLERANT_BYTES_MAX, TOLERANT_VALUES_MAX, Body
from gantrymq.remoting.bodies.clients import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.fastjson_types import SCAN_MAX_BYTES

TAKEN: list[tuple[str, Body]] = [
    # names: without case, "_" and "-", all of them or some, and "is" before a boolean
    ('{"ClientID":"c","Producer_Data_Set":[{"GROUPNAME":"p"}]}', HeartbeatData("c", [ProducerData("p")])),
    ('{"clientID":"c","ProducerDataSet":[{"groupName":"p"}]}', HeartbeatData("c", [ProducerData("p")])),
    ('{"clientID":"c","producerDataSet":[{"group_name":"p"}]}', HeartbeatData("c", [ProducerData("p")])),
    ('{"clientID":"c","producerDataSet":[{"group-Name":"p"}]}', HeartbeatData("c", [ProducerData("p")])),
    ('{"clientId":"c","isWithoutSub":true}', HeartbeatData("c", without_sub=True)),
    ('{"groupName":"g","isUnitMode":true}', ConsumerData("g", unit_mode=True)),
    ('{"group":"g"}', ConsumerData()),
    # fastjson's dialect
    ("{'clientId':'c',producerDataSet:[{groupName:'p',},],}", HeartbeatData("c", [ProducerData("p")])),
    # numbers and booleans for text
    ('{"clientID":5,"producerDataSet":[{"groupName":7}]}', HeartbeatData("5", [ProducerData("7")])),
    ('{"topic":"T","subString":true}', SubscriptionData("T", "true")),
    ('{"topic":"T","tagsSet":[1,"b",false]}', SubscriptionData("T", tags_set={"1", "b", "false"})),
    ('{"topicName":5}', TopicConfig("5")),
    # text and booleans for numbers
    ('{"topic":"T","subVersion":"123"}', SubscriptionData("T", sub_version=123)),
    ('{"topic":"T","subVersion":"12,345"}', SubscriptionData("T", sub_version=12345)),
    ('{"topic":"T","queueId":true}', MessageQueue("T", "", 1)),
    ('{"topic":"T","queueId":1.0}', MessageQueue("T", "", 1)),
    ('{"topic":"T","queueId":null}', MessageQueue("T")),
    ('{"topic":"T","queueId":""}', MessageQueue("T")),
    ('{"topic":"T","queueId":"null"}', MessageQueue("T")),
    ('{"topic":"T","codeSet":["1",2]}', SubscriptionData("T", code_set={1, 2})),
    # booleans
    ('{"groupName":"g","unitMode":1}', ConsumerData("g", unit_mode=True)),
    ('{"groupName":"g","unitMode":"true"}', ConsumerData("g", unit_mode=True)),
    ('{"groupName":"g","unitMode":2}', ConsumerData("g")),
    ('{"groupName":"g","unitMode":""}', ConsumerData("g")),
    # nothing in a list of scalars
    ('{"topic":"T","codeSet":[1,null],"tagsSet":[null,"a"]}', SubscriptionData("T", tags_set={"a"}, code_set={1})),
    ('{"clientID":undefined,"producerDataSet":[{"groupName":"p"}]}', HeartbeatData("", [ProducerData("p")])),
    ('{"clientID":"a\\ud83d","producerDataSet":[]}', HeartbeatData("a?")),
    ('{"clientID":"\\ud83d\\ude00","ProducerDataSet":[]}', HeartbeatData("\U0001f600")),
    # enums: by number, by name in any case; an unknown name is none
    ('{"groupName":"g","consumeType":0,"messageModel":0}', ConsumerData("g", "CONSUME_ACTIVELY", "BROADCASTING")),
    ('{"groupName":"g","messageModel":"broadcasting"}', ConsumerData("g", message_model="BROADCASTING")),
    ('{"groupName":"g","consumeFromWhere":5}', ConsumerData("g", consume_from_where="CONSUME_FROM_TIMESTAMP")),
    ('{"groupName":"g","consumeType":"PUSH","messageModel":"","consumeFromWhere":"1"}', ConsumerData("g")),
    # an object for a list of one
    ('{"clientID":"c","producerDataSet":{"groupName":"p"}}', HeartbeatData("c", [ProducerData("p")])),
    ('{"clientId":"c","mqSet":{"topic":"T"}}', LockBatchRequestBody("", "c", {MessageQueue("T")})),
    (
        '{"ClientID":"c","ConsumerGroup":"g","MqSet":[{"BrokerName":"b","QueueId":1,"Topic":"T"}]}',
        LockBatchRequestBody("g", "c", {MessageQueue("T", "b", 1)}),
    ),
    (
        '{"clientId":"c","Group":"g","SubscriptionData":{"Topic":"T","SubString":"a","CodeSet":[]}}',
        CheckClientConfig("c", "g", SubscriptionData("T", "a")),
    ),
]


@pytest.mark.parametrize(("text", "wanted"), TAKEN, ids=[text for text, _ in TAKEN])
def test_bodies_are_parsed_as_by_fastjson(text: str, wanted: Body) -> None:
    if isinstance(wanted, ConsumerData | ProducerData | SubscriptionData | MessageQueue):
        # Such values lie in a heartbeat or a lock request; alone they are what no client sends.
        assert type(wanted).from_value(msgspec.json.decode(text)) == wanted
    else:
        assert type(wanted).from_request(text.encode()) == wanted
        assert type(wanted).from_request(f" {text}\n".encode()) == wanted


def test_invalid_utf_8_becomes_replacement_characters_as_in_java() -> None:
    tags = b'{"topic":"T","tagsSet":["\xb1\xea"]}'
    data = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%s]}]}' % tags
    (consumer,) = HeartbeatData.from_request(data).consumer_data_set
    assert consumer.subscription_data_set == [SubscriptionData("T", tags_set={"\ufffd\ufffd"})]
    with pytest.raises(RemoteFault, match="UTF-8"):
        HeartbeatData.from_bytes(data)


def test_consumers_of_a_heartbeat_are_parsed_as_by_fastjson() -> None:
    text = (
        '{"clientID":"c","consumerDataSet":[{"GroupName":"g","consumeType":"consume_actively","subscriptionDataSet":'
        '{"Topic":"T","subString":7,"SubVersion":"638000000000000000","FilterClassSource":null}}]}'
    )
    wanted = [
        ConsumerData(
            "g", "CONSUME_ACTIVELY", subscription_data_set=[SubscriptionData("T", "7", set(), set(), 638 * 10**15)]
        )
    ]
    assert HeartbeatData.from_request(text.encode()).consumer_data_set == wanted


@pytest.mark.parametrize("name", ["PUSH", "clustering", ""])
def test_names_of_enums_in_plain_json_are_checked_too(name: str) -> None:
    text = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","messageModel":"{name}","consumeType":"{name}"}}]}}'
    assert HeartbeatData.from_request(text.encode()).consumer_data_set == [ConsumerData("g")]


REFUSED: list[tuple[type[Body], str]] = [
    (HeartbeatData, '{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}'),
    (HeartbeatData, '{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":-1}]}'),
    (HeartbeatData, '{"clientID":"c","producerDataSet":""}'),
    (HeartbeatData, '{"clientID":"c","producerDataSet":"[{}]"}'),
    (HeartbeatData, '{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["3 "]}]}]}'),
    (HeartbeatData, '{"clientID":"c","consumerDataSet":[{"subscriptionDataSet":[{"subVersion":1.5}]}]}'),
    (LockBatchRequestBody, '{"clientId":"c","mqSet":[{"queueId":"one"}]}'),
]


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_bodies_that_fastjson_rejects_are_rejected(kind: type[Body], text: str) -> None:
    with pytest.raises(RemoteFault, match=kind.__name__) as caught:
        kind.from_request(text.encode())
    assert caught.value.code == 1


def test_an_exact_field_name_takes_precedence_over_other_spellings() -> None:
    # fastjson takes the last of the two that it knows; no client sends both
    assert HeartbeatData.from_request(b'{"CLIENTID":"y","clientID":"x"}').client_id == "x"


def test_other_spellings_count_towards_the_limit_of_the_slow_parser() -> None:
    queues = ",".join(f'{{"Topic":"T","QueueId":{index}}}' for index in range(TOLERANT_VALUES_MAX))
    with pytest.raises(RemoteFault, match=f"at most {TOLERANT_VALUES_MAX}"):
        LockBatchRequestBody.from_request(f'{{"ClientId":"c","MqSet":[{queues}]}}'.encode())


def test_a_long_heartbeat_in_plain_json_avoids_the_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions = [SubscriptionData.for_tags(f"topic-{index:06}", "A || B") for index in range(20_000)]
    data = HeartbeatData("c", [], [ConsumerData("g", subscription_data_set=subscriptions)]).to_bytes()
    assert len(data) > 20 * SCAN_MAX_BYTES
    monkeypatch.setattr("gantrymq.remoting.fastjson.loads", lambda *_: pytest.fail("the slow reader was called"))
    assert len(HeartbeatData.from_request(data).consumer_data_set[0].subscription_data_set) == 20_000


def test_keys_of_a_map_are_unchanged() -> None:
    config = TopicConfig.from_request(b"{'topicName':'T',attributes:{Message_Type:1,'order':'x'}}")
    assert config.attributes == {"Message_Type": "1", "order": "x"}


ODD_BODIES = {
    "references": b'{"a":[' + b"0," * 1000 + b'0],"b":[' + b'{"$ref":"$.a"},' * 900 + b"0]}",
    "long numbers": b"{x:[" + (b"1" * 399 + b",") * 4000 + b"]}",
    "spaces": b"{consumerGroup:" + b" " * TOLERANT_BYTES_MAX + b"'g'}",
    "one text": b"{consumerGroup:'" + b"x" * TOLERANT_BYTES_MAX + b"'}",
}


@pytest.mark.parametrize("kind", ODD_BODIES)
def test_a_small_number_of_values_cannot_hide_much_parsing_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[object] = []
    monkeypatch.setattr("gantrymq.remoting.bodies.body.fit", lambda value, _: fitted.append(value))
    with pytest.raises(RemoteFault):
        LockBatchRequestBody.from_request(ODD_BODIES[kind])
    assert not fitted

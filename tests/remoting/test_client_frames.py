"""Requests in the forms of untested clients, according to their sources, are decoded correctly.

The frames are ours; what each client's code writes (order of keys, types, spacing, case) was read in the named file.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs
import pytest

from gantrymq.kernel import fast
from gantrymq.kernel.fast import KIND, plain_requests
from gantrymq.plugins.consume import fast as consume_fast
from gantrymq.plugins.consume import plain as consume_plain
from gantrymq.plugins.produce import fast as produce_fast
from gantrymq.plugins.produce import plain as produce_plain
from gantrymq.remoting.bodies.clients import HeartbeatData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.groups import UnregisterClientHeader
from gantrymq.remoting.headers.header import Header, read_header
from gantrymq.remoting.headers.offsets import UpdateConsumerOffsetHeader
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader, read_send_header
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from support.loops import Loops


def frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


@attrs.frozen
class Shape:
    """A request as a client writes it, and what must be read of it."""

    client: str
    header: str
    code: int
    language: str
    kind: type[Header]
    fields: dict[str, Any]


SEND = {
    "producer_group": "p", "topic": "T", "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": 1,
    "sys_flag": 0, "born_timestamp": 1700000000000, "flag": 0, "properties": "KEYS\x01k\x02TAGS\x01é\x02",
    "reconsume_times": 0, "unit_mode": False,
}  # fmt: skip
PULL = {
    "consumer_group": "g", "topic": "T", "queue_id": 1, "queue_offset": 7, "max_msg_nums": 32, "sys_flag": 6,
    "commit_offset": 5, "suspend_timeout_millis": 15000, "subscription": "*", "sub_version": 1700000000000,
}  # fmt: skip
SHAPES = [
    Shape(  # ali-ons 3.12, lib/mq_client_api.js sendMessage, lib/protocol/command/remoting_command.js buildHeader
        "Node, send",
        '{"code":310,"language":"JAVA","opaque":3,"flag":0,"version":121,"extFields":{"a":"p","b":"T","c":"TBW102",'
        '"d":4,"e":1,"f":0,"g":1700000000000,"h":0,"i":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","j":0,"k":false}}',
        310, "JAVA", SendMessageHeader, SEND,
    ),
    Shape(  # ali-ons 3.12, lib/consumer/mq_push_consumer.js pullKernelImpl
        "Node, pull",
        '{"code":11,"language":"JAVA","opaque":4,"flag":0,"version":121,"extFields":{"consumerGroup":"g","topic":"T",'
        '"queueId":1,"queueOffset":7,"maxMsgNums":32,"sysFlag":6,"commitOffset":5,"suspendTimeoutMillis":15000,'
        '"subscription":"*","subVersion":1700000000000,"expressionType":"TAG"}}',
        11, "JAVA", PullMessageHeader, {**PULL, "expression_type": "TAG"},
    ),
    Shape(  # ali-ons 3.12, lib/store/remote_broker.js updateConsumeOffsetToBroker
        "Node, commit",
        '{"code":15,"language":"JAVA","opaque":5,"flag":2,"version":121,"extFields":{"topic":"T","consumerGroup":"g",'
        '"queueId":1,"commitOffset":9}}',
        15, "JAVA", UpdateConsumerOffsetHeader,
        {"consumer_group": "g", "topic": "T", "queue_id": 1, "commit_offset": 9},
    ),
    Shape(  # rocketmq-client-cpp 7c8b7f8, src/protocol/RemotingCommand.cpp Encode (FastWriter ends with a newline),
        # CommandHeader.cpp SendMessageRequestHeaderV2: int as number, 64 bits and bool as text, empty credentials
        "C++, send",
        '{"code":310,"extFields":{"AccessKey":"","OnsChannel":"","Signature":"","a":"p","b":"T","c":"TBW102","d":4,'
        '"e":1,"f":0,"g":"1700000000000","h":0,"i":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","j":"0","k":"false","l":0,'
        '"m":"false"},"flag":0,"language":"CPP","opaque":3,"remark":"","version":401}\n',
        310, "CPP", SendMessageHeader, {**SEND, "max_reconsume_times": 0, "batch": False},
    ),
    Shape(  # rocketmq-client-cpp 7c8b7f8, CommandHeader.cpp PullMessageRequestHeader
        "C++, pull",
        '{"code":11,"extFields":{"AccessKey":"","OnsChannel":"","Signature":"","commitOffset":"5","consumerGroup":"g",'
        '"maxMsgNums":32,"queueId":1,"queueOffset":"7","subVersion":"1700000000000","subscription":"*",'
        '"suspendTimeoutMillis":"15000","sysFlag":6,"topic":"T"},"flag":0,"language":"CPP","opaque":4,"remark":"",'
        '"version":401}\n',
        11, "CPP", PullMessageHeader, PULL,
    ),
    Shape(  # rocketmq-client-cpp 7c8b7f8, CommandHeader.cpp EndTransactionRequestHeader
        "C++, end of a transaction",
        '{"code":37,"extFields":{"AccessKey":"","OnsChannel":"","Signature":"","commitLogOffset":"700",'
        '"commitOrRollback":"8","fromTransactionCheck":"true","msgId":"A0","producerGroup":"p",'
        '"tranStateTableOffset":"3","transactionId":"A0"},"flag":2,"language":"CPP","opaque":5,"remark":"","version":401}\n',
        37, "CPP", EndTransactionHeader,
        {"producer_group": "p", "tran_state_table_offset": 3, "commit_log_offset": 700, "commit_or_rollback": 8,
         "from_transaction_check": True, "msg_id": "A0", "transaction_id": "A0"},
    ),
    Shape(  # NewLife.RocketMQ 75128a0, Protocol/Header.cs, ClusterClient.cs CreateCommand: all fields as text
        ".NET, send",
        '{"code":310,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0",'
        '"i":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","j":"0","k":"false","l":"0","m":"false","n":""},"flag":0,'
        '"language":"DOTNET","opaque":3,"serializeTypeCurrentRPC":"JSON","version":373,"remark":"SEND_MESSAGE_V2"}',
        310, "DOTNET", SendMessageHeader, {**SEND, "max_reconsume_times": 0, "batch": False},
    ),
    Shape(  # pyrocketmq 66c2962, src/pyrocketmq/model/serializer.py _serialize_header: the language is a number
        "Python, send",
        '{"code":310,"language":3,"version":317,"opaque":3,"flag":0,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4",'
        '"e":"1","f":"0","g":"1700000000000","h":"0","i":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","j":"0","k":"false",'
        '"l":"0","m":"false","n":"b"}}',
        310, "PYTHON", SendMessageHeader, {**SEND, "max_reconsume_times": 0, "batch": False},
    ),
    Shape(  # lua-resty-rocketmq 0.4.2, lib/resty/rocketmq/core.lua encode: a table's order, the language in lower case
        "Lua, send",
        '{"remark":"","flag":0,"extFields":{"topic":"T","sysFlag":0,"defaultTopic":"TBW102","queueId":1,"flag":0,'
        '"bornTimestamp":1700000000000,"producerGroup":"p","unitMode":false,"reconsumeTimes":0,'
        '"properties":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","defaultTopicQueueNums":4},"version":373,"opaque":3,'
        '"code":10,"serializeTypeCurrentRPC":"JSON","language":"other"}',
        10, "OTHER", SendMessageHeader, SEND,
    ),
    Shape(  # rocketmq-client-remoting (PHP) 669b222, php/src/Remoting/Protocol/RemotingCommand.php toDict: the
        # language is a number, no slash and no character beyond ASCII is escaped
        "PHP, send",
        '{"code":310,"language":10,"version":515,"opaque":3,"flag":0,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4",'
        '"e":"1","f":"0","g":"1700000000000","h":"0","i":"KEYS\\u0001k\\u0002TAGS\\u0001é\\u0002","j":"0","k":"false",'
        '"l":"16","m":"false"}}',
        310, "PHP", SendMessageHeader, {**SEND, "max_reconsume_times": 16, "batch": False},
    ),
    Shape(  # rmq-client-php (Hyperf) e9654f6, src/Remoting/RemotingCommand.php buildHeader: sorted, all is escaped
        "PHP for Hyperf, pull",
        '{"code":11,"extFields":{"commitOffset":5,"consumerGroup":"g","maxMsgNums":32,"queueId":1,"queueOffset":7,'
        '"subVersion":1700000000000,"subscription":"T\\/1 || \\u00e9","suspendTimeoutMillis":15000,"sysFlag":6,'
        '"topic":"T"},"flag":0,"language":"PHP","opaque":1700000000,"serializeTypeCurrentRPC":"JSON","version":-1}',
        11, "PHP", PullMessageHeader, {**PULL, "subscription": "T/1 || é"},
    ),
    Shape(  # RocketMQ-Client4CPP (NDPMediaCorp), src/protocol/RemotingCommand.cpp Encode, CommandCustomHeader.cpp
        "C++ of 2013, send",
        '{"code":10,"language":"CPP","version":62,"opaque":3,"flag":0,"remark":"","extFields":{"producerGroup":"p",'
        '"topic":"T","defaultTopic":"TBW102","defaultTopicQueueNums":4,"queueId":1,"sysFlag":0,'
        '"bornTimestamp":1700000000000,"flag":0,"properties":"KEYS\x01k\x02TAGS\x01é\x02","reconsumeTimes":0}}',
        10, "CPP", SendMessageHeader, {**SEND, "unit_mode": None},
    ),
    Shape(  # no client known; fastjson matches the names of a header as it matches those of a body
        "names in another case",
        '{"Code":35,"Language":"DOTNET","Opaque":6,"Flag":0,"ExtFields":{"clientID":"c","producerGroup":"p"}}',
        35, "DOTNET", UnregisterClientHeader, {"client_id": "c", "producer_group": "p"},
    ),
    Shape(  # rocketmq-rs 0.0.4, src/remoting/mod.rs Header, src/client/mod.rs unregister_client
        "Rust, leave",
        '{"code":35,"language":"OTHER","version":431,"opaque":6,"flag":0,"remark":"","extFields":{"clientID":"c",'
        '"producerGroup":"p","consumerGroup":""}}',
        35, "OTHER", UnregisterClientHeader, {"client_id": "c", "producer_group": "p", "consumer_group": ""},
    ),
]  # fmt: skip


class Nobody:
    """A connection that is sent nothing."""

    host = bytes(8)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.client)
@pytest.mark.parametrize("twin", ["plain", "built"])
def test_requests_in_the_forms_of_all_clients_are_decoded(shape: Shape, twin: str) -> None:
    plain, built = Loops(plain_requests, produce_plain, consume_plain), Loops(fast, produce_fast, consume_fast)
    read = (plain if twin == "plain" else built).read_requests
    data = frame(shape.header.encode(), b"body")
    nobody: Any = Nobody()
    (request,), taken = read(nobody, data, 16 * 1024 * 1024)
    assert (taken, request.code, request.command.body) == (len(data), shape.code, b"body")
    ext = request.command.ext
    header = read_send_header(shape.code, ext) if shape.kind is SendMessageHeader else read_header(shape.kind, ext)
    assert header == shape.kind(**shape.fields)
    assert request.command.language.upper() == shape.language
    if twin == "built" and KIND == "compiled" and shape.code == 11 and not {"\n", "\\"} & set(shape.header):
        assert type(request).__name__ == "PullRequest", "numbers keep the fast path"


HEARTBEATS = [
    # ali-ons 3.12, lib/mq_client.js _prepareHeartbeatData
    '{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"T","subString":"TagA","tagsSet":'
    '["TagA"],"codeSet":[2598919],"classFilterMode":false,"subVersion":1700000000000}],"unitMode":false}],'
    '"producerDataSet":[{"groupName":"p"}]}',
    # rocketmq-client-cpp 7c8b7f8, src/protocol/HeartbeatData.h, src/consumer/SubscriptionData.cpp: choices by number
    '{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g","messageModel":1,'
    '"subscriptionDataSet":[{"codeSet":[2598919],"subString":"TagA","subVersion":"1700000000000","tagsSet":["TagA"],'
    '"topic":"T"}]}],"producerDataSet":[{"groupName":"p"}]}\n',
    # NewLife.RocketMQ 75128a0, Protocol/HeartbeatData.cs, ClusterClient.cs CreateCommand: .NET's case, no nulls
    '{"ClientID":"c","ConsumerDataSet":[{"ConsumeFromWhere":"CONSUME_FROM_LAST_OFFSET","ConsumeType":'
    '"CONSUME_PASSIVELY","GroupName":"g","MessageModel":"CLUSTERING","SubscriptionDataSet":[{"Topic":"T",'
    '"ExpressionType":"TAG","SubString":"TagA","TagsSet":["TagA"],"CodeSet":["2598919"],"ClassFilterMode":false,'
    '"SubVersion":1700000000000}],"UnitMode":false}],"ProducerDataSet":[{"GroupName":"p"}]}',
    # rocketmq-rs 0.0.4, src/client/model.rs: codes as text, "consumerType" for "consumeType"
    '{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g","consumerType":'
    '"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":'
    '["2598919"],"subVersion":1700000000000,"expressionType":"TAG"}],"unitMode":false}]}',
    # lua-resty-rocketmq 0.4.2, lib/resty/rocketmq/consumer.lua sendHeartbeatToAllBroker
    '{"producerDataSet":[{"groupName":"p"}],"clientID":"c","consumerDataSet":[{"unitMode":false,"groupName":"g",'
    '"subscriptionDataSet":[{"codeSet":[2598919],"subVersion":1700000000000,"topic":"T","tagsSet":["TagA"],'
    '"subString":"TagA"}],"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET"}]}',
    # rocketmq-client-remoting (PHP) 669b222, php/src/Remoting/Protocol/Heartbeat.php, src/Common/SubscriptionData.php
    '{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g","consumeType":'
    '"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":'
    '[2598919],"subVersion":1700000000000,"expressionType":"TAG"}],"unitMode":false}],"heartbeatFingerprint":0,'
    '"withoutSub":false}',
    # rmq-client-php (Hyperf) e9654f6, src/Remoting/Command/SendMessageCommand.php jsonSerialize: clientId, isWithoutSub
    '{"clientId":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g","consumeType":'
    '"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":'
    '[2598919],"subVersion":1700000000000,"expressionType":"TAG"}],"isUnitMode":false}],"heartbeatFingerprint":0,'
    '"isWithoutSub":false}',
    # EventHorizon.RocketMQ (.NET), Consumer/Coordination/LegacyHeartbeatProtocol.cs
    '{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g","consumeType":'
    '"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":'
    '[2598919],"subVersion":1700000000000,"expressionType":"TAG"}],"unitMode":false}]}',
    # RocketMQ-Client4CPP (NDPMediaCorp), src/protocol/HeartbeatData.cpp, src/consumer/SubscriptionData.cpp
    '{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":'
    '"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[{"codeSet":[2598919],'
    '"subString":"TagA","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}]}],'
    '"producerDataSet":[{"groupName":"p"}]}',
]


@pytest.mark.parametrize(
    "text",
    HEARTBEATS,
    ids=["Node", "C++", ".NET", "Rust", "Lua", "PHP", "PHP for Hyperf", "EventHorizon", "C++ of 2013"],
)
def test_heartbeats_in_the_forms_of_all_clients_are_decoded(text: str) -> None:
    assert RequestCode.HEART_BEAT == 34
    data = HeartbeatData.from_bytes(text.encode())
    assert data.client_id == "c"
    assert [producer.group_name for producer in data.producer_data_set] == ["p"]
    (consumer,) = data.consumer_data_set
    assert (consumer.group_name, consumer.consume_type, consumer.message_model, consumer.consume_from_where) == (
        "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET",
    )  # fmt: skip
    (subscription,) = consumer.subscription_data_set
    assert (subscription.topic, subscription.sub_string, subscription.tags_set, subscription.code_set) == (
        "T", "TagA", {"TagA"}, {2598919},
    )  # fmt: skip
    assert subscription.sub_version == 1700000000000


@pytest.mark.parametrize(
    "text",
    [
        '{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":1}]}',
        '{"ConsumerGroup":"g","ClientId":"c","MqSet":[{"Topic":"T","BrokerName":"b","QueueId":"1"}]}',
        '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,"topic":"T"}]}\n',
        # PHP (zhaohai666), php/src/Remoting/Protocol/Bodies.php; EventHorizon, OrderlyPullQueueLockClient.cs
        '{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":"1"}]}',
        '{"consumerGroup":"g","clientId":"c","onlyThisBroker":null,"mqSet":[{"topic":"T","brokerName":"b","queueId":1}]}',
        # only some of the names in another case
        '{"consumer_group":"g","clientId":"c","mq-set":[{"topic":"T","BrokerName":"b","queueID":1}]}',
    ],
)
def test_lock_requests_in_any_case_are_decoded(text: str) -> None:
    wanted = LockBatchRequestBody("g", "c", {MessageQueue("T", "b", 1)})
    assert LockBatchRequestBody.from_bytes(text.encode()) == wanted

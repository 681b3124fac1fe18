"""Responses that the decoders of untested clients can read, according to their sources.

Each test names the decoder and what it cannot read; RocketMQ's own answers have none of it either.
"""

from __future__ import annotations

import ast
import json
import re

import pytest

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.clients import ConsumerList
from gantrymq.remoting.bodies.offsets import QueueOffset, ResetOffsetList, ResetOffsets
from gantrymq.remoting.bodies.queues import LockBatchResponseBody, MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.frame import BINARY_HEADER
from gantrymq.remoting.headers.pull import PullMessageResponse
from gantrymq.remoting.headers.send import SendMessageResponse

ROUTE = TopicRouteData(
    [QueueData("b", 4, 4, 6), QueueData("c", 4, 4, 6)],
    [BrokerData("DefaultCluster", "b", {0: "1.2.3.4:10911", 1: "1.2.3.5:10911"}), BrokerData("x", "c", {0: "y:1"})],
)
CLUSTER = ClusterInfo({"b": ROUTE.broker_datas[0]}, {"DefaultCluster": ["b"]})
QUEUE = MessageQueue("T", "b", 3)
LOCKED = LockBatchResponseBody(lock_ok_mq_set={QUEUE})
BODIES: list[Body] = [ROUTE, CLUSTER, LOCKED, ConsumerList(["a@1"])]
REQUEST = Command(11, {}, opaque=7, language="OTHER")
ANSWERS = [
    REQUEST.answer(0),
    REQUEST.answer(0, ext={}),
    REQUEST.answer(17, "No topic route info in name server for the topic: T"),
    REQUEST.answer(0, ext=SendMessageResponse(msg_id="A", queue_id=1, queue_offset=2).to_ext()),
    REQUEST.answer(0, ext=PullMessageResponse(
        suggest_which_broker_id=0, next_begin_offset=3, min_offset=0, max_offset=9).to_ext()),
]  # fmt: skip


def header_of(answer: Command) -> bytes:
    frame = encode(answer)
    return frame[8 : 8 + int.from_bytes(frame[5:8], "big")]


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_response_headers_are_readable_by_the_decoders_of_all_clients(answer: Command) -> None:
    text = header_of(answer)
    header = json.loads(text)
    # rocketmq-rs, src/protocol/header.rs: a remark and fields that are null, or no text, are errors
    assert None not in header.values()
    # RocketMQ-Client4CPP, CommandCustomHeader.cpp: asCString of a number is an error; rocketmq-client-cpp skips it
    assert all(type(value) is str for value in header.get("extFields", {}).values())
    # rocketmq-rs and lua-resty-rocketmq know the languages up to OMS; rocketmq-rs reads 16 bits of a version
    assert header["language"] in ("JAVA", "CPP", "DOTNET", "PYTHON", "OTHER", "HTTP", "GO", "PHP", "OMS")
    assert 0 < header["version"] < 0x8000
    # rocketmq-client-cpp, RemotingCommand.cpp: asInt of a text is an error
    assert all(type(header[name]) is int for name in ("code", "flag", "opaque", "version"))
    assert (header["opaque"], header["flag"]) == (7, 1)
    # NewLife.RocketMQ, Command.cs: JSON by name, by any case; a header has 8 KiB at most
    assert header["serializeTypeCurrentRPC"] == "JSON"
    assert len(text) < 8192
    # RocketMQ-Client4CPP, RemotingCommand.cpp: looks for the fields with strstr
    assert (b'"extFields":' in text) == (answer.ext is not None)


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_a_binary_header_has_lengths_for_what_is_absent(answer: Command) -> None:
    # rocketmq-rs, src/protocol/header.rs decode: language below 12, length of the remark, length of the fields
    header = header_of(Command(answer.code, answer.ext, opaque=7, flag=1, remark=answer.remark, kind=BINARY_HEADER))
    assert header[2] < 12
    remark = int.from_bytes(header[13:17], "big")
    assert header[17 : 17 + remark].decode() == (answer.remark or "")
    fields = int.from_bytes(header[17 + remark : 21 + remark], "big")
    assert len(header) == 21 + remark + fields


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_bodies_have_no_spaces_and_no_literals_that_clients_misread(body: Body) -> None:
    text = body.to_bytes().decode()
    # lua-resty-rocketmq, lib/resty/rocketmq/json.lua: skips no space
    assert not set(text) & set(" \t\r\n")
    # pyrocketmq, nameserver_models.py, result_data.py: ast.literal_eval, which knows no true, false and null
    assert not re.search(r"\b(true|false|null)\b", text)
    assert type(body).from_value(_texts(ast.literal_eval(text))) == body


def _texts(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _texts(item) for key, item in value.items()}
    return [_texts(item) for item in value] if isinstance(value, list) else value


def test_a_route_has_every_key_that_clients_read() -> None:
    # NewLife.RocketMQ, NameClient.cs GetRouteInfo; rocketmq-rs, src/route.rs; ex_rocketmq, topic_route_info.ex
    route = ast.literal_eval(ROUTE.to_bytes().decode())
    assert route.keys() >= {"brokerDatas", "filterServerTable", "queueDatas"}
    for queue in route["queueDatas"]:
        assert queue.keys() >= {"brokerName", "perm", "readQueueNums", "topicSynFlag", "topicSysFlag", "writeQueueNums"}
    for broker in route["brokerDatas"]:
        assert broker.keys() >= {"brokerAddrs", "brokerName", "cluster"}
        assert 0 in broker["brokerAddrs"]


def test_broker_addresses_match_the_patterns_that_clients_repair_json_with() -> None:
    text = ROUTE.to_bytes().decode()
    # ex_rocketmq, lib/ex_rocketmq/namesrvs.ex fix_invalid_json
    found = re.search(r'"brokerAddrs":{(\d+:"[^"]+",*)+}', text)
    assert found is not None
    assert found.group() == '"brokerAddrs":{0:"1.2.3.4:10911",1:"1.2.3.5:10911"}'
    # rmq-client-php for Hyperf, src/Remoting/RemotingCommand.php decode
    strict = re.sub(r",(\d+):", r',"\1":', re.sub(r"\{(\d+):", r'{"\1":', text))
    assert json.loads(strict)["brokerDatas"][0]["brokerAddrs"] == {"0": "1.2.3.4:10911", "1": "1.2.3.5:10911"}


def test_bodies_without_numeric_keys_are_plain_json() -> None:
    # rocketmq-client-cpp, LockBatchBody.cpp; ex_rocketmq, lock.ex; EventHorizon.RocketMQ, OrderlyPullQueueLockClient.cs
    assert json.loads(LOCKED.to_bytes()) == {"lockOKMQSet": [{"brokerName": "b", "queueId": 3, "topic": "T"}]}
    assert json.loads(ConsumerList(["a@1"]).to_bytes()) == {"consumerIdList": ["a@1"]}


def test_an_offset_reset_has_the_key_order_that_newlife_parses() -> None:
    # NewLife.RocketMQ, Consumer.cs ResetOffset: each part between ',{' has "queueId":n, with a comma, then "}:offset"
    text = ResetOffsets({QUEUE: 7, MessageQueue("T", "b", 4): 9}).to_bytes().decode()
    found = [re.search(r'"brokerName":"(\w+)".*"queueId":(\d+),.*}:(\d+)', part) for part in text.split(",{")]
    assert [part and part.groups() for part in found] == [("b", "3", "7"), ("b", "4", "9")]


def test_an_offset_reset_for_c_plus_plus_is_a_list() -> None:
    # rocketmq-client-cpp, ClientRemotingProcessor.cpp ResetOffsetBody::Decode
    body = ResetOffsetList([QueueOffset("T", "b", 3, 7)]).to_bytes()
    assert json.loads(body) == {"offsetTable": [{"brokerName": "b", "offset": 7, "queueId": 3, "topic": "T"}]}

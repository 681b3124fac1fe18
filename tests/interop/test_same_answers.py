"""Raw requests to GantryMQ and to RocketMQ's 4.9.7 broker get the same responses and refusals.

Permissions, sizes, names, missing queues, groups without rights. The tests compare the code and the fields that clients
use. ``ON_PURPOSE`` lists the differences with their reasons; a difference that is gone must be removed there.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from gantrymq.remoting import fastjson
from gantrymq.remoting.codes import RESPONSE_FLAG
from gantrymq.remoting.codes import RequestCode as Code
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.frame import BINARY_HEADER, JSON_HEADER, cut_frames
from support.foreign import Java, ask, start_broker, start_nameserver
from support.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BODY_MAX = 4 * 1024 * 1024
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
OUR_SLAVE = ("--set", "broker.id=1", "--set", "plugin.consume.slave_read_enable=true")
ACTED_ON = ("nextBeginOffset", "minOffset", "maxOffset", "offset", "queueId", "queueOffset", "suggestWhichBrokerId")
ON_PURPOSE = {
    "a batch that is rubbish": "13 and a text; RocketMQ answers with the trace of an exception",
    "a group of a name with a dot": "1; RocketMQ checks the names of groups in its tools and clients only",
    "a group without a name": "1; RocketMQ keeps a group without a name",
    "a light pull": "5.x knows this code, 4.9 does not",
    "a pull by nonsense": "23 and the place; RocketMQ gives every message where the expression cannot be read",
    "a pull by an unknown kind": "1, not supported; RocketMQ gives every message",
    "a pull of 50 that accepts a MiB": "50; an extension of ours, which RocketMQ ignores: 32",
    "a topic of a permission that is none": "1, allowed are 0 to 7; RocketMQ stores any number",
    "a topic without queues": "1; RocketMQ stores a topic to which nothing can be sent",
    **dict.fromkeys(
        [f"the statistic QUEUE_{way}_{what}" for way in ("PUT", "GET") for what in ("NUMS", "SIZE")],
        "reported; RocketMQ 4.9 counts them for its topic of the delays only",
    ),
}

Request = tuple[str, Command]
Pair = tuple[str, str]
"""The addresses of a broker and of its nameserver."""


def send(topic: str, body: bytes = b"x", *, code: Code = Code.SEND_MESSAGE_V2, **fields: object) -> Command:
    ext = {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
        "k": "false", "m": "false", **fields,
    }  # fmt: skip
    return Command(code, {name: str(value) for name, value in ext.items()}, body)


def pull(topic: str, **fields: object) -> Command:
    ext = {
        "consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, **fields,
    }  # fmt: skip
    return Command(Code.PULL_MESSAGE, {name: str(value) for name, value in ext.items()})


def of_queue(code: Code, topic: str, **fields: object) -> Command:
    return Command(code, {"topic": topic, "queueId": "0", **{name: str(value) for name, value in fields.items()}})


def topic(name: str, perm: int = 6, queues: int = 4) -> Command:
    ext = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": perm,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return Command(Code.UPDATE_AND_CREATE_TOPIC, {key: str(value) for key, value in ext.items()})


def group(name: str, **fields: object) -> Command:
    values = {"groupName": name, "consumeEnable": True, "consumeBroadcastEnable": True, "retryQueueNums": 1, **fields}
    return Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(values).encode())


def batch(topic: str, *bodies: bytes) -> Command:
    inner = b"".join(struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + bytes(2) for body in bodies)
    return send(topic, inner, code=Code.SEND_BATCH_MESSAGE, m="true")


def back(group: str, **fields: str) -> Command:
    ext = {"offset": "0", "group": group, "delayLevel": "0", "originTopic": "T", "unitMode": "false", **fields}
    return Command(Code.CONSUMER_SEND_MSG_BACK, ext)


PROPERTIES_ROOM = 32767 - len("k\x01\x02CLUSTER\x01DefaultCluster")
STATISTICS = (
    *((name, "T") for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")),
    *((name, "T@0") for name in ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE")),
    *((name, "T@g") for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_FROM_DISK_NUMS", "SNDBCK_PUT_NUMS",
                                 "GROUP_GET_FROM_DISK_SIZE")),
    *((name, "T@0@g") for name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE")),
    *((name, "0@T@g") for name in ("GROUP_GET_LATENCY", "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME")),
    *((name, "DefaultCluster") for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS", "BROKER_GET_FROM_DISK_NUMS",
                                            "BROKER_GET_FROM_DISK_SIZE")),
    *((f"COMMERCIAL_{name}", "null@T@g@RCV_SUCCESS") for name in (
        "SEND_TIMES", "SNDBCK_TIMES", "RCV_TIMES", "RCV_EPOLLS", "SEND_SIZE", "RCV_SIZE", "PERM_FAILURES")),
)  # fmt: skip
PREPARED: tuple[Command, ...] = (
    topic("T"), topic("ReadOnly"), topic("WriteOnly"), group("g"), group("off", consumeEnable=False),
    *(send("T", b"message %d" % number) for number in range(5)), send("ReadOnly"), send("WriteOnly"),
    topic("ReadOnly", 4), topic("WriteOnly", 2), topic("Closed", 0), topic("ns%other"),
    group("noretry", retryQueueNums=0), group("closed"), topic("%RETRY%closed", 4, 1), group("ns%g"), group("unit"),
    topic("Many"), *(send("Many", i="TAGS\x01A") for _ in range(60)),
    *(send("Many", bytes(60_000), e=1) for _ in range(6)), *(send("Many", e=2, i="TAGS\x01A") for _ in range(3)),
    send("Many", bytes(300_000), e=2), *(send("Many", e=2, i="TAGS\x01A") for _ in range(3)),
    group("nobroadcast", consumeBroadcastEnable=False), group("paused", consumeEnable=False),
)  # fmt: skip

REQUESTS: tuple[Request, ...] = (
    ("a message", send("T")),
    ("a message without a body", send("T", b"")),
    ("a message by the long names", Command(Code.SEND_MESSAGE, {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
        "batch": "false"}, b"x")),
    ("to a topic that may only be read", send("ReadOnly")),
    ("to a topic that may only be written", send("WriteOnly")),
    ("to a topic that may do nothing", send("Closed")),
    ("to queue 4 of 4", send("T", e=4)),
    ("to queue 2147483647", send("T", e=2147483647)),
    ("to a system topic", send("RMQ_SYS_TRANS_HALF_TOPIC")),
    ("to the topic of the delays", send("SCHEDULE_TOPIC_XXXX")),
    ("to the topic that others are made from", send("TBW102")),
    ("to a name with a slash", send("a/b")),
    ("to a name with a dot", send("a.b")),
    ("to an empty name", send("")),
    ("to a name of 127 letters", send("n" * 127)),
    ("to a name of 128 letters", send("n" * 128)),
    ("to a name with a stroke", send("a|b")),
    ("to a name of another alphabet", send("\u0442\u0435\u043c\u0430")),
    ("to a topic of a namespace", send("ns%topic")),
    ("to the dead letters of a group", send("%DLQ%g")),
    ("to a retry topic of a namespace", send("%RETRY%ns%g")),
    ("in unit mode", send("Unit", k="true")),
    ("in unit mode to a retry topic", send("%RETRY%unit", k="true")),
    ("to a new topic", send("NewTopic", d=8)),
    ("to a new topic from no pattern", send("Other", c="NoPattern")),
    ("a body of 4 MiB", send("T", bytes(BODY_MAX))),
    ("a body of 4 MiB and a byte", send("T", bytes(BODY_MAX + 1))),
    ("properties of 32 KiB", send("T", i="k\x01" + "v" * 32768)),
    ("properties that just fit", send("T", i="k\x01" + "v" * PROPERTIES_ROOM)),
    ("properties of one byte too many", send("T", i="k\x01" + "v" * (PROPERTIES_ROOM + 1))),
    ("properties of letters of two bytes that just fit", send("T", i="kk\x01" + "\u00e9" * (PROPERTIES_ROOM // 2))),
    ("properties of letters of two bytes, too many", send("T", i="k\x01" + "\u00e9" * (PROPERTIES_ROOM // 2 + 1))),
    ("a batch of two", batch("T", b"one", b"two")),
    ("a batch of 4 MiB and more", batch("T", bytes(BODY_MAX // 2), bytes(BODY_MAX // 2))),
    ("a batch of a topic that is not there", batch("New-batch", b"one")),
    ("a batch to a retry topic", batch("%RETRY%g", b"one")),
    ("a number that is none", send("T", e="zero")),
    ("without the topic", Command(Code.SEND_MESSAGE_V2, {"a": "p"}, b"x")),
    ("a batch that is rubbish", send("T", b"rubbish", code=Code.SEND_BATCH_MESSAGE, m="true")),
    ("a pull", pull("T")),
    ("a pull at the end", pull("T", queueOffset=5, queueId=3)),
    ("a pull from -1", pull("T", queueOffset=-1)),
    ("a pull far behind the end", pull("T", queueOffset=1000)),
    ("a pull of a queue without messages", pull("T", queueId=2)),
    ("a pull of a queue without messages from 7", pull("T", queueId=2, queueOffset=7)),
    ("a pull of queue 4 of 4", pull("T", queueId=4)),
    ("a pull of queue -1", pull("T", queueId=-1)),
    ("a pull of no topic", pull("Missing")),
    ("a pull of a topic that may only be written", pull("WriteOnly")),
    ("a pull of a topic that may only be read", pull("ReadOnly")),
    ("a pull of a topic that may do nothing", pull("Closed")),
    ("a pull of a topic of a namespace", pull("ns%other")),
    ("a pull of no messages at all", pull("T", maxMsgNums=0)),
    ("a pull of 50", pull("Many", maxMsgNums=50)),
    ("a pull of 50 from 30", pull("Many", maxMsgNums=50, queueOffset=30)),
    ("a pull of 50 by a tag", pull("Many", maxMsgNums=50, subscription="A")),
    ("a pull of 50 by an expression", pull("Many", maxMsgNums=50, subscription="TAGS = 'A'", expressionType="SQL92")),
    ("a pull of 50 that accepts a MiB", pull("Many", maxMsgNums=50, gantrymqMaxBytes=1 << 20)),
    ("a pull of large messages", pull("Many", queueId=1)),
    ("a pull of a large message among small ones", pull("Many", queueId=2)),
    ("a pull by a tag, past a large message", pull("Many", queueId=2, queueOffset=2, subscription="A")),
    ("a pull by an expression, past a large message", pull(
        "Many", queueId=2, queueOffset=2, subscription="TAGS = 'A'", expressionType="SQL92")),
    ("a pull by a class", pull("T", sysFlag=8)),
    ("a light pull", Command(Code.LITE_PULL_MESSAGE, pull("T").ext)),
    ("a pull by a group that may not", pull("T", consumerGroup="off")),
    ("a pull by a tag that nobody sent", pull("T", subscription="TagZ")),
    ("a pull without a subscription", pull("T", sysFlag=0)),
    ("a pull by nonsense", pull("T", subscription="a >", expressionType="SQL92")),
    ("a pull by an unknown kind", pull("T", subscription="a", expressionType="XPATH")),
    ("the last offset", of_queue(Code.GET_MAX_OFFSET, "T")),
    ("the last offset of no topic", of_queue(Code.GET_MAX_OFFSET, "Missing")),
    ("the first offset", of_queue(Code.GET_MIN_OFFSET, "T")),
    ("the first offset of no topic", of_queue(Code.GET_MIN_OFFSET, "Missing")),
    ("the offset of a time", of_queue(Code.SEARCH_OFFSET_BY_TIMESTAMP, "T", timestamp=0)),
    ("the offset of a time in no topic", of_queue(Code.SEARCH_OFFSET_BY_TIMESTAMP, "Missing", timestamp=0)),
    ("a group's offset that was never committed", of_queue(Code.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g")),
    ("a group's offset in no topic", of_queue(Code.QUERY_CONSUMER_OFFSET, "Missing", consumerGroup="g")),
    ("a group's members when nobody is there", Command(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})),
    ("a code that nobody knows", Command(31999, {})),
    ("half a message", send("T", i="TRAN_MSG\x01true\x02PGROUP\x01p")),
    ("to a retry topic of no group", send("%RETRY%nogroup-anywhere")),
    ("back to a group that is not there", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "0", "group": "not-there", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
    ("back by a group without retries", back("noretry")),
    ("back by a group that may not consume", back("off")),
    ("back by a group whose retry topic may only be read", back("closed")),
    ("back by a group of a namespace", back("ns%g")),
    ("back by a group in unit mode", back("unit", unitMode="true")),
    ("back from where nothing is", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "999999999", "group": "g", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
    ("a topic of a name with a dot", topic("a.b")),
    ("a topic of 127 letters", topic("m" * 127)),
    ("a topic of 128 letters", topic("m" * 128)),
    ("a topic of the system", topic("TBW102")),
    ("a topic of the system's prefix", topic("rmq_sys_mine")),
    ("a topic without queues", topic("Nothing", queues=0)),
    ("a topic of an unknown filter", Command(17, {**(topic("Odd").ext or {}), "topicFilterType": "NONE"})),
    ("a topic of a permission that is none", topic("Perm", 99)),
    ("deletion of the system's topic", Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})),
    ("deletion of no topic", Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Missing"})),
    ("a group of a name with a dot", group("a.b")),
    ("a group without a name", group("")),
    ("deletion of no group", Command(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Missing"})),
    ("what a topic holds that is not there", Command(Code.GET_TOPIC_STATS_INFO, {"topic": "Missing"})),
    ("how far nobody is", Command(Code.GET_CONSUME_STATS, {"consumerGroup": "Missing"})),
    ("who consumes as nobody", Command(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "Missing"})),
    ("who sends as nobody", Command(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "Missing"})),
    ("what nobody's client does", Command(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "x"})),
    ("a statistic that is none", Command(Code.VIEW_BROKER_STATS_DATA, {"statsName": "NONE", "statsKey": "T"})),
    *((f"the statistic {name}", Command(Code.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}))
      for name, key in STATISTICS),
    ("a message by an offset where none is", Command(Code.VIEW_MESSAGE_BY_ID, {"offset": "999999999"})),
    ("locks of nothing", Command(Code.LOCK_BATCH_MQ, {}, b'{"consumerGroup":"g","clientId":"c","mqSet":[]}')),
    ("a check of an expression that is none", Command(Code.CHECK_CLIENT_CONFIG, {}, json.dumps({
        "clientId": "c", "group": "g",
        "subscriptionData": {"topic": "T", "subString": "a >", "expressionType": "SQL92"}}).encode())),
)  # fmt: skip


@pytest.fixture(scope="module")
def nameserver(java: Java, homes: Callable[[str], Path]) -> Iterator[str]:
    """The nameserver of RocketMQ's brokers."""
    server = start_nameserver(java, homes("answers-nameserver"))
    yield server.address
    server.discard()


@contextmanager
def ours_running(home: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Our broker over the data in ``home``, and its nameserver."""
    address, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", address, "--nameserver-listen", nameserver, *options)
    with gantrymq_child(serve, home / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield address, nameserver


@pytest.fixture(scope="module")
def pairs(java: Java, homes: Callable[[str], Path], nameserver: str) -> Iterator[tuple[Pair, Pair]]:
    """Ours and RocketMQ's, broker and nameserver, with the same in them."""
    with ours_running(homes("answers")) as ours, ExitStack() as stack:
        broker = start_broker(java, homes("answers-broker"), nameserver, enablePropertyFilter="true")
        stack.callback(broker.discard)
        theirs = (broker.address, nameserver)
        for address, _ in (ours, theirs):
            for command in PREPARED:
                assert ask(address, command).code == 0, command
        yield ours, theirs


@pytest.fixture(scope="module")
def brokers(pairs: tuple[Pair, Pair]) -> tuple[str, str]:
    """The brokers of ``pairs``."""
    return pairs[0][0], pairs[1][0]


@pytest.fixture(scope="module")
def slaves(java: Java, homes: Callable[[str], Path], nameserver: str) -> Iterator[tuple[str, str]]:
    """Ours and RocketMQ's, with what came to them while they were masters."""
    home, their_home = homes("slave"), homes("slave-broker")
    with ours_running(home) as (ours, _):
        broker = start_broker(java, their_home, nameserver, name="java-slave")
        for address in (ours, broker.address):
            for command in SLAVE_PREPARED:
                assert ask(address, command).code == 0, command
        broker.discard()
    with ours_running(home, *OUR_SLAVE) as (ours, _), ExitStack() as stack:
        broker = start_broker(
            java, homes("slave-again"), nameserver, name="java-slave", store=their_home / "store", **SLAVE
        )
        stack.callback(broker.discard)
        yield ours, broker.address


def acted_on(answer: Command) -> dict[str, object]:
    fields = answer.ext or {}
    return {"code": answer.code, **{name: fields[name] for name in ACTED_ON if name in fields}}


SLAVE_PREPARED: tuple[Command, ...] = (
    topic("T"), group("g", brokerId=3, whichBrokerWhenConsumeSlowly=4),
    *(send("T", b"message %d" % number) for number in range(5)),
)  # fmt: skip

SLAVE_REQUESTS: tuple[Request, ...] = (
    ("a topic", topic("Other")),
    ("deletion of a topic", Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})),
    ("a group", group("other")),
    ("deletion of a group", Command(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})),
    ("a message", send("T")),
    ("a delayed message", send("T", i="DELAY\x013")),
    ("half a message", send("T", i="TRAN_MSG\x01true\x02PGROUP\x01p")),
    ("to a new topic", send("NewTopic")),
    ("back from a consumer", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
    ("the end of a transaction", Command(Code.END_TRANSACTION, {
        "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x"})),
    ("a pull", pull("T")),
    ("a pull that commits", pull("T", sysFlag=5, commitOffset=3)),
    ("what that pull committed", of_queue(Code.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g")),
    ("a pull at the end", pull("T", queueOffset=5)),
    ("a pull from -1", pull("T", queueOffset=-1)),
    ("a pull far behind the end", pull("T", queueOffset=1000)),
    ("a pull of a queue without messages", pull("T", queueId=2)),
    ("a pull of a queue without messages from 7", pull("T", queueId=2, queueOffset=7)),
    ("a pull by a tag that nobody sent", pull("T", subscription="TagZ")),
    ("the last offset", of_queue(Code.GET_MAX_OFFSET, "T")),
    ("a commit", of_queue(Code.UPDATE_CONSUMER_OFFSET, "T", consumerGroup="g", commitOffset=2)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "request_"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_both_brokers_return_the_same_responses(brokers: tuple[str, str], name: str, request_: Command) -> None:
    ours, theirs = (ask(address, request_) for address in brokers)
    same = acted_on(ours) == acted_on(theirs)
    assert same != (name in ON_PURPOSE), (acted_on(ours), ours.remark, acted_on(theirs), theirs.remark)


@pytest.mark.parametrize(("name", "request_"), SLAVE_REQUESTS, ids=[name for name, _ in SLAVE_REQUESTS])
def test_both_slaves_return_the_same_responses(slaves: tuple[str, str], name: str, request_: Command) -> None:
    ours, theirs = (ask(address, request_) for address in slaves)
    assert acted_on(ours) == acted_on(theirs), (ours.remark, theirs.remark)


def heartbeat(group: str, model: str = "CLUSTERING", *, unit_mode: bool = False, version: int = 5) -> Command:
    wanted = {
        "topic": "T",
        "subString": "*",
        "tagsSet": [],
        "codeSet": [],
        "subVersion": version,
        "expressionType": "TAG",
    }
    member = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "unitMode": unit_mode,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [wanted],
    }  # fmt: skip
    said = {"clientID": f"{group}@1", "consumerDataSet": [member], "producerDataSet": []}
    return Command(Code.HEART_BEAT, {}, json.dumps(said).encode())


def converse(address: str, *commands: Command) -> list[Command]:
    """The answers to requests that follow each other on one connection."""
    host, _, port = address.rpartition(":")
    answers: list[Command] = []
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        buffer = bytearray()
        for number, command in enumerate(commands):
            connection.sendall(encode(msgspec.structs.replace(command, opaque=number)))
            while len(answers) == number:
                frames, used = cut_frames(buffer)
                del buffer[:used]
                answers += [answer for answer in map(decode, frames) if answer.flag & RESPONSE_FLAG]
                if len(answers) == number:
                    piece = connection.recv(65536)
                    assert piece, "the broker closed the connection"
                    buffer += piece
    return answers


@pytest.mark.parametrize(
    ("beat", "pulled"),
    [
        (heartbeat("g"), pull("T", sysFlag=0, subVersion=5)),
        (heartbeat("g"), pull("T", sysFlag=0, subVersion=6)),
        (heartbeat("g"), pull("ns%other", sysFlag=0, subVersion=5)),
        (heartbeat("nobroadcast", "BROADCASTING"), pull("T", consumerGroup="nobroadcast", sysFlag=0)),
        (heartbeat("nobroadcast"), pull("T", consumerGroup="nobroadcast", sysFlag=0)),
        (heartbeat("paused"), pull("T", consumerGroup="paused", sysFlag=0)),
    ],
    ids=["a member", "a newer subscription", "another topic", "broadcasting", "not broadcasting", "not enabled"],
)
def test_group_members_pull_the_same_from_both_brokers(
    brokers: tuple[str, str], beat: Command, pulled: Command
) -> None:
    ours, theirs = (converse(address, beat, pulled) for address in brokers)
    assert list(map(acted_on, ours)) == list(map(acted_on, theirs)), (ours[1].remark, theirs[1].remark)


LONG_HEADERS: tuple[Request, ...] = (
    ("properties of 98,705 bytes", send("T", i="k\x01" + "v" * 98_703)),
    ("properties of 98,705 bytes, many", send("T", i="\x02".join(f"key-{number:05}\x01v" for number in range(8_226)))),
    ("properties of a MiB", send("T", i="k\x01" + "v" * (1 << 20))),
    ("properties of 50,000 letters of three bytes", send("T", i="k\x01" + "\u6587" * 50_000)),
    ("properties of 98,705 bytes, escaped", send("T", i="k\x01" + '"' * 98_703)),
    ("properties of 98,705 bytes by the long names", Command(Code.SEND_MESSAGE, {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "k\x01" + "v" * 98_703, "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false"}, b"x")),
    ("a batch with properties of 98,705 bytes", send(
        "T", batch("T", b"one").body, code=Code.SEND_BATCH_MESSAGE, m="true", i="k\x01" + "v" * 98_703)),
    ("half a message with properties of 98,705 bytes", send("T", i="TRAN_MSG\x01true\x02k\x01" + "v" * 98_688)),
    ("a late message with properties of 98,705 bytes", send("T", i="DELAY\x013\x02k\x01" + "v" * 98_694)),
    ("to a name of 100,000 letters", send("n" * 100_000)),
    ("a field of 200,000 bytes that nobody reads", send("T", unheard="v" * 200_000)),
    ("a remark of 100,000 bytes", msgspec.structs.replace(send("T"), remark="v" * 100_000)),
    ("a number of 100,000 digits", send("T", e="1" * 100_000)),
    ("a pull of a topic of 100,000 letters", pull("n" * 100_000)),
    ("a pull by tags of 60,000 letters", pull("T", subscription="v" * 60_000, unheard="v" * 100_000)),
    ("back with an id of 100,000 letters", back("g", offset="999999999", originMsgId="v" * 100_000)),
)  # fmt: skip


LONG_ON_PURPOSE = {
    ("a batch with properties of 98,705 bytes", "4.9.7"): "13; RocketMQ's 1 makes its client send the batch again",
    ("a batch with properties of 98,705 bytes", "5.3.3"): "13; RocketMQ's 1 makes its client send the batch again",
    ("to a name of 100,000 letters", "5.3.3"): "1 as from 4.9.7, where 5.x has code 29",
}


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def long_pair(request: pytest.FixtureRequest, brokers: tuple[str, str]) -> tuple[str, str, str]:
    """Our broker, RocketMQ's, and its version."""
    if request.param == "4.9.7":
        return *brokers, request.param
    theirs = request.getfixturevalue("java5_system").broker
    for command in (topic("T"), group("g")):
        assert ask(theirs, command).code == 0, command
    return brokers[0], theirs, request.param


@pytest.mark.parametrize("kind", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
@pytest.mark.parametrize(("name", "request_"), LONG_HEADERS, ids=[name for name, _ in LONG_HEADERS])
def test_both_brokers_answer_long_headers_and_keep_the_connection(
    long_pair: tuple[str, str, str], name: str, request_: Command, kind: int
) -> None:
    """Each is followed by another request on the same connection."""
    long = msgspec.structs.replace(request_, kind=kind)
    after = of_queue(Code.GET_MIN_OFFSET, "T")
    ours, theirs = ([answer.code for answer in converse(address, long, after)] for address in long_pair[:2])
    assert (ours[0] == theirs[0]) != ((name, long_pair[2]) in LONG_ON_PURPOSE), (ours, theirs)
    assert (ours[1], theirs[1]) == (0, 0)
    if name.startswith("properties"):
        assert ours[0] == 13


NAMED = ("Unit", "%RETRY%unit-member", "%RETRY%ns%member", "ns%namespaced", "%RETRY%unit-back", "%DLQ%ns%dead")
SYS_FLAGS = {"UnitAndSub": 3, "OnlySub": 2}


def test_both_brokers_create_and_register_topics_the_same_way(pairs: tuple[Pair, Pair]) -> None:
    """Unit mode and namespaces: flags, queues and permissions of created topics, and the lists that contain them."""
    configs, lists = [], []
    for broker, nameserver in pairs:
        for name, flag in SYS_FLAGS.items():
            ask(broker, Command(17, {**(topic(name).ext or {}), "topicSysFlag": str(flag)}))
        for command in (
            send("Unit", k="true"), send("ns%namespaced"), group("unit-back"), group("ns%dead"),
            back("unit-back", unitMode="true"), back("ns%dead", delayLevel="-1"),
        ):  # fmt: skip
            assert ask(broker, command).code == 0, command
        for beat in (heartbeat("unit-member", unit_mode=True), heartbeat("ns%member")):
            assert converse(broker, beat)[0].code == 0
        table = json.loads(ask(broker, Command(Code.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        configs.append({name: table.get(name) for name in (*NAMED, *SYS_FLAGS)})
        lists.append(wait_for_lists(nameserver))
    assert configs[0] == configs[1]
    assert lists[0] == lists[1]
    assert all(lists[0].values())


def wait_for_lists(nameserver: str) -> dict[str, list[str]]:
    """For each list of a nameserver, its topics among ``topics``, once it knows all of them."""
    asked = {
        "all": Command(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        "cluster": Command(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
        "unit": Command(Code.GET_UNIT_TOPIC_LIST),
        "subscribed by units": Command(Code.GET_HAS_UNIT_SUB_TOPIC_LIST),
        "subscribed by units, of none": Command(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    }
    interesting = {*NAMED, *SYS_FLAGS}
    for _ in range(100):
        bodies = {name: json.loads(ask(nameserver, command).body) for name, command in asked.items()}
        found = {name: sorted(interesting & set(body["topicList"])) for name, body in bodies.items()}
        if len(found["all"]) == len(interesting):
            return found
        time.sleep(0.1)
    raise AssertionError(f"the nameserver knows {found['all']} only")


def test_read_only_and_write_only_brokers_return_the_same_responses(pairs: tuple[Pair, Pair]) -> None:
    found: list[list[object]] = []
    for broker, nameserver in pairs:
        answers: list[object] = []
        for allowed in (4, 2, 6):
            changed = ask(broker, Command(Code.UPDATE_BROKER_CONFIG, {}, f"brokerPermission={allowed}".encode()))
            assert changed.code == 0, changed.remark
            answers += [ask(broker, command).code for command in (send("T"), pull("T"), back("g"), back("not-there"))]
            answers.append(wait_for_permission(nameserver, "T", allowed))
        found.append(answers)
    assert found[0] == found[1]


def wait_for_permission(nameserver: str, name: str, allowed: int) -> int:
    """The permission of a topic in its route, as soon as it is the one that is ``allowed``, or after ten seconds."""
    perm = -1
    for _ in range(100):
        route = ask(nameserver, Command(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": name}))
        (queues,) = fastjson.loads(route.body)["queueDatas"]
        perm = queues["perm"]
        if perm == allowed:
            break
        time.sleep(0.1)
    return perm


@pytest.mark.parametrize("wanted", ["*", "A"])
def test_both_brokers_serve_pulls_from_disk_the_same(brokers: tuple[str, str], wanted: str) -> None:
    """With a memory share of zero, each message counts as on disk; limits then change by RocketMQ's names."""
    found: list[list[object]] = []
    changes = (
        "accessMessageInMemoryMaxRatio=0",
        "maxTransferCountOnMessageInDisk=3",
        "maxTransferCountOnMessageInDisk=50\nmaxTransferBytesOnMessageInDisk=1000",
    )
    usual = (
        "accessMessageInMemoryMaxRatio=40\nmaxTransferCountOnMessageInDisk=8\nmaxTransferBytesOnMessageInDisk=65536\n"
        "maxTransferCountOnMessageInMemory=32"
    )
    for broker in brokers:
        answers: list[object] = []
        for text in (*changes, "accessMessageInMemoryMaxRatio=40\nmaxTransferCountOnMessageInMemory=7", usual):
            changed = ask(broker, Command(Code.UPDATE_BROKER_CONFIG, {}, text.encode()))
            assert changed.code == 0, changed.remark
            answers += [
                acted_on(ask(broker, pull("Many", maxMsgNums=50, subscription=wanted, **place)))
                for place in ({}, {"queueId": 1}, {"queueId": 2})
            ]
        found.append(answers)
    assert found[0] == found[1]
    nexts = [answer["nextBeginOffset"] for answer in found[0][::3]]  # type: ignore[index]
    assert nexts[:2] == ["8", "3"]
    assert nexts[3:] == ["7", "32"]

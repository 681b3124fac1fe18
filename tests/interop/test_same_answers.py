"""What a broker refuses and how: raw requests to GantryMQ and to RocketMQ's 4.9.7 broker, and the same answers.

Permissions, sizes, names, queues that are not there, groups that may not. Compared are the code and the fields that a
client acts on. ``ON_PURPOSE`` has the differences and why; one that is gone must be taken out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gantrymq.remoting.codes import RequestCode as Code
from gantrymq.remoting.command import Command
from gantrymq.testing.foreign import Java, ask, start_broker, start_nameserver
from gantrymq.testing.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BODY_MAX = 4 * 1024 * 1024
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
OUR_SLAVE = ("--set", "broker.id=1", "--set", "plugin.consume.slave_read_enable=true")
ACTED_ON = ("nextBeginOffset", "minOffset", "maxOffset", "offset", "queueId", "queueOffset", "suggestWhichBrokerId")
ON_PURPOSE = {
    "a batch that is rubbish": "13 and a text; RocketMQ answers with the trace of an exception",
    "a pull by nonsense": "23 and the place; RocketMQ gives every message where the expression cannot be read",
    "a pull by an unknown kind": "1, not supported; RocketMQ gives every message",
    "half a message": "transactions are not there yet, and a half message must not be read as a whole one",
}

Request = tuple[str, Command]


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


PREPARED: tuple[Command, ...] = (
    topic("T"), topic("ReadOnly"), topic("WriteOnly"), group("g"), group("off", consumeEnable=False),
    *(send("T", b"message %d" % number) for number in range(5)), send("ReadOnly"), send("WriteOnly"),
    topic("ReadOnly", 4), topic("WriteOnly", 2),
)  # fmt: skip

REQUESTS: tuple[Request, ...] = (
    ("a message", send("T")),
    ("a message without a body", send("T", b"")),
    ("a message by the long names", Command(Code.SEND_MESSAGE, {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
        "batch": "false"}, b"x")),
    ("to a topic that may only be read", send("ReadOnly")),
    ("to queue 4 of 4", send("T", e=4)),
    ("to queue 2147483647", send("T", e=2147483647)),
    ("to a system topic", send("RMQ_SYS_TRANS_HALF_TOPIC")),
    ("to the topic of the delays", send("SCHEDULE_TOPIC_XXXX")),
    ("to the topic that others are made from", send("TBW102")),
    ("to a name with a slash", send("a/b")),
    ("to a name with a dot", send("a.b")),
    ("to an empty name", send("")),
    ("to a name of 128 letters", send("n" * 128)),
    ("to a new topic", send("NewTopic", d=8)),
    ("to a new topic from no pattern", send("Other", c="NoPattern")),
    ("a body of 4 MiB", send("T", bytes(BODY_MAX))),
    ("a body of 4 MiB and a byte", send("T", bytes(BODY_MAX + 1))),
    ("properties of 32 KiB", send("T", i="k\x01" + "v" * 32768)),
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
    ("a group's offset that was never told", of_queue(Code.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g")),
    ("a group's offset in no topic", of_queue(Code.QUERY_CONSUMER_OFFSET, "Missing", consumerGroup="g")),
    ("a group's members when nobody is there", Command(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "nobody"})),
    ("a code that nobody knows", Command(31999, {})),
    ("half a message", send("T", i="TRAN_MSG\x01true\x02PGROUP\x01p")),
    ("to a retry topic of no group", send("%RETRY%nogroup-anywhere")),
    ("back to a group that is not there", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "0", "group": "not-there", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
    ("back from where nothing is", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "999999999", "group": "g", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
)  # fmt: skip


@pytest.fixture(scope="module")
def nameserver(java: Java, homes: Callable[[str], Path]) -> Iterator[str]:
    """Where RocketMQ's brokers register."""
    server = start_nameserver(java, homes("answers-nameserver"))
    yield server.address
    server.discard()


@contextmanager
def ours_running(home: Path, *options: str) -> Iterator[str]:
    """Our broker over the data in ``home``."""
    address, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", address, "--nameserver-listen", nameserver, *options)
    with gantrymq_child(serve, home / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield address


@pytest.fixture(scope="module")
def brokers(java: Java, homes: Callable[[str], Path], nameserver: str) -> Iterator[tuple[str, str]]:
    """Ours and RocketMQ's, with the same in them."""
    with ours_running(homes("answers")) as ours, ExitStack() as stack:
        broker = start_broker(java, homes("answers-broker"), nameserver, enablePropertyFilter="true")
        stack.callback(broker.discard)
        for address in (ours, broker.address):
            for command in PREPARED:
                assert ask(address, command).code == 0, command
        yield ours, broker.address


@pytest.fixture(scope="module")
def slaves(java: Java, homes: Callable[[str], Path], nameserver: str) -> Iterator[tuple[str, str]]:
    """Ours and RocketMQ's, with what came to them while they were masters."""
    home, their_home = homes("slave"), homes("slave-broker")
    with ours_running(home) as ours:
        broker = start_broker(java, their_home, nameserver, name="java-slave")
        for address in (ours, broker.address):
            for command in SLAVE_PREPARED:
                assert ask(address, command).code == 0, command
        broker.discard()
    with ours_running(home, *OUR_SLAVE) as ours, ExitStack() as stack:
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
    ("a message", send("T")),
    ("a delayed message", send("T", i="DELAY\x013")),
    ("half a message", send("T", i="TRAN_MSG\x01true\x02PGROUP\x01p")),
    ("to a new topic", send("NewTopic")),
    ("back from a consumer", Command(Code.CONSUMER_SEND_MSG_BACK, {
        "offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T", "unitMode": "false"})),
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
def test_both_brokers_answer_alike(brokers: tuple[str, str], name: str, request_: Command) -> None:
    ours, theirs = (ask(address, request_) for address in brokers)
    same = acted_on(ours) == acted_on(theirs)
    assert same != (name in ON_PURPOSE), (acted_on(ours), ours.remark, acted_on(theirs), theirs.remark)


@pytest.mark.parametrize(("name", "request_"), SLAVE_REQUESTS, ids=[name for name, _ in SLAVE_REQUESTS])
def test_both_slaves_answer_alike(slaves: tuple[str, str], name: str, request_: Command) -> None:
    ours, theirs = (ask(address, request_) for address in slaves)
    assert acted_on(ours) == acted_on(theirs), (ours.remark, theirs.remark)

"""Handwritten replies to GantryMQ and to RocketMQ's brokers cause the same responses, pushes and messages.

``ON_PURPOSE`` lists the differences with their reasons; a difference that is gone must be removed there.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from gantrymq.remoting.bodies.clients import HeartbeatData, ProducerData
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SEND_LETTERS
from gantrymq.remoting.names import reply_topic
from gantrymq.remoting.properties import decode_properties, encode_properties
from gantrymq.remoting.records import decode_records
from gantrymq.testing.requests import pull
from support.foreign import Java, ask, start_broker, start_nameserver
from support.processes import free_ports, gantrymq_child, wait_for
from support.rawpeer import RawPeer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

TOPIC = reply_topic("DefaultCluster")
SHORT, LONG = RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE
CLIENT = "asker@1"
GIVEN = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": CLIENT, "TTL": "3000", "WAIT": "true"}
BODY_MAX = 4 * 1024 * 1024
ON_PURPOSE = {
    "a body that is too large to store": "13, not pushed; RocketMQ pushes any frame",
    "properties that are too large to store": "13, not pushed; RocketMQ pushes any frame",
    "a compressed body": "stored with the flag; RocketMQ stores 0, and nobody can read the body",
}

ONLY_5 = {
    "without a body": "RocketMQ 5.3.3 answers 1, a NullPointerException",
    "without the optional fields": "RocketMQ 5.3.3 pushes their defaults",
}
"""Where RocketMQ 5.3.3 differs from 4.9.7, which our broker follows."""


def reply(code: int = SHORT, given: dict[str, str] | None = None, body: bytes = b"42", **changes: object) -> Command:
    """A reply; ``changes`` by the long names of the fields, None leaves one out."""
    fields = {
        "producerGroup": "repliers", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": 1234, "flag": 7, "reconsumeTimes": 0, "unitMode": "false",
        "properties": encode_properties(GIVEN if given is None else given), **changes,
    }  # fmt: skip
    fields = {name: value for name, value in fields.items() if value is not None}
    ext = {SEND_LETTERS[name] if code == SHORT else name: str(value) for name, value in fields.items()}
    return Command(code, ext, body)


def without(*names: str) -> dict[str, str]:
    """The properties of a reply but for these."""
    return {name: value for name, value in GIVEN.items() if name not in names}


Case = tuple[str, Command, int]
"""A name, a reply, and the code with which the requester acknowledges it."""

CASES: tuple[Case, ...] = (
    ("by the short names", reply(), 0),
    ("by the long names", reply(LONG), 0),
    ("without a body", reply(body=b""), 0),
    ("without the optional fields", reply(reconsumeTimes=None, unitMode=None), 0),
    ("in unit mode", reply(unitMode="true", reconsumeTimes=3), 0),
    ("without any properties", reply(properties=None), 0),
    ("to nobody", reply(given=without("REPLY_TO_CLIENT")), 0),
    ("to a client that is gone", reply(given={**GIVEN, "REPLY_TO_CLIENT": "gone@2"}), 0),
    ("that the requester refuses", reply(), 1),
    ("that the requester answers with a code of its own", reply(), 16),
    ("with a push time already", reply(given={**GIVEN, "PUSH_REPLY_TIME": "5"}), 0),
    ("with a separator at the end", reply(properties=encode_properties(GIVEN) + "\x02"), 0),
    ("without a correlation id", reply(given=without("CORRELATION_ID", "MSG_TYPE")), 0),
    ("with a delay", reply(given={**GIVEN, "DELAY": "18"}), 0),
    ("with the mark of half messages", reply(given={**GIVEN, "TRAN_MSG": "true", "PGROUP": "p"}), 0),
    ("with a flag of half messages", reply(sysFlag=4), 0),
    ("with letters of two bytes", reply(given={**GIVEN, "greeting": "gr\u00fc\u00dfe"}), 0),
    ("to a topic of its own", reply(topic="Replies", queueId=3), 0),
    ("a body that just fits", reply(body=bytes(BODY_MAX)), 0),
    ("a body that is too large to store", reply(body=bytes(BODY_MAX + 1)), 0),
    ("properties that are too large to store", reply(given={**GIVEN, "long": "x" * 32767}), 0),
    ("a compressed body", reply(sysFlag=0x301), 0),
)
REFUSED: tuple[Case, ...] = (
    ("to a queue that is not there", reply(queueId=1), 0),
    ("to a system topic", reply(topic="RMQ_SYS_TRANS_HALF_TOPIC"), 0),
    ("to a topic that is not there", reply(topic="Missing", defaultTopic="NoPattern"), 0),
    ("to an empty name", reply(topic=""), 0),
    ("to a name with a slash", reply(topic="a/b"), 0),
    ("without the topic", Command(SHORT, {"a": "p"}, b"x"), 0),
)
"""RocketMQ 5.3.3 answers some of these with other codes than 4.9.7, for messages as well."""


@attrs.frozen
class Seen:
    """The results of a reply: the response, the push without times and addresses, and the stored message."""

    code: int
    remark: str | None
    fields: dict[str, str]
    pushed: dict[str, Any] | None
    stored: list[dict[str, Any]]


class Peers:
    """A requester and a replier of one broker."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self.address = address
        self.requester = stack.enter_context(RawPeer(address, 20.0))
        self.replier = stack.enter_context(RawPeer(address, 20.0))

    def beat(self) -> None:
        """Let the broker know the requester: it forgets one without a heartbeat for two minutes."""
        beat = HeartbeatData(CLIENT, producer_data_set=[ProducerData("askers")])
        answer = self.requester.ask(Command(RequestCode.HEART_BEAT, None, beat.to_bytes()))
        assert answer is not None
        assert answer.code == 0

    def send(self, command: Command, acknowledge: int) -> Seen:
        """Send a reply, and acknowledge its push if there is one."""
        self.beat()
        topic = (command.ext or {}).get("b") or (command.ext or {}).get("topic", "")
        before = {queue: self._end(topic, queue) for queue in range(4)}
        command = msgspec.structs.replace(command, opaque=7)
        self.replier.send(command)
        pushed = None
        # A push comes before the answer, which waits for its acknowledgment.
        readable, _, _ = select.select([self.requester.sock, self.replier.sock], [], [], 20.0)
        if self.requester.sock in readable:
            pushes = self.requester.receive()
            assert [push.code for push in pushes] == [RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
            pushed = pushes[0]
            self.requester.send(pushed.answer(acknowledge, "process reply message fail" if acknowledge else None))
        answer = self.replier.answer_to(7)
        assert answer is not None
        if (answer.ext or {}).get("msgId", "0") != "0" and "DELAY" not in str(command.ext):
            # RocketMQ's consume queues follow its log a moment later.
            wait_for(lambda: any(self._end(topic, queue) > end for queue, end in before.items()))
        stored = [record for queue, end in before.items() for record in self._read(topic, queue, end)]
        fields = dict(answer.ext or {})
        if "msgId" in fields and fields["msgId"] != "0":
            fields["msgId"] = "of the stored message"
        return Seen(answer.code, answer.remark, fields, pushed and self._comparable(pushed), stored)

    def _end(self, topic: str, queue: int) -> int:
        command = Command(RequestCode.GET_MAX_OFFSET, {"topic": topic or "none", "queueId": str(queue)})
        answer = ask(self.address, command)
        return int((answer.ext or {}).get("offset", 0))

    def _read(self, topic: str, queue: int, offset: int) -> list[dict[str, Any]]:
        if self._end(topic, queue) <= offset:
            return []
        body = ask(self.address, pull(topic, queue, offset)).body
        return [
            {
                "queue": record.queue_id, "body": record.stored_body[:100], "flag": record.flag,
                "sys_flag": record.sys_flag, "born": record.born_timestamp,
                "reconsumed": record.reconsume_times,
                "properties": dict(record.properties),
            }
            for record in decode_records(body)
        ]  # fmt: skip

    def _comparable(self, push: Command) -> dict[str, Any]:
        fields: dict[str, Any] = dict(push.ext or {})
        properties = decode_properties(fields.pop("properties"))
        assert abs(int(properties.pop("PUSH_REPLY_TIME")) - int(fields.pop("storeTimestamp"))) < 5000
        host, port = self.replier.sock.getsockname()
        assert fields.pop("bornHost") == f"{host}:{port}"
        assert fields.pop("storeHost") == self.address
        return {"flag": push.flag, "fields": fields, "properties": properties, "body": push.body[:100],
                "size": len(push.body)}  # fmt: skip


@pytest.fixture(scope="module")
def ours(homes: Callable[[str], Path]) -> Iterator[Peers]:
    """Our broker."""
    home = homes("replies")
    address, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", address, "--nameserver-listen", nameserver)
    with gantrymq_child(serve, home / "serve.err") as child, ExitStack() as stack:
        child.wait_line(lambda line: line.startswith("ready"))
        yield Peers(address, stack)


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def theirs(request: pytest.FixtureRequest, homes: Callable[[str], Path]) -> Iterator[Peers]:
    """RocketMQ's broker, of both versions."""
    java: Java = request.getfixturevalue("java" if request.param == "4.9.7" else "java5")
    with ExitStack() as stack:
        nameserver = start_nameserver(java, homes("replies-nameserver"))
        stack.callback(nameserver.discard)
        broker = start_broker(java, homes("replies-broker"), nameserver.address)
        stack.callback(broker.discard)
        yield Peers(broker.address, stack)


def drop_answer_fields(seen: Seen) -> None:
    """Take out of the properties what RocketMQ 5.3.3, unlike 4.9.7, adds to those of every message that is sent."""
    for properties in [one["properties"] for one in (seen.pushed, *seen.stored) if one is not None]:
        properties.pop("MSG_REGION", None)
        properties.pop("TRACE_ON", None)


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_both_brokers_push_store_and_answer_replies_the_same_way(
    theirs: Peers, ours: Peers, store: bool, request: pytest.FixtureRequest
) -> None:
    for peers in (ours, theirs):
        text = f"storeReplyMessageEnable={'true' if store else 'false'}".encode()
        changed = ask(peers.address, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, text))
        assert changed.code == 0, changed.remark
    different = {}
    for name, command, acknowledge in CASES:
        seen = ours.send(command, acknowledge), theirs.send(command, acknowledge)
        for one in seen:
            # A reply that only one broker stored moves its offsets.
            one.fields.pop("queueOffset", None)
            drop_answer_fields(one)
        if seen[0] != seen[1]:
            different[name] = seen
    expected = set(ON_PURPOSE) - (set() if store else {"a compressed body"})
    if request.node.callspec.params["theirs"] == "5.3.3":
        expected |= set(ONLY_5)
    assert set(different) == expected, {name: pair for name, pair in different.items() if name not in expected}


def test_both_brokers_refuse_the_same_bad_replies(theirs: Peers, ours: Peers, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["theirs"] != "4.9.7":
        codes = [(ours.send(command, 0).pushed, theirs.send(command, 0).pushed) for _, command, _ in REFUSED]
        assert codes == [(None, None)] * len(REFUSED)
        return
    for name, command, _ in REFUSED:
        seen = ours.send(command, 0), theirs.send(command, 0)
        assert seen[0].code == seen[1].code, (name, seen)
        assert seen[0].pushed is seen[1].pushed is None, (name, seen)


def test_oneway_replies_get_no_response(theirs: Peers, ours: Peers) -> None:
    for peers in (ours, theirs):
        peers.beat()
        command = reply()
        command.flag = ONEWAY_FLAG
        command.opaque = 99
        peers.replier.send(command)
        (push,) = peers.requester.receive()
        peers.requester.send(push.answer(0))
        assert peers.replier.is_served()
        assert 99 not in peers.replier.unclaimed

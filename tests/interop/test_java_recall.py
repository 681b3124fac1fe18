"""RocketMQ 5.3.3's producer recalls timed messages at our broker and at RocketMQ's own.

Both get the same requests and must give the same responses with the same codes.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

import gantrymq.sync
from gantrymq.cli.__main__ import run as run_command
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.recall import RecallMessageHeader
from support.clients import ForeignClient
from support.foreign import Java, ask, start_broker
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

Homes = Callable[[str], Path]

TOPIC, NAME, COUNT = "Recalled", "recall-broker", 6
RECALLED = {1, 2, 5}
AFTER_MS = 6_000
"""Enough for a busy machine to take back what is to be taken back."""
ILLEGAL = int(ResponseCode.ILLEGAL_OPERATION)
BAD_HANDLES = {
    "of another topic": (f"v1 Other {NAME} LATER key", ILLEGAL, "recall failed, topic not match"),
    "of another broker": (f"v1 {TOPIC} elsewhere LATER key", ILLEGAL, "recall failed, broker service not available"),
    "that is over": (f"v1 {TOPIC} {NAME} 1000 key", ILLEGAL, "recall failed, timestamp invalid"),
    "without a time": (f"v1 {TOPIC} {NAME} soon key", ILLEGAL, "recall failed, timestamp invalid"),
    "too far off": (f"v1 {TOPIC} {NAME} 99999999999999 key", ILLEGAL, "recall failed, timestamp invalid"),
    "of a topic that is not there": (f"v1 Nowhere {NAME} LATER key", int(ResponseCode.TOPIC_NOT_EXIST),
                                     "recall failed, the topic[Nowhere] not exist"),
}  # fmt: skip
NO_HANDLES = ("", "v1", f"v1 {TOPIC} {NAME} LATER", f"v2 {TOPIC} {NAME} LATER key")


@attrs.frozen
class Observed:
    """The results of one broker: responses to the producer by name, codes of raw requests, and delivered messages."""

    recalled: dict[int, tuple[int, bool]]
    bad: dict[str, tuple[int, str]]
    raw: list[tuple[int, str | None]]
    arrived: list[int]
    late_ms: list[int]


def handle_of(text: str) -> str:
    later = str(int(time.time() * 1000) + 60_000)
    return base64.urlsafe_b64encode(text.replace("LATER", later).encode()).decode()


@contextmanager
def ours(homes: Homes, nameserver: str) -> Iterator[str]:
    (port,) = free_ports()
    serve = ["broker", "--data", str(homes("store")), "--listen", f"127.0.0.1:{port}", "--nameserver", nameserver]
    flush = ("--set", "plugin.flush.mode=async")  # as RocketMQ's
    with gantrymq_child([*serve, *flush, "--set", f"broker.name={NAME}"], homes("ours") / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield f"127.0.0.1:{port}"


@contextmanager
def theirs(java5: Java, homes: Homes, nameserver: str) -> Iterator[str]:
    server = start_broker(
        java5, homes("theirs"), nameserver, name=NAME, timerWheelEnable="true", recallMessageEnable="true",
    )  # fmt: skip
    try:
        yield server.address
    finally:
        server.discard()


@pytest.fixture(scope="module", params=["gantrymq", "java"])
def observed(
    request: pytest.FixtureRequest, java5: Java, java5_client: ForeignClient, own_nameserver: str, homes: Homes
) -> Iterator[Observed]:
    with ExitStack() as stack:
        broker = ours(homes, own_nameserver) if request.param == "gantrymq" else theirs(java5, homes, own_nameserver)
        address = stack.enter_context(broker)
        ext = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        consumer = stack.enter_context(java5_client.consumer(own_nameserver, TOPIC, f"readers-{request.param}"))
        pairs = (f"namesrv={own_nameserver}", f"topic={TOPIC}", f"count={COUNT}", f"after={AFTER_MS}")
        producer = stack.enter_context(java5_client.run("recall", *pairs))
        waiting: list[Any] = [producer.wait_event("waits") for _ in range(COUNT)]
        producer.wait_event("started")

        def recall(topic: str, handle: str) -> tuple[int, str]:
            producer.say(f"{topic} {handle}")
            answer: Any = producer.wait_event("recalled")
            return answer["code"], answer["text"]

        recalled = {}
        for index in RECALLED:
            code, text = recall(TOPIC, waiting[index]["handle"])
            recalled[index] = code, text == waiting[index]["msgId"]
        topics = {name: "Nowhere" if "Nowhere" in text else TOPIC for name, (text, _, _) in BAD_HANDLES.items()}
        bad = {name: recall(topics[name], handle_of(text)) for name, (text, _, _) in BAD_HANDLES.items()}
        raw = []
        for text in NO_HANDLES:
            header = RecallMessageHeader(producer_group="g", topic=TOPIC, recall_handle=handle_of(text))
            answer = ask(address, Command(RequestCode.RECALL_MESSAGE, header.to_ext()))
            raw.append((answer.code, answer.remark))
        messages = consumer.wait(COUNT - len(RECALLED))
        consumer.poll(2)  # what was recalled and came all the same would come now
        due = {one["index"]: one["due"] for one in waiting}
        yield Observed(
            recalled,
            bad,
            raw,
            sorted(message.index for message in messages),
            [message.stored - due[message.index] for message in messages],
        )


def test_a_recalled_message_never_arrives_and_all_others_do(observed: Observed) -> None:
    assert observed.recalled == dict.fromkeys(RECALLED, (0, True))
    assert observed.arrived == sorted(set(range(COUNT)) - RECALLED)
    assert min(observed.late_ms) >= 0


def test_a_bad_recall_handle_gets_rocketmqs_code_and_text(observed: Observed) -> None:
    codes = {name: code for name, (_, code, _) in BAD_HANDLES.items()}
    assert {name: answer[0] for name, answer in observed.bad.items()} == codes
    for name, (_, _, remark) in BAD_HANDLES.items():
        assert remark in observed.bad[name][1]
    assert observed.raw == [(ILLEGAL, "recall handle is invalid")] * len(NO_HANDLES)


@pytest.mark.usefixtures("observed")
def test_message_why_finds_a_timed_message_until_it_is_recalled(
    own_nameserver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def codes(message_id: str) -> list[str]:
        why = ("message", "why", message_id, TOPIC, "--group", "g", "--json", "--nameserver", own_nameserver)
        assert run_command(list(why)) == 0
        return [row["code"] for row in json.loads(capsys.readouterr().out)]

    with gantrymq.sync.connect(own_nameserver) as client, client.producer() as producer:
        sent = producer.send(gantrymq.Message(TOPIC, b"later", delay=600))
        wait_for(lambda: codes(sent.message_id) == ["delayed"], 30)
        producer.recall(sent)
        wait_for(lambda: "delayed" not in codes(sent.message_id), 30)

"""Requests and replies between Java, Go and Python in each direction; timeouts and closed requesters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import gantrymq.sync
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import reply_topic
from support.clients import ForeignClient
from support.content import content
from support.foreign import ask, create_topic, is_routed
from support.processes import Partner, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

Names = Callable[[str], str]

TOPIC = reply_topic("DefaultCluster")
SEED = 31
WARM_UP = 1000
"""The index of a request whose reply may get lost: it may come before the requester's first heartbeat."""
GONE = "push reply message fail, channel of <"
ADDED = {"CORRELATION_ID", "REPLY_TO_CLIENT", "PUSH_REPLY_TIME", "ARRIVE_TIME", "MSG_TYPE", "TTL"}


def stored_replies(broker: str) -> int:
    """How many replies the broker has stored."""
    answer = ask(broker, Command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}))
    assert answer.ext is not None
    return int(answer.ext["offset"])


def is_known(broker: str, group: str) -> bool:
    """Whether the broker has had a heartbeat of the producer group."""
    answer = ask(broker, Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}))
    return answer.code == 0 and bool(json.loads(answer.body)["connectionSet"])


@contextmanager
def talking(
    system: Any, requester: ForeignClient, replier: ForeignClient, names: Names, held: str = ""
) -> Iterator[tuple[Partner, Partner]]:
    """A requester and a replier of a topic of their own; the broker knows both."""
    topic, askers, repliers = names("t"), names("askers"), names("repliers")
    create_topic(system.broker, topic)
    wait_for(lambda: is_routed(system.nameserver, topic))
    common = (f"namesrv={system.nameserver}", f"topic={topic}")
    with (
        replier.run("respond", *common, f"group={repliers}", f"held={held}") as responding,
        requester.run("request", *common, f"group={askers}", f"seed={SEED}") as requesting,
    ):
        responding.wait_started()
        requesting.wait_started()
        yield requesting, responding


def make_requests(child: Partner, mode: str, first: int, count: int, timeout_ms: int = 20_000) -> list[dict[str, Any]]:
    """Make ``count`` requests and return their outcomes."""
    child.say(f"{mode} {first} {count} {timeout_ms}")
    outcomes: list[dict[str, Any]] = []
    for event in child.events(timeout=60):
        if event["event"] == "obeyed":
            break
        outcomes.append(event)
    return sorted(outcomes, key=lambda outcome: outcome["index"])


def warm_up(broker: str, group: str, mode: str, requesting: Partner, responding: Partner) -> None:
    """Let a requester have its route and its connection, and the broker know it."""
    make_requests(requesting, mode, WARM_UP, 1, 3000)
    wait_for(lambda: is_known(broker, group), 60)
    assert any(event["index"] == WARM_UP for event in responding.events())


def check_replies(outcomes: list[dict[str, Any]], first: int, count: int) -> None:
    """AssertionError unless each request has its own reply."""
    assert [(one["event"], one["index"]) for one in outcomes] == [
        ("replied", index) for index in range(first, first + count)
    ]
    for one in outcomes:
        assert bytes.fromhex(one["body"]) == content(SEED, one["index"]).body[::-1]
        assert one["properties"]["index"] == str(one["index"])
        assert set(one["properties"]) >= ADDED
        assert one["topic"] == TOPIC
    assert len({one["properties"]["CORRELATION_ID"] for one in outcomes}) == count


PAIRS = [
    ("java4_client", "java4_client"),
    ("java5_client", "java4_client"),
    ("java4_client", "java5_client"),
    ("java5_client", "go_client"),
    ("go_client", "java4_client"),
    ("go_client", "go_client"),
]


@pytest.mark.parametrize(("requester", "replier"), PAIRS, ids=[f"{one[:5]}-{two[:5]}" for one, two in PAIRS])
def test_each_request_gets_its_reply(
    requester: str, replier: str, system: Any, names: Names, request: pytest.FixtureRequest
) -> None:
    from_clients = request.getfixturevalue(requester), request.getfixturevalue(replier)
    before = stored_replies(system.broker)
    with talking(system, *from_clients, names) as (requesting, responding):
        # 5.3.3 stops waiting for the reply of a sync request when the request is sent (apache/rocketmq#9319).
        first_mode = "async" if requester == "java5_client" else "sync"
        warm_up(system.broker, names("askers"), first_mode, requesting, responding)
        check_replies(make_requests(requesting, first_mode, 0, 12), 0, 12)
        check_replies(make_requests(requesting, "async", 12, 60), 12, 60)
        sent: list[dict[str, Any]] = []
        for event in responding.events():
            sent.append(event)
            if len(sent) == 72:
                break
    assert {one["event"] for one in sent} == {"sent"}
    assert {one["status"] for one in sent} <= {0, "SEND_OK"}
    assert sorted(one["index"] for one in sent) == list(range(72))
    offsets = {one["queueOffset"] for one in sent}
    assert len(offsets) == 72
    assert min(offsets) >= before
    assert max(offsets) < stored_replies(system.broker)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_request_times_out_and_its_late_reply_is_ignored(
    mode: str, java_client: ForeignClient, java4_client: ForeignClient, system: Any, names: Names
) -> None:
    with talking(system, java_client, java4_client, names, held="0") as (requesting, responding):
        warm_up(system.broker, names("askers"), "async", requesting, responding)
        (outcome,) = make_requests(requesting, mode, 0, 1, 3000)
        assert (outcome["event"], outcome["error"]) == ("failed", "RequestTimeoutException")
        responding.wait_event("held")
        responding.say("reply")
        assert responding.wait_event("sent")["status"] == "SEND_OK"
        check_replies(make_requests(requesting, "async", 1, 3), 1, 3)


def test_a_reply_to_a_disconnected_requester_is_refused_and_stored(
    java4_client: ForeignClient, system: Any, names: Names
) -> None:
    with talking(system, java4_client.alone, java4_client, names, held="0") as (requesting, responding):
        requesting.say("async 0 1 20000")
        responding.wait_event("held")
        before = stored_replies(system.broker)
        requesting.kill()
        wait_for(lambda: not is_known(system.broker, names("askers")))
        responding.say("reply")
        refused: dict[str, Any] = responding.wait_event("refused")
        assert refused["code"] == 1
        assert refused["remark"].startswith(GONE)
        # The client tries three times.
        assert stored_replies(system.broker) == before + 3


@pytest.mark.parametrize("replier", ["java4_client", "java5_client"])
def test_java_consumers_reply_to_python_requests(
    replier: str, system: Any, names: Names, request: pytest.FixtureRequest
) -> None:
    topic = names("t")
    create_topic(system.broker, topic)
    wait_for(lambda: is_routed(system.nameserver, topic))
    common = (f"namesrv={system.nameserver}", f"topic={topic}", f"group={names('repliers')}", "held=")
    with (
        request.getfixturevalue(replier).run("respond", *common) as responding,
        gantrymq.sync.connect(system.nameserver) as client,
        client.producer(names("askers")) as producer,
    ):
        responding.wait_started()
        for index in range(12):  # 5,000 bytes are compressed on their way, and the reply as well
            sent = content(SEED, index)
            reply = producer.request(topic, sent.body, properties=sent.properties, timeout=30)
            assert reply.body == sent.body[::-1]
            assert reply.properties["index"] == str(index)
            assert set(reply.properties) >= ADDED - {"ARRIVE_TIME"}
            assert reply.topic == TOPIC


@pytest.mark.parametrize("requester", ["java4_client", "java5_client"])
def test_python_consumers_reply_to_java_requests(
    requester: str, system: Any, names: Names, request: pytest.FixtureRequest
) -> None:
    topic = names("t")
    create_topic(system.broker, topic)
    wait_for(lambda: is_routed(system.nameserver, topic))
    common = (f"namesrv={system.nameserver}", f"topic={topic}", f"group={names('askers')}", f"seed={SEED}")
    with (
        request.getfixturevalue(requester).run("request", *common) as requesting,
        gantrymq.sync.connect(system.nameserver) as client,
        client.consumer(topic, names("repliers"), start="first") as requests,
    ):
        requesting.wait_started()
        outcomes: list[dict[str, Any]] = []
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(make_requests, requesting, "async", 0, 12)
            for _ in range(12):
                (question,) = requests.next_batch(1, timeout=60)
                question.reply(question.body[::-1])
                question.ack()
            outcomes = asked.result(60)
        assert [(one["event"], one["index"]) for one in outcomes] == [("replied", index) for index in range(12)]
        for one in outcomes:
            assert bytes.fromhex(one["body"]) == content(SEED, one["index"]).body[::-1]

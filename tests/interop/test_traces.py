"""Tracing clients find the trace topic, and ``mqadmin queryMsgTraceById`` shows their traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import gantrymq.sync
from gantrymq.operations.groups import member_reports
from gantrymq.operations.traces import MessageTraces, message_traces
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import TRACE_TOPIC
from support.clients import ForeignClient
from support.foreign import Java, ask, create_topic, is_routed
from support.mqadmin import MqAdmin, run_mqadmin
from support.processes import ChildFailed, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

Homes = Callable[[str], Path]


@pytest.fixture(scope="module")
def admin(java: Java, homes: Homes) -> Iterator[MqAdmin]:
    """RocketMQ's tool 4.9.7."""
    with run_mqadmin(java, homes("tool")) as tool:
        yield tool


@pytest.fixture(scope="module")
def admin5(java5: Java, homes: Homes) -> Iterator[MqAdmin]:
    """The tool of 5.3.3, which reads the traces of its own clients."""
    with run_mqadmin(java5, homes("tool5")) as tool:
        yield tool


def traces_of(tool: MqAdmin, nameserver: str, message_id: str) -> list[list[str]]:
    """The rows that the tool prints about the message: kind, group, ..., state."""
    printed = tool.run(["queryMsgTraceById", "-n", nameserver, "-i", message_id])
    rows = [line.split() for line in printed.splitlines()]
    return sorted(row for row in rows if row and row[0] in ("Pub", "Sub"))


def our_traces_of(nameserver: str, message_id: str) -> list[tuple[str, str | None, str, int | None]]:
    """What ``gantrymq message trace`` shows: event, group, result and retries."""

    async def ask() -> MessageTraces:
        async with gantrymq.connect(nameserver) as client:
            return await message_traces(client, message_id)

    found = trio.run(ask)
    assert (found.unreadable, found.complete) == (0, True)
    assert all(each.client == "127.0.0.1" and each.time_ms and each.duration_ms is not None for each in found.events)
    return sorted((each.event, each.group, each.result, each.retries) for each in found.events)


def ends_of(nameserver: str, message_id: str) -> list[tuple[str | None, ...]]:
    """What ``gantrymq message trace`` shows of a transaction's outcome."""

    async def ask() -> MessageTraces:
        async with gantrymq.connect(nameserver) as client:
            return await message_traces(client, message_id)

    events = trio.run(ask).events
    return [(each.event, each.group, each.result, each.topic, each.keys) for each in events if each.event != "sent"]


def queues_of_members(nameserver: str, group: str) -> set[str]:
    """The queues that the members report, as ``gantrymq message why`` reads them."""

    async def ask() -> dict[str, MemberReport | None]:
        async with gantrymq.connect(nameserver) as client:
            return await member_reports(client, group)

    (report,) = trio.run(ask).values()
    assert report is not None
    assert not report.is_ordered
    return {f"{queue.topic} {queue.queue_id}" for queue in report.queues}


def make_topic(system: Any, topic: str) -> None:
    """Create the topic, so that a consumer finds it at its start."""
    create_topic(system.broker, topic)
    wait_for(lambda: is_routed(system.nameserver, topic))


def wait_traces(tool: MqAdmin, nameserver: str, message_id: str, count: int) -> list[list[str]]:
    """The rows once there are ``count``, or those that there are after a while: traces leave seconds later."""
    found: list[list[str]] = []

    def are_there() -> bool:
        found[:] = traces_of(tool, nameserver, message_id)
        return len(found) >= count

    with suppress(ChildFailed):
        wait_for(are_there)
    return found


@pytest.mark.parametrize(
    ("library", "tool", "producers", "kinds"),
    [
        ("java4_client", "admin", "interop-producer", ["Pub", "Sub"]),
        # Its consumer traces messages with the property MSG_REGION only, which no 4.9 broker gives them.
        ("java5_client", "admin5", "interop-producer", ["Pub"]),
        ("go_client", "admin", "interop-go-producer", ["Pub", "Sub"]),
    ],
    ids=["java-4.9.7", "java-5.3.3", "go"],
)
def test_message_traces_show_producer_and_consumers(
    library: str,
    tool: str,
    producers: str,
    kinds: list[str],
    gantry: Any,
    names: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> None:
    client: ForeignClient = request.getfixturevalue(library)
    topic, group = names("t"), names("g")
    mqadmin: MqAdmin = request.getfixturevalue(tool)
    make_topic(gantry, topic)
    by = {"Pub": producers, "Sub": group}
    options = (f"namesrv={gantry.nameserver}", f"topic={topic}", "count=3", "seed=1", "trace=true", "hold=true")
    # 5.3.3's consumer traces nothing that comes while it starts, and no client waits for its traces when it stops.
    with client.consumer(gantry.nameserver, topic, group, trace="true") as consumer:
        with client.run("produce", *options) as producer:
            sent = set()
            for event in producer.events(60):
                if event["event"] == "held":
                    break
                assert event["event"] == "sent"
                sent.add(str(event["msgId"]))
            assert len(sent) == 3
            assert {message.msg_id for message in consumer.wait(3)} == sent
            assert queues_of_members(gantry.nameserver, group) >= {f"{topic} {number}" for number in range(4)}
            for message_id in sent:
                found = wait_traces(mqadmin, gantry.nameserver, message_id, len(kinds))
                assert [(row[0], row[1]) for row in found] == [(kind, by[kind]) for kind in kinds]
                assert {row[-1] for row in found} == {"success"}
                assert our_traces_of(gantry.nameserver, message_id) == sorted(
                    (event, by[kind], "success", 0 if kind == "Sub" else None)
                    for kind, event in (("Pub", "sent"), ("Sub", "consumed"))
                    if kind in kinds
                )
            producer.say("stop")
            producer.wait_event("done")
        consumer.close()


@pytest.mark.parametrize(
    ("system_name", "tool"),
    [("gantry", "admin"), ("gantry", "admin5"), ("java_system", "admin"), ("java5_system", "admin5")],
    ids=["gantrymq-4.9.7-tool", "gantrymq-5.3.3-tool", "java-4.9.7", "java-5.3.3"],
)
def test_message_traces_of_the_python_client_are_shown(
    system_name: str, tool: str, names: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    system = request.getfixturevalue(system_name)
    mqadmin: MqAdmin = request.getfixturevalue(tool)
    topic, group, producers = names("t"), names("g"), names("p")
    make_topic(system, topic)
    with gantrymq.sync.connect(system.nameserver, trace=True) as client:
        with client.transactional_producer(
            f"{producers}-t", check=lambda _: gantrymq.Outcome.UNKNOWN, local=lambda *_: gantrymq.Outcome.ROLLBACK
        ) as transactional:
            half = transactional.send(topic, b"half", keys="k").transaction_id
        with client.producer(producers) as producer:
            batch = [gantrymq.Message(topic, b"1", keys="k"), gantrymq.Message(topic, b"2")]
            sent = {producer.send(topic, b"0", tags="a").message_id}
            sent |= {result.message_id for result in producer.send_batch(batch)}
        with client.consumer(topic, group, start="first") as messages:
            for _ in range(3):
                next(messages).ack()
        # while the client lives: the traces leave by themselves
        for message_id in sent:
            found = wait_traces(mqadmin, system.nameserver, message_id, 2)
            assert [(row[0], row[1], row[-1]) for row in found] == [
                ("Pub", producers, "success"), ("Sub", group, "success"),
            ]  # fmt: skip
            assert our_traces_of(system.nameserver, message_id) == [
                ("consumed", group, "success", 0), ("sent", producers, "success", None),
            ]  # fmt: skip
        found = wait_traces(mqadmin, system.nameserver, half, 1)
        assert [(row[0], row[1], row[-1]) for row in found] == [("Pub", f"{producers}-t", "success")]
        assert ends_of(system.nameserver, half) == [("transaction_ended", f"{producers}-t", "rollback", topic, "k")]


def test_the_trace_topic_has_a_route_before_the_first_trace(gantry: Any) -> None:
    answer = ask(gantry.nameserver, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TRACE_TOPIC}))
    assert answer.code == 0
    assert b'"writeQueueNums":1' in answer.body

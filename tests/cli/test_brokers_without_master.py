"""Commands delete nothing that a broker without a master would bring back, and lists name that broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gantrymq.client import connect
from gantrymq.client.errors import NoRoute
from gantrymq.client.groups import plan_reset
from gantrymq.client.topics import delete_topic
from gantrymq.operations.delayed import WaitingMessages, waiting_messages
from gantrymq.operations.groups import delete_group
from gantrymq.operations.why import Reason, why
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.remoting.bodies.running import MemberReport
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import ConnectFailed, RemoteFault
from gantrymq.remoting.headers.nameserver import RegisterBrokerHeader
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.harness import run_cluster

pytestmark = pytest.mark.trio

BROKERS = {"broker-a": BrokerData("c", "broker-a", {0: "a:1"}), "broker-b": BrokerData("c", "broker-b", {1: "b:2"})}
WARNING = "broker broker-b has no master now, so what only it has is missing\n"


class FakeAdmin:
    """A cluster whose second broker has only a slave; ``brokers``: those with the topic."""

    nameservers = ("nameserver:9876",)

    def __init__(self, *brokers: str) -> None:
        self.brokers = brokers
        self.asked: list[str] = []

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo(BROKERS, {"c": list(BROKERS)})

    async def route(self, topic: str) -> TopicRouteData:
        if not self.brokers:
            raise NoRoute(f"topic {topic} does not exist")
        queues = [QueueData(name, 1, 1, 6) for name in self.brokers]
        return TopicRouteData(queues, [BROKERS[name] for name in self.brokers])

    async def request(self, address: str, command: Command) -> Command:
        self.asked.append(address)
        return Command(ResponseCode.SUCCESS)


async def test_nothing_is_deleted_if_a_broker_has_no_master() -> None:
    admin: Any = FakeAdmin("broker-a", "broker-b")
    client: Any = SimpleNamespace(admin=admin)
    with pytest.raises(NoRoute, match="broker broker-b has no master now, so nothing was deleted"):
        await delete_topic(admin, "x")
    with pytest.raises(NoRoute, match="broker broker-b has no master now, so nothing was deleted"):
        await delete_group(client, "x")
    assert admin.asked == []


@pytest.mark.parametrize("brokers", [("broker-a",), ()])
async def test_a_topic_is_deleted_if_the_broker_without_a_master_does_not_have_it(brokers: tuple[str, ...]) -> None:
    admin: Any = FakeAdmin(*brokers)
    await delete_topic(admin, "x")
    assert admin.asked == ["a:1", "nameserver:9876"]


async def test_no_offset_is_reset_if_a_broker_of_the_topic_has_no_master() -> None:
    admin: Any = FakeAdmin("broker-a", "broker-b")
    with pytest.raises(NoRoute, match="broker broker-b has no master now, so no offset was changed"):
        await plan_reset(admin, "g", ["T"], "first")
    assert admin.asked == []


async def test_why_names_a_broker_without_a_master_and_does_not_know_what_its_expression_excludes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = SimpleNamespace(topic="T", broker_name="broker-b", queue_id=0, queue_offset=0, message_id="id", tags=None)
    subscription = SubscriptionData(topic="T", sub_string="size > 5", expression_type="SQL92")

    class Admin(FakeAdmin):
        async def find_by_id(self, topic: str, message_id: str) -> list[Any]:
            return [message] if topic == "T" else []

        async def request(self, address: str, command: Command) -> Command:
            assert command.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            return Command(ResponseCode.SUCCESS, body=SubscriptionGroupWrapper().to_bytes())

    async def reports(client: Any, group: str) -> dict[str, MemberReport]:
        return {"member": MemberReport(subscription_set=[subscription])}

    async def lags(admin: Any, group: str, *, times: bool) -> list[Any]:
        return []

    monkeypatch.setattr("gantrymq.operations.why.member_reports", reports)
    monkeypatch.setattr("gantrymq.operations.why.group_lags", lags)
    client: Any = SimpleNamespace(admin=Admin("broker-b"))
    reasons = await why(client, "T", "id", "g")
    assert reasons[0] == Reason(
        "filter_unknown", "broker broker-b has no master now to evaluate the SQL92 expression 'size > 5'"
    )
    assert [reason.code for reason in reasons[1:]] == ["unassigned", "no_master"], "its offset of the group is unknown"
    assert reasons[-1].text == "broker broker-b has no master now, so what only it has of group g is missing"


async def test_lists_of_groups_warn_of_a_broker_without_a_master_and_what_needs_all_masters_is_refused(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    slave = RegisterBrokerHeader(
        broker_name="broker-b", broker_addr="127.0.0.1:1", cluster_name="DefaultCluster", ha_server_addr="", broker_id=1
    )
    file = tmp_path / "definitions"
    file.write_text(json.dumps({"version": 1}))
    async with run_cluster(tmp_path / "store") as cluster, open_channel(cluster.nameserver) as channel:

        async def run(*words: str) -> tuple[int, str]:
            outcome = await trio.to_thread.run_sync(lambda: cli(*words, "--nameserver", cluster.nameserver))
            return outcome.code, outcome.err

        assert (await run("topic", "create", "T", "--queues", "2"))[0] == 0
        before = await run("group", "list")
        answer = await channel.call(Command(RequestCode.REGISTER_BROKER, slave.to_ext()))
        assert answer.code == ResponseCode.SUCCESS
        assert before == (0, "")
        assert await run("group", "list") == (0, f"gantrymq: {WARNING}")
        assert await run("client", "list") == (0, f"gantrymq: {WARNING}")
        code, err = await run("topic", "update", "T", "--queues", "4")
        assert (code, err) == (
            0,
            "gantrymq: broker broker-b has no master now: run the command again when it has one\n",
        )
        for command in ("lag", "describe"):
            code, err = await run("group", command, "g")
            assert (code, err.startswith(f"gantrymq: {WARNING}")) == (1, True)
        reset = ("group", "reset-offsets", "g", "--to", "first", "--dry-run")
        text = "broker broker-b has no master now, so not all topics of group g are known; name the topics"
        assert await run(*reset) == (1, f"gantrymq: {text}\n")
        assert await run(*reset, "--topic", "T") == (0, "offsets of 4 queues would be set\n")
        code, err = await run("group", "delete", "g", "--yes")
        assert (code, "broker broker-b has no master now, so nothing was deleted" in err) == (1, True)
        code, err = await run("definitions", "export")
        assert (code, "broker broker-b has no master now" in err) == (1, True)
        code, err = await run("definitions", "import", str(file), "--dry-run")
        assert (code, "broker broker-b has no master now" in err) == (1, True)


async def test_offsets_are_reset_while_a_broker_of_another_cluster_has_no_master(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    slave = RegisterBrokerHeader(
        broker_name="broker-b", broker_addr="127.0.0.1:1", cluster_name="Other", ha_server_addr="", broker_id=1
    )
    async with run_cluster(tmp_path / "store") as cluster, open_channel(cluster.nameserver) as channel:
        async with connect(cluster.nameserver) as client:
            await client.admin.create_topic("T", 2)
            await client.admin.set_consumer_offset("g", MessageQueue("T", cluster.broker.name, 0), 0)
        assert (await channel.call(Command(RequestCode.REGISTER_BROKER, slave.to_ext()))).code == ResponseCode.SUCCESS
        reset = ("group", "reset-offsets", "g", "--to", "first", "--dry-run", "--nameserver", cluster.nameserver)
        every = await trio.to_thread.run_sync(lambda: cli(*reset))
        one = await trio.to_thread.run_sync(lambda: cli(*reset, "--topic", "T"))
    text = "broker broker-b has no master now, so offsets of group g that only it has are left out"
    assert (every.code, every.err) == (0, f"gantrymq: {text}\noffsets of 2 queues would be set\n")
    assert (one.code, one.err) == (0, "offsets of 2 queues would be set\n")


@pytest.mark.parametrize(
    "error", [None, RemoteFault(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]"), ConnectFailed("b:2", "refused")]
)
@pytest.mark.parametrize("slaves", [{1: "b:2"}, {1: "b:2", 2: "b:3"}])
async def test_timed_messages_of_a_broker_without_a_master_are_read_from_its_slave(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, slaves: dict[int, str]
) -> None:
    monkeypatch.setitem(BROKERS, "broker-b", BrokerData("c", "broker-b", slaves))
    asked = []

    class Slave:
        async def call(self, command: Command, timeout: float = 0) -> Command:
            if error is not None and asked[-1] == "b:2":
                raise error
            offset = 0 if command.code != RequestCode.PULL_MESSAGE else None
            ext = {"offset": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
            return Command(ResponseCode.SUCCESS if offset is not None else ResponseCode.PULL_NOT_FOUND, ext)

    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Any]:
        asked.append(address)
        yield Slave()

    class Admin(FakeAdmin):
        async def topics(self) -> list[str]:
            return [TIMER_TOPIC]

    monkeypatch.setattr("gantrymq.operations.delayed.open_channel", opened)
    client: Any = SimpleNamespace(admin=Admin("broker-a", "broker-b"))
    is_unread = error is not None and len(slaves) == 1
    assert await waiting_messages(client, None) == WaitingMessages([], True, ["broker-b"] if is_unread else [])
    assert asked == ["a:1", *(slaves.values() if error else ["b:2"])]

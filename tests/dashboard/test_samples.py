"""The samples of the dashboard and its requests while brokers come and go, without a cluster."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")

from gantrymq.client import Client
from gantrymq.client.errors import BrokerError, ChannelClosed
from gantrymq.dashboard import views
from gantrymq.dashboard.access import CHANGE_HEADER, Access
from gantrymq.dashboard.api import PREFIX, SAMPLE_S, Source, make_app
from gantrymq.failover.brokers import COLUMNS, REFUSING, UNREACHABLE
from gantrymq.remoting.bodies.clients import ConsumerConnections
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumeStats, OffsetWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.dashboard import check_answer

pytestmark = [pytest.mark.timeout(60), pytest.mark.trio]

BROKER = "192.0.2.1:10911"
OTHER = "192.0.2.2:10911"
GROUPS = ("billing", "mailing", "shipping")


class FakeAdmin:
    """The requests of a cluster with one broker, which lists its groups and then closes each connection."""

    nameservers = ("192.0.2.1:9876",)
    fault: Exception | None = None
    """What the nameserver's answer raises."""

    async def cluster(self) -> ClusterInfo:
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise self.fault
        return ClusterInfo({"broker-a": BrokerData("c", "broker-a", {0: BROKER})}, {"c": ["broker-a"]})

    async def topics(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["orders"]

    async def request(self, address: str, command: Command) -> Command:
        await trio.lowlevel.checkpoint()
        if command.code != RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            raise ChannelClosed(address, "closed by the peer")
        table = {name: SubscriptionGroupConfig(group_name=name) for name in GROUPS}
        return command.answer(0, body=SubscriptionGroupWrapper(table).to_bytes())


class TwoMasters(FakeAdmin):
    """:class:`FakeAdmin` with a second broker that answers; the first one fails each request."""

    fault_of_first: Exception = ChannelClosed(BROKER, "closed by the peer")

    async def cluster(self) -> ClusterInfo:
        await trio.lowlevel.checkpoint()
        addresses = {"broker-a": BROKER, "broker-b": OTHER}
        brokers = {name: BrokerData("c", name, {0: address}) for name, address in addresses.items()}
        return ClusterInfo(brokers, {"c": list(brokers)})

    async def request(self, address: str, command: Command) -> Command:
        if address == BROKER:
            raise self.fault_of_first
        if command.code == RequestCode.GET_CONSUME_STATS:
            queue = MessageQueue(topic="orders", broker_name="broker-b", queue_id=0)
            offsets = OffsetWrapper(broker_offset=10, consumer_offset=3)
            return command.answer(0, body=ConsumeStats(offset_table={queue: offsets}).to_bytes())
        if command.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
            return command.answer(0, body=ConsumerConnections().to_bytes())
        return await super().request(address, command)


class FakeClient:
    def __init__(self) -> None:
        self.admin = FakeAdmin()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    """Its client has :class:`FakeAdmin`; :data:`BROKER` is unreachable, or refuses, where there is another master."""

    async def rows(client: Client) -> list[dict[str, Any]]:
        table = (await client.admin.cluster()).broker_addr_table
        lost = REFUSING if isinstance(getattr(client.admin, "fault_of_first", None), BrokerError) else UNREACHABLE
        return [
            dict.fromkeys(COLUMNS) | {
                "cluster": "c", "broker": name, "id": 0, "address": data.broker_addrs[0],
                "role": lost if len(table) > 1 and data.broker_addrs[0] == BROKER else "master",
            }
            for name, data in table.items()
        ]  # fmt: skip

    monkeypatch.setattr(views, "broker_rows", rows)
    source = Source()
    source.client = cast("Client", FakeClient())
    return source


def admin_of(source: Source) -> FakeAdmin:
    return cast("FakeAdmin", source.ready().admin)


async def test_a_broker_that_dies_during_a_sample_does_not_end_the_sampling(
    source: Source, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(2.5 * SAMPLE_S):
        await source.sample()
    counts = [(each["topics"], each["groups"], each["lag"], each.get("problem")) for each in source.samples]
    assert counts == [(1, None, None, None)] * 3
    assert (await asked(source, "GET", "/overview"))[0] == 200


@pytest.mark.parametrize(
    "fault",
    [ChannelClosed(BROKER, "closed by the peer"), BrokerError(16, "no permission", BROKER)],
    ids=["unreachable", "refusing"],
)
async def test_a_lost_master_does_not_hide_the_groups_and_lag_of_the_others(source: Source, fault: Exception) -> None:
    admin = cast("FakeClient", source.client).admin = TwoMasters()
    admin.fault_of_first = fault
    found = await source.overview()
    assert (found["groups"], found["lag"]) == (len(GROUPS), len(GROUPS) * 7)


async def test_beyond_the_limit_a_sample_continues_with_the_groups_that_the_one_before_left_out(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "GROUPS_SUMMED_MAX", 2)
    cast("FakeClient", source.client).admin = TwoMasters()
    found = [await source.overview() for _ in range(3)]
    assert [each["lag"] for each in found] == [2 * 7, 3 * 7, 3 * 7]
    assert {row["group"] for row in found[-1]["slowest"]} == set(GROUPS)


@pytest.mark.parametrize(
    "fault",
    [KeyError("broker-b"), ExceptionGroup("tasks", [ChannelClosed(BROKER, "closed")]), ValueError()],
    ids=lambda fault: type(fault).__name__,
)
async def test_an_unexpected_error_is_the_problem_of_its_samples_and_logged_once(
    source: Source, fault: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    admin_of(source).fault = fault
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.sample)
            await trio.sleep(1.5 * SAMPLE_S)
            admin_of(source).fault = None
            await trio.sleep(SAMPLE_S)
            nursery.cancel_scope.cancel()
    problem = f"{type(fault).__name__}: see the log"
    assert [each.get("problem") for each in source.samples] == [problem, problem, None]
    assert [(each["event"], each["log_level"]) for each in logs] == [("dashboard_sample_failed", "error")]


@pytest.mark.parametrize("path", ["/groups", "/groups/billing", "/clients", "/topics"])
async def test_a_request_during_which_a_broker_dies_is_answered_with_502(source: Source, path: str) -> None:
    status, answer = await asked(source, "GET", path)
    assert (status, answer["error"]["code"]) == (502, "cluster")
    assert f"{BROKER}: closed by the peer" in answer["error"]["message"]


async def asked(source: Source, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and content of the answer to a request."""
    scope = {
        "type": "http", "method": method, "scheme": "http", "path": PREFIX + path, "query_string": b"",
        "headers": [(b"host", b"localhost"), (CHANGE_HEADER.encode(), b"1")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    sent = list[Any]()

    async def receive() -> Any:
        await trio.lowlevel.checkpoint()
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await make_app(source, Access())(scope, receive, send)
    answer = json.loads(sent[1]["body"])
    check_answer(method, PREFIX + path, sent[0]["status"], answer)
    return sent[0]["status"], answer


async def test_an_action_that_fails_on_its_way_is_logged_with_its_status(source: Source) -> None:
    """Such a request may have changed one broker before it failed at another one."""
    with capture_logs() as logs:
        status, _ = await asked(source, "DELETE", "/groups/billing", {"confirm": "billing"})
    assert status == 502
    actions = [(each["method"], each["status"]) for each in logs if each["event"] == "dashboard_action"]
    assert actions == [("DELETE", 502)]


async def test_a_dry_run_is_no_action(source: Source) -> None:
    with capture_logs() as logs:
        await asked(source, "POST", "/groups/billing/reset", {"topic": "orders", "to": "first", "dry_run": True})
    assert "dashboard_action" not in [each["event"] for each in logs]

"""Responses of the API to requests that fail, time out, or find data that JSON cannot express; no cluster."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")

from starlette.applications import Starlette

from gantrymq.client import Client
from gantrymq.client.errors import GantryError
from gantrymq.client.groups import OffsetReset
from gantrymq.dashboard import views
from gantrymq.dashboard.access import Access
from gantrymq.dashboard.api import PREFIX, REPLAY_MAX, REPLAY_S, TIMEOUT_S, Source, make_app
from gantrymq.operations import dead_letters
from gantrymq.operations.delayed import WaitingMessages
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.remoting.command import Command
from gantrymq.remoting.recent_events import EVENTS_KEPT, keep_recent
from support.dashboard import check_answer

pytestmark = [pytest.mark.timeout(60), pytest.mark.trio]

REPLAY = "/dead-letters/billing/replay"
HALF_PAIR = "\ud800"


@pytest.fixture
def app() -> Starlette:
    source = Source()
    source.client = cast("Client", object())
    return make_app(source, Access())


async def ask(app: Starlette, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[int, Any]:
    """Status and body of an answer."""
    scope = {
        "type": "http", "method": method, "scheme": "http", "path": PREFIX + path, "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"x-gantrymq-change", b"1")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }  # fmt: skip
    sent = list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    answer = json.loads(sent[1]["body"])
    check_answer(method, PREFIX + path, sent[0]["status"], answer)
    return sent[0]["status"], answer


def find_plugins(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    """Let the cluster have one plugin."""
    row = {"broker": "b", "plugin": name, "version": "1", "tasks": {}, "calls": 0, "seconds": seconds, "errors": 0}

    async def found(client: Client) -> list[dict[str, Any]]:
        return [row]

    monkeypatch.setattr(views, "plugins", found)


async def test_a_cluster_that_does_not_answer_in_time_is_a_timeout(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def silent(client: Client) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(views, "plugins", silent)
    began = trio.current_time()
    status, found = await ask(app, "GET", "/plugins")
    assert (status, found["error"]["code"]) == (504, "timeout")
    assert found["error"]["message"] == "the cluster did not answer in 30 s"
    assert trio.current_time() - began == pytest.approx(TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "status"),
    [(TimeoutError(110, "timed out"), 504), (ConnectionResetError(104, "reset"), 502), (GantryError(HALF_PAIR), 502)],
    ids=["timed out", "reset", "no UTF-8"],
)
async def test_an_error_of_the_connection_says_what_it_is(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fail(client: Client) -> None:
        raise error

    monkeypatch.setattr(views, "plugins", fail)
    given, found = await ask(app, "GET", "/plugins")
    assert (given, found["error"]["message"]) == (status, str(error))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity"])
async def test_a_number_without_a_value_is_refused(app: Starlette, number: str) -> None:
    status, found = await ask(app, "POST", "/topics", b'{"topic": "x", "queues": %s}' % number.encode())
    assert (status, found["error"]["code"]) == (400, "bad_request")
    assert "queues must be a whole number" in found["error"]["message"]


async def test_a_counter_without_a_value_is_shown_as_missing(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(("cluster", "broker", "role", "address"), "x") | {"id": 0, "offset": 0, "lag_seconds": 0}

    async def rows(client: Client) -> list[dict[str, Any]]:
        return [row]

    async def runtime(client: Client, address: str) -> dict[str, str]:
        return {"commitLogDiskRatio": "NaN"}

    monkeypatch.setattr(views, "broker_rows", rows)
    monkeypatch.setattr(views, "runtime_info", runtime)
    status, found = await ask(app, "GET", "/brokers")
    assert (status, found["brokers"][0]["disk_ratio"]) == (200, None)


async def test_an_answer_that_is_no_json_is_an_error_that_is_logged(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_plugins(monkeypatch, "p", float("nan"))
    with capture_logs() as logs:
        status, found = await ask(app, "GET", "/plugins")
    assert (status, found["error"]["code"]) == (500, "internal")
    assert [each["event"] for each in logs] == ["dashboard_request_failed"]


async def test_a_name_that_is_no_utf_8_is_shown(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    find_plugins(monkeypatch, HALF_PAIR, 0.5)
    status, found = await ask(app, "GET", "/plugins")
    assert (status, found["plugins"][0]["plugin"]) == (200, HALF_PAIR)


async def test_dead_letters_of_a_group_are_replayed_once_at_a_time(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = trio.Event(), trio.Event()
    calls: list[str] = []
    answers: list[tuple[int, Any]] = []

    async def replay(client: Client, group: str, *, limit: int, until: float) -> int:
        calls.append(group)
        if group == "billing":
            begun.set()
            await done.wait()
        return 1

    async def ask_for_replay() -> None:
        answers.append(await ask(app, "POST", REPLAY, b'{"confirm": "billing"}'))

    monkeypatch.setattr(dead_letters, "replay", replay)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_replay)
        await begun.wait()
        status, found = await ask(app, "POST", REPLAY, b'{"confirm": "billing"}')
        assert (status, found["error"]["code"]) == (409, "running")
        assert (await ask(app, "POST", "/dead-letters/mailing/replay", b'{"confirm": "mailing"}'))[0] == 200
        done.set()
    await ask_for_replay()
    assert answers == [(200, {"group": "billing", "sent": 1})] * 2
    assert calls == ["billing", "mailing", "billing"]


async def test_a_replay_that_fails_can_be_repeated(app: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replay(client: Client, group: str, *, limit: int, until: float) -> int:
        raise GantryError("gone")

    monkeypatch.setattr(dead_letters, "replay", replay)
    for _ in range(2):
        assert (await ask(app, "POST", REPLAY, b'{"confirm": "billing"}'))[0] == 502


class ManyLetters:
    """A client, its ``admin`` and its reader at once: one queue with :data:`REPLAY_MAX` dead letters, each of which
    takes 10 ms to be sent."""

    broker = BrokerData("c", "b", {0: "b:1"})

    def __init__(self) -> None:
        self.admin = self
        self.sent = self.committed = 0

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo({"b": self.broker}, {"c": ["b"]})

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData([QueueData("b", 1, 1, 6)], [self.broker])

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name="b", queue_id=0)]

    async def request(self, address: str, command: Command) -> Command:
        await trio.sleep(0.01)
        self.sent += 1
        return Command(0)

    def reader(self, topic: str, **options: Any) -> ManyLetters:
        return self

    async def __aenter__(self) -> ManyLetters:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def assign(self, queues: Any) -> None:
        (self.queue,) = queues

    async def poll(self, *, max: int) -> list[Any]:
        letter = SimpleNamespace(queue=self.queue, queue_offset=self.committed, properties={}, flag=0, body=b"x")
        return [letter] if self.committed < REPLAY_MAX else []

    async def commit(self, offsets: dict[MessageQueue, int]) -> None:
        await trio.lowlevel.checkpoint()
        self.committed = offsets[self.queue]


async def test_a_long_replay_stops_in_time_between_two_letters(
    app: Starlette, autojump_clock: trio.testing.MockClock
) -> None:
    cluster = ManyLetters()
    app.state.source.client = cluster
    began = trio.current_time()
    status, found = await ask(app, "POST", REPLAY, b'{"confirm": "billing"}')
    assert status == 200
    assert 0 < found["sent"] < REPLAY_MAX
    assert found["sent"] == cluster.sent == cluster.committed
    assert trio.current_time() - began == pytest.approx(REPLAY_S, abs=0.1)


async def test_timed_messages_are_read_by_one_request_at_a_time(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Those that wait share one reading, which began after they came: it has what they changed before."""
    reads: list[tuple[str | None, float]] = []
    answers: list[tuple[int, Any]] = []

    async def waiting(client: Client, topic: str | None, most: int) -> WaitingMessages:
        reads.append((topic, trio.current_time()))
        await trio.sleep(5)
        return WaitingMessages([])

    async def levels(client: Client) -> list[Any]:
        return []

    async def ask_for_delayed(query: str = "") -> None:
        answers.append(await ask(app, "GET", "/delayed", query=query))

    monkeypatch.setattr("gantrymq.operations.delayed.waiting_messages", waiting)
    monkeypatch.setattr(views, "delay_levels", levels)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_delayed)
        await trio.sleep(1)
        for _ in range(3):
            nursery.start_soon(ask_for_delayed)
        await trio.sleep(1)
        nursery.start_soon(ask_for_delayed, "topic=orders")
    assert [(topic, at - began) for topic, at in reads] == [(None, 0), (None, 5), ("orders", 10)]
    assert answers == [(200, {"total": 0, "complete": True, "unread": [], "messages": [], "levels": []})] * 5


@pytest.mark.parametrize(("topic", "unread"), [("", ["broker-b"]), ("T", [])])
async def test_a_reset_of_all_topics_names_brokers_without_a_master(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, topic: str, unread: list[str]
) -> None:
    async def plan(admin: object, group: str, topics: list[str], to: str) -> list[OffsetReset]:
        return [OffsetReset(MessageQueue("T", "broker-a", 0), 4, 0)]

    monkeypatch.setattr("gantrymq.dashboard.api.plan_reset", plan)
    brokers = {"broker-a": BrokerData("c", "broker-a", {0: "a:1"}), "broker-b": BrokerData("d", "broker-b", {1: "b:2"})}

    async def cluster() -> ClusterInfo:
        return ClusterInfo(brokers, {"c": ["broker-a"], "d": ["broker-b"]})

    app.state.source.client = SimpleNamespace(admin=SimpleNamespace(cluster=cluster))
    body = json.dumps({"to": "first", "topic": topic, "dry_run": True}).encode()
    status, found = await ask(app, "POST", "/groups/billing/reset", body)
    assert (status, found["unread"], len(found["queues"])) == (200, unread, 1)


async def test_all_log_events_that_are_kept_are_shown(app: Starlette) -> None:
    component = uuid4().hex
    for number in range(EVENTS_KEPT + 1):
        keep_recent(None, "info", {"event": str(number), "component": component})
    status, found = await ask(app, "GET", "/log-events", query=f"search={component}")
    assert status == 200
    assert [each["event"] for each in found["events"]] == [str(number) for number in range(EVENTS_KEPT, 0, -1)]

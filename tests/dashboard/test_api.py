"""The API of the dashboard against a real broker, and refused requests."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import trio
import trio.testing

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")
pytest.importorskip("hypercorn", reason="hypercorn is not installed (gantrymq[dashboard])")


from gantrymq import Message, Outcome
from gantrymq.client import connect as async_connect
from gantrymq.dashboard import views
from gantrymq.dashboard.access import REQUESTS_AT_ONCE, Access, read_tokens
from gantrymq.dashboard.api import BODY_MAX_BYTES, OPERATIONS, PREFIX, STREAMS_MAX, Operation, Source, make_app
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import Registration, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.recent_events import keep_recent
from gantrymq.sync import connect
from gantrymq.testing.harness import cluster_in_thread, make_broker, run_broker, run_cluster
from support.dashboard import PLUGIN, Site, address_of, check_answer, started_site
from support.processes import wait_for

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


def scope_of(path: str) -> dict[str, Any]:
    """A GET of ``path`` from this machine, as a server hands it to an ASGI application."""
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "GET", "scheme": "http",
        "path": path, "query_string": b"", "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip


def acknowledge(message: Any) -> None:
    message.ack()


def consume(site: Site, topic: str, group: str, count: int, use: Callable[[Any], None] = acknowledge) -> None:
    """A consumer that takes ``count`` messages and commits its offsets at its end."""
    with site.client.consumer(topic, group=group, start="first") as consumer:
        for _ in range(count):
            use(next(iter(consumer)))


def test_a_topic_is_created_filled_read_and_deleted(site: Site) -> None:
    assert site.change("POST", "/topics", {"topic": "api", "queues": 2})["topic"] == "api"
    sent = site.change("POST", "/topics/api/messages", {"body": '{"a": "ä"}', "tags": "t", "keys": "k1 k2"})
    assert (sent["status"], sent["offset"]) == ("OK", 0)
    (message,) = site.get("/topics/api/messages")["messages"]
    assert message["body_text"] == '{"a": "ä"}'
    assert (message["tags"], message["keys"], message["id"]) == ("t", ["k1", "k2"], sent["id"])
    wait_for(lambda: len(site.get("/topics/api/messages?key=k2")["messages"]) == 1)
    for query in (f"id={sent['id']}", f"queue={sent['queue']}&offset=0", "from=first", "from=0"):
        assert [one["id"] for one in site.get(f"/topics/api/messages?{query}")["messages"]] == [sent["id"]], query
    assert site.get(f"/topics/api/messages?from={int(time.time() * 1000) + 60_000}")["messages"] == []
    row = next(row for row in site.get("/topics?search=AP")["topics"] if row["topic"] == "api")
    assert (row["queues"], row["messages"]) == (2, 1)
    assert site.get("/topics/api")["messages"] == 1
    status, found, _ = site.request("DELETE", f"{PREFIX}/topics/api", {"confirm": "other"})
    assert (status, found["error"]["code"]) == (400, "bad_request")
    site.change("DELETE", "/topics/api", {"confirm": "api"})
    assert site.request("GET", f"{PREFIX}/topics/api")[0] == 404
    assert "api" not in [row["topic"] for row in site.get("/topics?search=api")["topics"]]


def test_a_body_that_is_no_text_and_a_long_one_are_shown_as_far_as_they_go(site: Site) -> None:
    site.client.admin.create_topic("bytes", 1)
    with site.client.producer("P") as producer:
        producer.send("bytes", b"\xff\x00")
        producer.send("bytes", "ä".encode() * 20_000)
    binary, long = site.get("/topics/bytes/messages?from=first")["messages"]
    assert (binary["body_text"], binary["body_base64"]) == (None, "/wA=")
    assert (long["body_bytes"], long["body_text"]) == (40_000, "ä" * 8192)


def test_the_oldest_and_newest_messages_are_shown_however_full_each_queue_is(site: Site) -> None:
    site.client.admin.create_topic("skewed", 40)
    with site.client.producer("P") as producer:
        for queue in [*range(40), *[0] * 20]:
            time.sleep(0.001)  # each in a millisecond of its own, by which they are ordered
            producer.send("skewed", b"x", queue=queue)

    def places(query: str) -> list[tuple[int, int]]:
        found = site.get(f"/topics/skewed/messages?{query}")["messages"]
        return [(one["queue"], one["offset"]) for one in found]

    assert places("from=first&max=4") == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert places("from=0&max=4") == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert places("from=last&max=4") == [(0, 20), (0, 19), (0, 18), (0, 17)]
    assert places("from=last&max=21")[-2:] == [(0, 1), (39, 0)]
    stored = [one["stored"] for one in site.get("/topics/skewed/messages?from=first&max=64")["messages"]]
    assert len(stored) == 60
    assert stored == sorted(stored)
    later = site.get(f"/topics/skewed/messages?from={stored[30]}&max=8")["messages"]
    assert [one["stored"] for one in later] == [each for each in stored if each >= stored[30]][:8]


def test_the_lag_of_a_group_is_seen_and_its_offsets_are_reset(site: Site) -> None:
    site.client.admin.create_topic("lagging", 1)
    with site.client.producer("P") as producer:
        for _ in range(5):
            producer.send("lagging", b"x")
    consume(site, "lagging", "lagger", 2)
    group = site.get("/groups/lagger")
    assert group["lag"] == 3
    assert next(row for row in site.get("/groups?search=lagg")["groups"])["lag"] == 3
    dry = site.change("POST", "/groups/lagger/reset", {"to": "last", "dry_run": True})
    assert not dry["changed"]
    assert dry["queues"][0]["after"] == 5
    assert site.get("/groups/lagger")["lag"] == 3
    assert site.request("POST", f"{PREFIX}/groups/lagger/reset", {"to": "last"})[0] == 400
    site.change("POST", "/groups/lagger/reset", {"to": "last", "confirm": "lagger"})
    assert site.get("/groups/lagger")["lag"] == 0
    site.change("DELETE", "/groups/lagger", {"confirm": "lagger"})
    assert site.get("/groups?search=lagger")["groups"] == []


def test_dead_letters_are_counted_shown_and_replayed_once(site: Site) -> None:
    site.client.admin.create_topic("failing", 1)
    with site.client.producer("P") as producer:
        producer.send("failing", b"bad")
    consume(site, "failing", "failer", 1, lambda message: message.retry(-1))

    def row() -> dict[str, Any] | None:
        return next((row for row in site.get("/dead-letters")["groups"] if row["group"] == "failer"), None)

    wait_for(lambda: (row() or {}).get("unreplayed") == 1)
    assert [one["body_text"] for one in site.get("/dead-letters/failer")["messages"]] == ["bad"]
    assert site.change("POST", "/dead-letters/failer/replay", {"confirm": "failer"})["sent"] == 1
    assert row() == {"group": "failer", "messages": 1, "unreplayed": 0}
    assert site.change("POST", "/dead-letters/failer/replay", {"confirm": "failer"})["sent"] == 0


def test_brokers_plugins_and_totals_are_returned(site: Site) -> None:
    (broker,) = site.get("/brokers")["brokers"]
    assert (broker["role"], broker["address"], broker["id"]) == ("master", site.cluster.address, 0)
    assert site.get(f"/brokers/{site.cluster.address}")["runtime"]["dashboardAddress"] == site.address
    assert site.request("GET", f"{PREFIX}/brokers/192.0.2.1:1")[0] == 404
    assert {"dashboard", "http"} <= {row["plugin"] for row in site.get("/plugins")["plugins"]}
    overview = site.get("/overview")
    assert overview["nameservers"] == [site.cluster.nameserver]
    assert overview["brokers"][0]["broker"] == "broker-a"
    assert site.get("/delayed") == {"total": 0, "complete": True, "unread": [], "messages": [], "levels": []}
    assert site.get("/clients")["page"] == 1


def test_clients_are_listed_and_disconnected(site: Site) -> None:
    site.change("POST", "/topics", {"topic": "watched", "queues": 1})
    with connect(site.cluster.nameserver) as client, client.producer("watched-p") as producer:
        producer.send("watched", b"1")
        with client.consumer("watched", "watched-g", start="first") as consumer:
            next(iter(consumer)).ack()
            wait_for(lambda: len(site.get("/clients?search=watched-g")["clients"]) == 1)
            wait_for(lambda: site.get("/producers?search=watched-p")["total"] == 1)
            (member,) = site.get("/clients?search=watched-g")["clients"]
            (sender,) = site.get("/producers?search=watched-p")["producers"]
            assert (sender["client_id"], sender["version"]) == (member["client_id"], "V4_9_7")
            path = f"/clients/{quote(member['client_id'], safe='')}/disconnect"
            assert site.request("POST", PREFIX + path, {"confirm": "other"})[0] == 400
            assert site.change("POST", path, {"confirm": member["client_id"]})["closed"] == 1
            producer.send("watched", b"2")
            assert next(iter(consumer)).body == b"2"


def test_open_transactions_are_counted_and_discarded_ones_resume(tmp_path: Path) -> None:
    # long enough to be seen before it is discarded, on a loaded machine too
    settings = {"check_interval": "100ms", "timeout": "3s", "check_max": 1}
    asked: list[str] = []

    def check(message: Any) -> Outcome:
        asked.append(message.message_id)
        return Outcome.COMMIT if resumed else Outcome.UNKNOWN

    resumed = False
    with started_site(tmp_path, **{f"transaction__{name}": value for name, value in settings.items()}) as site:
        site.client.admin.create_topic("paid", 1)
        with site.client.transactional_producer("shop", check=check, local=lambda *_: Outcome.UNKNOWN) as producer:
            sent = producer.send("paid", b"order").sent.message_id
            assert site.get("/transactions")["brokers"] == [{"broker": "broker-a", "open": 1, "strategy": "half"}]
            wait_for(lambda: len(site.get("/transactions")["discarded"]) == 1)
            (discarded,) = site.get("/transactions")["discarded"]
            assert (discarded["id"], discarded["properties"]["REAL_TOPIC"]) == (sent, "paid")
            assert site.request("POST", f"{PREFIX}/transactions/{'0' * 32}/resume", {})[0] == 400
            resumed = True
            site.change("POST", f"/transactions/{discarded['offset_id']}/resume")
            wait_for(lambda: [one["body_text"] for one in site.get("/topics/paid/messages")["messages"]] == ["order"])
        assert set(asked) == {sent}


def test_a_timed_message_is_recalled_and_a_trace_is_shown(site: Site) -> None:
    with connect(site.cluster.nameserver, trace=True) as client, client.producer("timer") as producer:
        client.admin.create_topic("timed", 1)
        sent = producer.send(Message("timed", b"later", delay=600)).message_id
    wait_for(lambda: site.get("/delayed?topic=timed")["total"] == 1)
    (waiting,) = site.get("/delayed?topic=timed")["messages"]
    body = {"topic": "timed", "handle": waiting["handle"], "confirm": "timed"}
    assert site.change("POST", "/delayed/recall", body) == {"id": sent}
    wait_for(lambda: site.get("/delayed?topic=timed")["total"] == 0)
    status, found, _ = site.request("POST", f"{PREFIX}/delayed/recall", body | {"handle": "nonsense"})
    assert (status, found["error"]["code"]) == (400, "bad_request")
    wait_for(lambda: [one["group"] for one in site.get(f"/messages/{sent}/trace")["events"]] == ["timer"])


def test_timed_messages_are_read_up_to_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.client.admin.create_topic("later", 1)
    with site.client.producer("timer") as producer:
        for number in range(3):
            producer.send(Message("later", b"%d" % number, delay=600 - number))

    def numbers() -> tuple[int, bool]:
        found = site.get("/delayed?topic=later")
        return found["total"], found["complete"]

    wait_for(lambda: numbers() == (3, True))
    for most, expected in ((3, (3, True)), (2, (2, False))):
        monkeypatch.setattr(views, "DELAYED_MAX", most)
        assert numbers() == expected


def test_delay_levels_with_waiting_messages_are_counted(site: Site) -> None:
    with site.client.producer("delaying") as producer:
        for _ in range(3):
            producer.send(Message("leveled", b"later", delay_level=18))
    levels = {row["level"]: (row["delay"], row["waiting"]) for row in site.get("/delayed")["levels"]}
    assert levels[18] == ("2h", 3)


def test_reasons_why_a_group_did_not_get_a_message_are_returned(site: Site) -> None:
    site.client.admin.create_topic("missed", 1)
    with site.client.producer("P") as producer:
        sent = producer.send("missed", b"x").message_id
    path = f"/topics/missed/messages/{sent}/why"
    (reason, *_) = site.get(f"{path}?group=absent")["reasons"]
    assert reason["code"]
    assert "absent" in reason["text"] or "missed" in reason["text"]
    assert site.request("GET", f"{PREFIX}{path}")[0] == 400


def test_log_events_are_shown_newest_first_and_by_level(site: Site) -> None:
    component = uuid4().hex  # the process keeps the events of other tests and attempts
    for level, name in (("debug", "unseen"), ("info", "first"), ("warning", "second")):
        keep_recent(None, level, {"event": name, "component": component, "peer": object(), "count": 3})
    found = site.get(f"/log-events?search={component}")["events"]
    assert [(one["level"], one["event"]) for one in found[:2]] == [("warning", "second"), ("info", "first")]
    assert (found[0]["fields"]["count"], found[0]["fields"]["peer"][:7]) == (3, "<object")
    assert [one["event"] for one in site.get(f"/log-events?search={component}&level=warning")["events"]] == ["second"]
    assert site.request("GET", f"{PREFIX}/log-events?level=loud")[0] == 400


@pytest.mark.trio
async def test_ten_thousand_topics_are_a_page_of_fifty(tmp_path: Path) -> None:
    settings = {"plugin.dashboard.listen": "127.0.0.1:0"}
    async with run_cluster(tmp_path, settings=settings, enable=[PLUGIN]) as cluster:
        table = cluster.broker.registry.get(TopicTable)
        for number in range(10_000):
            table.ensure(TopicConfig(topic_name=f"many-{number:05}", read_queue_nums=1, write_queue_nums=1))
        await trio.to_thread.run_sync(check_ten_thousand, Site(address_of(cluster), cluster))


def check_ten_thousand(site: Site) -> None:
    def total() -> int:
        status, found, _ = site.request("GET", f"{PREFIX}/topics?search=many&size=1")
        return int(found["total"]) if status == 200 else 0

    wait_for(lambda: total() == 10_000, 60)
    began = time.perf_counter()
    status, found, fields = site.request("GET", f"{PREFIX}/topics?search=many-09&page=3&size=100000")
    print(f"a page of {len(found['topics'])} of {found['total']} topics: {time.perf_counter() - began:.3f} s")
    assert status == 200
    assert (found["total"], found["pages"], found["size"], len(found["topics"])) == (1000, 5, 200, 200)
    assert found["topics"][0]["topic"] == "many-09400"
    assert int(fields["content-length"]) < 64 * 1024
    assert len(site.get("/topics")["topics"]) == 50


def test_samples_come_as_server_sent_events(site: Site) -> None:
    connection = HTTPConnection(site.address, timeout=60)
    connection.request("GET", f"{PREFIX}/stream")
    response = connection.getresponse()
    assert response.getheader("content-type", "").startswith("text/event-stream")
    names = []
    while "event: sample" not in names:
        line = response.readline().decode().strip()
        if line.startswith("event:"):
            names.append(line)
        elif line.startswith("data:") and names == ["event: history", "event: sample"]:
            assert json.loads(line[5:])["brokers"][0]["role"] == "master"
    connection.close()


def test_a_page_that_leaves_while_an_event_is_sent_ends_its_stream_at_once() -> None:
    scope = scope_of(f"{PREFIX}/stream")
    source, sending = Source(), trio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await trio.sleep_forever()

    async def leave() -> dict[str, Any]:
        await sending.wait()
        assert source.streams == 1
        return {"type": "http.disconnect"}

    async def visit() -> None:
        with trio.fail_after(10), gc_disabled():
            await make_app(source, Access())(scope, leave, send)
            assert source.streams == 0

    trio.run(visit)


@pytest.mark.parametrize(("path", "code"), [("/stream", "streams"), ("/session", "busy")])
def test_the_server_refuses_more_pages_and_requests_than_it_can_serve(path: str, code: str) -> None:
    scope = scope_of(f"{PREFIX}{path}")
    source, sent, waiting = Source(), list[Any](), 0
    source.streams = STREAMS_MAX if code == "streams" else 0
    app = make_app(source, Access())

    async def receive() -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    async def hold(message: Any) -> None:
        nonlocal waiting
        waiting += 1
        await trio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    async def visit() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(REQUESTS_AT_ONCE if code == "busy" else 0):
                    nursery.start_soon(app, scope, receive, hold)
                await trio.testing.wait_all_tasks_blocked()
                assert waiting == (REQUESTS_AT_ONCE if code == "busy" else 0)
                await app(scope, receive, send)
                nursery.cancel_scope.cancel()

    trio.run(visit)
    assert sent[0]["status"] == 503
    answer = json.loads(sent[1]["body"])
    assert answer["error"]["code"] == code
    check_answer("GET", f"{PREFIX}{path}", 503, answer)


@pytest.mark.trio
async def test_a_broker_that_only_one_request_has_seen_is_missing_in_the_next(tmp_path: Path) -> None:
    source = Source()  # nothing samples the cluster
    app = make_app(source, Access())
    scope = scope_of(f"{PREFIX}/overview")

    async def roles() -> dict[str, str]:
        sent = list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, trio.sleep_forever, send)
        return {row["broker"]: row["role"] for row in json.loads(sent[1]["body"])["brokers"]}

    async with run_cluster(tmp_path / "a") as cluster, async_connect(cluster.nameserver) as source.client:
        other = make_broker(tmp_path / "b", [cluster.nameserver], settings={"broker.name": "broker-b"})
        async with run_broker(other):
            await other.registry.get(Registration).wait_first(30)
            assert await roles() == {"broker-a": "master", "broker-b": "master"}
        assert await roles() == {"broker-a": "master", "broker-b": "missing"}


@contextmanager
def gc_disabled() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


UNKNOWN = {"address": "192.0.2.1:1", "topic": "nothing", "group": "nothing", "client": "nothing", "id": "0" * 32}
ANSWERED = {"/groups/{group}", "/messages/{id}/trace"}
"""Requests about something unknown that are answered: a group without offsets, a message without traces."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_the_openapi_document_says_what_an_operation_answers(site: Site, operation: Operation) -> None:
    # Each answer of these tests is compared with the document (support.dashboard.check_answer).
    document = site.request("GET", f"{PREFIX}/openapi.json")[1]
    described = document["paths"][PREFIX + operation.path][operation.method.lower()]
    answer = described["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]
    assert answer["additionalProperties"] is False
    path = PREFIX + operation.path.format_map(UNKNOWN)
    body: dict[str, str] | None = None if operation.method == "GET" else {}
    status, found, _ = site.request(operation.method, path, body)
    assert status in (200, 400, 404, 409), found
    if operation.method == "GET" and (operation.path in ANSWERED or "{" not in operation.path):
        assert status == 200, found
    required = [each for each in operation.required if operation.method != "GET"]
    if required:
        assert status == 400, found
        assert required[0] in found["error"]["message"] or "confirm" in found["error"]["message"]


def test_an_answer_that_the_document_does_not_describe_is_noticed() -> None:
    wrong: list[tuple[str, str, int, object]] = [
        ("GET", f"{PREFIX}/brokers", 200, {"brokers": [], "more": 1}), ("GET", f"{PREFIX}/brokers", 404, {}),
        ("GET", f"{PREFIX}/dead-letters?x=1", 200, {"groups": [{"group": 1, "messages": 2, "unreplayed": 3}]}),
    ]  # fmt: skip
    for method, path, status, answer in wrong:
        with pytest.raises(AssertionError):
            check_answer(method, path, status, answer)
    check_answer("GET", f"{PREFIX}/brokers", 200, {"brokers": []})


def test_the_openapi_document_has_every_request(site: Site) -> None:
    paths = site.request("GET", f"{PREFIX}/openapi.json")[1]["paths"]
    listed = {(path, method) for path, methods in paths.items() for method in methods}
    more = {("stream", "get"), *(("session", method) for method in ("get", "post", "delete"))}
    assert listed == {(PREFIX + each.path, each.method.lower()) for each in OPERATIONS} | {
        (f"{PREFIX}/{path}", method) for path, method in more
    }


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/app.js", "javascript"),
        ("/charts.js", "javascript"),
        ("/theme.js", "javascript"),
        ("/style.css", "text/css"),
    ],
)
def test_the_pages_load_nothing_from_elsewhere(site: Site, path: str, kind: str) -> None:
    status, data, fields = site.request("GET", path)
    assert status == 200
    assert kind in fields["content-type"]
    assert "default-src 'none'" in fields["content-security-policy"]
    assert fields["x-frame-options"] == "DENY"
    text = data.decode().replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text
    assert "innerHTML" not in text


TOPIC = {"topic": "evil", "queues": 1}


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "attacker.example"}, 421, "host"),
        ({"Host": "attacker.example:80", "X-GantryMQ-Change": "1"}, 421, "host"),
        ({}, 403, "change_header"),
        ({"X-GantryMQ-Change": "1", "Origin": "http://attacker.example"}, 403, "origin"),
        ({"X-GantryMQ-Change": "1", "Origin": "null"}, 403, "origin"),
        ({"X-GantryMQ-Change": "1", "Sec-Fetch-Site": "cross-site"}, 403, "origin"),
    ],
)
def test_a_page_of_another_site_can_change_nothing(site: Site, headers: dict[str, str], status: int, code: str) -> None:
    found = site.request("POST", f"{PREFIX}/topics", TOPIC, headers, plain=True)
    assert (found[0], found[1]["error"]["code"]) == (status, code)
    assert site.request("GET", f"{PREFIX}/topics/evil")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/topics?page=x", None, 400),
        ("GET", "/topics?page=-1", None, 400),
        ("GET", "/topics?page=999999999", None, 200),
        ("GET", "/topics/no%20such", None, 400),
        ("GET", "/topics/nothing/messages", None, 404),
        ("GET", "/groups/nothing", None, 200),
        ("POST", "/topics", b"{", 400),
        ("POST", "/topics", b"[" * 100_000, 400),
        ("POST", "/topics", [], 400),
        ("POST", "/topics", {"topic": "x", "queues": 0}, 400),
        ("POST", "/topics", {"topic": "x", "queues": 100_000}, 400),
        ("POST", "/topics", {"topic": "a b", "queues": 1}, 400),
        ("POST", "/topics/nothing/messages", {"body": "x"}, 404),
        ("POST", "/topics/nothing/messages", b" " * (BODY_MAX_BYTES + 1), 400),
    ],
)
def test_bad_requests_get_an_error_that_says_why(site: Site, method: str, path: str, body: object, status: int) -> None:
    found = site.request(method, PREFIX + path, body)
    assert found[0] == status, found[1]
    if status >= 400:
        assert found[1]["error"]["message"]


def test_tokens_give_roles(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who may\nviewer looks-only-0123456789\nadmin does-all-0123456789  # on call\n")
    settings = {"plugin.dashboard.listen": "127.0.0.1:0", "plugin.dashboard.tokens": str(file)}
    with cluster_in_thread(tmp_path / "store", settings=settings, enable=[PLUGIN]) as cluster:
        site = Site(address_of(cluster), cluster)
        assert site.request("GET", f"{PREFIX}/overview")[0] == 401
        assert site.request("GET", f"{PREFIX}/overview", headers={"Authorization": "Bearer wrong"})[0] == 401
        for host in ("127.0.0.1:1/x?", "localhost:1#", "[::1]/x?"):  # no URL made of it has the path of the request
            for method, path in (("GET", "/topics"), ("DELETE", "/topics/nothing")):
                status, found, _ = site.request(method, PREFIX + path, {}, {"Host": host})
                assert (status, found["error"]["code"]) == (421, "host"), host
        viewer = {"Authorization": "Bearer looks-only-0123456789"}
        assert site.request("GET", f"{PREFIX}/session", headers=viewer)[1]["role"] == "viewer"
        assert site.request("GET", f"{PREFIX}/overview", headers=viewer)[0] in (200, 502)
        for each in OPERATIONS:
            path = PREFIX + each.path.format_map(UNKNOWN)
            assert site.request(each.method, path)[1]["error"]["code"] == "token", each
            if each.method != "GET":
                assert site.request(each.method, path, {}, viewer)[1]["error"]["code"] == "role", each
        assert site.request("POST", f"{PREFIX}/session", {"token": "wrong"})[0] == 401
        status, found, fields = site.request("POST", f"{PREFIX}/session", {"token": "does-all-0123456789"})
        assert (status, found) == (200, {"role": "admin"})
        assert "HttpOnly" in fields["set-cookie"]
        assert "SameSite=strict" in fields["set-cookie"]
        cookie = {"Cookie": fields["set-cookie"].partition(";")[0]}
        assert site.request("GET", f"{PREFIX}/topics", headers=cookie)[0] == 200
        assert site.request("DELETE", f"{PREFIX}/session", headers=cookie)[0] == 200
        assert site.request("GET", f"{PREFIX}/topics", headers=cookie)[0] == 401


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"plugin.dashboard.listen": "0.0.0.0:0"}, "needs a file of tokens"),
        ({"plugin.dashboard.tokens": "/nowhere"}, "/nowhere: No such file"),
    ],
)
def test_a_dashboard_that_anybody_could_use_does_not_start(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    with pytest.raises(ExceptionGroup) as caught, cluster_in_thread(tmp_path, settings=settings, enable=[PLUGIN]):
        pass
    assert caught.group_contains(StartError, match=text)


@pytest.mark.trio
async def test_a_dashboard_with_an_empty_address_is_not_served(tmp_path: Path) -> None:
    settings = {"plugin.dashboard.listen": "", "plugin.dashboard.tokens": "/nowhere"}
    async with run_cluster(tmp_path, settings=settings, enable=[PLUGIN]) as cluster:
        assert cluster.broker.manager.activity.tasks.get("dashboard", {}) == {}
        assert address_of(cluster) == ""


@pytest.mark.parametrize("text", ["", "admin short", "root 0123456789abcdef", "0123456789abcdef"])
def test_a_file_of_tokens_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ValueError, match="tokens"):
        read_tokens(str(tmp_path / "tokens"))

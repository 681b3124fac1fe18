"""The pages in a real browser, used as a user does. GANTRYMQ_SCREENSHOTS=1 writes the pictures of the docs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")
pytest.importorskip("hypercorn", reason="hypercorn is not installed (gantrymq[dashboard])")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (gantrymq[test])")

from gantrymq.sync import connect  # noqa: E402
from support.dashboard import Site, started_site  # noqa: E402
from support.debian import find_browser  # noqa: E402
from support.foreign import AXE, ToolMissing, cache_folder, find_npm_program  # noqa: E402
from support.processes import gantrymq_child, wait_for  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TESTS = Path(__file__).resolve().parents[1]
IMAGES = TESTS.parent / "docs" / "howto" / "images"
PATIENCE_MS = 60_000
PAGES = (
    "overview", "brokers", "topics", "groups", "clients", "messages", "dead-letters", "delayed", "transactions",
    "plugins", "log", "api",
)  # fmt: skip


SLOW = """globalThis.asked = 0;
const fetch = globalThis.fetch;
globalThis.fetch = async (path, options) => {
  if (!path.includes("/topics")) return fetch(path, options);
  if (!document.querySelector("tbody tr")) globalThis.asked++;
  await new Promise((done) => setTimeout(done, 5000));
  return fetch(path, options);
};"""
"""Lets the topics take longer than the time between two samples; ``asked``: requests before they are shown."""

SHOWN = """new MutationObserver((_, observer) => {
  if (document.querySelector("tbody tr")) { globalThis.shown = performance.now(); observer.disconnect(); }
}).observe(document, { childList: true, subtree: true })"""
"""The time until the page has its first row, in ms since the browser began to load it."""

LOADED = """() =>
  [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].map((entry) => (
    { name: entry.name, bytes: entry.decodedBodySize, milliseconds: entry.responseEnd - entry.requestStart }))"""
"""The resources that the browser has loaded for the page."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    try:
        program = find_browser(cache_folder(TESTS / "interop" / ".cache"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages that must not raise an error or break the policy of the content."""
    faults: list[str] = []
    contexts = []

    def opened(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 760}, "locale": "en-US", **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def picture(page: Any, name: str) -> None:
    """Writes a picture of the documentation, if asked to."""
    if os.environ.get("GANTRYMQ_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        page.screenshot(path=str(IMAGES / name))


def test_a_topic_is_created_filled_and_its_messages_are_shown(site: Site, open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.goto(f"http://{site.address}/")
    page.get_by_role("link", name="Topics", exact=True).first.click()
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name").fill("parcels")
    page.get_by_label("Queues on each broker").fill("2")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("link", name="parcels").click()
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Body").fill('{"parcel": 1, "to": "Malmö"}')
    page.get_by_label("Keys").fill("p-1")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.get_by_text("Stored in queue").wait_for()
    page.get_by_role("link", name="Messages", exact=True).last.click()
    page.get_by_role("button", name="Show").click()
    page.get_by_role("dialog").get_by_text('"to": "Malmö"').wait_for()
    picture(page, "dashboard-message.png")
    page.get_by_role("button", name="Hex").click()
    page.get_by_role("dialog").get_by_text("000000  7b 22").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Show").click()
    page.get_by_role("dialog").get_by_role("link", name="parcels").click()
    page.get_by_role("heading", name="parcels").wait_for()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("Type parcels to confirm.").wait_for()
    page.get_by_role("textbox").fill("parcels")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("Topic parcels is deleted.").wait_for()


def test_a_page_that_loads_slowly_is_shown(site: Site, open_page: Callable[..., Any]) -> None:
    site.client.admin.create_topic("slow-to-load", 1)
    page = open_page()
    page.add_init_script(SLOW)
    page.goto(f"http://{site.address}/#/topics?search=slow-to-load")
    page.get_by_role("link", name="slow-to-load").wait_for(timeout=PATIENCE_MS)
    assert page.evaluate("asked") == 1


def test_the_lag_rises_and_falls_by_itself(site: Site, open_page: Callable[..., Any]) -> None:
    site.client.admin.create_topic("invoices", 2)
    page = open_page()
    with site.client.producer("P") as producer:
        with site.client.consumer("invoices", group="accounting", start="first") as consumer:
            producer.send("invoices", b"first")
            next(iter(consumer)).ack()
        page.goto(f"http://{site.address}/#/groups/accounting")
        lag = page.locator("#group-lag")
        sync_api.expect(lag).to_have_text("0", timeout=PATIENCE_MS)
        for number in range(25):
            producer.send("invoices", b'{"invoice": %d}' % number)
        sync_api.expect(lag).to_have_text("25", timeout=PATIENCE_MS)
        picture(page, "dashboard-group.png")
        with site.client.consumer("invoices", group="accounting", start="first") as consumer:
            for _ in range(25):
                next(iter(consumer)).ack()
    sync_api.expect(lag).to_have_text("0", timeout=PATIENCE_MS)


def test_a_viewer_sees_all_and_changes_nothing(open_page: Callable[..., Any], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("viewer looks-only-0123456789\nadmin does-all-0123456789\n")
    page = open_page()
    with started_site(tmp_path / "store", dashboard__tokens=tokens) as site:
        site.client.admin.create_topic("seen", 1)
        page.goto(f"http://{site.address}/#/topics")
        for token, buttons in (("looks-only-0123456789", 0), ("does-all-0123456789", 1)):
            page.get_by_label("Token").fill(token)
            page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="seen").wait_for()
            sync_api.expect(page.locator("#state-text")).to_have_text("live", timeout=PATIENCE_MS)
            assert page.get_by_role("button", name="Create topic").count() == buttons
            page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Token").wait_for()


def test_a_page_whose_event_stream_was_refused_goes_on_by_itself(site: Site, open_page: Callable[..., Any]) -> None:
    page = open_page()
    statuses = [503, 502]

    def handle(route: Any) -> None:
        if statuses:
            route.fulfill(status=statuses.pop(0), content_type="application/json", body="{}")
        else:
            route.continue_()

    page.route("**/api/v1/stream", handle)
    page.goto(f"http://{site.address}/")
    sync_api.expect(page.locator("#state-text")).to_have_text("no connection to the dashboard", timeout=PATIENCE_MS)
    sync_api.expect(page.locator("#state-text")).to_have_text("live", timeout=PATIENCE_MS)


def test_a_page_whose_session_has_ended_asks_for_the_token(open_page: Callable[..., Any], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("admin does-all-0123456789\n")
    page = open_page()
    with started_site(tmp_path / "store", dashboard__tokens=tokens) as site:
        page.goto(f"http://{site.address}/#/topics")
        page.get_by_label("Token").fill("does-all-0123456789")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        sync_api.expect(page.locator("#state-text")).to_have_text("live", timeout=PATIENCE_MS)
        (plugin,) = (info.plugin for info in site.cluster.broker.manager.plugins if info.name == "dashboard")

        def forget_sessions(route: Any) -> None:  # as a restart
            plugin._access._sessions.clear()
            route.continue_()

        page.route("**/api/v1/stream", forget_sessions)
        page.goto(f"http://{site.address}/#/api")  # a page that asks for nothing that needs a token
        page.reload()
        page.get_by_label("Token").wait_for()


def test_offsets_are_reset_after_a_preview(site: Site, open_page: Callable[..., Any]) -> None:
    site.client.admin.create_topic("refunds", 1)
    with site.client.producer("P") as producer:
        for _ in range(3):
            producer.send("refunds", b"x")
    with site.client.consumer("refunds", group="refunder", start="first") as consumer:
        for _ in range(3):
            next(iter(consumer)).ack()
    page = open_page()
    page.goto(f"http://{site.address}/#/groups/refunder")
    sync_api.expect(page.locator("#group-lag")).to_have_text("0", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Reset offsets").click()
    shown = page.get_by_role("dialog")
    assert not shown.locator("[name=time]").is_visible()
    shown.locator("[name=topic]").select_option("refunds")
    shown.get_by_role("button", name="Preview").click()
    shown.get_by_role("row").filter(has_text="broker-a 0").get_by_role("cell", name="3", exact=True).wait_for()
    shown.get_by_label("Type").fill("refunder")
    shown.get_by_role("button", name="Reset", exact=True).click()
    sync_api.expect(page.locator("#group-lag")).to_have_text("3", timeout=PATIENCE_MS)


def test_messages_are_found_by_key_id_queue_and_time(site: Site, open_page: Callable[..., Any]) -> None:
    site.client.admin.create_topic("sought", 1)
    with site.client.producer("P") as producer:
        producer.send("sought", b"first one")
        sent = producer.send("sought", b"second one", keys="sought-k").message_id
    wait_for(lambda: len(site.get("/topics/sought/messages?key=sought-k")["messages"]) == 1)
    page = open_page()
    page.goto(f"http://{site.address}/#/messages")
    page.get_by_label("Topic").fill("sought")
    for way, fields, count in (
        ("By key", {"key": "sought-k"}, 1),
        ("By message id", {"id": sent}, 1),
        ("Oldest", {}, 2),
        ("By queue and offset", {"queue": "0", "offset": "1"}, 1),
        ("From a time", {"time": "2020-01-01T00:00:00"}, 2),
    ):
        page.locator("[name=way]").select_option(label=way)
        for name, value in fields.items():
            page.locator(f"[name={name}]").fill(value)
        page.get_by_role("button", name="Find", exact=True).click()
        page.get_by_role("heading", name=f"{count} messages of").wait_for()
        page.get_by_text("second one").wait_for()
        page.evaluate("document.querySelector('#main').replaceChildren()")  # what follows is found anew
        page.goto(f"http://{site.address}/#/messages?topic=sought")
        page.get_by_role("heading", name="2 messages of").wait_for()


def test_a_dead_letter_is_replayed(site: Site, open_page: Callable[..., Any]) -> None:
    site.client.admin.create_topic("claims", 1)
    with site.client.producer("P") as producer:
        producer.send("claims", b"broken claim")
    with site.client.consumer("claims", group="claimer", start="first") as consumer:
        next(iter(consumer)).retry(-1)
    wait_for(lambda: any(row["unreplayed"] for row in site.get("/dead-letters")["groups"] if row["group"] == "claimer"))
    page = open_page()
    page.goto(f"http://{site.address}/#/dead-letters/claimer")
    page.get_by_text("broken claim").wait_for()
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("textbox").fill("claimer")
    page.keyboard.press("Enter")
    page.get_by_text("1 messages are sent again.").wait_for()
    with site.client.consumer("claims", group="claimer", start="first") as consumer:
        message = next(iter(consumer))
        assert message.body == b"broken claim"
        message.ack()


def test_a_broker_that_is_killed_is_seen(site: Site, open_page: Callable[..., Any], tmp_path: Path) -> None:
    arguments = [
        "broker", "--nameserver", site.cluster.nameserver, "--data", str(tmp_path / "store"), "--listen", "127.0.0.1:0",
        "--set", "broker.name=broker-b", "--set", "store.commit_log_file_bytes=4 MiB", "--set", "plugin.http.listen=",
    ]  # fmt: skip
    page = open_page()
    with gantrymq_child(arguments, tmp_path / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        page.goto(f"http://{site.address}/")
        page.get_by_role("row").filter(has_text="broker-b").get_by_text("master").wait_for()
        sync_api.expect(page.locator("#state-text")).to_have_text("live", timeout=PATIENCE_MS)
        with connect(site.cluster.nameserver) as client, client.producer("P") as producer:
            client.admin.create_topic("orders", 4)
            for number in range(300):
                producer.send("orders", b'{"order": %d}' % number)
        sync_api.expect(page.locator("svg[role=img]").first).to_be_visible()
        if os.environ.get("GANTRYMQ_SCREENSHOTS"):
            page.wait_for_timeout(15_000)
        picture(page, "dashboard-overview.png")
        child.kill()
    page.get_by_role("row").filter(has_text="broker-b").get_by_text("missing").wait_for()
    sync_api.expect(page.locator("#state-text")).to_have_text("1 of 2 brokers lost")


def test_rates_count_each_broker_only_where_two_samples_know_it(site: Site, open_page: Callable[..., Any]) -> None:
    """broker-a misses a sample, and broker-c has another master in the last one."""
    overview = site.get("/overview")
    totals = [{"a:1": 1_000_000, "b:1": 0, "c:1": 10}, {"a:1": None, "b:1": 100, "c:1": 10}]
    totals += [{"a:1": 1_000_010, "b:1": 120, "c:2": 5_000_000}]
    samples = []
    for number, each in enumerate(totals):
        rows = [
            {**overview["brokers"][0], "broker": f"broker-{address[0]}", "address": address, "stored_total": total}
            for address, total in each.items()
        ]
        total = sum(value or 0 for value in each.values())
        samples.append({**overview, "time": 2000 * number, "lag": 77, "brokers": rows, "stored_total": total})
    events = f"event: history\ndata: {json.dumps(samples)}\n\n"
    page = open_page()
    page.route("**/api/v1/stream", lambda route: route.fulfill(content_type="text/event-stream", body=events))
    page.goto(f"http://{site.address}/")
    cards = page.locator("a.card")
    sync_api.expect(cards.filter(has_text="Lag").locator(".value")).to_have_text("77")
    sync_api.expect(cards.filter(has_text="Messages/s in").locator(".value")).to_have_text("10")


def test_a_client_is_disconnected_and_the_trace_of_a_message_is_shown(
    site: Site, open_page: Callable[..., Any]
) -> None:
    page = open_page()
    with connect(site.cluster.nameserver, trace=True) as client, client.producer("traced-p") as producer:
        client.admin.create_topic("traced", 1)
        producer.send("traced", b"1")
        with client.consumer("traced", "traced-g", start="first") as consumer:
            next(iter(consumer)).ack()
            page.goto(f"http://{site.address}/#/clients?search=traced")
            page.get_by_role("row").filter(has_text="traced-p").wait_for()
            row = page.get_by_role("row").filter(has_text="traced-g")
            row.get_by_role("button", name="Disconnect").click()
            page.get_by_label("Type").fill(row.locator("td").nth(1).inner_text())
            page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
            page.get_by_text("connections are closed.").wait_for()
    page.goto(f"http://{site.address}/#/messages?topic=traced")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name="Trace").click()
    shown = page.get_by_role("dialog").get_by_role("row")
    shown.filter(has_text="traced-p").get_by_text("success").wait_for()
    shown.filter(has_text="traced-g").wait_for()
    page.get_by_label("Group that did not get the message").fill("nobody-g")
    page.get_by_role("button", name="Why not delivered").click()
    shown.filter(has_text="nobody-g").first.wait_for()
    page.keyboard.press("Escape")
    page.goto(f"http://{site.address}/#/api")
    page.get_by_role("row").filter(has_text="/api/v1/clients/{client}/disconnect").wait_for()


def test_the_pages_work_with_the_keyboard_on_a_phone_and_in_the_dark(site: Site, open_page: Callable[..., Any]) -> None:
    phone = open_page(viewport={"width": 390, "height": 780}, color_scheme="dark")
    for name in PAGES:
        phone.goto(f"http://{site.address}/#/{name}")
        phone.locator("h1").first.wait_for()
        assert phone.locator(".error").count() == 0, name
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than a phone"
    phone.goto(f"http://{site.address}/#/overview")
    phone.locator(".cards").wait_for()
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 27)"
    picture(phone, "dashboard-phone.png")
    phone.get_by_role("button", name="Colors").click()
    phone.reload()
    phone.locator(".cards").wait_for()
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    phone.goto(f"http://{site.address}/#/topics")
    phone.get_by_role("button", name="Create topic").wait_for()
    phone.keyboard.press("/")
    phone.keyboard.type("no such")
    phone.wait_for_url("**/#/topics?search=no+such&page=1")
    phone.get_by_text("No topic has such a name.").wait_for()
    assert phone.evaluate("document.activeElement.id") == "search"
    assert phone.locator("#search").input_value() == "no such"
    phone.keyboard.type("er")
    phone.goto(f"http://{site.address}/#/topics")
    phone.wait_for_timeout(300)  # longer than a search waits for the next key
    assert phone.url.endswith("#/topics"), "a running search does not bring the page back"
    phone.reload()
    phone.get_by_role("button", name="Create topic").wait_for()
    for _ in range(40):
        phone.keyboard.press("Tab")
        if phone.evaluate("document.activeElement.textContent") == "Create topic":
            break
    phone.keyboard.press("Enter")
    phone.keyboard.type("by-keyboard")
    phone.keyboard.press("Enter")
    phone.get_by_text("Topic by-keyboard is created.").wait_for()
    phone.get_by_role("link", name="by-keyboard").wait_for()


FAULTS = """() => axe.run(document).then((found) => [found.passes.length, found.violations.map((fault) => (
  `${fault.id}: ${fault.nodes.map((node) => node.html.slice(0, 120)).slice(0, 3).join(" ")}`))])"""


def faults_of(page: Any, axe: str) -> list[str]:
    """The faults that axe finds on the page: elements without a name, low contrast, wrong roles and the like."""
    page.evaluate(axe)
    rules, faults = page.evaluate(FAULTS)
    assert rules > 10
    return list(faults)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_axe_finds_no_fault_in_the_pages(site: Site, open_page: Callable[..., Any], scheme: str, width: int) -> None:
    try:
        axe = Path(find_npm_program(*AXE, cache_folder(TESTS / "interop" / ".cache"))[-1]).read_text()
    except ToolMissing as missing:
        pytest.skip(str(missing))
    site.client.admin.create_topic("audited", 2)
    with site.client.producer("P") as producer:
        for _ in range(4):
            producer.send("audited", b'{"a": 1}')
        with site.client.consumer("audited", group="auditor", start="first") as consumer:
            next(iter(consumer)).retry(-1)
            next(iter(consumer)).ack()
    page = open_page(viewport={"width": width, "height": 780}, color_scheme=scheme)
    found = {}
    for name in (*PAGES, "topics/audited", "groups/auditor", "dead-letters/auditor", "messages?topic=audited"):
        page.goto(f"http://{site.address}/#/{name}")
        page.reload()  # a document for each page: axe has no rest of the last one
        page.locator("h1").first.wait_for()
        found[name] = faults_of(page, axe)
    page.get_by_role("button", name="Show").first.click()
    page.get_by_role("dialog").get_by_role("heading", name="Message").wait_for()
    found["a message"] = faults_of(page, axe)
    page.goto(f"http://{site.address}/#/groups/auditor")
    page.reload()
    page.get_by_role("button", name="Reset offsets").click()
    found["a form"] = faults_of(page, axe)
    assert {name: faults for name, faults in found.items() if faults} == {}
    page.evaluate("document.querySelector('dialog').append(document.createElement('input'))")
    assert faults_of(page, axe) != [], "an input without a label"


def test_a_page_of_ten_thousand_topics_is_small_and_quick(open_page: Callable[..., Any], tmp_path: Path) -> None:
    topics = {
        f"many-{number:05}": {"topicName": f"many-{number:05}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for number in range(10_000)
    }
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": topics}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(json.dumps(table))
    page = open_page()
    with started_site(tmp_path) as site:
        wait_for(lambda: site.get("/topics?search=many&size=1")["total"] == 10_000, 60)
        page.goto(f"http://{site.address}/#/topics?search=many")
        page.add_init_script(SHOWN)
        times, sizes = [], []
        for _ in range(5):
            page.reload()
            page.get_by_role("row").filter(has_text="many-00049").wait_for()
            times.append(page.evaluate("shown"))
            sizes.append(sum(entry["bytes"] for entry in page.evaluate(LOADED)))
    print(f"10,000 topics: shown after {min(times):.0f} ms, {max(sizes):,} bytes for all")
    assert 10_000 < max(sizes) < 1024 * 1024
    assert 0 < min(times) < 1000, "200 ms on an idle machine"

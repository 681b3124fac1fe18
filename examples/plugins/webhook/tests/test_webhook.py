"""The plugin in a real broker, and the other side as a real HTTP server."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import trio
from gantrymq_webhook import WebhookPlugin

from gantrymq import Outcome
from gantrymq.kernel.errors import CorruptRange, OutOfLog, StartError, UnreadableRange
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.testing import requests

WAIT_S = 20


class Receiver:
    """An HTTP server that notes what it gets; the first ``failures`` requests are answered with
    ``failure``."""

    def __init__(self):
        self.failures = 0
        self.failure = 503
        self.got = []
        self.ids = []
        self.undecoded = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.failures > 0:
                    receiver.failures -= 1
                    self.send_response(receiver.failure)
                    self.send_header("Location", "/elsewhere")
                else:
                    receiver.got.append((self.headers["X-Gantrymq-Topic"], body))
                    receiver.ids.append(self.headers["X-Gantrymq-Id"])
                    receiver.undecoded.append(self.headers["X-Gantrymq-Undecoded"])
                    self.send_response(204)
                self.end_headers()

            def do_GET(self):
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_given):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    def wait(self, count):
        until = time.monotonic() + WAIT_S
        while len(self.got) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(self.got) >= count, self.got
        return self.got

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


def settings(receiver, **more):
    given = {"url": receiver.url, "topics": "orders", "retry": "20ms", **more}
    return {f"plugin.webhook.{key}": value for key, value in given.items()}


def send(running, topic, *bodies):
    with running.client.producer() as producer:
        for body in bodies:
            producer.send(topic, body)


def request(running, command):
    """The response code to a request that no client of GantryMQ would send."""

    async def call():
        async with open_channel(running.address) as channel:
            return (await channel.call(command)).code

    return trio.run(call)


def compressed_by_its_flag_only(topic, body):
    header = SendMessageHeader(
        producer_group="producers", topic=topic, default_topic="TBW102", default_topic_queue_nums=1,
        queue_id=0, sys_flag=1, born_timestamp=1, flag=0,
    )  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


def test_messages_of_the_topics_are_posted_in_order_and_unpacked(plugin_broker, receiver):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    send(running, "orders", b"1", b"x" * 8000)
    send(running, "others", b"2")
    send(running, "orders", b"3")
    assert receiver.wait(3) == [("orders", b"1"), ("orders", b"x" * 8000), ("orders", b"3")]


@pytest.mark.parametrize("failure", [503, 302])
def test_a_failed_or_redirected_request_is_tried_again_until_it_succeeds(plugin_broker, receiver, failure):
    receiver.failures, receiver.failure = 3, failure
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    send(running, "orders", b"1", b"2")
    assert [body for _, body in receiver.wait(2)] == [b"1", b"2"]
    assert running.plugin.failed == 3


def test_it_goes_on_after_a_stop_where_it_was(plugin_broker, receiver):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    send(running, "orders", b"1")
    receiver.wait(1)
    receiver.failures = 1_000_000
    send(running, "orders", b"2", b"3")
    running.restart()
    receiver.failures = 0
    assert [body for _, body in receiver.wait(3)] == [b"1", b"2", b"3"]


def test_nothing_is_lost_by_a_kill(plugin_broker, receiver):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    receiver.failures = 1_000_000
    send(running, "orders", b"1", b"2")
    running.restart(killed=True)
    receiver.failures = 0
    receiver.wait(2)
    assert {body for _, body in receiver.got} == {b"1", b"2"}


def test_dead_letters_of_all_groups_are_posted(plugin_broker, receiver):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver, topics="%DLQ%*"))
    send(running, "orders", b"poison")
    for group in ("billing", "shipping"):
        with running.client.consumer("orders", group, start="first") as messages:
            next(messages).retry(-1)
    assert sorted(receiver.wait(2)) == [("%DLQ%billing", b"poison"), ("%DLQ%shipping", b"poison")]


def test_a_body_that_cannot_be_unpacked_is_posted_as_it_is_stored(plugin_broker, receiver):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    running.client.admin.create_topic("orders")
    assert request(running, compressed_by_its_flag_only("orders", b"not zlib")) == 0
    send(running, "orders", b"2")
    assert [body for _, body in receiver.wait(2)] == [b"not zlib", b"2"]
    assert receiver.undecoded == ["true", None]
    running.restart()


@pytest.mark.parametrize("unreadable", [BadRecord("no record"), CorruptRange("damaged"), OutOfLog("deleted")])
def test_a_record_that_cannot_be_read_is_skipped(plugin_broker, receiver, monkeypatch, unreadable):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    log, failures = running.cluster.broker.log, [unreadable]
    read_record = log.read_record

    def read(offset):
        if failures:
            raise failures.pop()
        return read_record(offset)

    monkeypatch.setattr(log, "read_record", read)
    send(running, "orders", b"1", b"2")
    assert [body for _, body in receiver.wait(1)] == [b"2"]


def test_a_scan_that_meets_damage_is_tried_again_later(plugin_broker, receiver, monkeypatch):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver, retry_max="20ms"))
    log, failures = running.cluster.broker.log, [CorruptRange("damaged"), UnreadableRange(0, 8, "I/O error")]
    scan = log.scan

    def failing(start, stop):
        if failures:
            raise failures.pop()
        return scan(start, stop)

    monkeypatch.setattr(log, "scan", failing)
    send(running, "orders", b"1", b"2")
    assert [body for _, body in receiver.wait(2)] == [b"1", b"2"]
    assert failures == []


@pytest.mark.parametrize(
    ("unique_id", "header"),
    [("a\u00e9", "a%C3%A9"), ("a\r\nX-Other: b", "a%0D%0AX-Other%3A%20b"), ("A7F0-1", "A7F0-1")],
)
def test_an_id_of_any_characters_is_posted_as_one_header(plugin_broker, receiver, unique_id, header):
    running = plugin_broker(WebhookPlugin, settings=settings(receiver))
    for body, properties in ((b"1", f"UNIQ_KEY\x01{unique_id}"), (b"2", "")):
        assert request(running, requests.send("orders", body, properties=properties)) == 0
    assert [body for _, body in receiver.wait(2)] == [b"1", b"2"]
    assert receiver.ids[0] == header


@pytest.mark.parametrize("strategy", ["half", "state_table"])
def test_only_the_commit_of_a_transaction_is_posted(plugin_broker, receiver, strategy):
    running = plugin_broker(WebhookPlugin, settings={**settings(receiver), "plugin.transaction.strategy": strategy})
    for body, outcome in ((b"1", Outcome.ROLLBACK), (b"2", Outcome.COMMIT)):
        with running.client.transactional_producer(
            "payments", check=lambda _: Outcome.UNKNOWN, local=lambda *_, outcome=outcome: outcome
        ) as producer:
            producer.send("orders", body)
    send(running, "orders", b"3")
    assert [body for _, body in receiver.wait(2)] == [b"2", b"3"]


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "ftp://host/", "http:///path"])
def test_an_address_that_can_never_work_refuses_the_start(plugin_broker, url):
    with pytest.raises(StartError, match=r"plugin\.webhook\.url"):
        plugin_broker(WebhookPlugin, settings={"plugin.webhook.url": url})

"""A store written by one broker opens in the other: RocketMQ 4.9.7 and ours, after a clean stop and after kill -9."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from gantrymq.testing.clients import ForeignClient, Sent, check_complete
from gantrymq.testing.foreign import Java, start_broker
from gantrymq.testing.processes import Child, free_ports, gantrymq_child
from gantrymq.testing.stores import expected_queues, log_records, written_queues

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]
TOPIC = "CrossingTest"
EACH = 300
"""Messages of each of three kinds of producer; then MORE are appended by the other broker."""
MORE = 60
SMALL_FILE_BYTES = 128 * 1024
"""Small enough that the messages fill several log files."""


@attrs.frozen
class Running:
    """A broker on a store, and the nameserver where it is found."""

    child: Child
    nameserver: str


@attrs.frozen
class Brokers:
    """Starts either broker on a store."""

    java: Java
    java_nameserver: str
    homes: Homes

    @contextmanager
    def ours(self, store: Path, file_bytes: int | None = None) -> Iterator[Running]:
        broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
        serve = ["serve", "--data", str(store), "--listen", broker, "--nameserver-listen", nameserver]
        if file_bytes is not None:
            serve += ["--set", f"store.commit_log_file_bytes={file_bytes}"]
        with gantrymq_child(serve, self.homes("ours") / "serve.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            yield Running(child, nameserver)

    @contextmanager
    def theirs(self, store: Path, file_bytes: int | None = None) -> Iterator[Running]:
        settings = {} if file_bytes is None else {"mappedFileSizeCommitLog": str(file_bytes)}
        home = self.homes("theirs")
        server = start_broker(self.java, home, self.java_nameserver, name=home.name, store=store, **settings)
        with server.child as child:
            yield Running(child, self.java_nameserver)
            child.process.kill()  # who wants it stopped in order does that before


@pytest.fixture
def brokers(java: Java, own_nameserver: str, homes: Homes) -> Brokers:
    return Brokers(java, own_nameserver, homes)


def end(running: Running, how: str) -> None:
    if how == "killed":
        running.child.kill()
    else:
        assert running.child.terminate(30) in (0, 143)  # 143: how Java says that it heeded SIGTERM


def fill(client: ForeignClient, running: Running, topic: str) -> list[Sent]:
    return client.produce(running.nameserver, topic, EACH, seed=41, modes="sync,async,batch")


def check_all(client: ForeignClient, running: Running, topic: str, group: str, sent: list[Sent], count: int) -> None:
    """Every message is there, and where it was when it was acknowledged."""
    messages = client.consume_all(running.nameserver, topic, group, count)
    check_complete(messages, 41, range(count))
    places = {message.index: message.place[1:] for message in messages}
    assert {answer.index: places[answer.index] for answer in sent} == {
        answer.index: (answer.queue_id, answer.queue_offset) for answer in sent
    }


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_our_store_opens_in_java(java4_client: ForeignClient, brokers: Brokers, homes: Homes, how: str):
    store, topic, count = homes("store"), f"{TOPIC}-ours-{how}", 3 * EACH
    with brokers.ours(store) as first:
        sent = fill(java4_client, first, topic)
        end(first, how)
    with brokers.theirs(store) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)
        end(second, how)
    with brokers.ours(store) as third:
        check_all(java4_client, third, topic, "back", sent, count + MORE)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_java_s_store_opens_in_ours(java4_client: ForeignClient, brokers: Brokers, homes: Homes, how: str):
    store, topic, count = homes("store"), f"{TOPIC}-java-{how}", 3 * EACH
    with brokers.theirs(store) as first:
        sent = fill(java4_client, first, topic)
        end(first, how)
    with brokers.ours(store) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)
        end(second, how)
    with brokers.theirs(store) as third:
        check_all(java4_client, third, topic, "back", sent, count + MORE)


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_a_store_of_several_log_files_crosses_over(
    java4_client: ForeignClient, brokers: Brokers, homes: Homes, writer: str
):
    store, topic, count = homes("store"), f"{TOPIC}-rolled-{writer}", 3 * EACH
    start = {"ours": (brokers.ours, brokers.theirs), "theirs": (brokers.theirs, brokers.ours)}[writer]
    with start[0](store, SMALL_FILE_BYTES) as first:
        sent = fill(java4_client, first, topic)
        end(first, "stopped")
    assert len(list((store / "commitlog").iterdir())) >= 4
    assert expected_queues(log_records(store)) == written_queues(store)
    with start[1](store, SMALL_FILE_BYTES) as second:
        check_all(java4_client, second, topic, "before", sent, count)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=41, first=count)
        check_all(java4_client, second, topic, "after", sent, count + MORE)

"""RocketMQ's broker and ours write the same index files, and each finds every key in those of the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.query import UNIQUE_KEY_QUERY
from gantrymq.remoting.records import Record, decode_records
from support.clients import ForeignClient, Sent
from support.content import content
from support.foreign import BROKER_STOP_SECONDS, Java, start_broker
from support.processes import LATE_DISK, Child, free_ports, gantrymq_child, wait_for
from support.rawpeer import RawPeer
from support.stores import log_records

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

Homes = Callable[[str], Path]
SEED = 43
EACH = 120
"""Messages of each of three kinds of producer; then MORE are appended by the other broker."""
MORE = 40
SLOTS, ENTRIES = 61, 150
"""So few that chains are long and the messages fill several files."""


@attrs.frozen
class Running:
    """A broker, its address, and the nameserver where it is found."""

    child: Child
    address: str
    nameserver: str


@attrs.frozen
class Brokers:
    """Starts either broker on a store, with small index files."""

    java: Java
    java_nameserver: str
    homes: Homes

    @contextmanager
    def ours(self, store: Path) -> Iterator[Running]:
        broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
        serve = ["serve", "--data", str(store), "--listen", broker, "--nameserver-listen", nameserver, *LATE_DISK]
        serve += ["--set", f"plugin.index.slots={SLOTS}", "--set", f"plugin.index.entries={ENTRIES}"]
        with gantrymq_child(serve, self.homes("ours") / "serve.err") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            yield Running(child, broker, nameserver)

    @contextmanager
    def theirs(self, store: Path) -> Iterator[Running]:
        home = self.homes("theirs")
        sizes = {"maxHashSlotNum": str(SLOTS), "maxIndexNum": str(ENTRIES)}
        server = start_broker(self.java, home, self.java_nameserver, name=home.name, store=store, **sizes)
        with server.child as child:
            yield Running(child, server.address, self.java_nameserver)
            child.process.kill()  # tests that need a clean stop have stopped it before


@pytest.fixture
def brokers(java: Java, own_nameserver: str, homes: Homes) -> Brokers:
    return Brokers(java, own_nameserver, homes)


def end(running: Running, how: str) -> None:
    if how == "killed":
        running.child.kill()
    else:
        assert running.child.terminate(BROKER_STOP_SECONDS) in (0, 143)  # 143: how Java says that it heeded SIGTERM


def find(peer: RawPeer, topic: str, key: str, *, unique: bool = False, most: int = 64) -> list[Record]:
    """The messages that the broker finds, without those that a client drops because of another key."""
    ext = {"topic": topic, "key": key, "maxNum": str(most), "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    answer = peer.ask(Command(RequestCode.QUERY_MESSAGE, {**ext, UNIQUE_KEY_QUERY: str(unique).lower()}))
    assert answer is not None
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark
    return [record for record in decode_records(answer.body) if key in record.keys or key == record.message_id]


def check_found(running: Running, topic: str, sent: list[Sent]) -> None:
    """Each message by its unique id and by each of its keys, once."""
    with RawPeer(running.address, 20.0) as peer:
        wait_for(lambda: bool(find(peer, topic, content(SEED, sent[-1].index).keys.split()[0])))
        for answer in sent:
            if answer.count > 1:
                continue
            (by_id,) = find(peer, topic, answer.msg_id, unique=True)
            assert (by_id.queue_id, by_id.queue_offset) == (answer.queue_id, answer.queue_offset)
        for index in {answer.index + at for answer in sent for at in range(answer.count)}:
            for key in content(SEED, index).keys.split():
                assert [record.properties["index"] for record in find(peer, topic, key)] == [str(index)]


def index_files(store: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((store / "index").iterdir())]


@pytest.mark.soak(1, among="there and back")
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_keys_indexed_by_java_are_found_by_our_broker_and_by_java_again(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path, how: str
):
    store, topic, count = tmp_path / "store", f"IndexJava-{how}", 3 * EACH
    with brokers.theirs(store) as first:
        sent = java4_client.produce(first.nameserver, topic, EACH, seed=SEED, modes="sync,async,batch")
        check_found(first, topic, sent)
        end(first, how)
    with brokers.ours(store) as second:
        check_found(second, topic, sent)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=SEED, first=count)
        check_found(second, topic, sent)
        end(second, "stopped")
    assert len(index_files(store)) > 4
    with brokers.theirs(store) as third:
        check_found(third, topic, sent)
        more = java4_client.produce(third.nameserver, topic, MORE, seed=SEED, first=count + MORE)
        check_found(third, topic, [*sent, *more])


@pytest.mark.soak(1, among="there and back")
def test_keys_indexed_by_our_broker_are_found_by_java_and_by_ours_again(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path
):
    store, topic, count = tmp_path / "store", "IndexOurs", 3 * EACH
    with brokers.ours(store) as first:
        sent = java4_client.produce(first.nameserver, topic, EACH, seed=SEED, modes="sync,async,batch")
        check_found(first, topic, sent)
        end(first, "stopped")
    with brokers.theirs(store) as second:
        check_found(second, topic, sent)
        sent += java4_client.produce(second.nameserver, topic, MORE, seed=SEED, first=count)
        check_found(second, topic, sent)
        end(second, "stopped")
    with brokers.ours(store) as third:
        check_found(third, topic, sent)


def test_java_continues_an_index_after_our_crash_and_we_find_all_keys(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path
):
    """Java deletes the files that its checkpoint does not cover and indexes only new messages; ours fills the gap."""
    store, topic, count = tmp_path / "store", "IndexCrash", 3 * EACH
    with brokers.ours(store) as first:
        sent = java4_client.produce(first.nameserver, topic, EACH, seed=SEED, modes="sync,async,batch")
        end(first, "killed")
    with brokers.theirs(store) as second:
        more = java4_client.produce(second.nameserver, topic, MORE, seed=SEED, first=count)
        check_found(second, topic, more)
        end(second, "killed")
    with brokers.ours(store) as third:
        check_found(third, topic, [*sent, *more])


def test_both_brokers_build_the_same_index_bytes_from_the_same_log(
    java4_client: ForeignClient, brokers: Brokers, tmp_path: Path
):
    theirs, ours, topic = tmp_path / "store", tmp_path / "copy", "IndexBytes"
    with brokers.theirs(theirs) as first:
        sent = java4_client.produce(first.nameserver, topic, EACH, seed=SEED, modes="sync,async,batch")
        check_found(first, topic, sent)
        end(first, "stopped")
    shutil.copytree(theirs, ours)
    shutil.rmtree(ours / "index")
    with brokers.ours(ours) as second:
        check_found(second, topic, sent)
        end(second, "stopped")
    assert list(log_records(theirs)) == list(log_records(ours))
    assert len(index_files(ours)) > 4
    assert index_files(ours) == index_files(theirs)

"""A drill of each alert: a failure, then the commands of its runbook (``docs/howto/alerts.md``) in order.

Nothing but ``gantrymq`` is used. Each command is run as the page has it; only addresses, paths and names are replaced.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.client.errors import BrokerError
from gantrymq.testing.harness import cluster_in_thread
from support.failing_task import Archive
from support.foreign import wait_registered
from support.hapair import HaPair
from support.loopdisk import NoLoopDisk, loop_disk
from support.processes import Child, gantrymq_child, wait_for
from support.stores import log_records

pytestmark = [pytest.mark.timeout(120), pytest.mark.once]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "alerts.md"
SMALL = ["--set", "store.commit_log_file_bytes=1 MiB"]
Cli = Callable[..., Any]


def commands(alert: str) -> list[list[str]]:
    """The commands of the alert's runbook, as lists of words."""
    section = PAGE.read_text().partition(f"\n## {alert}\n")[2].partition("\n## ")[0]
    text = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    return [shlex.split(line, comments=True) for line in text.splitlines()]


@attrs.define
class Runbook:
    """The commands of one alert, which the drill runs one after the other."""

    cli: Cli
    steps: list[list[str]]
    environ: pytest.MonkeyPatch

    def run(self, beginning: str, replaced: Mapping[str, str] = {}, *, code: int = 0, as_json: bool = True) -> Any:
        """Run the next command, which must begin with these words; returns its data."""
        words = self.next(beginning, replaced)
        done = self.cli(*words, *(["--json"] if as_json else []))
        assert done.code == code, done.err
        return json.loads(done.out) if as_json else done.out

    def next(self, beginning: str, replaced: Mapping[str, str] = {}) -> list[str]:
        """The words of the next command, without ``gantrymq``, for a server that the drill starts itself."""
        program, *words = self.steps.pop(0)
        assert (program, " ".join(words[: beginning.count(" ") + 1])) == ("gantrymq", beginning)
        assert set(replaced) <= set(words), "the page names what the drill replaces"
        return [replaced.get(word, word) for word in words]


@pytest.fixture
def runbook(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Runbook]]:
    books: list[Runbook] = []

    def open_book(alert: str, nameserver: str) -> Runbook:
        monkeypatch.setenv("GANTRYMQ_NAMESERVER", nameserver)
        books.append(Runbook(cli, commands(alert), monkeypatch))
        return books[-1]

    yield open_book
    for book in books:
        assert book.steps == [], "the drill runs the whole runbook"


def serve(stack: ExitStack, folder: Path, log: Path, *options: str) -> tuple[Child, str]:
    """A broker with a nameserver on a store, and the nameserver's address."""
    addresses = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    child = stack.enter_context(gantrymq_child(["serve", "--data", str(folder), *addresses, *SMALL, *options], log))
    return child, child.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(loop_disk(tmp_path))
        except NoLoopDisk as reason:
            pytest.skip(str(reason))
        _, nameserver = serve(
            stack, disk.folder / "store", tmp_path / "log", "--set", "plugin.retention.check_interval=1s",
            "--set", "plugin.retention.reserve=0", "--set", "plugin.retention.reserve_file=0",
        )  # fmt: skip
        book = runbook("GantryMQDiskNearlyFull", nameserver)
        with gantrymq.sync.connect(nameserver) as client, client.producer() as producer:
            producer.send(Message("orders", b"before"))
            other = disk.folder / "core.4711"
            usage = os.statvfs(disk.folder)
            other.write_bytes(b"x" * (int(usage.f_bavail - 0.06 * usage.f_blocks) * usage.f_frsize))

            def is_refused() -> bool:
                try:
                    producer.send(Message("orders", b"refused"), timeout=2)
                except BrokerError as error:
                    return "disk" in str(error)
                return False

            wait_for(is_refused, 30)
            (row,) = book.run("cluster status")
            assert "disk" in row["not_ready"]
            (shown,) = book.run("config show")
            assert shown["settings"]["plugin.retention.disk_full"] == "90"
            (changed,) = book.run("config set")
            assert changed["server"] == "broker-a (id 0)"
            other.unlink()
            wait_for(lambda: not is_refused(), 30)
            (row,) = book.run("cluster status")
            assert row["not_ready"] is None


@pytest.mark.slow
def test_a_lost_master(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(HaPair(tmp_path))
        master, slave = pair.start(0, "SYNC_MASTER"), pair.start(1, "SLAVE")
        wait_registered(pair.nameserver, "broker-a")
        book = runbook("GantryMQBrokerDown", pair.nameserver)
        with gantrymq.sync.connect(pair.nameserver) as client, client.producer() as producer:
            for number in range(20):
                producer.send(Message("orders", b"%d" % number))
        wait_for(pair.level)
        master.kill()
        rows = book.run("cluster status")
        assert {row["id"]: row["role"] in ("unreachable", "missing") for row in rows} == {0: True, 1: False}
        promoted = book.run("cluster promote")
        assert promoted["master"] == pair.addresses[1]
        rows = book.run("cluster status")
        assert [row["address"] for row in rows if row["id"] == 0] == [promoted["master"]]
        (config := tmp_path / "broker.toml").write_text(
            f'[broker]\nid = 1\ndata = "{pair.stores[0]}"\nlisten = "{pair.addresses[0]}"\n'
            f'nameservers = ["{pair.nameserver}"]\n[store]\ncommit_log_file_bytes = "16 MiB"\n'
            '[plugins]\nenable = ["ha"]\n[plugin.ha]\nrole = "sync_master"\n'
        )
        words = book.next("broker", {"/etc/gantrymq/broker.toml": str(config)})
        returned = stack.enter_context(gantrymq_child(words, tmp_path / "returned.log"))
        returned.wait_line(lambda line: line.startswith("ready"))
        wait_for(pair.same, 60)
        rows = book.run("cluster status")
        assert [(row["id"], row["role"] == "slave", row["lag_bytes"]) for row in rows] == [
            (0, False, None),
            (1, True, 0),
        ]
        with gantrymq.sync.connect(pair.nameserver) as client:
            with client.reader("orders", start="first", until="end") as reader:
                assert sorted(int(message.body) for message in reader) == list(range(20))
        assert rows[1]["not_promotable"] is None
        slave.kill()  # which is the master now
        again = book.cli("cluster", "promote", "broker-a", "--json")
        assert json.loads(again.out)["master"] == pair.addresses[0], again.err


def test_a_damaged_file(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    store = tmp_path / "store"
    with ExitStack() as stack:
        child, nameserver = serve(stack, store, tmp_path / "log")
        with gantrymq.sync.connect(nameserver) as client, client.producer() as producer:
            for number in range(20):
                producer.send(Message("orders", b"order %02d" % number))
        assert child.terminate() == 0
    (record,) = [record for record, _ in log_records(store) if record.body == b"order 07"]
    path = min((store / "commitlog").iterdir())
    place = path.read_bytes().index(b"order 07")
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"XXXXXXXX")
    at = {"/var/lib/gantrymq": str(store)}
    book = runbook("GantryMQLogDamaged", "")
    found = book.run("store check", at, code=1)
    (lost,) = found["damage"][0]["messages"]
    assert (lost["topic"], lost["queue"], lost["queue_offset"]) == ("orders", record.queue_id, record.queue_offset)
    quarantined = book.run("store check", at, code=1)["quarantined"]
    assert quarantined == [[record.offset, record.offset + lost["size"]]]
    (config := tmp_path / "broker.toml").write_text(f'[broker]\ndata = "{store}"\n')
    with ExitStack() as stack:
        names = stack.enter_context(gantrymq_child(["nameserver", "--listen", "127.0.0.1:0"], tmp_path / "names.log"))
        nameserver = names.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]
        book.environ.setenv("GANTRYMQ_NAMESERVER", nameserver)
        words = book.next("broker", {"/etc/gantrymq/broker.toml": str(config)})
        broker = stack.enter_context(
            gantrymq_child(
                [*words, *SMALL, "--nameserver", nameserver, "--listen", "127.0.0.1:0"], tmp_path / "again.log"
            )
        )
        broker.wait_line(lambda line: line.startswith("ready"))
        assert len(book.run("topic peek", as_json=False).splitlines()) == 5
        with gantrymq.sync.connect(nameserver) as client:
            with client.reader("orders", start="first", until="end") as reader:
                bodies = {message.body for message in reader}
        assert bodies == {b"order %02d" % number for number in range(20) if number != 7}


HANGING = """
import sys, threading
import gantrymq.sync

with gantrymq.sync.connect(sys.argv[1]) as client:
    with client.consumer("orders", "billing", start="first") as consumer:
        for number, message in zip(range(4), consumer):
            message.ack()
            if number == 3:
                break
    with client.consumer("orders", "billing") as consumer:
        print("consumed", flush=True)
        print("got", next(iter(consumer)).body, flush=True)
        threading.Event().wait()
"""


@pytest.mark.slow
def test_a_stuck_group(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with ExitStack() as stack:
        _, nameserver = serve(stack, tmp_path / "store", tmp_path / "log")
        book = runbook("GantryMQGroupBehind", nameserver)
        client = stack.enter_context(gantrymq.sync.connect(nameserver))
        client.admin.create_topic("orders", 2)
        producer = stack.enter_context(client.producer())
        for _ in range(4):
            producer.send("orders", b"consumed")
        script = tmp_path / "hanging.py"
        script.write_text(HANGING)
        hanging = stack.enter_context(Child([sys.executable, str(script), nameserver], tmp_path / "hanging.log"))
        hanging.wait_line(lambda line: line == "consumed")
        for number in range(6):
            producer.send("orders", b"%d" % number)
        hanging.wait_line(lambda line: line.startswith("got"))
        hanging.process.send_signal(signal.SIGSTOP)
        stack.callback(hanging.process.send_signal, signal.SIGCONT)
        bodies: set[bytes] = set()

        def consume() -> None:
            for message in consumer:
                bodies.add(message.body)
                message.ack()
                if len(bodies) == 6:
                    return

        with client.consumer("orders", "billing") as consumer:
            thread = threading.Thread(target=consume)
            thread.start()
            wait_for(lambda: len(bodies) == 3)
            described = book.run("group describe")
            assert max(queue["lag"] for queue in described["queues"]) == 3
            rows = book.run("client list")
            (stuck,) = {row["client_id"] for row in rows if row["client_id"] != client.client_id}
            (silent,) = [member for member in described["members"] if member["subscriptions"] is None]
            assert silent["client_id"] == stuck
            book.run("client kick", {"10.0.0.7@4711": stuck})
            thread.join(60)
            assert bodies == {b"%d" % number for number in range(6)}
            described = book.run("group describe")
            assert [member["client_id"] for member in described["members"]] == [client.client_id]
        assert [row["after"] for row in book.run("group reset-offsets")] == [5, 5]


@pytest.mark.slow
def test_a_slave_that_hangs(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(HaPair(tmp_path, {"plugin.ha.sync_timeout": "60s"}))
        _, slave = pair.start(0, "SYNC_MASTER"), pair.start(1, "SLAVE")
        wait_registered(pair.nameserver, "broker-a")
        behind = runbook("GantryMQSlaveBehind", pair.nameserver)
        late = runbook("GantryMQAcknowledgmentsLate", pair.nameserver)
        client = stack.enter_context(gantrymq.sync.connect(pair.nameserver))
        producer = stack.enter_context(client.producer())
        producer.send(Message("orders", b"copied"))
        wait_for(pair.level)
        slave.process.send_signal(signal.SIGSTOP)
        stack.callback(slave.process.send_signal, signal.SIGCONT)
        sender = threading.Thread(target=lambda: producer.send(Message("orders", b"waits" * 1000), timeout=60))
        sender.start()
        stack.callback(sender.join)

        def masters_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
            return next(row for row in rows if row["id"] == 0)

        def is_late() -> bool:
            listed = json.loads(behind.cli("cluster", "status", "--json").out)
            return "acknowledgment" in (masters_row(listed)["not_ready"] or "")

        wait_for(is_late, 30)
        assert [row["role"] for row in behind.run("cluster status") if row["id"]] == ["unreachable"]
        assert "acknowledgment" in masters_row(late.run("cluster status"))["not_ready"]
        found = late.run("doctor", {"/var/lib/gantrymq": str(pair.stores[0])}, code=0)
        assert [row for row in found if "flush" in json.dumps(row)]
        slave.kill()
        sender.join(30)
        assert not sender.is_alive(), "the master waits for the others, and there is none"
        wait_for(lambda: not is_late(), 30)


@pytest.mark.slow
def test_subscriptions_that_differ_and_dead_letters(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with ExitStack() as stack:
        _, nameserver = serve(stack, tmp_path / "store", tmp_path / "log")
        differing = runbook("GantryMQSubscriptionsDiffer", nameserver)
        dead = runbook("GantryMQDeadLetters", nameserver)
        client = stack.enter_context(gantrymq.sync.connect(nameserver))
        producer = stack.enter_context(client.producer())
        for topic in ("orders", "returns"):
            producer.send(topic, b"1")
        with client.consumer("orders", "billing", start="first", max_retries=0) as consumer:
            other = stack.enter_context(gantrymq.sync.connect(nameserver))
            with other.consumer("returns", "billing", start="first"):

                def topics() -> set[str]:
                    done = differing.cli("group", "describe", "billing", "--json")
                    members = [] if done.code else json.loads(done.out)["members"]  # no group before its first member
                    subscriptions = [member["subscriptions"] or {} for member in members]
                    return {topic for each in subscriptions for topic in each if not topic.startswith("%")}

                wait_for(lambda: topics() == {"orders", "returns"}, 30)
                described = differing.run("group describe")
                assert len(described["members"]) == 2
            for message in consumer:
                message.retry()
                break
        wait_for(lambda: json.loads(dead.cli("dlq", "list", "billing", "--json").out)[0]["messages"] == 1, 30)
        (line,) = dead.run("dlq peek", as_json=False).splitlines()
        assert json.loads(line)["body"] == "1"
        assert dead.run("dlq replay")["messages"] == 1
        with client.consumer("orders", "billing") as consumer:
            assert next(iter(consumer)).body == b"1"


def test_a_plugin_whose_task_failed(tmp_path: Path, runbook: Callable[[str, str], Runbook]) -> None:
    with cluster_in_thread(tmp_path / "store", enable=[Archive]) as cluster:
        book = runbook("GantryMQPluginTaskFailed", cluster.nameserver)
        live = book.run("plugins show", {"10.0.0.1:10911": cluster.address})["live"]
        assert live["tasks"] == {"archiving": "failed", "waiting": "running"}
        assert live["errors"]["task archiving"]["last"] == "ValueError: no such archive"


def test_each_runbook_has_commands_that_the_drill_runs() -> None:
    alerts = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert all(commands(alert) for alert in alerts)
    drilled = re.findall(r'runbook\("(\w+)"', Path(__file__).read_text())
    assert sorted(drilled) == sorted(alerts)

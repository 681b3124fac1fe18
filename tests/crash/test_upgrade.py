"""Upgrades from an older commit, and downgrades to it: of one store, and of a pair under load.

``docs/howto/upgrade.md`` has the same order of steps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

import gantrymq.sync
from gantrymq import SendStatus
from gantrymq.cli.__main__ import run as run_command
from gantrymq.testing.ledger import Ledger
from support.haload import Load
from support.hapair import HaPair, read_all
from support.older_version import FIRST_DAY, WITH_REPLICATION, OlderVersion, get_older_version
from support.processes import Child, free_ports, gantrymq_child, wait_for
from support.stores import expected_queues, log_records, written_queues

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

TOPIC, QUEUES = "UpgradeTopic", 4
EACH = 50


@attrs.frozen
class Server:
    """Broker and nameserver in one process, on one store."""

    store: Path
    log: Path
    broker: str
    nameserver: str

    def run(self, start: Callable[[list[str], Path], Child], work: Callable[[gantrymq.sync.Client], None]) -> None:
        """Start it, work with a client, and stop it cleanly."""
        arguments = ["serve", "--data", str(self.store), "--listen", self.broker]
        with start([*arguments, "--nameserver-listen", self.nameserver], self.log) as child:
            child.wait_line(lambda line: line.startswith("ready"))
            with gantrymq.sync.connect(self.nameserver) as client:
                work(client)
            assert child.terminate() == 0


def test_a_store_of_the_first_day_is_used_by_this_version_and_by_that_one_again(tmp_path: Path) -> None:
    old = get_older_version(FIRST_DAY, tmp_path / "old")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    server = Server(tmp_path / "store", tmp_path / "log", broker, nameserver)
    sent: list[bytes] = []

    def send(client: gantrymq.sync.Client) -> None:
        with client.producer() as producer:
            for _ in range(EACH):
                body = b"%d" % len(sent)
                producer.send(TOPIC, body, keys=[f"k{len(sent)}"], tags="red")
                sent.append(body)

    def consume(client: gantrymq.sync.Client, count: int) -> list[bytes]:
        with client.consumer(TOPIC, "billing", start="first") as consumer:
            found = []
            for message in consumer:
                found.append(bytes(message.body))
                message.ack()
                if len(found) == count:
                    return sorted(found, key=int)
        return []

    def begin(client: gantrymq.sync.Client) -> None:
        client.admin.create_topic(TOPIC, QUEUES)
        send(client)
        assert consume(client, EACH) == sent

    def go_on(client: gantrymq.sync.Client) -> None:
        before = len(sent)
        with client.reader(TOPIC, start="first", until="end") as reader:
            assert sorted((bytes(message.body) for message in reader), key=int) == sent
        send(client)
        assert consume(client, EACH) == sent[before:], "the group continues where it was"
        # the index too: that of the older version, and what this one has added
        assert run_command(["query", TOPIC, "--key", "k7", "--nameserver", server.nameserver]) == 0
        assert run_command(["query", TOPIC, "--key", f"k{before}", "--nameserver", server.nameserver]) == 0

    server.run(old.child, begin)
    assert run_command(["store", "check", "--deep", "--data", str(server.store)]) == 0
    server.run(gantrymq_child, go_on)
    assert run_command(["store", "check", "--deep", "--data", str(server.store)]) == 0
    assert expected_queues(log_records(server.store)) == written_queues(server.store)
    server.run(old.child, go_on)
    server.run(gantrymq_child, go_on)


class MixedPair(HaPair):
    """A pair whose processes are of the older or of this version: of :attr:`older` if it is set."""

    older: OlderVersion | None = None
    nameserver_child: Child

    def __enter__(self) -> MixedPair:
        self.nameserver_child = self.start_nameserver()
        return self

    def _child(self, log: str, *arguments: str) -> Child:
        if self.older is None:
            return super()._child(log, *arguments)
        return self._stack.enter_context(self.older.child(arguments, self.home / f"{log}.log"))


def test_a_rolling_upgrade_and_the_way_back_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The nameserver first, then the slave, then the master; back in the order slave, master."""
    old = get_older_version(WITH_REPLICATION, tmp_path / "old")
    ledger = Ledger(uuid.uuid4().hex)
    pair = MixedPair(tmp_path, {"plugin.ha.sync_timeout": "400ms", "plugin.ha.sync_tables": "500ms"})
    pair.older = old
    with pair:
        children = {0: pair.start(0, "SYNC_MASTER"), 1: pair.start(1, "SLAVE"), 2: pair.nameserver_child}
        with gantrymq.sync.connect(pair.nameserver) as client:
            client.admin.create_topic(TOPIC, QUEUES)
        wait_for(lambda: "haSlave_0" in pair.runtime(0))
        load = Load(pair.nameserver, TOPIC, ledger)

        def restart(number: int, version: OlderVersion | None) -> None:
            pair.older = version
            assert children[number].terminate() == 0
            start: list[Callable[[], Child]] = [
                lambda: pair.start(0, "SYNC_MASTER"), lambda: pair.start(1, "SLAVE"), pair.start_nameserver
            ]  # fmt: skip
            children[number] = start[number]()

        async def script() -> None:
            await load.until(SendStatus.OK)
            for number, version in ((2, None), (1, None), (0, None), (1, old), (0, old)):
                await trio.to_thread.run_sync(restart, number, version)
                # only with a connected slave
                await load.until(SendStatus.OK, timeout=60)

        trio.run(load.during, script)
        wait_for(pair.same)
        assert ledger.acknowledged > 100
        for address in pair.addresses:
            ledger.check(read_all(address, TOPIC, QUEUES, ledger))

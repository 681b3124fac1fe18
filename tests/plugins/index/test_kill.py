"""After ``kill -9`` under load and a restart, every acknowledged message is found by its keys."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

import gantrymq.sync
from gantrymq import GantryError, Message
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = 6


def test_acknowledged_messages_are_found_by_their_keys_after_kills(tmp_path: Path) -> None:
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ["serve", "--data", str(tmp_path / "data"), "--listen", broker, "--nameserver-listen", nameserver]
    small = ("slots=61", "entries=100", "flush_interval=10ms", "sync_interval=70ms")
    for setting in small:
        serve += ["--set", f"plugin.index.{setting}"]
    chance = random.Random(7)
    acknowledged: list[int] = []
    for number in range(ROUNDS):
        with gantrymq_child(serve, tmp_path / f"log-{number}") as child:
            child.wait_line(lambda line: line.startswith("ready"))
            with gantrymq.sync.connect(nameserver) as client:
                _check(client, acknowledged)
                killer = threading.Timer(chance.uniform(0.2, 0.8), child.kill)
                killer.start()
                _send_until_killed(client, acknowledged, number)
                killer.join()
    assert len(acknowledged) > ROUNDS * 10
    with gantrymq_child(serve, tmp_path / "log-last") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        with gantrymq.sync.connect(nameserver) as client:
            _check(client, acknowledged)
        assert child.terminate(30) == 0
    assert len(list((tmp_path / "data" / "index").iterdir())) > 1


def _send_until_killed(client: gantrymq.sync.Client, acknowledged: list[int], life: int) -> None:
    first = 100_000 * life
    with client.producer("p", retries=0, timeout=2.0) as producer:
        for number in range(first, first + 100_000):
            try:
                producer.send(Message("T", b"%d" % number, keys=[f"k{number}", f"life-{life}"]))
            except GantryError:
                return
            acknowledged.append(number)


def _check(client: gantrymq.sync.Client, acknowledged: list[int]) -> None:
    if not acknowledged:
        return
    # All of the log is indexed once its last message is.
    wait_for(lambda: bool(client.admin.find("T", f"k{acknowledged[-1]}")))
    for number in acknowledged:
        assert [int(message.body) for message in client.admin.find("T", f"k{number}")] == [number]

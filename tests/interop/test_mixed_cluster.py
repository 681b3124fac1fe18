"""Ours and RocketMQ's servers in one cluster: each broker registers at each nameserver, clients route through both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from gantrymq.testing.clients import ForeignClient, check_complete
from gantrymq.testing.foreign import Java, start_broker, wait_registered
from gantrymq.testing.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]
OURS, THEIRS = "gantry-broker", "java-broker-b"


@attrs.frozen
class Mixed:
    """The addresses of RocketMQ's nameserver and of ours; both brokers are registered at both."""

    theirs: str
    ours: str


@pytest.fixture(scope="module")
def mixed(java: Java, own_nameserver: str, homes: Homes) -> Iterator[Mixed]:
    home = homes("mixed")
    broker_address, nameserver_address = (f"127.0.0.1:{port}" for port in free_ports(2))
    both = f"{own_nameserver};{nameserver_address}"
    nameserver = ("nameserver", "--listen", nameserver_address)
    with gantrymq_child(nameserver, home / "nameserver.err") as first:
        first.wait_line(lambda line: line.startswith("ready"))
        broker = ("broker", "--nameserver", both, "--listen", broker_address, "--data", str(home / "data"))
        with gantrymq_child((*broker, "--set", f"broker.name={OURS}"), home / "broker.err") as second:
            second.wait_line(lambda line: line.startswith("ready"))
            theirs = start_broker(java, home / "java", both, name=THEIRS)
            try:
                for address in (own_nameserver, nameserver_address):
                    wait_registered(address, OURS)
                    wait_registered(address, THEIRS)
                yield Mixed(own_nameserver, nameserver_address)
            finally:
                theirs.discard()


@pytest.mark.parametrize("nameserver", ["theirs", "ours"])
def test_java_clients_route_through_both_brokers(
    mixed: Mixed, nameserver: str, java4_client: ForeignClient, names: Callable[[str], str]
):
    address, topic = getattr(mixed, nameserver), names("t")
    with java4_client.run("create-topic", f"namesrv={address}", f"topic={topic}", "queues=2") as child:
        made = [event["broker"] for event in child.events() if event["event"] == "created"]
    assert {OURS, THEIRS} <= set(made)

    sent = java4_client.produce(address, topic, 400, seed=31, modes="sync,async")
    used = {(answer.broker, answer.queue_id) for answer in sent}
    assert used >= {(OURS, 0), (OURS, 1), (THEIRS, 0), (THEIRS, 1)}
    check_complete(java4_client.consume_all(address, topic, names("g"), 800), 31, range(800))

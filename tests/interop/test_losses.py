"""A Java client with default settings while nameserver, slave and master are lost one after the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.clients import ForeignClient, Producer, check_complete
from support.foreign import ask
from support.processes import Child, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TAKEN = {"SEND_OK", "SLAVE_NOT_AVAILABLE"}
"""The master has it either way; the second says that no slave is there to have it as well."""


@attrs.frozen
class Server:
    """One server of the cluster."""

    pid: int
    address: str


def until_ready(cluster: Child) -> tuple[str, dict[str, Server]]:
    """The nameservers' addresses, and each server by its name and id."""
    servers: dict[str, Server] = {}
    for event in cluster.events(120):
        if event["event"] == "ready":
            return str(event["nameserver"]), servers
        if event["event"] != "server":
            break
        servers[f"{event['server']} {event['id']}"] = Server(int(str(event["pid"])), str(event["address"]))
    raise AssertionError("the cluster ended")


def has_slave(master: Server) -> bool:
    """Whether the master reports a slave."""
    return '"haSlaves":"1"' in ask(master.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO)).body.decode()


def has_route(nameserver: str, topic: str) -> bool:
    """Whether both masters have registered the topic at this nameserver."""
    route = ask(nameserver, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})).body
    return b"broker-a" in route and b"broker-b" in route


def test_clients_continue_after_losses_and_no_acknowledged_message_is_lost(
    tmp_path: Path, java4_client: ForeignClient, names: Callable[[str], str]
) -> None:
    topic, shape = names("t"), ("--brokers", "2", "--slaves", "1", "--nameservers", "2", "--sync")
    with ExitStack() as stack:
        words = ("dev", "up", *shape, "--json", "--data", str(tmp_path / "data"))
        cluster = stack.enter_context(gantrymq_child(words, tmp_path / "dev.log"))
        nameservers, servers = until_ready(cluster)
        wait_for(lambda: has_slave(servers["broker-a 0"]) and has_slave(servers["broker-b 0"]))

        more = (f"namesrv={nameservers}", f"topic={topic}", "seed=61", "count=0", "orders=true")
        producer = Producer(stack.enter_context(java4_client.run("produce", *more)))
        with java4_client.run("create-topic", f"namesrv={nameservers}", f"topic={topic}", "queues=2") as child:
            assert {event["broker"] for event in child.events() if event["event"] == "created"} == {
                "broker-a",
                "broker-b",
            }
        # the producer asks one of them, and again only after 30 s
        wait_for(lambda: all(has_route(nameserver, topic) for nameserver in nameservers.split(";")))
        assert {answer.status for answer in producer.send(60)} == {"SEND_OK"}
        reader = stack.enter_context(java4_client.consumer(nameservers, topic, names("g")))
        reader.wait(60)
        for number, lost in enumerate(("nameserver-0 None", "broker-b 1", "broker-a 0"), 2):
            os.kill(servers[lost].pid, signal.SIGKILL)
            assert {answer.status for answer in producer.send(60)} <= TAKEN
            if lost != "broker-a 0":
                reader.wait(60 * number)
        # who comes now reads at the slave what its master took before
        later = java4_client.consume_all(nameservers, topic, names("later"), 240)
        check_complete(later, 61, range(240))
        assert {message.broker for message in later} == {"broker-a", "broker-b"}
        reader.wait(240)
        check_complete(reader.close(), 61, range(240))

"""Replication between RocketMQ's brokers and ours in both directions: the same bytes, and readable messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.message import SendStatus
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.clients import MESSAGES_A_SECOND, ForeignClient, check_complete
from support.foreign import Java, JavaServer, ask, runtime_info, start_broker
from support.processes import LATE_DISK, Child, free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Homes = Callable[[str], Path]
LONG = "GANTRYMQ_HA_MESSAGES" in os.environ
"""Whether this is a long run, which starts RocketMQ's slow slave a second time."""
MESSAGES = int(os.environ.get("GANTRYMQ_HA_MESSAGES", "1000"))

PATIENCE_S = max(60.0, MESSAGES / MESSAGES_A_SECOND)


@contextmanager
def our_broker(home: Path, nameserver: str, name: str, broker_id: int, **more: str) -> Iterator[tuple[Child, str]]:
    """Our broker with the plugin ha, and its address."""
    (port,) = free_ports(around=(0, 1, -2))
    address = f"127.0.0.1:{port}"
    settings: dict[str, object] = {
        "broker.name": name,
        "broker.id": broker_id,
        "plugins.enable": "ha",
        "plugin.ha.sync_tables": "500ms",
    }
    settings |= more
    sets = [*LATE_DISK, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    arguments = ("broker", "--nameserver", nameserver, "--listen", address, "--data", str(home / "data"), *sets)
    with gantrymq_child(arguments, home / f"broker-{port}.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield child, address


@contextmanager
def java_broker(java: Java, home: Path, nameserver: str, name: str, **settings: str) -> Iterator[JavaServer]:
    """RocketMQ's broker with files of the size of ours."""
    server = start_broker(java, home, nameserver, name=name, haSendHeartbeatInterval="500", **settings)
    try:
        yield server
    finally:
        server.discard()


def log_bytes(store: Path, end: int) -> bytes:
    """The first ``end`` bytes of the store's log, all in its first file."""
    with min((store / "commitlog").iterdir()).open("rb") as file:
        return file.read(end)


def delay_positions(address: str) -> dict[int, int]:
    """The delivered offset of each delay level that a broker reports."""
    answer = ask(address, Command(RequestCode.GET_ALL_DELAY_OFFSET))
    return DelayOffsetSerializeWrapper.from_bytes(answer.body).offset_table


def send_alone(nameserver: str, topic: str, status: SendStatus) -> None:
    """Messages while no slave is there."""
    with gantrymq.sync.connect(nameserver) as client, client.producer("alone") as producer:
        results = [producer.send(Message(topic, b"alone %d" % number)) for number in range(100)]
    assert {result.status for result in results} == {status}


def test_our_slave_replicates_a_java_master(
    java: Java, own_nameserver: str, homes: Homes, java4_client: ForeignClient, names: Callable[[str], str]
) -> None:
    home, topic, name = homes("ha"), names("t"), "ha-java-master"
    with ExitStack() as stack:
        master = stack.enter_context(java_broker(java, home / "java", own_nameserver, name, brokerRole="SYNC_MASTER"))
        with our_broker(home / "ours", own_nameserver, name, 1) as (slave, address):
            wait_for(lambda: runtime_info(address)["haMasterAddress"] != "")
            java4_client.produce(own_nameserver, topic, MESSAGES, seed=41, modes="sync,async")
            slave.kill()
        with gantrymq.sync.connect(own_nameserver) as client, client.producer("probe") as producer:
            # RocketMQ counts a slave until one of its threads has read the end of the connection
            wait_for(lambda: producer.send(Message(names("probe"), b"x")).status is SendStatus.SLAVE_NOT_AVAILABLE)
        send_alone(own_nameserver, names("later"), SendStatus.SLAVE_NOT_AVAILABLE)
        _, address = stack.enter_context(our_broker(home / "ours", own_nameserver, name, 1))
        end = int(runtime_info(master.address)["commitLogMaxOffset"])
        wait_for(lambda: int(runtime_info(address)["commitLogMaxOffset"]) == end, PATIENCE_S)
        assert log_bytes(home / "ours" / "data", end) == log_bytes(home / "java" / "store", end)
        wait_for(lambda: topic in str(ask(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body))
        with gantrymq.sync.connect(own_nameserver) as client, client.producer("delayed") as producer:
            producer.send(Message(names("delayed"), b"a second later", delay_level=1))
        wait_for(lambda: delay_positions(address).get(1) == 1)
        master.discard()
        check_complete(
            java4_client.consume_all(own_nameserver, topic, names("g"), 2 * MESSAGES, timeout=PATIENCE_S),
            41,
            range(2 * MESSAGES),
        )


def test_a_java_slave_replicates_our_master(
    java: Java, own_nameserver: str, homes: Homes, java4_client: ForeignClient, names: Callable[[str], str]
) -> None:
    home, topic, name = homes("ha"), names("t"), "ha-our-master"
    sync = {"plugin.ha.role": "sync_master", "plugin.ha.sync_timeout": "10s"}
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
    ours, theirs = home / "ours" / "data", home / "java" / "store"
    with our_broker(home / "ours", own_nameserver, name, 0, **sync) as (_, address):
        with java_broker(java, home / "java", own_nameserver, name, **slave) as copy:
            wait_for(lambda: runtime_info(address).get("haSlave_0", "").endswith("start=0"))
            sent = java4_client.produce(own_nameserver, topic, MESSAGES, seed=43, modes="sync,async")
            assert {answer.status for answer in sent} == {"SEND_OK"}
            wait_for(lambda: topic in str(ask(copy.address, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body))
            end = int(runtime_info(copy.address)["commitLogMaxOffset"])
            assert end == int(runtime_info(address)["commitLogMaxOffset"])
            assert log_bytes(theirs, end) == log_bytes(ours, end)
        send_alone(own_nameserver, names("later"), SendStatus.SLAVE_NOT_AVAILABLE)
        if LONG:
            with java_broker(java, home / "java", own_nameserver, name, **slave) as copy:
                end = int(runtime_info(address)["commitLogMaxOffset"])
                wait_for(lambda: runtime_info(copy.address).get("commitLogMaxOffset") == str(end), PATIENCE_S)
                assert log_bytes(theirs, end) == log_bytes(ours, end)


def test_a_slave_of_rocketmq_5_adopts_the_offsets_of_our_master_and_their_version(
    java5: Java, own_nameserver: str, homes: Homes
) -> None:
    home, name = homes("ha"), "ha-offsets"
    commit = {"consumerGroup": "TOOLS_CONSUMER", "topic": "TBW102", "queueId": "0", "commitOffset": "0"}

    def offsets() -> ConsumerOffsetSerializeWrapper:
        return ConsumerOffsetSerializeWrapper.from_bytes(
            ask(copy.address, Command(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        )

    with our_broker(home / "ours", own_nameserver, name, 0) as (_, address):
        assert ask(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        with java_broker(java5, home / "java", own_nameserver, name, brokerRole="SLAVE", brokerId="1") as copy:
            started_ms = time.time_ns() // 1_000_000
            # It asks once a minute.
            wait_for(lambda: offsets().offset_table.get("TBW102@TOOLS_CONSUMER") == {0: 0}, PATIENCE_S + 60)
            wait_for(lambda: (offsets().data_version or DataVersion()).timestamp >= started_ms)

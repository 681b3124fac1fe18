"""A promotion between RocketMQ 5.3.3 and GantryMQ repeats no delivered timed message."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.requests import send
from support.foreign import Java, JavaServer, ask, runtime_info, start_broker
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
NAME, TOPIC = "timer-ha", "TimerHa"
WAIT_S = 45
"""The delay of the last message: before it is due the slave gets a checkpoint and becomes the master."""
PATIENCE_S = 60.0
QUIET_S = 4.0


def our_broker(home: Path, broker_id: int, port: int, **more: object) -> object:
    """Our broker with the plugin ha."""
    settings: dict[str, object] = {
        "broker.name": NAME, "broker.id": broker_id, "plugins.enable": "ha", "store.commit_log_file_bytes": "1 GiB",
        "plugin.ha.sync_tables": "500ms", **more,
    }  # fmt: skip
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    arguments = ("broker", "--listen", f"127.0.0.1:{port}", "--data", str(home / "data"), *sets)
    return gantrymq_child(arguments, home / f"broker-{port}.err")


def java_broker(java: Java, home: Path, nameserver: str, **settings: str) -> JavaServer:
    """RocketMQ's broker with its timer."""
    return start_broker(
        java, home, nameserver, name=NAME, timerWheelEnable="true", haSendHeartbeatInterval="500", **settings
    )


async def fill(address: str) -> None:
    """A message that is delivered soon and one that waits."""
    async with open_channel(address) as channel:
        await channel.call(send(TOPIC, b"first", queues=4))
        now = time.time_ns() // 1_000_000
        for body, after in (("delivered", 2000), ("waiting", WAIT_S * 1000)):
            properties = f"TIMER_DELIVER_MS\x01{now + after}\x02UNIQ_KEY\x01{body}\x02"
            answer = await channel.call(send(TOPIC, body.encode(), queues=4, properties=properties))
            assert answer.code == ResponseCode.SUCCESS, answer.remark


def checkpoint(path: Path) -> tuple[int, int]:
    """The time of the first slot that is not delivered, and the queue offset that the master reported."""
    try:
        read_ms, _, _, offset = struct.unpack_from(">4q", path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, 0
    return read_ms, offset


def delivered(store: Path) -> Counter[bytes]:
    """The messages in queue 0 of the topic."""
    opened = Store(SystemEnv(), str(store))
    opened.open()
    try:
        opened.recover(lambda batch: None)
        queue = opened.queues.get(TOPIC, 0)
        entries = b"" if queue is None else queue.entries(0, queue.max_offset)
        return Counter(opened.log.read_record(offset).body for offset, _, _ in ENTRY.iter_unpack(entries))
    finally:
        opened.close()


def check_waiting(begun: float) -> None:
    """AssertionError if the master may have delivered the message that waits."""
    assert time.time() < begun + WAIT_S, "the slave was promoted too late to show anything"


def wait_delivered(address: str) -> None:
    """Wait until all messages are delivered, and some seconds more for duplicates."""
    offset = Command(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    wait_for(lambda: int((ask(address, offset).ext or {}).get("offset", 0)) >= 3, WAIT_S + PATIENCE_S)
    time.sleep(QUIET_S)


def test_our_promoted_slave_continues_the_timer_of_a_java_master(
    java5: Java, own_nameserver: str, homes: Homes
) -> None:
    home = homes("timer")
    master = java_broker(java5, home / "java", own_nameserver, brokerRole="ASYNC_MASTER")
    (port,) = free_ports(around=(0, 1, -2))
    (home / "ours").mkdir(parents=True)
    try:
        begun = time.time()
        trio.run(fill, master.address)
        settings = {"broker.nameservers": own_nameserver}
        with our_broker(home / "ours", 1, port, **settings) as child:
            child.wait_line(lambda line: line.startswith("ready"))
            due_ms = int(begun * 1000) + 10_000
            path = home / "ours" / "data" / "config" / "timercheck"
            wait_for(lambda: checkpoint(path)[0] > due_ms and checkpoint(path)[1] == 2, PATIENCE_S)
            end = runtime_info(master.address)["commitLogMaxOffset"]
            wait_for(lambda: runtime_info(f"127.0.0.1:{port}")["commitLogMaxOffset"] == end, PATIENCE_S)
            child.terminate()
    finally:
        master.discard()
    check_waiting(begun)
    with our_broker(home / "ours", 0, port, **settings) as child:
        child.wait_line(lambda line: line.startswith("ready"))
        wait_delivered(f"127.0.0.1:{port}")
        child.terminate()
    assert delivered(home / "ours" / "data") == {b"first": 1, b"delivered": 1, b"waiting": 1}


def test_a_java_slave_of_ours_continues_the_timer_when_it_is_promoted(
    java5: Java, own_nameserver: str, homes: Homes
) -> None:
    home = homes("timer")
    (port,) = free_ports(around=(0, 1, -2))
    (home / "ours").mkdir(parents=True)
    path = home / "java" / "store" / "config" / "timercheck"
    settings = {"broker.nameservers": own_nameserver}
    with our_broker(home / "ours", 0, port, **settings) as child:
        child.wait_line(lambda line: line.startswith("ready"))
        begun = time.time()
        trio.run(fill, f"127.0.0.1:{port}")
        copy = java_broker(java5, home / "java", own_nameserver, brokerRole="SLAVE", brokerId="1")
        try:
            due_ms = int(begun * 1000) + 6000
            wait_for(lambda: checkpoint(path)[0] > due_ms and checkpoint(path)[1] == 2, PATIENCE_S)
            child.kill()
            check_waiting(begun)
            copy.child.terminate(40)
        finally:
            copy.discard()
    java = java_broker(java5, home / "java", "", brokerRole="ASYNC_MASTER", brokerId="0")
    try:
        wait_delivered(java.address)
        java.child.terminate(40)
    finally:
        java.discard()
    counts = delivered(home / "java" / "store")
    assert counts == {b"first": 1, b"delivered": 1, b"waiting": 1}

"""One command promotes a slave without a restart after the loss of its master, and the old master follows it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.foreign import ask, runtime_info, wait_registered
from support.processes import Child, free_ports, gantrymq_child, wait_for

pytestmark = pytest.mark.timeout(60)


class Brokers:
    """Brokers of one name, each with a file of RocketMQ's properties."""

    def __init__(self, stack: ExitStack, home: Path) -> None:
        self._stack = stack
        self._home = home
        names = self._start("names", "nameserver", "--listen", "127.0.0.1:0")
        self.nameserver = names.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]
        self.children: dict[int, Child] = {}
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(2, around=(0, 1, -2))]

    def _start(self, log: str, *arguments: str) -> Child:
        return self._stack.enter_context(gantrymq_child(arguments, self._home / f"{log}.log"))

    def broker(self, number: int, role: str, broker_id: int) -> Child:
        """The broker on store ``number``, which is ready, or has refused the start."""
        file = self._home / f"broker-{number}.conf"
        file.write_text(f"brokerRole={role}\nbrokerId={broker_id}\nmappedFileSizeCommitLog=16777216\n")
        child = self._start(
            f"broker-{number}", "broker", "--nameserver", self.nameserver, "--listen", self.addresses[number],
            "--data", str(self._home / f"data-{number}"), "--config", str(file),
        )  # fmt: skip
        self.children[number] = child
        return child

    def log_of(self, number: int, end: int) -> bytes:
        """The first ``end`` bytes of the store's log."""
        with min((self._home / f"data-{number}" / "commitlog").iterdir()).open("rb") as file:
            return file.read(end)


def ready(child: Child) -> Child:
    child.wait_line(lambda line: line.startswith("ready"))
    return child


def master_of(nameserver: str) -> str:
    """Where the nameserver says that the master is; empty for nowhere."""
    with gantrymq.sync.connect(nameserver) as client:
        found = client.admin.cluster().broker_addr_table.get("broker-a")
    return "" if found is None else found.broker_addrs.get(0, "")


def role_of(address: str) -> str:
    """The broker's role now; empty while it does not answer."""
    try:
        return runtime_info(address)["brokerRole"]
    except OSError:
        return ""


def offset(address: str) -> int:
    """Where the broker's log ends."""
    return int(runtime_info(address)["commitLogMaxOffset"])


def send(nameserver: str, *bodies: bytes) -> list[tuple[int, int]]:
    """Queues and offsets of the messages."""
    with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
        sent = [producer.send(Message("Orders", body)) for body in bodies]
    return [(result.queue.queue_id, result.queue_offset) for result in sent]


@pytest.mark.slow
def test_the_promoted_slave_replaces_a_killed_master_which_returns_as_a_slave(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    with ExitStack() as stack:
        brokers = Brokers(stack, tmp_path)
        nameserver, (first, second) = brokers.nameserver, brokers.addresses
        promote = ("cluster", "promote", "broker-a", "--nameserver", nameserver)
        master = ready(brokers.broker(0, "SYNC_MASTER", 0))
        slave = ready(brokers.broker(1, "SLAVE", 1))
        wait_registered(nameserver, "broker-a")
        before = send(nameserver, *[b"%d" % number for number in range(50)])
        wait_for(lambda: offset(second) == offset(first))

        refused = cli(*promote)
        assert (refused.code, f"a master at {first} that answers: stop it first" in refused.err) == (1, True)
        answer = ask(second, Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0"))
        assert "the current master is 127.0.0.1:" in str(answer.remark)

        end = offset(first)
        master.kill()
        assert "no slave with the id 7" in cli(*promote, "--id", "7").err
        done = cli(*promote)
        assert (done.code, done.out) == (0, f"broker-a: {second} is the master\n")
        ready(slave)
        assert slave.process.poll() is None, "in the same process"
        after = send(nameserver, *[b"%d" % number for number in range(50, 100)])
        assert len({*before, *after}) == 100, "no place was given twice"
        assert brokers.log_of(1, end) == brokers.log_of(0, end)

        returned = brokers.broker(0, "ASYNC_MASTER", 0)
        assert returned.wait() == 1
        assert f"{second} is the master 'broker-a' of epoch 1-" in returned.log.read_text()
        ready(brokers.broker(0, "SLAVE", 1))
        wait_for(lambda: offset(first) == offset(second))
        assert brokers.log_of(0, offset(first)) == brokers.log_of(1, offset(second))
        with (
            gantrymq.sync.connect(nameserver) as client,
            client.consumer("Orders", "g", start="first") as consumer,
        ):
            found = {bytes(message.body) for _, message in zip(range(100), consumer, strict=False)}
        assert found == {b"%d" % number for number in range(100)}
        assert slave.terminate() == 0

        again = ready(brokers.broker(1, "SLAVE", 1))
        rows = json.loads(cli("cluster", "status", "--nameserver", nameserver, "--json").out)
        assert [row["id"] for row in rows] == [0, 1], "what was ordered is kept over a restart"
        assert again.terminate() == 0


@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.slow
def test_a_promoted_broker_returns_as_a_slave_after_another_promotion(
    tmp_path: Path, cli: Callable[..., Any], how: str
) -> None:
    """The promotion has kept ``id = 0`` in its store, over its file."""
    with ExitStack() as stack:
        brokers = Brokers(stack, tmp_path)
        nameserver, (first, second) = brokers.nameserver, brokers.addresses
        promote = ("cluster", "promote", "broker-a", "--nameserver", nameserver, "--response-timeout", "1")
        ready(brokers.broker(0, "ASYNC_MASTER", 0)).kill()
        ready(brokers.broker(1, "SLAVE", 1))
        assert cli(*promote).code == 0
        wait_for(lambda: role_of(second) == "ASYNC_MASTER")
        ready(brokers.broker(0, "SLAVE", 1))
        send(nameserver, b"a")
        wait_for(lambda: offset(first) == offset(second))
        fenced = brokers.children[1]
        fenced.kill() if how == "kill" else fenced.process.send_signal(signal.SIGSTOP)
        assert cli(*promote).code == 0
        wait_for(lambda: role_of(first) == "ASYNC_MASTER")
        wait_for(lambda: master_of(nameserver) == first)
        send(nameserver, b"b")
        if how == "kill":
            fenced = ready(brokers.broker(1, "SLAVE", 1))
        else:
            fenced.process.send_signal(signal.SIGCONT)
        wait_for(lambda: role_of(second) == "SLAVE", 30.0)
        wait_for(lambda: offset(first) == offset(second), 30.0)
        assert fenced.process.poll() is None, "in the same process"
        rows = json.loads(cli("cluster", "status", "--nameserver", nameserver, "--json").out)
        assert {row["address"]: row["id"] for row in rows} == {first: 0, second: 1}


def test_a_second_master_of_one_name_exits_with_one_line(tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = Brokers(stack, tmp_path)
        ready(brokers.broker(0, "ASYNC_MASTER", 0))
        wait_registered(brokers.nameserver, "broker-a")
        second = brokers.broker(1, "ASYNC_MASTER", 0)
        assert second.wait() == 1
        log = second.log.read_text()
        assert f"{brokers.addresses[0]} is a broker 'broker-a' with the id 0 already" in log
        assert "Traceback" not in log


@pytest.mark.slow
def test_a_hanging_master_delays_a_promotion_by_one_timeout_and_each_step_is_printed(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    with ExitStack() as stack:
        brokers = Brokers(stack, tmp_path)
        first, second = brokers.addresses
        master = ready(brokers.broker(0, "SYNC_MASTER", 0))
        ready(brokers.broker(1, "SLAVE", 1))
        wait_registered(brokers.nameserver, "broker-a")
        send(brokers.nameserver, b"one")
        end = offset(first)
        wait_for(lambda: offset(second) == end)
        promote = ("cluster", "promote", "broker-a", "--nameserver", brokers.nameserver)

        master.process.send_signal(signal.SIGSTOP)
        try:
            short = cli(*promote, "--response-timeout", "2", "--timeout", "0.1")
            assert (short.code, short.out) == (1, "")
            steps = short.err.splitlines()
            assert steps[:2] == ["asking the brokers of broker-a for their state", f"{first} (id 0) does not answer"]
            assert steps[2].startswith("epoch 1-")
            assert steps[2].endswith(f"begins: sending it to {second}")
            assert steps[3:5] == [
                f"promoting {second}, whose log ends at {end}",
                f"waiting for {second} to come back as the master, 0.1 s at most",
            ]
            assert "--timeout lets it take longer" in steps[5]
            wait_for(lambda: f"has a master at {second} that answers" in cli(*promote, "--response-timeout", "2").err)
        finally:
            master.process.send_signal(signal.SIGCONT)

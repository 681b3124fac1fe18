"""A master and its slave as real processes under load: paused, killed, promoted, and partitioned for a while.

Broken on purpose: with a master that answers before its slave has the message, and sends it 0.1 s later, what had been
acknowledged and read was missing after the first kill. Without the partition the slave never lagged, without its end it
never caught up.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import gantrymq
from gantrymq import Message, SendStatus
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.ledger import Ledger
from support.foreign import ask
from support.haload import SENDERS, Follower, Load
from support.hapair import HaPair, read_all
from support.processes import Child, free_ports, wait_for
from support.relay import Relay

TOPIC, QUEUES = "LedgerTopic", 4
ROUNDS = int(os.environ.get("GANTRYMQ_FAILOVER_ROUNDS", "1"))
"""How often master and slave change places by kill -9."""
PARTITION_S = float(os.environ.get("GANTRYMQ_PARTITION_SECONDS", "3"))
"""How long master and slave do not hear each other."""
RATE = int(os.environ.get("GANTRYMQ_PARTITION_RATE", "20000"))
"""Messages a second meanwhile."""
BODY_BYTES, BATCH, PIPES = 100, 50, 4
LEVEL_S = 60.0
"""The time in which a slave catches up after a short partition; after a longer one it has half of its length."""
PATIENCE = {
    "plugin.ha.heartbeat": "200ms",
    "plugin.ha.housekeeping": "1s",
    "plugin.ha.sync_timeout": "400ms",
    "plugin.ha.sync_tables": "500ms",
}

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HaPair]:
    """A nameserver, and room for two brokers whose patience is short. The parameter: other settings."""
    with HaPair(tmp_path, {**PATIENCE, **getattr(request, "param", {})}) as made:
        yield made


@pytest.fixture
def ledger() -> Ledger:
    """The book of this test's topic."""
    return Ledger(uuid.uuid4().hex)


def create_topic(pair: HaPair) -> None:
    """The topic on the master, and soon on the slave."""

    async def create() -> None:
        async with gantrymq.connect(pair.nameserver) as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)

    trio.run(create)


def has_topic(pair: HaPair, number: int) -> bool:
    return TOPIC in str(ask(pair.addresses[number], Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body)


def start_both(pair: HaPair) -> tuple[Child, Child]:
    """A synchronous master and its slave, connected, with the topic."""
    master, slave = pair.start(0, "SYNC_MASTER"), pair.start(1, "SLAVE")
    create_topic(pair)
    wait_for(lambda: "haSlave_0" in pair.runtime(0) and has_topic(pair, 1))
    return master, slave


def test_row_56_senders_wait_for_a_paused_slave_until_the_timeout_and_it_catches_up(
    pair: HaPair, ledger: Ledger
) -> None:
    _, slave = start_both(pair)
    load = Load(pair.nameserver, TOPIC, ledger, timeout=30)

    async def script() -> None:
        await load.until(SendStatus.OK)
        slave.process.send_signal(signal.SIGSTOP)
        await load.until(SendStatus.FLUSH_SLAVE_TIMEOUT, more=SENDERS)
        await load.until(SendStatus.SLAVE_NOT_AVAILABLE)  # housekeeping has cut it off
        slave.process.send_signal(signal.SIGCONT)
        await load.until(SendStatus.OK)

    trio.run(load.during, script)
    wait_for(pair.same)
    for address in pair.addresses:
        ledger.check(read_all(address, TOPIC, QUEUES, ledger))
    assert load.statuses[None] == 0


def test_row_5_a_paused_and_resumed_master_continues_with_its_slave(pair: HaPair, ledger: Ledger) -> None:
    master, _ = start_both(pair)
    load = Load(pair.nameserver, TOPIC, ledger)

    async def script() -> None:
        await load.until(SendStatus.OK)
        master.process.send_signal(signal.SIGSTOP)
        await trio.to_thread.run_sync(wait_for, lambda: pair.runtime(1)["haMasterAddress"] == "")
        master.process.send_signal(signal.SIGCONT)
        await load.until(SendStatus.OK, more=100)

    trio.run(load.during, script)
    wait_for(pair.same)
    for address in pair.addresses:
        ledger.check(read_all(address, TOPIC, QUEUES, ledger))


class Paced:
    """Batches at :data:`RATE`, for as long as the broker keeps up; ``sent`` counts acknowledged messages."""

    def __init__(self) -> None:
        self.sent = 0
        self.stopped = trio.Event()
        self._due = 0

    async def run(self, nameserver: str) -> None:
        """Send until stopped, then wait for all acknowledgments."""
        began = trio.current_time()
        async with (
            gantrymq.connect(nameserver) as client,
            client.producer("paced", retries=0, timeout=60) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(PIPES):
                nursery.start_soon(self._send, producer, began)

    async def _send(self, producer: Any, began: float) -> None:
        messages = [Message(TOPIC, b"x" * BODY_BYTES) for _ in range(BATCH)]
        while not self.stopped.is_set():
            self._due += BATCH
            await trio.sleep_until(began + self._due / RATE)
            results = await producer.send_batch(messages)
            assert all(result.status is SendStatus.OK for result in results)
            self.sent += BATCH


def is_level_under_load(pair: HaPair) -> bool:
    """Whether the slave has reached the master's end of a moment ago."""
    end = pair.end(0)
    return pair.end(1) >= end


def test_row_34_a_partitioned_slave_catches_up_in_half_of_the_partition_time(tmp_path: Path) -> None:
    """Either side gives the other up after a third of the partition, as it does of a minute with the defaults."""
    ports = free_ports(2)
    settings = {
        "plugin.ha.master": f"127.0.0.1:{ports[0]}",
        "plugin.ha.master_broker": f"127.0.0.1:{ports[1]}",
        "plugin.ha.housekeeping": f"{round(PARTITION_S * 1000 / 3)}ms",
        "plugin.ha.heartbeat": f"{round(PARTITION_S * 1000 / 12)}ms",
    }
    with HaPair(tmp_path, settings) as pair:
        pair.start(0, "ASYNC_MASTER")
        host, _, port = pair.addresses[0].rpartition(":")
        relays = [Relay(ports[0], f"{host}:{int(port) + 1}"), Relay(ports[1], pair.addresses[0])]
        create_topic(pair)
        load = Paced()

        async def soon(true: Callable[[HaPair], bool], within: float) -> float:
            began = trio.current_time()
            await trio.to_thread.run_sync(wait_for, lambda: true(pair), within)
            return trio.current_time() - began

        async def partition() -> None:
            """Partition the pair; on return every send has a response and is on the slave."""
            async with trio.open_nursery() as senders:
                senders.start_soon(load.run, pair.nameserver)
                await soon(lambda pair: pair.end(0) > BODY_BYTES * RATE / 4 and is_level_under_load(pair), LEVEL_S)
                for relay in relays:
                    relay.block("to", "from")
                before = load.sent
                await trio.sleep(PARTITION_S)
                missed = load.sent - before
                behind = await trio.to_thread.run_sync(pair.end, 0) - await trio.to_thread.run_sync(pair.end, 1)
                assert behind > missed * BODY_BYTES > 0
                for relay in relays:
                    relay.heal()
                took = await soon(is_level_under_load, max(PARTITION_S / 2, LEVEL_S))
                print(f"{PARTITION_S:g} s, {missed / PARTITION_S:,.0f}/s, {behind / 2**20:.0f} MiB: {took:.2f} s")
                load.stopped.set()
            await soon(HaPair.level, LEVEL_S)

        async def script() -> None:
            async with trio.open_nursery() as nursery:
                for relay in relays:
                    await nursery.start(relay.serve)
                await trio.to_thread.run_sync(pair.start, 1, "SLAVE")
                await partition()
                nursery.cancel_scope.cancel()

        trio.run(script)
        assert pair.log(0) == pair.log(1)


@pytest.mark.parametrize("pair", [{"plugin.ha.sync_timeout": "5s"}], indirect=True, ids=["patient"])
def test_consumers_read_every_acknowledged_message_from_the_slave_after_a_master_kill(
    pair: HaPair, ledger: Ledger
) -> None:
    """One group consumes all the time; another starts when the master is dead, and its client knows only that one.

    Then the slave takes the master's place, the master follows it, and so on for as many rounds as are asked for.
    """
    master, slave = start_both(pair)
    figures: list[float] = []

    async def fail_over(index: int) -> dict[int, int]:
        load = Load(pair.nameserver, TOPIC, ledger)
        async with gantrymq.connect(pair.nameserver) as client, trio.open_nursery() as nursery:
            along, late = (Follower(client, TOPIC, f"{name}-{index}", ledger) for name in ("along", "late"))
            await nursery.start(along.run)

            async def kill() -> None:
                nonlocal killed
                await load.until(SendStatus.OK, more=300, timeout=90)
                killed = time.monotonic()
                master.kill()

            killed = 0.0
            await load.during(kill)
            nursery.start_soon(late.run)
            await late.until(1)
            figures.append(time.monotonic() - killed)
            ends = await trio.to_thread.run_sync(read_all, pair.addresses[1 - index % 2], TOPIC, QUEUES, ledger)
            await late.until(sum(ends.values()))
            await along.until(sum(ends.values()))
            nursery.cancel_scope.cancel()
        return ends

    for index in range(ROUNDS):
        ledger.check(trio.run(fail_over, index))
        number = 1 - index % 2
        slave.terminate()
        master, slave = pair.start(number, "SYNC_MASTER"), pair.start(1 - number, "SLAVE")
        wait_for(lambda number=number: "haSlave_0" in pair.runtime(number) and pair.level())
    assert ledger.acknowledged >= 300 * ROUNDS
    print(f"failovers: {ROUNDS}, acknowledged: {ledger.acknowledged}, s to the slave: {sorted(figures)}")

"""A master and its slave as real processes under load: stopped and continued, killed, and one in the other's place.

Broken on purpose: with a master that answers before its slave has the message, and sends it 0.1 s later, what had been
acknowledged and read was missing after the first kill.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.foreign import ask
from gantrymq.testing.hapair import HaPair, read_all
from gantrymq.testing.ledger import Ledger
from gantrymq.testing.processes import Child, wait_for

TOPIC, QUEUES, SENDERS = "LedgerTopic", 4, 8
ROUNDS = int(os.environ.get("GANTRYMQ_FAILOVER_ROUNDS", "1"))
"""How often master and slave change places by kill -9."""
CONSUMERS_S = 5.0
"""How soon after the master's kill a consumer must read from the slave."""
PATIENCE = {
    "plugin.ha.heartbeat": "200ms",
    "plugin.ha.housekeeping": "1s",
    "plugin.ha.sync_timeout": "400ms",
    "plugin.ha.sync_tables": "500ms",
}

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[HaPair]:
    """A nameserver, and room for two brokers whose patience is short."""
    with HaPair(tmp_path, PATIENCE) as made:
        yield made


@pytest.fixture
def ledger() -> Ledger:
    """The book of this test's topic."""
    return Ledger(uuid.uuid4().hex)


class Load:
    """Senders that go on whatever they are told; ``statuses`` counts it, failures as None."""

    def __init__(self, pair: HaPair, ledger: Ledger) -> None:
        self._pair = pair
        self._ledger = ledger
        self.statuses: Counter[SendStatus | None] = Counter()

    async def during(self, script: Callable[[], Any]) -> None:
        """Send while ``script`` runs."""
        async with (
            gantrymq.connect(self._pair.nameserver) as client,
            client.producer("ledger", retries=0, timeout=2.0) as producer,
            trio.open_nursery() as nursery,
        ):
            for number in range(SENDERS):
                nursery.start_soon(self._send, producer, number)
            await script()
            nursery.cancel_scope.cancel()

    async def _send(self, producer: Any, number: int) -> None:
        while True:
            body = self._ledger.next_body(number)
            try:
                result = await producer.send(TOPIC, body)
            except gantrymq.GantryError:
                self.statuses[None] += 1
                await trio.sleep(0.02)
                continue
            self.statuses[result.status] += 1
            if result.status is SendStatus.OK:
                self._ledger.acknowledge(body, result.queue.queue_id, result.queue_offset)

    async def until(self, status: SendStatus, more: int = 20, timeout: float = 20.0) -> None:
        """Returns when so many more were answered so."""
        wanted = self.statuses[status] + more
        with trio.move_on_after(timeout):
            while self.statuses[status] < wanted:  # noqa: ASYNC110 - counted by many
                await trio.sleep(0.01)
        assert self.statuses[status] >= wanted, f"not {wanted} times {status}: {self.statuses}"


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


def test_row_56_a_slave_that_is_stopped_holds_up_senders_for_the_time_out_and_catches_up(
    pair: HaPair, ledger: Ledger
) -> None:
    _, slave = start_both(pair)
    load = Load(pair, ledger)

    async def script() -> None:
        await load.until(SendStatus.OK)
        slave.process.send_signal(signal.SIGSTOP)
        await load.until(SendStatus.FLUSH_SLAVE_TIMEOUT, more=SENDERS)
        await load.until(SendStatus.SLAVE_NOT_AVAILABLE)  # housekeeping has cut it off
        slave.process.send_signal(signal.SIGCONT)
        await load.until(SendStatus.OK)

    trio.run(load.during, script)
    wait_for(pair.level)
    assert pair.log(0) == pair.log(1)
    for address in pair.addresses:
        ledger.check(read_all(address, TOPIC, QUEUES, ledger))
    assert load.statuses[None] == 0


def test_row_5_a_master_that_is_stopped_and_continued_goes_on_with_its_slave(pair: HaPair, ledger: Ledger) -> None:
    master, _ = start_both(pair)
    load = Load(pair, ledger)

    async def script() -> None:
        await load.until(SendStatus.OK)
        master.process.send_signal(signal.SIGSTOP)
        await trio.to_thread.run_sync(wait_for, lambda: pair.runtime(1)["haMasterAddress"] == "")
        master.process.send_signal(signal.SIGCONT)
        await load.until(SendStatus.OK, more=100)

    trio.run(load.during, script)
    wait_for(pair.level)
    assert pair.log(0) == pair.log(1)
    for address in pair.addresses:
        ledger.check(read_all(address, TOPIC, QUEUES, ledger))


class Follower:
    """A consumer in a group of its own on a client that others use as well."""

    def __init__(self, client: Any, group: str, ledger: Ledger) -> None:
        self._client = client
        self._group = group
        self._ledger = ledger
        self.places: set[tuple[int, int]] = set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._client.consumer(TOPIC, self._group, start="first") as consumer:
            task_status.started()
            async for message in consumer:
                self._ledger.observe(message.body, message.queue_id, message.queue_offset)
                self.places.add((message.queue_id, message.queue_offset))
                await message.ack()

    async def until(self, count: int) -> None:
        """Returns when it has read so many places."""
        with trio.move_on_after(30):
            while len(self.places) < count:  # noqa: ASYNC110 - a set has no event
                await trio.sleep(0.005)
        assert len(self.places) >= count, f"{self._group} read {len(self.places)} of {count} in 30 s"


def test_after_a_masters_kill_consumers_read_from_the_slave_which_has_everything_that_was_acknowledged(
    pair: HaPair, ledger: Ledger
) -> None:
    """One group consumes all the time, another comes when the master is dead: its client knows the dead one only.

    Then the slave takes the master's place, the master follows it, and so on for as many rounds as are asked for.
    """
    master, slave = start_both(pair)
    figures: list[float] = []

    async def fail_over(index: int) -> dict[int, int]:
        load = Load(pair, ledger)
        async with gantrymq.connect(pair.nameserver) as client, trio.open_nursery() as nursery:
            along, late = (Follower(client, f"{name}-{index}", ledger) for name in ("along", "late"))
            await nursery.start(along.run)

            async def kill() -> None:
                nonlocal killed
                await load.until(SendStatus.OK, more=300)
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
    assert max(figures) <= CONSUMERS_S

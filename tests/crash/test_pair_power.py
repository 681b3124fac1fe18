"""A master and its slave under load on real file systems, with power cuts of either or both.

Each broker's store is on an ext4 file system of its own, which a power cut ends at once: what was not synced by then is
gone, but for what chance let through. ``GANTRYMQ_POWER_ROUNDS`` sets how often each is cut, ``GANTRYMQ_POWER_SEED``
repeats a run.

Broken on purpose, and seen failing: a master that answers before its slave has the message, a flush that syncs nothing.
"""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.kernel.config.sources import OVERRIDES_PATH
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.ledger import Ledger
from support.foreign import ask
from support.haload import Follower, Load
from support.hapair import NAME, HaPair, read_all
from support.loopdisk import JOURNALED, LoopDisk, NoLoopDisk, loop_disk
from support.processes import Child, gantrymq_child, wait_for

ROUNDS = int(os.environ.get("GANTRYMQ_POWER_ROUNDS", "1"))
CUTS = ("master", "slave", "both")
QUEUES, GROUP = 4, "shop"
BLOCKS = 64 * 1024
"""The number of blocks of 4 KiB; the image is sparse."""
SETTINGS = {
    "plugin.ha.role": "sync_master",
    # A slave that has lost its whole log is promoted later, so it needs more than the last file.
    "plugin.ha.full_copy": "true",
    "plugin.ha.heartbeat": "200ms",
    "plugin.ha.housekeeping": "2s",
    "plugin.ha.sync_tables": "200ms",
    # A send whose wait times out may be read and then lost, so all sends here have a long timeout.
    "plugin.ha.sync_timeout": "1m",
    "plugin.flush.timeout": "1m",
    "store.queue_file_units": "1000",
}

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(120 + 60 * ROUNDS)]


@attrs.define
class Machine:
    """A broker's process and its disk; ``number`` is its place in the pair."""

    number: int
    disk: LoopDisk
    child: Child


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[LoopDisk]]:
    """Two file systems."""
    with ExitStack() as stack:
        try:
            made = [
                stack.enter_context(loop_disk(tmp_path, f"disk-{number}", features=JOURNALED, blocks=BLOCKS))
                for number in (0, 1)
            ]
        except NoLoopDisk as reason:
            pytest.skip(str(reason))
        yield made


class PowerCuts:
    """The two machines, of which either may be the master, and one topic after the other."""

    def __init__(self, pair: HaPair, disks: list[LoopDisk], chance: random.Random, *, flushes: bool) -> None:
        self.pair = pair
        self.chance = chance
        self.flushes = flushes
        self.master, self.slave = (
            Machine(number, disks[number], pair.start(number, role))
            for number, role in ((0, "SYNC_MASTER"), (1, "SLAVE"))
        )
        self.ledgers: dict[str, Ledger] = {}
        self.steps = self.acknowledged = 0

    def step(self, cut: str) -> None:
        """Load on a new topic, in which the power goes; and all that holds after it."""
        self.steps += 1
        topic = f"Step{self.steps}"
        self.ledgers[topic] = Ledger(uuid.uuid4().hex)
        trio.run(self._create, topic)
        wait_for(lambda: self.has_slave() and self._has_topic(topic))
        trio.run(self._load_until_cut, topic, cut)
        getattr(self, f"after_{cut}")()
        trio.run(self._load, topic)
        wait_for(self.pair.same)
        for machine in (self.master, self.slave):
            self.check(machine)

    def cut(self, *machines: Machine) -> None:
        """All at one moment: a master must not notice that its slave is gone first."""
        for machine in machines:
            machine.child.process.send_signal(signal.SIGSTOP)
        for machine in machines:
            self._write_by_chance(self.pair.stores[machine.number])
            machine.disk.cut_power()
        for machine in machines:
            machine.child.kill()
            machine.disk.unmount()
            machine.disk.mount()

    def _write_by_chance(self, store: Path) -> None:
        """Sync a random part of the unsynced data."""
        for path in sorted(store.rglob("*")):
            if path.is_file() and self.chance.random() < 0.2:
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def after_master(self) -> None:
        """The slave takes its place with all that was promised, the old master follows it."""
        lost, self.master = self.master, self.slave
        promote = ("cluster", "promote", NAME, "--nameserver", self.pair.nameserver)
        with gantrymq_child(promote, self.pair.home / "promote.log") as command:
            assert command.wait() == 0, command.log.read_text()
        self.check(self.master)
        self.slave = lost
        self.start(lost, "SLAVE")

    def after_slave(self) -> None:
        """Restart the slave after its power cut."""
        self.check(self.master)
        self.start(self.slave, "SLAVE")

    def after_both(self) -> None:
        """Whichever is the master afterwards; with asynchronous flush a tail of both may be lost.

        A broker that lost its whole log is not made the master: the other refuses to follow it, and keeps its own. With
        asynchronous flush the slave is promoted, because it refuses to follow a master that has lost what it has.
        """
        if self._has_log(self.slave) and (not self.flushes or self.chance.random() < 0.5):
            self.master, self.slave = self.slave, self.master
        if not self.flushes:
            for ledger in self.ledgers.values():
                ledger.allow_loss()
        roles = [(self.master, "SYNC_MASTER"), (self.slave, "SLAVE")]
        for machine, role in self.chance.sample(roles, 2) if self.flushes else roles:
            self.start(machine, role)
        self.check(self.master)

    def _has_log(self, machine: Machine) -> bool:
        """Whether the disk has the first record of the log, as far as its length and magic code tell."""
        for path in sorted((self.pair.stores[machine.number] / "commitlog").glob("*"))[:1]:
            with path.open("rb") as file:
                return any(file.read(8))
        return False

    def start(self, machine: Machine, role: str) -> None:
        """Start with this role, without the overrides of an earlier promotion."""
        (self.pair.stores[machine.number] / OVERRIDES_PATH).unlink(missing_ok=True)
        machine.child = self.pair.start(machine.number, role)

    def has_slave(self) -> bool:
        """Whether the master has a slave that reports its offset."""
        return "haSlave_0" in self.pair.runtime(self.master.number)

    def check(self, machine: Machine) -> None:
        """Readers of this broker get all that was acknowledged, and no group is ahead of a queue."""
        address = self.pair.addresses[machine.number]
        for topic, ledger in self.ledgers.items():
            ends = read_all(address, topic, QUEUES, ledger)
            ledger.check(ends)
            for queue_id, end in ends.items():
                offset = group_offset(address, topic, queue_id)
                assert offset <= end, f"{GROUP} is at {offset} of {topic}, queue {queue_id}, which ends at {end}"

    def _has_topic(self, topic: str) -> bool:
        address = self.pair.addresses[self.slave.number]
        return f'"{topic}"' in bytes(ask(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body).decode()

    async def _create(self, topic: str) -> None:
        async with gantrymq.connect(self.pair.nameserver) as client:
            await client.admin.create_topic(topic, queues=QUEUES)

    async def _load_until_cut(self, topic: str, cut: str) -> None:
        load = Load(self.pair.nameserver, topic, self.ledgers[topic])
        targets = {"master": [self.master], "slave": [self.slave], "both": [self.master, self.slave]}[cut]

        async def script() -> None:
            await load.until(SendStatus.OK, more=100)
            await trio.sleep(self.chance.uniform(0, 0.5))
            await trio.to_thread.run_sync(self.cut, *targets)
            if cut == "slave":
                await load.until(SendStatus.SLAVE_NOT_AVAILABLE)

        await self._beside_a_reader(topic, load, script)

    async def _load(self, topic: str) -> None:
        load = Load(self.pair.nameserver, topic, self.ledgers[topic])

        async def script() -> None:
            await load.until(SendStatus.OK, timeout=60)

        await self._beside_a_reader(topic, load, script)

    async def _beside_a_reader(self, topic: str, load: Load, script: Callable[[], Awaitable[None]]) -> None:
        async with gantrymq.connect(self.pair.nameserver) as client, trio.open_nursery() as nursery:
            await nursery.start(Follower(client, topic, GROUP, self.ledgers[topic]).run)
            await load.during(script)
            self.acknowledged += load.statuses[SendStatus.OK]
            nursery.cancel_scope.cancel()


def group_offset(address: str, topic: str, queue_id: int) -> int:
    """The group's next offset; 0 if the broker does not know the group."""
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}
    return int((ask(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext or {}).get("offset", 0))


@pytest.mark.soak(1)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_row_60_no_acknowledged_message_is_lost_when_either_broker_of_a_pair_loses_power(
    flush: str, tmp_path: Path, disks: list[LoopDisk]
) -> None:
    seed = int(os.environ.get("GANTRYMQ_POWER_SEED", random.SystemRandom().randrange(2**32)))
    print(f"GANTRYMQ_POWER_SEED={seed}")
    chance = random.Random(seed)
    settings = {**SETTINGS, "plugin.flush.mode": flush}
    stores = [disk.folder / "data" for disk in disks]
    with HaPair(tmp_path, settings, file_bytes=256 * 1024, stores=stores) as pair:
        cuts = PowerCuts(pair, disks, chance, flushes=flush == "sync")
        for _ in range(ROUNDS):
            for cut in chance.sample(CUTS, len(CUTS)):
                cuts.step(cut)
    print(f"{cuts.steps} power cuts, flush {flush}: {cuts.acknowledged} acknowledged")
    assert cuts.acknowledged >= 100 * cuts.steps

"""A nameserver, a master, its slave and clients in one process, on simulated time and a faulty network.

Broken on purpose, and seen failing: a master that waits for no slave, one that waits for no disk, a flush that syncs
nothing, a slave that reports what it has not flushed, one that goes on behind a tail of its own, one that waits for the
rest of a record with a wrong length, reports beyond what was sent that count.

Rows 34, 35, 43, 54, 56 to 61 of the fault catalogue. Each scenario is run with some seeds, other ones each day; with
more of them by ``GANTRYMQ_SIMULATION_SEEDS=1000``, with the one that failed by ``GANTRYMQ_SIMULATION_SEED``.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from gantrymq import Message
from gantrymq.kernel.broker import Broker
from gantrymq.plugins.ha import HaPlugin
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.outages import REPEAT_SECONDS
from gantrymq.testing.requests import pull, send
from gantrymq.testing.simulated.cluster import HA_PORT, SAFE, Cluster
from gantrymq.testing.simulated.faults import NetworkFaults
from gantrymq.testing.simulated.load import PAUSE_S, QUEUES, TOPIC, Load
from gantrymq.testing.simulated.network import Process, on
from gantrymq.testing.simulated.run import simulate
from gantrymq.testing.simulated.seeds import seeds

pytestmark = [pytest.mark.timeout(120), pytest.mark.once]

NAMES, MASTER, SLAVE, THIRD = "10.0.0.1", "10.0.0.10", "10.0.0.11", "10.0.0.12"
SENDERS = ["10.0.1.1", "10.0.1.2", "10.0.1.3"]
READER = "10.0.1.9"
QUICK = {**SAFE, "plugin.ha.sync_tables": "1s", "plugin.ha.full_copy": "true"}
FAULTS_OF_OURS = {
    "processor_failed", "request_failed", "connection_failed", "task_failed", "persist_failed", "stopping_failed",
    "channel_handler_failed",
}  # fmt: skip
"""Log events of unexpected exceptions in our code."""
HEALED_S = 60.0
"""The time limit for recovery without intervention."""
RETURNED_S = 10.0
"""The time limit for a lost master, restarted as a slave, to catch up so that messages have two copies again."""
REPORT = struct.Struct(">q")
BODY_SIZE_AT = 84
"""The position in one of RocketMQ's records with IPv4 addresses."""


class Pair:
    """A master and its slave with the topic, and senders at work while the block lasts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self.master = cluster.machine(MASTER)
        self.slave = cluster.machine(SLAVE)
        self.load = Load(cluster, SENDERS)

    async def start(self, **settings: str) -> None:
        """Returns when the slave follows and the topic is everywhere."""
        given = {**QUICK, **{key.replace("__", "."): value for key, value in settings.items()}}
        await self.cluster.start_nameserver(NAMES)
        await self.cluster.start_broker(MASTER, 0, given)
        await self.cluster.start_broker(SLAVE, 1, given)
        await self.cluster.until(self.follows, what="the slave follows")
        async with self.cluster.client() as client:
            await self.cluster.until(lambda: len(self.cluster.nameservers) == 1)
            await create_topic(client)

    def follows(self) -> bool:
        """Whether the master has a slave that reports its offset."""
        return self.master.broker is not None and any(copy.start >= 0 for copy in copies(self.master.broker))

    def level(self) -> bool:
        """Whether both logs end at the same byte, and readers get all of them."""
        brokers = [each for each in (self.master.broker, self.slave.broker) if each is not None]
        ends = {end for broker in brokers for end in (broker.log.end, broker.store.dispatched)}
        return len(brokers) == 2 and len(ends) == 1

    async def level_again(self) -> None:
        """Returns when they are, after the senders have stopped."""
        await self.cluster.until(self.level, HEALED_S, "both logs end at the same byte")
        assert bytes_of(self.master.running_broker) == bytes_of(self.slave.running_broker)

    async def check(self) -> None:
        """Check that both brokers keep every guarantee, and that none of our programs failed."""
        await self.level_again()
        ends = await self.load.check(self.master.address)
        assert await self.load.check(self.slave.address) == ends
        no_faults(self.cluster)


def no_faults(cluster: Cluster) -> None:
    assert [line for line in cluster.log if line["event"] in FAULTS_OF_OURS] == []


def copies(broker: Broker) -> Any:
    return next(info.plugin for info in broker.manager.plugins if isinstance(info.plugin, HaPlugin)).copies


def bytes_of(broker: Broker) -> bytes:
    """The log, from its first byte to its end."""
    log = broker.log
    return b"".join(
        log.segments.pread(segment.base, max(min(segment.end, log.end) - segment.base, 0)) for segment in log.segments
    )


async def create_topic(client: Any) -> None:
    """Create the topic as soon as the broker is registered."""
    while True:
        try:
            return await client.admin.create_topic(TOPIC, queues=QUEUES)
        except Exception:
            await trio.sleep(0.5)


@asynccontextmanager
async def beside(*tasks: Callable[[], Awaitable[Any]]) -> AsyncIterator[trio.Nursery]:
    """The tasks run while the block does."""
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        yield nursery
        nursery.cancel_scope.cancel()


class Reader:
    """A consumer that goes on whatever happens; ``read``: the bodies that it got."""

    def __init__(self, cluster: Cluster) -> None:
        self.read: set[bytes] = set()
        self._cluster = cluster

    async def run(self) -> None:
        """Consume until cancelled."""
        async with self._cluster.client(READER) as client, client.consumer(TOPIC, "g", start="first") as consumer:
            async for message in consumer:
                self.read.add(bytes(message.body))
                await message.ack()


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.slow
def test_acknowledged_messages_survive_any_network_faults_and_the_cluster_recovers(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair, reader = Pair(cluster), Reader(cluster)
        await pair.start()
        async with beside(pair.load.run, reader.run):
            await pair.load.more(5)
            faults = NetworkFaults(cluster.network, [NAMES, MASTER, SLAVE, *SENDERS, READER])
            async with beside(faults.run):
                await trio.sleep(cluster.chance.uniform(10, 30))
            await pair.load.more(10)
        assert faults.count > 10
        async with beside(reader.run):
            await cluster.until(lambda: pair.load.guaranteed <= reader.read, 600, "the reader has everything")
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("lost", ["master", "slave"])
@pytest.mark.slow
def test_acknowledged_messages_survive_the_permanent_loss_of_either_machine(lost: str, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
            async with beside(NetworkFaults(cluster.network, [MASTER, SLAVE, *SENDERS]).run):
                await trio.sleep(cluster.chance.uniform(1, 15))
                gone, left = (pair.master, pair.slave) if lost == "master" else (pair.slave, pair.master)
                gone.power_cut()
            await trio.sleep(5)
            await pair.load.check(left.address)
            pair.master, pair.slave = left, cluster.machine(THIRD)
            if lost == "master":
                await left.stop()
                await cluster.start_broker(SLAVE, 0, QUICK)
            await cluster.start_broker(THIRD, 1, QUICK)
            await pair.load.more(5, 300)
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("lost", ["neither", "master", "slave"])
@pytest.mark.slow
def test_acknowledged_messages_survive_a_power_cut_of_both_machines_on_either_one(lost: str, seed: int) -> None:
    """Their disks are slow: most of the time something is written and not yet synced."""

    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        machines = [pair.master, pair.slave]
        for machine in machines:
            machine.env.sync_s = (0.0, cluster.chance.choice([0.002, 0.1, 0.3]))
        pair.load.pause_s = 0.05
        async with beside(pair.load.run):
            await pair.load.more(5)
            async with beside(NetworkFaults(cluster.network, [MASTER, SLAVE]).run):
                await trio.sleep(cluster.chance.uniform(0, 5))
                for machine in cluster.chance.sample(machines, 2):
                    machine.power_cut(cluster.chance.choice([None, cluster.chance.randrange(1 << 30)]))
                    await trio.sleep(cluster.chance.choice([0, 0, 0.001, 0.3]))
            if lost == "master":
                pair.master, pair.slave = pair.slave, cluster.machine(THIRD)
            elif lost == "slave":
                pair.slave = cluster.machine(THIRD)
            roles = [(pair.master, 0), (pair.slave, 1)]
            for machine, broker_id in cluster.chance.sample(roles, 2):
                await trio.sleep(cluster.chance.uniform(0, 40))
                await cluster.start_broker(machine.host, broker_id, QUICK)
            await pair.load.more(10, 300)
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.slow
def test_acknowledged_messages_survive_repeated_kills_and_power_cuts_of_any_broker(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run, NetworkFaults(cluster.network, [NAMES, MASTER, SLAVE, *SENDERS]).run):
            for _ in range(6):
                await trio.sleep(cluster.chance.uniform(0.1, 8))
                host = cluster.chance.choice([NAMES, MASTER, SLAVE])
                machine = cluster.machine(host)
                machine.env.sync_s = (0.0, 0.1)
                if cluster.chance.random() < 0.5:
                    machine.kill()
                else:
                    machine.power_cut(cluster.chance.randrange(1 << 30))
                await trio.sleep(cluster.chance.uniform(0, 8))
                if host == NAMES:
                    await cluster.start_nameserver(NAMES)
                else:
                    await cluster.start_broker(host, int(host == SLAVE), QUICK)
        async with beside(pair.load.run):
            await pair.load.more(5, 300)
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize(
    "closed", [[(MASTER, SLAVE)], [(SLAVE, MASTER)], [(MASTER, SLAVE), (SLAVE, MASTER)]], ids=["to", "from", "both"]
)
@pytest.mark.slow
def test_a_partitioned_slave_does_not_count_as_a_replica_and_catches_up(
    closed: list[tuple[str, str]], seed: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
            for link in closed:
                cluster.network.link(*link).clog()
            await trio.sleep(1)
            before, statuses = dict(pair.load.acknowledged), dict(pair.load.statuses)
            await trio.sleep(40)
            assert pair.load.acknowledged == before, "guaranteed while no slave could have it"
            assert pair.load.statuses["SLAVE_NOT_AVAILABLE"] > statuses.get("SLAVE_NOT_AVAILABLE", 0) + 20
            cluster.network.heal()
            await pair.load.more(10, HEALED_S)
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_a_returning_master_serves_no_unreplicated_tail_and_follows_the_new_master(seed: int) -> None:
    """Its log ends before that of the new master, which has other records where its tail lies."""

    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
        await pair.level_again()
        await pair.slave.stop()
        with on(Process(READER)):
            async with open_channel(pair.master.address) as channel:
                for number in range(20):
                    assert (await channel.call(send("Tail", b"%d" % number))).code == ResponseCode.SLAVE_NOT_AVAILABLE
        tail_end = pair.master.running_broker.log.end
        pair.master.kill()
        await cluster.start_broker(SLAVE, 0, QUICK)
        shown: list[bytes] = []

        async def probe() -> None:
            while True:
                with suppress(ConnectError, RemoteFault), on(Process(READER)):
                    async with open_channel(pair.master.address) as channel:
                        shown.append((await channel.call(pull("Tail"))).body)
                await trio.sleep(0.02)

        async with beside(pair.load.run, probe):
            await cluster.until(lambda: pair.slave.running_broker.log.end > tail_end + 1000)
            await cluster.start_broker(MASTER, 1, QUICK)
            await pair.load.more(5, RETURNED_S)
        assert shown
        assert not any(shown)
        pair.master, pair.slave = pair.slave, pair.master
        await pair.check()

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("directions", [("to",), ("from",), ("to", "from")], ids=["requests", "answers", "both"])
@pytest.mark.slow
def test_clients_cut_off_from_the_master_continue_when_they_reach_it_again(
    directions: tuple[str, ...],
) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
            for host in SENDERS:
                ends = {"to": (host, MASTER), "from": (MASTER, host)}
                for direction in directions:
                    cluster.network.link(*ends[direction]).clog()
            await trio.sleep(1)
            before = dict(pair.load.acknowledged)
            await trio.sleep(130)
            assert pair.load.acknowledged == before
            cluster.network.heal()
            await pair.load.more(10, HEALED_S)
        await pair.check()

    simulate(scenario, 34)


@pytest.mark.soak(1)
@pytest.mark.parametrize("slow", ["link", "disk"])
def test_a_slow_slave_slows_senders_and_weakens_no_guarantee(slow: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
            if slow == "disk":
                pair.slave.env.sync_s = (0.3, 0.6)
            else:
                for link in cluster.network.between(MASTER, SLAVE):
                    link.delay_s, link.bytes_per_s = (0.1, 0.2), 20_000
            began = trio.current_time()
            await pair.load.more(20)
            assert trio.current_time() - began > 5, "an acknowledged send waits for the slave"
            master = pair.master.env
            pair.slave.power_cut(1)
            ends = await pair.load.check(pair.master.address)
            assert sum(ends.values()) >= len(pair.load.guaranteed)
            assert master is pair.master.env
            pair.slave.env.sync_s = (0.001, 0.001)
            cluster.network.heal()
            await cluster.start_broker(SLAVE, 1, QUICK)
            await pair.load.more(20, HEALED_S)
        await pair.check()

    simulate(scenario, 56)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_bytes_flipped_on_the_way_to_the_slave_alter_no_message_and_block_no_sender(seed: int) -> None:
    """RocketMQ's records have a checksum of the body alone: a flip elsewhere may be taken where it makes sense."""

    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        link = cluster.network.link(MASTER, SLAVE)
        async with beside(pair.load.run):
            await pair.load.more(5)
            link.flip, link.flip_ports = 0.2, frozenset({HA_PORT})
            await trio.sleep(30)
            link.heal()
            await pair.load.more(5)
        await cluster.until(pair.level, HEALED_S, "both logs end at the same byte")
        await trio.sleep(REPEAT_SECONDS + 1)
        # Only the first refusal of an outage has a line of its own; the line at its end counts all. That is the
        # master's line, because a slave that restarts to cut a tail off has forgotten its own.
        ended = [line["failures"] for line in cluster.log if line.get("of") == "slave_disconnected"]
        assert sum(ended) > 2, "the slave refused more than one flipped byte"
        await pair.load.check(pair.master.address)
        theirs, ours = bytes_of(pair.master.running_broker), bytes_of(pair.slave.running_broker)
        differing = {at for at, (one, other) in enumerate(zip(theirs, ours, strict=True)) if one != other}
        assert not any(differing.intersection(body) for body in bodies_in(pair.master.running_broker))
        no_faults(cluster)

    simulate(scenario, seed)


def bodies_in(broker: Broker) -> Iterator[range]:
    """The ranges of the bodies in the log, which the checksums in its records cover."""
    for batch in broker.log.scan(0, broker.log.end):
        for offset in batch.offsets:
            start = offset + BODY_SIZE_AT + 4
            yield range(start, start + int.from_bytes(broker.log.view(offset + BODY_SIZE_AT, 4), "big"))


@pytest.mark.slow
def test_a_forged_acknowledgment_of_a_slave_acknowledges_no_message() -> None:
    """A peer that received nothing reports the complete log while the slave is cut off."""

    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        async with beside(pair.load.run):
            await pair.load.more(5)
            for link in cluster.network.between(MASTER, SLAVE):
                link.clog()
            await trio.sleep(5)
            before = dict(pair.load.acknowledged)
            broker = pair.master.running_broker
            for distance in (0, 1, 1000, 1 << 40):
                stream = await trio.open_tcp_stream(MASTER, HA_PORT)
                async with stream:
                    await stream.send_all(REPORT.pack(broker.log.end) + REPORT.pack(broker.log.end + distance))
                    await trio.sleep(10)
            assert pair.load.acknowledged == before
            cluster.network.heal()
            await pair.load.more(5)
        assert any("it reports" in str(line.get("reason")) for line in cluster.log)
        await pair.check()

    simulate(scenario, 58)


@pytest.mark.slow
def test_clients_continue_without_a_nameserver_and_it_learns_all_routes_on_return() -> None:
    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        await pair.start()
        names = cluster.machine(NAMES)
        async with beside(pair.load.run):
            await pair.load.more(5)
            for end in (names.kill, names.power_cut):
                end()
                pair.load.pause_s = 10.0
                await trio.sleep(200)
                pair.load.pause_s = PAUSE_S
                await pair.load.more(10, 20)
                await cluster.start_nameserver(NAMES)
                async with cluster.client(READER) as client, client.producer("late", retries=0) as producer:
                    with trio.fail_after(HEALED_S):
                        while True:
                            try:
                                await producer.queues(TOPIC)
                                break
                            except Exception:
                                await trio.sleep(1)
        await pair.check()

    simulate(scenario, 61)


@pytest.mark.soak(1)
@pytest.mark.parametrize("step_s", [-3600, 1, 3600])
@pytest.mark.slow
def test_a_clock_change_during_a_crash_loses_no_message_and_keeps_delays(step_s: int) -> None:
    """The slave's clock is two hours ahead all the time. A delay ends by the clock of the delivering broker."""

    async def scenario(cluster: Cluster) -> None:
        pair = Pair(cluster)
        pair.slave.env.clock_ms = 7_200_000
        await pair.start()
        reader = Reader(cluster)
        async with beside(pair.load.run, reader.run):
            await pair.load.more(5)
            async with cluster.client(READER) as client, client.producer("late") as producer:
                await producer.send(Message(TOPIC, b"later", delay_level=9))
            due = trio.current_time() + 300
            pair.load.pause_s = 10.0
            await trio.sleep(60)
            pair.master.kill()
            pair.master.env.clock_ms = step_s * 1000
            await cluster.start_broker(MASTER, 0, QUICK)
            await pair.load.more(2)
            await cluster.until(lambda: b"later" in reader.read, 2 * 3600)
            arrived = trio.current_time()
            await pair.load.more(2)
        assert -max(step_s, 0) - 2 < arrived - due < 60
        await pair.level_again()
        no_faults(cluster)

    simulate(scenario, 54)

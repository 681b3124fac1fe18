"""Histories of clients stay linearizable while masters are lost, slaves promoted, and old masters return.

A pair and a triple on simulated time. Each scenario is run with some seeds; more of them with
``GANTRYMQ_SIMULATION_SEEDS=1000``, the one that failed with ``GANTRYMQ_SIMULATION_SEED``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from gantrymq.failover import promotion
from gantrymq.failover.brokers import broker_rows
from gantrymq.testing.history import History, Outcome
from gantrymq.testing.simulated.cluster import SAFE, Cluster
from gantrymq.testing.simulated.env import START_MS
from gantrymq.testing.simulated.load import QUEUES, TOPIC
from gantrymq.testing.simulated.network import OBSERVER, Process, on
from gantrymq.testing.simulated.run import simulate
from gantrymq.testing.simulated.seeds import seeds
from support.haclients import GROUP, HaClients

pytestmark = [pytest.mark.timeout(300), pytest.mark.once, pytest.mark.slow]

NAMES, HOSTS = "10.0.0.1", ["10.0.0.10", "10.0.0.11", "10.0.0.12"]
SENDERS, READER, LOOKER = ["10.0.1.1", "10.0.1.2", "10.0.1.3"], "10.0.1.8", "10.0.1.9"
QUICK = {**SAFE, "plugin.ha.sync_tables": "1s", "plugin.ha.full_copy": "true"}
ROUNDS = 3
SETTLED_S = 15.0
"""The time after which a master no longer looks for another one of its name."""
AGAIN_S = 60.0
"""The time limit for recovery."""
PAUSE_S = 0.5
COMPARED_MS = 10_000
"""A slave that could not compare its log says so in so long from its start."""


class Rounds:
    """A master and its slaves under load; each round loses the master and promotes a slave."""

    def __init__(self, cluster: Cluster, brokers: int) -> None:
        self.cluster = cluster
        self.hosts = HOSTS[:brokers]
        self.master = HOSTS[0]
        self.history = History(f"seed{cluster.seed}")
        addresses = [f"{host}:10911" for host in self.hosts]
        self.clients = HaClients(
            self.history, TOPIC, QUEUES, addresses, [f"{NAMES}:9876"], seed=cluster.seed, pause_s=PAUSE_S
        )
        self.chance = cluster.chance

    @property
    def slaves(self) -> list[str]:
        return [host for host in self.hosts if host != self.master]

    async def run(self) -> None:
        """All rounds, and the check."""
        await self.cluster.start_nameserver(NAMES)
        for host in self.hosts:
            await self.cluster.start_broker(host, self.number(host), QUICK)
        async with self.cluster.client() as client:
            await trio.sleep(SETTLED_S)
            await client.admin.create_topic(TOPIC, queues=QUEUES)
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *((host, partial(self.clients.send_forever, number)) for number, host in enumerate(SENDERS)),
            (READER, self.clients.consume_forever),
            (LOOKER, self.clients.read_forever),
        ]
        async with trio.open_nursery() as nursery:
            for host, task in tasks:
                with on(Process(host)):
                    nursery.start_soon(task)
            for _ in range(ROUNDS):
                await self.more(10)
                await self.round()
            await self.more(10)
            nursery.cancel_scope.cancel()
        await self.check()

    def number(self, host: str) -> int:
        """The id of the broker: 0 of the master."""
        return 0 if host == self.master else 1 + self.hosts.index(host)

    async def more(self, count: int) -> None:
        """Returns when the present master has acknowledged so many more messages."""
        address = f"{self.master}:10911"

        def acknowledged() -> int:
            return sum(send.term is not None and send.term.address == address for send in self.history.acknowledged)

        wanted = acknowledged() + count
        await self.cluster.until(lambda: acknowledged() >= wanted, AGAIN_S, f"{count} more by {address}")

    async def round(self) -> None:
        """A slave that lags or flaps, the loss of the master, a promotion, the return."""
        slave = self.chance.choice(self.slaves)
        before = self.chance.choice([self.nothing, self.lag, self.flap])
        await before(slave)
        old = self.master
        loss = self.chance.choice([self.pause, self.kill, self.cut_power, self.isolate])
        goes_on = loss(old)
        await trio.sleep(self.chance.choice([0, 1, 15]))
        await self.promote(exclude=old)
        await trio.sleep(self.chance.uniform(0, 15))
        self.cluster.network.heal()
        if goes_on:
            self.cluster.machine(old).resume()
            await trio.sleep(self.chance.uniform(0, 30))
            await self.cluster.machine(old).stop()
        await self.cluster.start_broker(old, self.number(old), QUICK)
        await trio.sleep(self.chance.uniform(0, 10))

    async def nothing(self, _slave: str) -> None:
        """Inject no fault besides the loss of the master."""

    async def lag(self, slave: str) -> None:
        """The master goes on while the slave gets nothing of it."""
        for link in self.cluster.network.between(self.master, slave):
            link.clog()
        await trio.sleep(self.chance.uniform(0, 25))

    async def flap(self, slave: str) -> None:
        """The slave comes and goes."""
        for _ in range(3):
            await trio.sleep(self.chance.uniform(0, 2))
            self.cluster.machine(slave).kill()
            await trio.sleep(self.chance.uniform(0, 1))
            await self.cluster.start_broker(slave, self.number(slave), QUICK)

    def pause(self, host: str) -> bool:
        """Whether the process survives this fault."""
        self.cluster.machine(host).pause()
        return True

    def kill(self, host: str) -> bool:
        self.cluster.machine(host).kill()
        return False

    def cut_power(self, host: str) -> bool:
        self.cluster.machine(host).power_cut(self.chance.randrange(1 << 30))
        return False

    def isolate(self, host: str) -> bool:
        """Cut the host off from the promoting command and from some of the others."""
        peers = [NAMES, *(other for other in self.hosts if other != host), *SENDERS]
        cut_off = [OBSERVER, *(peer for peer in peers if self.chance.random() < 0.6)]
        for link in self.cluster.network.between(host, cut_off):
            link.clog()
        return True

    async def promote(self, exclude: str) -> None:
        """Promote as ``gantrymq cluster promote`` does, until it succeeds; the links to slaves work."""

        async def rows() -> list[promotion.Row]:
            async with self.cluster.client() as client:
                return await broker_rows(client)

        refused = ""
        promoted: promotion.Promoted | None = None
        with trio.move_on_after(AGAIN_S):
            while True:
                try:
                    known = {row["address"] for row in await rows()}
                    assert all(f"{host}:10911" in known for host in self.slaves), "a slave is not registered"
                    promoted = await promotion.promote("broker-a", rows)
                    break
                except (promotion.PromotionRefused, AssertionError) as failure:
                    refused = str(failure)
                    await trio.sleep(0.5)
        assert promoted is not None, refused
        self.master = promoted.address.partition(":")[0]
        assert self.master != exclude

    async def check(self) -> None:
        """All brokers are level; whichever is asked, no promise was broken."""
        self.cluster.network.heal()
        brokers = [self.cluster.machine(host).running_broker for host in self.hosts]

        def level() -> bool:
            return len({end for broker in brokers for end in (broker.log.end, broker.store.dispatched)}) == 1

        await self.cluster.until(level, AGAIN_S, "all logs end at the same byte")
        with on(Process(OBSERVER)):
            await self.clients.finish(f"{self.master}:10911")
            logs = [await self.clients.read_all(f"{host}:10911") for host in self.hosts]
        assert logs[1:] == logs[:-1]
        self.excuse()
        self.history.check(logs[0])
        assert list(self.history.undelivered(GROUP)) == []
        assert len(self.history.acknowledged) > 10 * ROUNDS
        assert any(send.outcome is not Outcome.OK for send in self.history.sends.values())

    def excuse(self) -> None:
        """The slaves that served readers without a comparison, as they say in their logs."""
        for line in self.cluster.log:
            if line["event"] == "serving_without_comparison":
                said_ms = START_MS + int(line["at"] * 1000)
                for term in {read.term for read in self.history.reads}:
                    if 0 <= said_ms - int(term.started) <= COMPARED_MS:
                        self.history.excuse(term)


@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("brokers", [2, 3])
def test_histories_of_master_failures_have_no_violation(brokers: int, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await Rounds(cluster, brokers).run()

    simulate(scenario, seed)

"""A hanging master that continues after the promotion of a slave loses no acknowledged message.

Simulated time and processes that are stopped and continued; ``tests/crash/test_fencing.py`` does it to real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from gantrymq.failover import promotion
from gantrymq.failover.brokers import broker_rows
from gantrymq.nameserver import requests, routes
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.requests import send
from gantrymq.testing.simulated.cluster import SAFE, Cluster
from gantrymq.testing.simulated.load import QUEUES, TOPIC, Load
from gantrymq.testing.simulated.network import OBSERVER, Process, on
from gantrymq.testing.simulated.run import simulate
from gantrymq.testing.simulated.seeds import seeds

pytestmark = [pytest.mark.timeout(120), pytest.mark.once]

NAMES, A, B, C = "10.0.0.1", "10.0.0.10", "10.0.0.11", "10.0.0.12"
SENDERS = ["10.0.1.1", "10.0.1.2", "10.0.1.3"]
QUICK = {**SAFE, "plugin.ha.sync_tables": "1s", "plugin.ha.full_copy": "true"}
ASYNC = {**QUICK, "plugin.ha.role": "async_master"}
GIVEN_UP_S = 21.0
"""The time after which a slave has disconnected a silent master and accepts a promotion."""


class Trio:
    """A master at A and slaves at B and C, with the topic, under load."""

    def __init__(self, cluster: Cluster, settings: dict[str, str]) -> None:
        self.cluster = cluster
        self.settings = settings
        self.load = Load(cluster, SENDERS)

    async def start(self, slaves: int = 2) -> None:
        """Returns when the slaves follow and the topic is there."""
        await self.cluster.start_nameserver(NAMES)
        for number, host in enumerate([A, B, C][: slaves + 1]):
            await self.cluster.start_broker(host, number, self.settings)
        await self.cluster.until(lambda: self.cluster.slaves_of(A) == slaves, what="the slaves follow")
        async with self.cluster.client() as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
        await trio.sleep(15)  # A is settled

    def log_end(self, host: str) -> int:
        return self.cluster.machine(host).running_broker.log.end

    async def promote(self, host: str) -> None:
        """Promote by the request of ``gantrymq cluster promote`` and ``mqadmin updateBrokerConfig``."""
        answer = await ask(host, Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0\n"))
        assert answer.code == 0, answer.remark
        await self.cluster.until(lambda: self.cluster.is_master(host), what=f"{host} is a master")

    async def promote_by_command(self, **options: Any) -> str:
        """Promote as ``gantrymq cluster promote`` does; return the new master's host."""
        async with self.cluster.client() as client:
            promoted = await promotion.promote("broker-a", partial(broker_rows, client), **options)
        return promoted.address.partition(":")[0]

    async def route(self) -> str:
        """The master's address for clients; empty if there is none."""
        async with self.cluster.client() as client:
            brokers = (await client.admin.cluster()).broker_addr_table
        return brokers["broker-a"].broker_addrs.get(0, "") if "broker-a" in brokers else ""

    def lines(self, event: str) -> list[Any]:
        return [line for line in self.cluster.log if line["event"] == event]


async def ask(host: str, command: Command) -> Command:
    with on(Process(OBSERVER)):
        async with open_channel(f"{host}:10911") as channel:
            return await channel.call(command)


@asynccontextmanager
async def beside(*tasks: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """The tasks run while the block does."""
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("more_s", [0.5, 14.0])
@pytest.mark.slow
def test_a_promoted_broker_remains_master_when_the_hanging_one_resumes(more_s: float, seed: int) -> None:
    """``more_s``: for how long the promoted one is there alone."""

    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        async with beside(three.load.run):
            await three.load.more(5)
            cluster.machine(A).pause()
            await trio.sleep(GIVEN_UP_S)
            end = three.log_end(A)
            await three.promote(B)
            await trio.sleep(more_s)
            cluster.machine(A).resume()
            await trio.sleep(30)
            await three.load.more(5)
            assert three.cluster.is_master(B)
            assert await three.route() == f"{B}:10911"
            assert three.cluster.slaves_of(B) == 1
            assert three.log_end(A) == end, "the fenced master took messages"
        await three.load.check(f"{B}:10911")
        assert three.lines("master_fenced"), "the fenced master says so"

    simulate(scenario, seed)


def test_a_promoted_slave_is_the_master_again_after_it_was_killed() -> None:
    """The configuration is unchanged, as for a service manager that restarts the broker."""

    async def scenario(cluster: Cluster) -> None:
        two = Trio(cluster, QUICK)
        await two.start(slaves=1)
        cluster.machine(A).kill()
        await trio.sleep(1)
        assert await two.promote_by_command() == B
        await cluster.until(lambda: cluster.is_master(B), what="a promotion")
        cluster.machine(B).kill()
        await cluster.start_broker(B, 1, QUICK)
        assert cluster.is_master(B)

    simulate(scenario, 1)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_asynchronous_replication_assigns_no_offset_twice(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, ASYNC)
        await three.start()
        async with beside(three.load.run):
            await three.load.more(5)
            cluster.machine(A).pause()
            await trio.sleep(GIVEN_UP_S)
            await three.promote(B)
            await trio.sleep(cluster.chance.uniform(0, 20))
            end = three.log_end(A)
            cluster.machine(A).resume()
            await trio.sleep(40)
            await three.load.more(5)
            assert await three.route() == f"{B}:10911"
            assert three.log_end(A) == end, "the fenced master took messages"
            refused = await ask(A, send(TOPIC, b"late"))
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, refused.remark
        assert len(three.lines("master_fenced")) == 1

    simulate(scenario, seed)


@pytest.mark.parametrize("settings", [QUICK, ASYNC], ids=["sync", "async"])
@pytest.mark.slow
def test_a_master_paused_beyond_its_lease_takes_no_message_before_it_renews_it(
    settings: dict[str, str],
) -> None:
    """Without a promotion it queries the nameserver and continues; isolated from all others it does not."""

    async def scenario(cluster: Cluster) -> None:
        two = Trio(cluster, settings)
        await two.start(slaves=1)
        async with beside(two.load.run):
            await two.load.more(5)
            cluster.machine(A).pause()
            await trio.sleep(15)
            cluster.machine(A).resume()
            await trio.sleep(1)
            assert [line["event"] for line in cluster.log if "lease" in line["event"]] == [
                "lease_expired",
                "lease_renewed",
            ]
            await two.load.more(5)

            for link in cluster.network.between(A, [NAMES, B]):
                link.clog()
            await trio.sleep(11)
            end, before = two.log_end(A), dict(two.load.acknowledged)
            await trio.sleep(20)
            assert (two.log_end(A), two.load.acknowledged) == (end, before)
            refused = await ask(A, send(TOPIC, b"late"))
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "longer than its lease of 10 s (plugin.ha.lease)" in str(refused.remark)
            cluster.network.heal()
            await two.load.more(5)
        await two.load.check(f"{A}:10911")

    simulate(scenario, 5)


@pytest.mark.slow
def test_without_fencing_a_master_without_a_lease_stores_messages_and_acknowledges_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        two = Trio(cluster, {**QUICK, "plugin.ha.refuse_without_lease": "false", "plugin.ha.lease": "12s"})
        await two.start(slaves=1)
        async with beside(two.load.run):
            await two.load.more(5)
            for link in cluster.network.between(A, [NAMES, B]):
                link.clog()
            await trio.sleep(14)
            end, before = two.log_end(A), dict(two.load.acknowledged)
            await trio.sleep(20)
            assert two.log_end(A) > end
            assert two.load.acknowledged == before
            cluster.network.heal()
            await two.load.more(5)
        await two.load.check(f"{A}:10911")

    simulate(scenario, 6)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_a_promotion_within_the_lease_fences_every_slave_before_it_chooses(seed: int) -> None:
    """The old master hangs for a few seconds only: it still has its lease, and its slaves are still connected."""

    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        async with beside(three.load.run):
            await three.load.more(5)
            if seed % 2:
                for link in cluster.network.between(A, B):
                    link.clog()  # C has more than B
                await three.load.more(5)
            cluster.machine(A).pause()
            new = await three.promote_by_command()
            assert new == (C if seed % 2 else B)
            other = B if seed % 2 else C
            cluster.network.heal()
            for link in [*cluster.network.between(NAMES, [A, other]), *cluster.network.between(new, [A, other])]:
                link.clog()  # nobody but the command tells the old master and the other slave
            cluster.machine(A).resume()
            await trio.sleep(8)
            cluster.network.heal()
            await cluster.until(lambda: three.cluster.is_master(new), what="the promoted one is a master")
            await three.load.more(5)
            assert await three.route() == f"{new}:10911"
        await three.load.check(f"{new}:10911")
        assert three.lines("master_fenced")

    simulate(scenario, seed)


@pytest.mark.slow
def test_a_promotion_is_refused_where_something_acknowledged_could_be_lost() -> None:
    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        async with beside(three.load.run):
            with pytest.raises(promotion.PromotionRefused, match=r"has a master at 10\.0\.0\.10:10911 that answers"):
                await three.promote_by_command()
            for link in cluster.network.between(A, B):
                link.clog()
            await three.load.more(5)
            cluster.machine(A).pause()
            cluster.machine(C).pause()
            with pytest.raises(promotion.PromotionRefused, match=r"slaves that cannot be asked, 10\.0\.0\.12:10911"):
                await three.promote_by_command()
            cluster.machine(C).resume()
            with pytest.raises(
                promotion.PromotionRefused, match=r"only the latter has would be lost\. Promote that one"
            ):
                await three.promote_by_command(number=1)
            assert await three.promote_by_command(epoch_at_least=1000) == C
            await cluster.until(lambda: three.cluster.is_master(C), what="C is a master")
            assert three.lines("epoch_began")[-1]["epoch"].startswith("1000-"), "as the revision of a lock would be"
            cluster.network.heal()
            await three.load.more(5)
        await three.load.check(f"{C}:10911")

    simulate(scenario, 3)


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.slow
def test_only_one_of_two_simultaneous_promotions_succeeds(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        outcomes: list[str] = []

        async def attempt(number: int) -> None:
            try:
                outcomes.append(await three.promote_by_command(number=number))
            except promotion.PromotionRefused as failure:
                outcomes.append(str(failure))

        async with beside(three.load.run):
            await three.load.more(5)
            cluster.machine(A).pause()
            for link in cluster.network.between(OBSERVER, [B, C]):
                link.delay_s = 0.0, 0.05
            async with trio.open_nursery() as nursery:
                nursery.start_soon(attempt, 1)
                nursery.start_soon(attempt, 2)
            masters = [outcome for outcome in outcomes if outcome in (B, C)]
            assert len(masters) <= 1, outcomes
            if not masters:
                masters.append(await three.promote_by_command())
            cluster.machine(A).resume()
            await cluster.until(lambda: three.cluster.is_master(masters[0]), what="one is a master")
            await three.load.more(5)
        await three.load.check(f"{masters[0]}:10911")

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("release", [4, 5])
@pytest.mark.slow
def test_a_fenced_master_leaves_the_route_of_a_rocketmq_nameserver_and_takes_no_message(
    release: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no epochs: 4.x keeps the last registration, 5.x compares state versions while both are alive."""
    monkeypatch.setattr(requests, "epoch_in", lambda _fields: None)
    if release == 4:
        monkeypatch.setattr(routes, "_state", lambda _version: 0)

    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        async with beside(three.load.run):
            await three.load.more(5)
            cluster.machine(A).pause()
            end = three.log_end(A)
            assert await three.promote_by_command() == B
            await cluster.until(lambda: three.cluster.is_master(B), what="B is a master")
            await trio.sleep(cluster.chance.uniform(10, 40))
            cluster.machine(A).resume()
            await trio.sleep(70)
            await three.load.more(5)
            assert await three.route() == f"{B}:10911"
            assert three.log_end(A) == end, "the fenced master took messages"
        await three.load.check(f"{B}:10911")
        assert three.lines("master_fenced")

    simulate(scenario, release)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_a_promotion_does_not_choose_a_longer_log_that_was_not_compared_with_the_last_masters(seed: int) -> None:
    """Its log ends with unacknowledged messages that the broker stored alone as the master."""

    async def scenario(cluster: Cluster) -> None:
        three = Trio(cluster, QUICK)
        await three.start()
        async with beside(three.load.run):
            await three.load.more(5)
            for link in cluster.network.between(A, [B, C]):
                link.clog()
            await trio.sleep(60)
            cluster.machine(A).kill()
            cluster.network.heal()
            await trio.sleep(1)
            second = await three.promote_by_command()
            third = C if second == B else B
            await cluster.until(lambda: three.cluster.is_master(second), what="the first promotion")
            await three.load.more(5)
            await trio.sleep(1)
            if seed % 2:
                cluster.machine(second).kill()
            else:
                for link in cluster.network.between(A, second):
                    link.clog()
            await cluster.start_broker(A, 3, QUICK)
            await trio.sleep(8)
            if not seed % 2:
                cluster.machine(second).kill()
                cluster.network.heal()
                await trio.sleep(1)
            assert three.log_end(A) > three.log_end(third)
            if seed % 4 > 1:
                with pytest.raises(promotion.PromotionRefused, match=r"only the latter has would be lost"):
                    await three.promote_by_command(number=3)
            assert await three.promote_by_command() == third
            await cluster.until(lambda: three.cluster.slaves_of(third) == 1, what="the former master follows")
            await three.load.more(3)
        await three.load.check(f"{third}:10911")
        assert three.lines("diverged_tail_truncated")

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.slow
def test_a_series_of_promotions_between_partitions_loses_nothing_that_was_acknowledged(seed: int) -> None:
    """Former masters return as slaves that may not reach the current one; only the master is lost at a time."""

    async def scenario(cluster: Cluster) -> None:
        chance = cluster.chance
        three = Trio(cluster, QUICK)
        await three.start()
        master, hosts = A, [A, B, C]
        async with beside(three.load.run):
            for _ in range(4):
                await three.load.more(3)
                pairs = [(one, other) for one in hosts for other in hosts if one < other and chance.random() < 0.5]
                for one, other in pairs:
                    for link in cluster.network.between(one, other):
                        link.clog()
                await trio.sleep(chance.uniform(0, 40))
                cluster.machine(master).kill()
                await trio.sleep(1)
                if chance.random() < 0.5:
                    cluster.network.heal()
                lost, master = master, await three.promote_by_command()
                await cluster.until(lambda new=master: three.cluster.is_master(new), what="a promotion")
                await trio.sleep(chance.uniform(0, 5))
                await cluster.start_broker(lost, hosts.index(lost) + 10, QUICK)
                await trio.sleep(chance.uniform(0, 20))
                if chance.random() < 0.5:
                    cluster.network.heal()
                    continue
                # the next promotion has to choose among slaves that the lost master may not have reached
                cluster.machine(master).kill()
                await trio.sleep(1)
                lost, master = master, await three.promote_by_command()
                await cluster.until(lambda new=master: three.cluster.is_master(new), what="a promotion")
                cluster.network.heal()
                await cluster.start_broker(lost, hosts.index(lost) + 10, QUICK)
            await three.load.more(3)
        await three.load.check(f"{master}:10911")

    simulate(scenario, seed)

"""Watchers promote a slave when the master is lost, on simulated time, with a lock in memory.

``tests/crash/test_watch.py`` does it with real processes and a real etcd.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import trio

from gantrymq import SendStatus
from gantrymq.failover.brokers import query_brokers
from gantrymq.failover.lock import LockKeeper
from gantrymq.failover.watcher import Watcher, WatchRules
from gantrymq.testing.simulated.cluster import SAFE, Cluster
from gantrymq.testing.simulated.load import QUEUES, TOPIC, Load
from gantrymq.testing.simulated.network import Process, on
from gantrymq.testing.simulated.run import simulate
from gantrymq.testing.simulated.seeds import seeds
from support.memorylock import MemoryLock, MemoryStore

pytestmark = [pytest.mark.timeout(120), pytest.mark.once]

NAMES, A, B, C, D = "10.0.0.1", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13"
WATCHERS = ["10.0.2.1", "10.0.2.2"]
SETTINGS = {**SAFE, "plugin.ha.sync_tables": "1s", "plugin.ha.full_copy": "true"}
PAIR = {**SETTINGS, "plugin.ha.role": "async_master"}
"""So that a promoted slave without a slave answers SEND_OK."""


class Watched:
    """A master at A with slaves, under load, and watchers, each a process of its own; use it in ``async with``."""

    def __init__(self, cluster: Cluster, slaves: int, settings: Mapping[str, str], **rules: Any) -> None:
        self.cluster = cluster
        self.hosts = [A, B, C][: slaves + 1]
        self.settings = settings
        self.rules = WatchRules(**rules)
        self.load = Load(cluster, ["10.0.1.1", "10.0.1.2"])
        self.store = MemoryStore()
        self.watchers = [Process(host) for host in WATCHERS]

    async def __aenter__(self) -> Watched:
        await self.cluster.start_nameserver(NAMES)
        for number, host in enumerate(self.hosts):
            await self.cluster.start_broker(host, number, self.settings)
        await self.cluster.until(lambda: self.cluster.slaves_of(A) == len(self.hosts) - 1, what="the slaves follow")
        async with self.cluster.client() as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
        await trio.sleep(15)  # A is settled
        self._nursery = trio.open_nursery()
        self.nursery = await self._nursery.__aenter__()
        self.nursery.start_soon(self.load.run)
        for process in self.watchers:
            self.nursery.start_soon(self._watch, process)
        await trio.sleep(2)
        await self.load.more(3)
        return self

    async def __aexit__(self, *error: Any) -> None:
        for process in self.watchers:
            process.resume()
        self.nursery.cancel_scope.cancel()
        await self._nursery.__aexit__(*error)

    async def _watch(self, process: Process) -> None:
        with on(process):
            async with self.cluster.client(process.host) as client, trio.open_nursery() as nursery:
                with on(process):
                    keeper = LockKeeper(MemoryLock(self.store, process.host), trio.current_time, self.rules.interval)

                    async def look(
                        more: Mapping[str, int], without: Collection[str], timeout: float
                    ) -> Sequence[dict[str, Any]]:
                        return await query_brokers(client, timeout, "broker-a", more, without)

                    nursery.start_soon(keeper.run)
                    nursery.start_soon(Watcher("broker-a", look, keeper, trio.current_time, self.rules).run)

    def process_that_holds(self) -> Process:
        return next(process for process in self.watchers if process.host == self.store.owner())

    def lines(self, event: str) -> list[Any]:
        return [line for line in self.cluster.log if line["event"] == event]

    async def promoted(self, host: str, seconds: float) -> None:
        await self.cluster.until(lambda: self.cluster.is_master(host), seconds, f"{host} is a master")


@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.slow
def test_a_slave_replaces_a_lost_master(how: str, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair:
            machine = cluster.machine(A)
            machine.kill() if how == "kill" else machine.pause()
            await pair.promoted(B, 8)
            (line,) = pair.lines("slave_promoted")
            limits = pair.rules.master_timeout + pair.rules.interval
            assert pair.rules.master_timeout <= line["silent_seconds"] <= limits, "whether it is dead or hangs"
            epoch = pair.lines("epoch_began")[-1]["epoch"]
            assert int(epoch.partition("-")[0]) >= pair.store.revision
            await pair.load.more(3)
            if how == "pause":
                machine.resume()
                await cluster.until(lambda: bool(pair.lines("master_fenced")), what="the old master is fenced")
                await cluster.until(lambda: bool(pair.lines("fenced_master_found")), what="the watcher says so")
                await pair.load.more(3)
            assert json.loads(pair.store.text) == {
                "master": f"{B}:10911", "slaves": {}, "floor": json.loads(pair.store.text)["floor"],
            }  # fmt: skip
        assert len(pair.lines("slave_promoted")) == 1

    simulate(scenario, seed)


@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.slow
def test_a_send_waiting_for_the_lost_master_reaches_the_promoted_one_before_its_timeout(how: str, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair, cluster.client("10.0.1.3") as client:
            async with client.producer("patient", timeout=20.0) as producer:
                await producer.send(TOPIC, b"before")
                machine = cluster.machine(A)
                machine.kill() if how == "kill" else machine.pause()
                before = trio.current_time()
                result = await producer.send(TOPIC, b"after")
                assert trio.current_time() - before < 5
                assert result.status is SendStatus.OK
                assert pair.cluster.is_master(B)

    simulate(scenario, seed)


@pytest.mark.soak(1, of="seed")
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.slow
def test_the_other_slave_follows_the_promoted_one_at_once(how: str, seed: int) -> None:
    """A synchronous master without a slave acknowledges nothing; the next registration is up to 30 s away."""

    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS) as three:
            before = trio.current_time()
            machine = cluster.machine(A)
            machine.kill() if how == "kill" else machine.pause()
            await cluster.until(lambda: three.cluster.is_master(B) or three.cluster.is_master(C), 8, "one is a master")
            new = B if three.cluster.is_master(B) else C
            await cluster.until(lambda: three.cluster.slaves_of(new) == 1, 5, "the other one follows it")
            assert trio.current_time() - before < 5
            await three.load.more(3)
        await three.load.check(f"{new}:10911")

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_a_fenced_broker_follows_its_successor_automatically(seed: int) -> None:
    """It has its former broker id, or another one if the first master has taken that."""

    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS) as three:
            cluster.machine(A).kill()
            await cluster.until(lambda: cluster.is_master(B) or cluster.is_master(C), 10, "one is promoted")
            first = B if cluster.is_master(B) else C
            await cluster.start_broker(A, 1 if first == B else 2, SETTINGS)
            await cluster.until(lambda: cluster.slaves_of(first) == 2, what="both follow it")
            await three.load.more(3)
            cluster.machine(first).pause()
            others = [host for host in three.hosts if host != first]
            await cluster.until(lambda: any(cluster.is_master(host) for host in others), 10, "another one is promoted")
            (second,) = (host for host in others if cluster.is_master(host))
            await three.load.more(3)
            cluster.machine(first).resume()
            await cluster.until(lambda: cluster.slaves_of(second) == 2, 40, "both others follow it")
            await three.load.more(3)
            assert three.lines("fenced_master_returns")
        await three.load.check(f"{second}:10911")
        await three.load.check(f"{first}:10911")

    simulate(scenario, seed)


@pytest.mark.soak(1)
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.slow
def test_a_watcher_with_an_expired_lease_leaves_the_promotion_to_the_next_holder(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair:
            first = pair.process_that_holds()
            cluster.machine(A).kill()
            await trio.sleep(cluster.chance.uniform(0, 3))  # before, while or after it decides
            first.stop()
            await trio.sleep(pair.store.lease_s + 5)
            assert pair.store.owner() not in ("", first.host)
            await pair.promoted(B, 10)
            await pair.load.more(3)
            first.resume()
            await trio.sleep(10)
            await pair.load.more(3)
        assert len(pair.lines("epoch_began")) == 1

    simulate(scenario, seed)


@pytest.mark.slow
def test_no_watcher_promotes_without_its_lock_store_and_one_does_when_it_returns() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair:
            pair.store.away = True
            await trio.sleep(pair.store.lease_s + 1)
            cluster.machine(A).kill()
            await trio.sleep(30)
            assert not pair.cluster.is_master(B)
            assert len(pair.lines("lock_store_unavailable")) == 2, "once a watcher"
            pair.store.away = False
            await pair.promoted(B, 10)
            await pair.load.more(3)

    simulate(scenario, 1)


@pytest.mark.slow
def test_no_watcher_promotes_without_a_nameserver_and_one_does_when_it_returns() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair:
            cluster.machine(NAMES).kill()
            await trio.sleep(1)
            cluster.machine(A).kill()
            await trio.sleep(30)
            assert not pair.cluster.is_master(B)
            assert len(pair.lines("nameserver_unavailable")) == 2, "once a watcher"
            await cluster.start_nameserver(NAMES)
            await pair.promoted(B, 40)
            await pair.load.more(3)

    simulate(scenario, 1)


@pytest.mark.slow
def test_a_watcher_that_alone_cannot_reach_the_master_does_not_replace_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, SETTINGS) as pair:
            for link in cluster.network.between(A, WATCHERS):
                link.clog()
            await trio.sleep(30)
            assert pair.cluster.is_master(A)
            assert len(pair.lines("master_heard_by_slave")) == 2, "once a watcher"
            cluster.network.heal()
            await pair.load.more(3)
        assert not pair.lines("epoch_began")

    simulate(scenario, 1)


def test_a_slowly_responding_slave_is_promoted() -> None:
    """Watchers give the slave of an overloaded machine more time with each attempt."""

    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, PAIR) as pair:
            for link in cluster.network.between(B, WATCHERS):
                link.delay_s = (0.7, 0.8)
            cluster.machine(A).kill()
            await pair.promoted(B, 30)
            assert pair.lines("promotion_refused"), "the first attempt found no slave"
            cluster.network.heal()
            await pair.load.more(3)
        assert len(pair.lines("epoch_began")) == 1

    simulate(scenario, 1)


@pytest.mark.slow
def test_a_slave_lost_with_the_master_blocks_a_promotion_because_it_may_have_more() -> None:
    """This holds for a watcher that takes the lock when both are gone: the store of the lock has the known logs."""

    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS) as three:
            for link in cluster.network.between(A, B):
                link.clog()
            await three.load.more(3)
            three.process_that_holds().stop()
            cluster.machine(A).kill()
            cluster.machine(C).kill()
            await trio.sleep(30)
            assert not three.cluster.is_master(B)
            (refused,) = three.lines("promotion_refused")
            assert f"{C}:10911" in refused["reason"]
            await cluster.start_broker(C, 2, SETTINGS)
            await three.promoted(C, 10)
        await three.load.check(f"{C}:10911")

    simulate(scenario, 1)


@pytest.mark.slow
def test_a_missing_slave_is_reported_and_can_be_removed_while_the_master_is_alive() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS) as three:
            cluster.machine(C).kill()
            await trio.sleep(20)
            (missing,) = three.lines("slave_missing")
            assert missing["address"] == f"{C}:10911"
            three.store.text = b""  # as an administrator who gives it up
            await cluster.until(lambda: bool(three.store.text), what="the members are written anew")
            assert json.loads(three.store.text)["slaves"] == {f"{B}:10911": 1}
            cluster.machine(A).kill()
            await three.promoted(B, 10)

    simulate(scenario, 1)


@pytest.mark.slow
def test_a_new_slave_with_a_former_id_replaces_the_former_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS) as three:
            cluster.machine(C).kill()
            await trio.sleep(5)
            assert f"{C}:10911" in json.loads(three.store.text)["slaves"]
            await cluster.start_broker(D, 2, SETTINGS)
            await cluster.until(lambda: three.cluster.slaves_of(A) == 2, what="the new slave follows")
            await three.load.more(3)
            known = json.loads(three.store.text)
            assert known["slaves"] == {f"{B}:10911": 1, f"{D}:10911": 2}
            assert known["floor"] > 0
            cluster.machine(A).kill()
            await cluster.until(lambda: three.cluster.is_master(B) or three.cluster.is_master(D), 10, "one is a master")
            await three.load.more(3)

    simulate(scenario, 1)


def test_accept_loss_promotes_a_remaining_slave() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 2, SETTINGS, accept_loss=True) as three:
            cluster.machine(A).kill()
            cluster.machine(C).kill()
            await three.promoted(B, 10)

    simulate(scenario, 1)


@pytest.mark.slow
def test_a_master_that_returns_in_time_remains_master() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Watched(cluster, 1, SETTINGS) as pair:
            cluster.machine(A).pause()
            await trio.sleep(1.5)
            cluster.machine(A).resume()
            await trio.sleep(10)
            await pair.load.more(3)
            assert pair.cluster.is_master(A)
            assert pair.lines("master_answers")
        assert not pair.lines("epoch_began")

    simulate(scenario, 1)

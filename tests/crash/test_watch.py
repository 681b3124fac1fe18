"""Real processes and a real etcd: watchers promote a slave after kills and pauses, without loss.

``tests/cluster/test_watch.py`` has the decisions of watchers in detail. Each day, each test
runs with a kill or with a pause, and both occur among the tests.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

import gantrymq
from gantrymq import SendStatus
from gantrymq.testing.ledger import Ledger
from support.hagroup import HaGroup
from support.haload import Load
from support.hapair import read_all
from support.processes import wait_for

TOPIC, QUEUES = "LedgerTopic", 4
PAIR = ("sync_master", "async_master")
"""A promoted slave that has no slave of its own answers SEND_OK only so."""
MORE = 200
ROUNDS = int(os.environ.get("GANTRYMQ_WATCH_ROUNDS", "2"))

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]


@pytest.fixture
def pair(tmp_path: Path, etcd_program: Path) -> Iterator[HaGroup]:
    """A synchronous master, its slave and the topic."""
    with HaGroup(tmp_path, etcd_program, PAIR) as group:
        prepare(group)
        yield group


@pytest.fixture
def three(tmp_path: Path, etcd_program: Path) -> Iterator[HaGroup]:
    """A synchronous master, two slaves that are synchronous masters when they are promoted, and the topic."""
    with HaGroup(tmp_path, etcd_program, ["sync_master"] * 3) as group:
        prepare(group)
        yield group


def prepare(group: HaGroup) -> None:
    group.start_all()

    async def create_topic() -> None:
        async with gantrymq.connect(group.nameserver) as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)

    trio.run(create_topic)


def under_load(group: HaGroup, script: Callable[[Load], Awaitable[None]]) -> Ledger:
    """Run the script while senders send; then the ledger is checked at the broker that is the master."""
    wait_for(lambda: has_stored_members(group))  # a watcher promotes only slaves that one has seen
    ledger = Ledger(uuid.uuid4().hex)
    load = Load(group.nameserver, TOPIC, ledger)

    async def during() -> None:
        await load.until(SendStatus.OK, MORE)
        await script(load)

    trio.run(load.during, during)
    ledger.check(read_all(master_of(group), TOPIC, QUEUES, ledger))
    return ledger


def has_stored_members(group: HaGroup) -> bool:
    numbers = range(len(group.watchers))
    found = [line["slaves"] for number in numbers for line in group.events(number, "members_stored")]
    return any(int(str(slaves)) + 1 == len(group.brokers) for slaves in found)


def master_of(group: HaGroup) -> str:
    async def ask() -> str:
        async with gantrymq.connect(group.nameserver) as client:
            return str((await client.admin.cluster()).broker_addr_table["broker-a"].broker_addrs[0])

    return trio.run(ask)


async def soon(done: Callable[[], bool], timeout: float = 30.0) -> None:
    await trio.to_thread.run_sync(wait_for, done, timeout)


def silences(group: HaGroup) -> list[float]:
    """The seconds of silence before the promotion of each slave."""
    numbers = range(len(group.watchers))
    found = [line["silent_seconds"] for number in numbers for line in group.events(number, "slave_promoted")]
    return sorted(float(str(each)) for each in found)


def promoted(group: HaGroup) -> int:
    """How many promotions the watchers have ordered."""
    return sum(len(group.events(number, "slave_promoted")) for number in range(len(group.watchers)))


def test_the_promoted_slave_replaces_a_killed_master_which_returns_as_a_slave(pair: HaGroup) -> None:
    pair.watch()
    wait_for(lambda: bool(pair.events(0, "lock_taken")))
    pair.watch()

    async def script(load: Load) -> None:
        pair.brokers[0].kill()
        await load.until(SendStatus.OK, MORE)

    ledger = under_load(pair, script)
    assert promoted(pair) == 1
    assert int(pair.runtime(1)["haEpoch"].partition("-")[0]) >= int(str(pair.events(0, "lock_taken")[0]["revision"]))
    pair.start(0, 1)
    pair.wait_followed(1, 1)
    ledger.check(read_all(pair.addresses[0], TOPIC, QUEUES, ledger))
    for watcher in pair.watchers:
        assert watcher.terminate() == 0
    assert pair.events(0, "lock_released")


@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_another_watcher_takes_over_when_the_lock_holder_is_lost_with_the_master(pair: HaGroup, how: str) -> None:
    first = pair.watch("--lease", "2")
    wait_for(lambda: bool(pair.events(0, "lock_taken")))
    pair.watch("--lease", "2")
    pair.watch("--lease", "2")

    async def script(load: Load) -> None:
        first.kill() if how == "kill" else os.kill(first.pid, signal.SIGSTOP)
        pair.brokers[0].kill()
        await load.until(SendStatus.OK, MORE, 40)
        if how == "pause":
            os.kill(first.pid, signal.SIGCONT)
            await soon(lambda: bool(pair.events(0, "lock_lost")))
            await load.until(SendStatus.OK, MORE)

    under_load(pair, script)
    assert not pair.events(0, "slave_promoted")
    assert promoted(pair) == 1


def test_no_slave_is_promoted_without_etcd_and_one_is_when_etcd_returns(pair: HaGroup) -> None:
    for _ in range(2):
        pair.watch("--lease", "2")
    wait_for(lambda: any(pair.events(number, "lock_taken") for number in range(2)))

    async def script(load: Load) -> None:
        pair.etcd.kill()
        for number in range(2):
            await soon(lambda number=number: bool(pair.events(number, "lock_store_unavailable")))
        await trio.sleep(2)
        pair.brokers[0].kill()
        for number in range(2):
            await soon(lambda number=number: bool(pair.events(number, "promotion_left_to_others")))
        assert promoted(pair) == 0
        await trio.to_thread.run_sync(pair.etcd.start)
        await load.until(SendStatus.OK, MORE, 40)

    under_load(pair, script)
    assert promoted(pair) == 1


@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_slave_is_promoted_when_etcds_leader_is_lost_with_the_master(
    tmp_path: Path, etcd_program: Path, how: str
) -> None:
    """The etcd has three members, and the watchers have the addresses of all."""
    with HaGroup(tmp_path, etcd_program, PAIR, etcd_members=3) as pair:
        prepare(pair)
        for _ in range(2):
            pair.watch()
        wait_for(lambda: any(pair.events(number, "lock_taken") for number in range(2)))

        async def script(load: Load) -> None:
            leader = await trio.to_thread.run_sync(pair.etcd.leader)
            leader.kill() if how == "kill" else leader.pause()
            pair.brokers[0].kill()
            await load.until(SendStatus.OK, MORE, 40)
            if how == "pause":
                leader.resume()  # it has been replaced, and must not give the lock to anybody
                await load.until(SendStatus.OK, MORE)

        under_load(pair, script)
        assert promoted(pair) == 1
        print(f"{how}: silent {silences(pair)}")


@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_both_remaining_brokers_of_three_have_every_acknowledged_message(three: HaGroup, how: str) -> None:
    """A master that was paused also stores nothing when it resumes."""
    for _ in range(2):
        three.watch()
    wait_for(lambda: any(three.events(number, "lock_taken") for number in range(2)))

    async def script(load: Load) -> None:
        three.brokers[0].kill() if how == "kill" else os.kill(three.brokers[0].pid, signal.SIGSTOP)
        await load.until(SendStatus.OK, MORE, 40)
        if how == "pause":
            os.kill(three.brokers[0].pid, signal.SIGCONT)
            await soon(lambda: three.runtime(0)["haFenced"] != "")
            await load.until(SendStatus.OK, MORE)

    ledger = under_load(three, script)
    assert promoted(three) == 1
    new = three.addresses.index(master_of(three))
    three.wait_followed(new, 1)
    ledger.check(read_all(three.addresses[3 - new], TOPIC, QUEUES, ledger))


@pytest.mark.timeout(180 + 60 * ROUNDS)
@pytest.mark.soak(1)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_each_of_several_masters_lost_in_turn_is_replaced(three: HaGroup, how: str) -> None:
    """``GANTRYMQ_WATCH_ROUNDS=20`` measures for how long nothing is acknowledged, with default settings."""
    for _ in range(2):
        three.watch()
    wait_for(lambda: any(three.events(number, "lock_taken") for number in range(2)))
    ids, gaps = [0, 1, 2], []

    async def script(load: Load) -> None:
        for _ in range(ROUNDS):
            master = ids.index(0)
            load.gap_s = 0.0
            three.brokers[master].kill() if how == "kill" else os.kill(three.brokers[master].pid, signal.SIGSTOP)
            await load.until(SendStatus.OK, MORE, 40)
            if how == "pause":
                three.brokers[master].kill()
            gaps.append(round(load.gap_s, 2))
            new = three.addresses.index(await trio.to_thread.run_sync(master_of, three))
            ids[master], ids[new] = ids[new], 0
            await trio.to_thread.run_sync(three.start, master, ids[master])
            await trio.to_thread.run_sync(three.wait_connected, new, 2)
            await load.until(SendStatus.OK, MORE)

    under_load(three, script)
    assert promoted(three) == ROUNDS
    print(f"{how}: promotions: {ROUNDS}, silent {silences(three)}, seconds without an acknowledgment: {sorted(gaps)}")

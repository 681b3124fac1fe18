"""The epoch of a slave's log, by which promotions choose: when it changes, and that it is durable before it counts."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
import trio

from gantrymq.kernel.broker import Broker
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.plugins.ha import compare
from gantrymq.plugins.ha.epochs import BEFORE_PROMOTIONS, FILE, Epochs, LogEpoch
from gantrymq.plugins.ha.slave import Tail
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, FIRST, LOG_EPOCH_KEY, Epoch
from gantrymq.testing.memory_env import MemoryEnv

ONE, TWO = Epoch(1, "aa"), Epoch(2, "bb")


class Disk:
    """A disk that outlives the power cut between two starts."""

    def __init__(self) -> None:
        self.env = MemoryEnv()

    def start(self) -> Epochs:
        self.env = self.env.power_cut()
        return Epochs(self.env, "store")

    def start_slave(self, master: Epoch = ONE) -> Epochs:
        """A slave that knows the epoch of its master."""
        epochs = self.start()
        epochs.begin_as_slave()
        epochs.learn(master, "a test", is_master=False)
        return epochs

    def start_updated(self) -> Epochs:
        """After an update from a version that does not store the epoch of the log."""
        said = json.loads(self.env.read_bytes(f"store/{FILE}"))
        del said["log"]
        self.env.replace(f"store/{FILE}", json.dumps(said).encode())
        return self.start()


def test_messages_that_a_master_has_lost_are_kept_until_a_cut_or_a_promotion() -> None:
    disk = Disk()
    disk.start_slave().note_kept(300)
    disk.start().log_recovered(301, is_master=False)
    assert disk.start().kept_from == 300
    disk.start().log_recovered(300, is_master=False)
    assert disk.start().kept_from == 0
    disk.start().note_kept(300)
    epochs = disk.start()
    epochs.begin(epochs.next())
    assert disk.start().kept_from == 0


def test_the_log_of_a_slave_has_the_epoch_of_its_master_once_it_reaches_the_start_of_the_epoch() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    for end in (0, 500, 999):
        epochs.log_follows(ONE, 1000, end)
        assert epochs.of_log == BEFORE_PROMOTIONS
    epochs.log_follows(ONE, 1000, 1000)
    assert epochs.of_log == LogEpoch(ONE, 1000)
    assert disk.start().of_log == LogEpoch(ONE, 1000)


def test_a_learned_epoch_does_not_change_the_epoch_of_the_log() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_follows(ONE, 1000, 1000)
    epochs.learn(TWO, "a promotion", is_master=False)
    again = disk.start()
    assert (again.known, again.of_log) == (TWO, LogEpoch(ONE, 1000))


@pytest.mark.parametrize(("end", "epoch"), [(1000, ONE), (999, FIRST), (0, FIRST)])
def test_a_log_shortened_before_the_start_of_its_epoch_loses_it_for_good(end: int, epoch: Epoch) -> None:
    """The cause is a crash or a truncation; records of another master follow."""
    disk = Disk()
    disk.start_slave().log_follows(ONE, 1000, 1500)
    for now in (end, 2000):
        epochs = disk.start()
        epochs.log_recovered(now, is_master=False)
        assert epochs.of_log is not None
        assert epochs.of_log.epoch == epoch


def test_a_master_stores_where_its_epoch_began_and_a_restart_does_not_change_it() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.begin(TWO)
    assert epochs.start is None, "it may still grow until the start as the master"
    for end in (700, 900):
        epochs = disk.start()
        epochs.begin_as_master()
        epochs.log_recovered(end, is_master=True)
        assert epochs.start == 700
    epochs.log_recovered(600, is_master=True)
    assert disk.start().start == 600, "a crash has taken records: the epoch continues from there"


def test_a_slave_that_was_chosen_and_never_started_as_the_master_keeps_the_epoch_of_its_log() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_follows(ONE, 0, 10)
    epochs.begin(TWO)
    again = disk.start()
    again.begin_as_slave()
    again.log_recovered(10, is_master=False)
    assert again.of_log == LogEpoch(ONE, 0)


def test_a_fenced_master_keeps_the_epoch_of_its_log_as_a_slave() -> None:
    disk = Disk()
    epochs = disk.start()
    epochs.begin(ONE, 1)
    epochs.log_recovered(100, is_master=True)
    epochs.learn(TWO, "a test", is_master=True)
    for is_master in (True, False):
        again = disk.start()
        again.begin_as_master("overrides.toml") if is_master else again.begin_as_slave()
        again.log_recovered(5000, is_master=is_master)
        assert again.of_log == LogEpoch(ONE, 100)


def test_the_epoch_of_an_older_versions_log_is_unknown_until_it_follows_a_master() -> None:
    disk = Disk()
    disk.start_slave(FIRST)
    assert disk.start_updated().of_log == BEFORE_PROMOTIONS, "nobody was ever promoted"
    disk.start_slave()
    epochs = disk.start_updated()
    epochs.log_recovered(900, is_master=False)
    assert epochs.of_log is None
    epochs.log_follows(ONE, 1000, 999)
    assert epochs.of_log is None
    epochs.log_follows(ONE, 1000, 1000)
    assert disk.start().of_log == LogEpoch(ONE, 1000)


def test_an_updated_master_begins_its_epoch_where_its_log_ends() -> None:
    """It does not wait for copies of messages that it acknowledged before the update."""
    disk = Disk()
    disk.start().begin(ONE)
    epochs = disk.start()
    epochs.begin_as_master()
    epochs.log_recovered(900, is_master=True)
    assert epochs.start == 900


def test_a_master_that_does_not_report_the_start_of_its_epoch_makes_that_of_the_log_unknown() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_follows(ONE, None, 0)
    assert epochs.of_log is None
    assert disk.start().of_log is None
    known = Disk().start_slave()
    known.log_follows(ONE, 100, 200)
    known.log_follows(ONE, None, 300)
    assert known.of_log == LogEpoch(ONE, 100), "it is the same master"
    first = Disk().start_slave(FIRST)
    first.log_follows(FIRST, None, 0)
    assert first.of_log == BEFORE_PROMOTIONS, "RocketMQ's master has no epoch"


def test_a_log_that_began_behind_its_masters_is_incomplete_until_the_master_begins_there_too() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_begins(800, 300)
    epochs = disk.start()
    assert epochs.lacks_before == 800
    epochs.learn(TWO, "a promotion", is_master=False)
    epochs.master_begins(799)
    epochs = disk.start()
    assert epochs.lacks_before == 800
    epochs.master_begins(800)
    assert epochs.lacks_before == 0
    assert disk.start().lacks_before == 0


@pytest.mark.parametrize(("start", "master", "lacks"), [(0, 0, 0), (800, 800, 0), (800, None, 800), (0, None, 0)])
def test_a_log_is_complete_if_it_begins_where_its_masters_does(start: int, master: int | None, lacks: int) -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_begins(1600, 0)  # in an earlier attempt, before the folder lost its log
    epochs.log_begins(start, master)
    assert disk.start().lacks_before == lacks


def test_a_note_that_could_not_be_stored_is_stored_with_the_next_attempt() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    disk.env.free_bytes = 0
    with pytest.raises(OSError, match="space"):
        epochs.log_begins(800, 0)
    disk.env.free_bytes = None
    epochs.log_begins(800, 0)
    assert disk.start().lacks_before == 800


def test_an_asynchronous_flush_of_the_master_is_noted_until_the_epoch_of_the_log_changes() -> None:
    disk = Disk()
    epochs = disk.start_slave()
    epochs.log_follows(ONE, 1000, 500, async_flush=True)
    assert epochs.of_log == BEFORE_PROMOTIONS, "the records so far are of an earlier epoch"
    epochs.log_follows(ONE, 1000, 1000, async_flush=True)
    assert disk.start().of_log == LogEpoch(ONE, 1000, async_flush=True)
    epochs = disk.start()
    epochs.log_follows(ONE, 1000, 1500)
    epochs = disk.start()
    assert epochs.of_log == LogEpoch(ONE, 1000, async_flush=True), "it has acknowledged records before"
    epochs.log_follows(TWO, 1400, 1500)
    assert disk.start().of_log == LogEpoch(TWO, 1400)


async def fence(broker: Broker) -> dict[str, str]:
    """The response to the first step of a promotion."""
    async with open_channel(broker.address) as channel:
        answer = await channel.call(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {EPOCH_FIELD: "5-x"}))
    assert answer.code == 0
    return dict(answer.ext or {})


async def reported_epoch(broker: Broker) -> str | None:
    """The epoch of its log in its runtime information."""
    async with open_channel(broker.address) as channel:
        answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    return KVTable.from_bytes(answer.body or b"{}").table.get(LOG_EPOCH_KEY)


async def promoted_store(pair: Any) -> None:
    """The folder ``promoted`` of a broker that starts next as the master of epoch 1, with a log."""
    async with pair.master() as master, pair.slave(master, home="promoted") as slave:
        await pair.send(master, b"before", b"the promotion")
        await pair.until(lambda: slave.store.dispatched == master.log.end)


class NoRoomForEpochEnv(SystemEnv):
    """Cannot store the epoch of a log while ``full``."""

    full = True

    def replace(self, path: str, data: bytes) -> None:
        if self.full and b'"log": {"epoch": "1-' in data:
            raise OSError(errno.ENOSPC, "no space left")
        super().replace(path, data)


@pytest.mark.trio
async def test_a_slave_acknowledges_no_record_of_an_epoch_before_it_has_stored_that_its_log_has_it(pair: Any) -> None:
    await promoted_store(pair)
    env = NoRoomForEpochEnv()
    async with pair.master(home="promoted", role="sync_master", sync_timeout="100ms", full_copy="true") as master:
        async with pair.slave(master, home="next", env=env) as slave:
            await pair.until(lambda: slave.log.end == master.log.end)
            assert 0 not in await pair.send(master, b"a")
            assert await reported_epoch(slave) == "0-"
            env.full = False
            await pair.connected(master)
            with trio.fail_after(20):
                while await pair.send(master, b"b") != [0]:  # on a busy machine one can take longer than the timeout
                    pass
        async with pair.slave("127.0.0.1:1", home="next") as slave:
            answer = await fence(slave)
            assert answer["logEpoch"].startswith("1-")
            assert answer["logEnd"] == str(master.log.end)


@pytest.mark.trio
async def test_a_slave_of_a_master_without_the_start_of_its_epoch_does_not_report_the_epoch_of_its_log(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is of an older version."""
    await promoted_store(pair)
    async with pair.master(home="promoted", role="sync_master", full_copy="true") as master:
        with monkeypatch.context() as patch:
            patch.setattr(compare, "EPOCH_START_KEY", "absent")
            async with pair.slave(master, home="next") as slave:
                await pair.connected(master)
                assert await pair.send(master, b"a") == [0]
                assert await reported_epoch(slave) is None
        async with pair.slave(master, home="next") as slave:
            await pair.connected(master)
            assert (await fence(slave))["logEpoch"].startswith("1-")


@pytest.mark.trio
async def test_a_connected_slave_that_lacks_the_log_of_its_master_does_not_report_the_masters_epoch(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion would prefer it to a slave that has everything and was not connected since the last promotion."""
    await promoted_store(pair)
    monkeypatch.setattr(Tail, "settle", lambda _tail: False)  # as with a full disk
    async with pair.master(home="promoted", full_copy="true") as master, pair.slave(master, home="next") as slave:
        await pair.connected(master)
        answer = await fence(slave)
        assert (answer["logEpoch"], answer["logEnd"]) == ("0-", "0")

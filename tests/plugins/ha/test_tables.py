"""A slave copies its master's tables, and a returning master never sets slaves back."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.registry import Registry
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.tables import MasterOffsets, Tables
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, LevelPositions, Replication, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.testing.requests import send


class Offsets:
    """A table of offsets."""

    def __init__(self, **offsets: int) -> None:
        self.table = {("G", "T", int(queue_id[1:])): offset for queue_id, offset in offsets.items()}

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.table.get((group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table[group, topic, queue_id] = offset

    def forget(self, group: str, topic: str) -> None:
        self.table = {key: offset for key, offset in self.table.items() if key[:2] != (group, topic)}


def said(**offsets: int) -> bytes:
    return json.dumps({"offsetTable": {"T@G": {queue_id[1:]: offset for queue_id, offset in offsets.items()}}}).encode()


def test_higher_offsets_are_adopted_and_lower_ones_only_after_a_reset() -> None:
    offsets: Any = Offsets(q0=10, q1=10)
    life = MasterOffsets()
    life.merge(offsets, said(q0=5, q1=20, q2=3))
    assert offsets.table == {("G", "T", 0): 10, ("G", "T", 1): 20, ("G", "T", 2): 3}
    life.merge(offsets, said(q0=5, q1=15, q2=3))
    assert offsets.table[("G", "T", 1)] == 15
    assert offsets.table[("G", "T", 0)] == 10


def test_a_restart_of_the_master_resets_no_group() -> None:
    offsets: Any = Offsets()
    MasterOffsets().merge(offsets, said(q0=100))
    MasterOffsets().merge(offsets, said(q0=90))
    assert offsets.table == {("G", "T", 0): 100}


def test_offsets_that_the_master_deletes_are_deleted_once() -> None:
    """Consumers of the slave may commit again later."""
    offsets: Any = Offsets(q0=10, q1=10)
    offsets.commit("slave-only", "T", 0, 7)
    life = MasterOffsets()
    life.merge(offsets, said(q0=20))
    life.merge(offsets, said())
    assert offsets.table == {("slave-only", "T", 0): 7}, "the master never had it"
    offsets.commit("G", "T", 0, 5)
    life.merge(offsets, said())
    assert offsets.query("G", "T", 0) == 5
    life.merge(offsets, said(q0=3))
    assert offsets.query("G", "T", 0) == 5, "an offset from before the deletion does not make this a reset"


def test_a_master_that_has_lost_its_table_deletes_no_offsets() -> None:
    offsets: Any = Offsets(q0=10)
    MasterOffsets().merge(offsets, said())
    assert offsets.table == {("G", "T", 0): 10}


def test_the_progress_of_transactions_is_not_deleted() -> None:
    offsets: Any = Offsets()
    offsets.commit("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0, 7)
    life = MasterOffsets()
    life.merge(offsets, json.dumps({"offsetTable": {f"{TRANS_HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 7}}}).encode())
    life.merge(offsets, said())
    assert offsets.query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0) == 7


@pytest.mark.trio
async def test_the_offsets_of_a_group_deleted_at_the_master_stay_deleted_after_a_promotion(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave, open_channel(master.address) as channel:
        assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
        await pair.until(lambda: slave.store.dispatched == master.log.end)
        offsets = slave.registry.get(ConsumerOffsets)
        for group in ("gone", "kept"):
            master.registry.get(ConsumerOffsets).commit(group, "T", 0, 1)
        await pair.until(lambda: offsets.query("gone", "T", 0) == offsets.query("kept", "T", 0) == 1)
        deletion = Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "gone", "cleanOffset": "true"})
        assert (await channel.call(deletion)).code == ResponseCode.SUCCESS
        await pair.until(lambda: offsets.query("gone", "T", 0) is None)
    async with pair.master(home="slave") as promoted:
        offsets = promoted.registry.get(ConsumerOffsets)
        assert (offsets.query("gone", "T", 0), offsets.query("kept", "T", 0)) == (None, 1)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":7}'])
def test_an_invalid_table_is_a_fault(body: bytes) -> None:
    offsets: Any = Offsets()
    with pytest.raises(RemoteFault):
        MasterOffsets().merge(offsets, body)


def test_names_without_a_group_or_with_negative_queues_are_ignored() -> None:
    offsets: Any = Offsets()
    body = json.dumps({"offsetTable": {"T": {"0": 1}, "@G": {"0": 1}, "T@G": {"-1": 1}}}).encode()
    MasterOffsets().merge(offsets, body)
    assert offsets.table == {}


@pytest.mark.trio
async def test_a_topic_deleted_at_the_master_stays_deleted_after_a_promotion(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave, open_channel(master.address) as channel:
        for topic in ("gone", "kept"):
            assert (await channel.call(send(topic, b"x"))).code == ResponseCode.SUCCESS
        copied, offsets = slave.registry.get(TopicTable), slave.registry.get(ConsumerOffsets)
        for topic in ("gone", "kept"):
            master.registry.get(ConsumerOffsets).commit("G", topic, 0, 1)
        await pair.until(lambda: copied.get("gone") is not None and slave.store.dispatched == master.log.end)
        await pair.until(lambda: offsets.query("G", "gone", 0) == offsets.query("G", "kept", 0) == 1)
        answer = await channel.call(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}))
        assert answer.code == ResponseCode.SUCCESS
        await pair.until(lambda: copied.get("gone") is None)
        assert slave.queues.get("gone", 0) is None
        assert offsets.query("G", "gone", 0) is None, "it would be wrong for a new topic of this name"
    async with pair.master(home="slave") as promoted:
        assert promoted.registry.get(TopicTable).get("gone") is None
        assert promoted.queues.get("kept", 0).max_offset == 1
        assert promoted.registry.get(ConsumerOffsets).query("G", "gone", 0) is None
        assert promoted.registry.get(ConsumerOffsets).query("G", "kept", 0) == 1


@pytest.mark.trio
async def test_a_master_whose_table_is_older_deletes_no_message_of_a_slave(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master, sync_tables="1h") as slave:
        older = master.registry.get(TopicTable).table.encode()
        async with open_channel(master.address) as channel:
            assert (await channel.call(send("T", b"x"))).code == ResponseCode.SUCCESS
        copied = slave.registry.get(TopicTable)
        await pair.until(lambda: copied.get("T") is not None and slave.store.dispatched == master.log.end)
        assert copied.adopt(older, slave.log.end)
        assert copied.get("T") is None
        assert slave.queues.get("T", 0).max_offset == 1


@pytest.mark.trio
async def test_topics_deleted_at_the_master_are_deleted_except_system_topics(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        topics, copied = master.registry.get(TopicTable), slave.registry.get(TopicTable)
        own = set(copied.names())
        topics.ensure(TopicConfig("T", 3, 5))
        await pair.until(lambda: copied.get("T") is not None)
        topics.remove("T")
        await pair.until(lambda: copied.get("T") is None)
        assert own <= set(copied.names())
        body = topics.table.encode()
        assert not copied.adopt(body)
        assert not slave.registry.get(GroupTable).adopt(master.registry.get(GroupTable).table.encode())


@pytest.mark.trio
async def test_delay_levels_are_replicated_and_stored(pair: Any) -> None:
    async with pair.master() as master, open_channel(master.address) as channel:
        answer = await channel.call(Command(RequestCode.GET_ALL_DELAY_OFFSET))
        assert (answer.code, json.loads(answer.body)["offsetTable"]) == (ResponseCode.SUCCESS, {})
    async with pair.slave("127.0.0.1:1") as slave:
        slave.registry.get(LevelPositions).adopt(b'{"offsetTable":{3:17}}')
    assert b"3:17" in (pair.root / "slave" / "config" / "delayOffset.json").read_bytes().replace(b'"', b"")


def tables_of(slave: Any) -> Tables:
    return next(info.plugin._tables for info in slave.manager.plugins if info.name == "ha")


@pytest.mark.trio
async def test_an_unknown_topic_is_requested_at_its_first_record(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master, sync_tables="1h") as slave:
        topics, copied = master.registry.get(TopicTable), slave.registry.get(TopicTable)
        await pair.connected(master)
        tables = tables_of(slave)
        await pair.until(lambda: tables.fetched == 1)
        topics.ensure(TopicConfig("New", 3, 5))
        await pair.send(master, b"first", topic="New")
        await pair.until(lambda: copied.get("New") is not None)
        assert copied.get("New").write_queue_nums == 5
        await pair.until(lambda: tables.fetched == 2)
        await pair.send(master, *[b"more"] * 20, topic="New")
        await pair.until(lambda: slave.store.dispatched == master.store.dispatched)
        assert tables.fetched == 2


class ScriptedMaster(Channel):
    """A master's answers by request code, and the codes that it was asked for."""

    def __init__(self, **answers: bytes) -> None:
        super().__init__("m:2")
        self.codes: list[int] = []
        self.answers = {RequestCode[name]: body for name, body in answers.items()}
        self.on_call: Callable[[], None] = lambda: None

    @property
    def asked(self) -> int:
        """The number of requests for the topics."""
        return self.codes.count(RequestCode.GET_ALL_TOPIC_CONFIG)

    async def call(self, command: Command, timeout: float = 3.0) -> Command:
        self.codes.append(command.code)
        self.on_call()
        return Command(ResponseCode.SUCCESS, body=self.answers.get(RequestCode(command.code), b"{}"))


@pytest.mark.trio
async def test_topics_unknown_to_the_master_are_requested_once(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    known: Any = SimpleNamespace(get=lambda topic: None, adopt=lambda body, log_end: False)
    broker: Any = SimpleNamespace(registry=Registry(), log=SimpleNamespace(end=0))
    broker.registry.provide(TopicTable, known)
    tables, channel = Tables(broker, MasterAddress("", "m:1", "m:2"), 3600.0, lambda address: True), ScriptedMaster()
    stay: Any = tables._stay
    nursery.start_soon(stay, channel, "m:2")
    await trio.sleep(10)
    assert channel.asked == 1
    tables.dispatched(["gone"] * 100)
    await trio.sleep(0.1)
    assert channel.asked == 2, "at once"
    for number in range(100):
        tables.dispatched(["gone", f"gone-{number}"])
        await trio.sleep(0.01)
    await trio.sleep(5)
    assert channel.asked <= 4, "not for each of them"
    asked = channel.asked
    tables.dispatched(["gone", "gone-1", "gone-99"])
    await trio.sleep(100)
    assert channel.asked == asked, "in vain, and not again"
    nursery.cancel_scope.cancel()


# -------------------------------------------------------------------------------------------- the master's progress


class BehindSlave:
    """The tables of a slave whose log ends at ``dispatched``, and its master's answers."""

    def __init__(self) -> None:
        self.offsets: Any = Offsets()
        self.levels: list[bytes] = []
        self.dispatched = 0
        self.follows = True
        self.log = SimpleNamespace(end=0, durable=10_000)
        broker: Any = SimpleNamespace(registry=Registry(), log=self.log, store=self)
        broker.registry.provide(ConsumerOffsets, self.offsets)
        broker.registry.provide(LevelPositions, SimpleNamespace(adopt=self.levels.append))
        self.channel = ScriptedMaster()
        self.master_reports(end=0)
        self.tables = Tables(
            broker,
            MasterAddress("", "m:1", "m:2"),
            10.0,
            lambda address: self.follows and address == "m:2",
        )

    def master_reports(self, end: int, halves: int = 0, position: int = 0) -> None:
        table = {f"{TRANS_HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": halves}, "T@G": {"0": halves}}
        self.channel.answers = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: json.dumps({"offsetTable": table}).encode(),
            RequestCode.GET_ALL_DELAY_OFFSET: b"position %d" % position,
            RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps({"table": {"commitLogMaxOffset": str(end)}}).encode(),
        }

    @property
    def halves(self) -> int | None:
        """The adopted progress of transactions."""
        offset: int | None = self.offsets.query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0)
        return offset

    async def stay(self) -> None:
        """Fetch until the connection closes."""
        stay: Any = self.tables._stay
        await stay(self.channel, "m:2")


@pytest.fixture
def behind() -> BehindSlave:
    return BehindSlave()


@pytest.mark.trio
async def test_the_masters_progress_is_adopted_when_this_log_has_what_the_masters_had(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    behind.master_reports(end=1000, halves=7, position=3)
    behind.dispatched = 999
    nursery.start_soon(behind.stay)
    await trio.sleep(5)
    assert (behind.halves, behind.levels) == (None, [])
    assert behind.offsets.query("G", "T", 0) == 7, "offsets of consumers are adopted at once"
    behind.dispatched = 1000
    await trio.sleep(1)
    assert (behind.halves, behind.levels) == (7, [b"position 3"])
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_progress_is_not_adopted_before_the_log_is_flushed(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """With asynchronous flush, a power cut could lose what the adopted progress refers to."""
    behind.master_reports(end=1000, position=3)
    behind.dispatched, behind.log.durable = 1000, 999
    nursery.start_soon(behind.stay)
    await trio.sleep(5)
    assert behind.levels == []
    behind.log.durable = 1000
    await trio.sleep(1)
    assert behind.levels == [b"position 3"]
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_end_of_the_masters_log_is_requested_after_its_progress(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The records of the progress lie before the end that is requested later."""
    nursery.start_soon(behind.stay)
    await trio.sleep(1)
    assert behind.channel.codes == [
        RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_BROKER_RUNTIME_INFO,
    ]  # fmt: skip
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_later_progress_does_not_replace_what_a_slave_that_stays_behind_will_reach(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    behind.master_reports(end=1000, position=1)
    nursery.start_soon(behind.stay)
    await trio.sleep(5)
    behind.master_reports(end=3000, position=2)
    behind.dispatched = 900
    await trio.sleep(28)
    behind.dispatched = 2000
    await trio.sleep(3)
    assert behind.levels == [b"position 1"]
    await trio.sleep(10)
    behind.dispatched = 3000
    await trio.sleep(1)
    assert behind.levels == [b"position 1", b"position 2"]
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_progress_is_not_adopted_before_the_log_is_known_to_be_the_masters(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A former master may have a longer log, whose tail will be cut off."""
    behind.master_reports(end=1000, halves=7, position=3)
    nursery.start_soon(behind.stay)
    await trio.sleep(5)
    behind.dispatched, behind.follows = 2000, False
    await trio.sleep(25)
    assert (behind.halves, behind.levels) == (None, [])
    behind.follows = True
    await trio.sleep(1)
    assert (behind.halves, behind.levels) == (7, [b"position 3"])
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_nothing_is_adopted_from_a_master_that_this_log_does_not_follow(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """It may have lost its disk, or have other messages at the offsets that its consumers have reached."""
    behind.master_reports(end=1000, halves=7, position=3)
    behind.follows = False
    nursery.start_soon(behind.stay)
    await trio.sleep(25)
    assert behind.channel.codes == []
    behind.channel.on_call = lambda: setattr(behind, "follows", False)
    behind.follows = True
    await trio.sleep(5)
    assert behind.channel.codes != []
    assert behind.offsets.table == {}, "the connection for the log has ended meanwhile"
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_progress_of_an_earlier_connection_is_dropped(
    behind: BehindSlave, autojump_clock: trio.testing.MockClock
) -> None:
    """After a crash the master may have other records at the same offsets."""
    behind.master_reports(end=1000, position=1)
    with trio.move_on_after(5):
        await behind.stay()
    behind.master_reports(end=2000, position=2)
    behind.dispatched = 1000
    with trio.move_on_after(5):
        await behind.stay()
    assert behind.levels == []


@pytest.mark.trio
async def test_lower_progress_of_transactions_is_adopted_too(
    behind: BehindSlave, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The slave makes none itself: what is higher is of a log that was cut, and its op messages are missing."""
    behind.offsets.commit("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0, 9)
    behind.offsets.commit("G", "T", 0, 9)
    behind.master_reports(end=0, halves=7)
    nursery.start_soon(behind.stay)
    await trio.sleep(1)
    assert behind.halves == 7
    assert behind.offsets.query("G", "T", 0) == 9
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("info", [b"{}", b'{"table":{"commitLogMaxOffset":"many"}}'])
async def test_a_master_that_does_not_report_the_end_of_its_log_is_a_fault(behind: BehindSlave, info: bytes) -> None:
    behind.channel.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = info
    with pytest.raises(RemoteFault, match="end of its log"):
        await behind.stay()
    assert behind.levels == []


@pytest.mark.trio
async def test_a_slave_adopts_its_masters_progress_of_transactions(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        await pair.send(master, b"x", b"y", topic=TRANS_HALF_TOPIC)
        committed, adopted = master.registry.get(ConsumerOffsets), slave.registry.get(ConsumerOffsets)
        committed.commit("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0, 2)
        await pair.until(lambda: adopted.query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0) == 2)


@pytest.mark.trio
async def test_a_slave_follows_the_master_with_which_it_was_compared_while_it_is_connected(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as broker:
        slave = next(info.plugin.slave for info in broker.manager.plugins if info.name == "ha")
        await pair.until(lambda: slave.follows(master.address))
        assert not slave.follows("127.0.0.1:1")
        master.stop()
        await pair.until(lambda: not slave.follows(master.address))


@pytest.mark.trio
async def test_a_slave_compares_its_log_when_a_nameserver_reports_the_address_that_was_not_configured(
    pair: Any,
) -> None:
    """An empty slave follows a master of which it knows only the port for slaves, RocketMQ's haMasterAddress."""
    async with pair.master() as master, pair.slave(master.registry.get(Replication).ha_address) as slave:
        await pair.connected(master)
        await pair.send(master, b"x")
        await pair.until(lambda: slave.store.dispatched == master.log.end)
        master.registry.get(TopicTable).ensure(TopicConfig("New", 3, 5))
        slave.registry.get(Replication).master_is(master.address, master.registry.get(Replication).ha_address)
        await pair.until(lambda: slave.registry.get(TopicTable).get("New") is not None)
        await pair.send(master, b"y")
        await pair.until(lambda: slave.store.dispatched == master.log.end)

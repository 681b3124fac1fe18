"""A slave's tables follow its master's, and a master that comes back sets nobody back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.registry import Registry
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.ha.tables import MasterOffsets, Tables
from gantrymq.plugins.interfaces import GroupTable, LevelPositions, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.testing.requests import send


class Offsets:
    """A table of offsets."""

    def __init__(self, **offsets: int) -> None:
        self.table = {("G", "T", int(queue_id[1:])): offset for queue_id, offset in offsets.items()}

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.table.get((group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table[group, topic, queue_id] = offset


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
        copied = slave.registry.get(TopicTable)
        await pair.until(lambda: copied.get("gone") is not None and slave.store.dispatched == master.log.end)
        answer = await channel.call(Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}))
        assert answer.code == ResponseCode.SUCCESS
        await pair.until(lambda: copied.get("gone") is None)
        assert slave.queues.get("gone", 0) is None
    async with pair.master(home="slave") as promoted:
        assert promoted.registry.get(TopicTable).get("gone") is None
        assert promoted.queues.get("kept", 0).max_offset == 1


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


class Told(Channel):
    """A master's answers, and how often the topics were asked for."""

    def __init__(self) -> None:
        super().__init__("m:2")
        self.asked = 0

    async def call(self, command: Command, timeout: float = 3.0) -> Command:
        self.asked += command.code == RequestCode.GET_ALL_TOPIC_CONFIG
        return Command(ResponseCode.SUCCESS, body=b"{}")


@pytest.mark.trio
async def test_topics_unknown_to_the_master_are_requested_once(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    known: Any = SimpleNamespace(get=lambda topic: None, adopt=lambda body, log_end: False)
    broker: Any = SimpleNamespace(registry=Registry(), log=SimpleNamespace(end=0))
    broker.registry.provide(TopicTable, known)
    tables, channel = Tables(broker, MasterAddress("", "m:1", "m:2"), 3600.0), Told()
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

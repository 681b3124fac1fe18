"""A slave whose log diverges from its master's is never appended to; its divergent part goes to lost+found."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import structlog.testing
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import OutOfLog, StartError
from gantrymq.kernel.processors import Processor, Request
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import BLANK_BYTES, blank
from gantrymq.plugins.admin.brokers import BrokerAdmin
from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.plugins.ha import HaPlugin
from gantrymq.plugins.ha import slave as slave_module
from gantrymq.plugins.ha.compare import CUT_FILE
from gantrymq.plugins.ha.epochs import FILE
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication, TopicTable
from gantrymq.plugins.query.requests import QueryRequests
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, LOG_KEPT_FIELD, LOG_KEPT_KEY
from gantrymq.remoting.errors import ConnectError
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.query import ViewMessageHeader
from gantrymq.remoting.headers.replication import CompareLogHeader, CompareLogResponse
from gantrymq.testing.harness import run_broker
from gantrymq.testing.requests import send
from support.badblocks import BadBlocksEnv

pytestmark = pytest.mark.trio


@pytest.fixture
def as_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters know no COMPARE_LOG, and return what the log has at an offset, a blank too."""
    register = HaPlugin.register_processors

    @hookimpl
    def register_processors(self: HaPlugin, broker: Broker) -> dict[int, Processor]:
        return {code: how for code, how in register(self, broker).items() if code != RequestCode.COMPARE_LOG}

    async def by_offset(self: QueryRequests, request: Request) -> Command:
        offset, commit_log = request.header(ViewMessageHeader).offset, self._broker.log
        try:
            data = commit_log.view(offset, int.from_bytes(commit_log.view(offset, 4), "big"))
        except OutOfLog:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return request.command.answer(ResponseCode.SUCCESS, None, {}, data)

    monkeypatch.setattr(HaPlugin, "register_processors", register_processors)
    monkeypatch.setattr(QueryRequests, "by_offset", by_offset)


async def diverge(pair: Any, *tail: bytes) -> tuple[bytes, int]:
    """Two stores that are the same up to an offset; the slave's goes on with ``tail``. Its log, and the offset."""
    async with pair.master() as master:
        await pair.send(master, *[b"%d" % number * 20 for number in range(200)])
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            common = slave.log.end
    (pair.root / "slave" / FILE).unlink()  # else it is promoted here, and the other one is fenced
    async with pair.master(home="slave") as promoted:
        if tail:
            await pair.send(promoted, *tail)
        return pair.bytes_of(promoted), common


@pytest.mark.parametrize("masters", [[], [b"other"], [b"other"] * 50], ids=["shorter", "other", "longer"])
async def test_a_divergent_tail_is_truncated_and_saved(pair: Any, masters: list[bytes]) -> None:
    log, common = await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        if masters:
            await pair.send(master, *masters)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            assert slave.log.end == common
            await pair.send(master, b"more")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            assert slave.queues.get("T", 0).max_offset == master.queues.get("T", 0).max_offset
    (kept,) = (pair.root / "slave" / "lost+found").iterdir()
    assert kept.read_bytes() == log[common:].rstrip(b"\0")


async def end_slave_with_blank(pair: Any) -> int:
    """Two stores that are the same up to a record, behind which the slave's log ends with a blank: the record of the
    next file was lost in a power cut. Returns the blank's offset."""
    async with pair.master() as master:
        await pair.send(master, *[b"m" * 300_000] * 20)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
    async with pair.slave("127.0.0.1:1", master_broker="127.0.0.1:1") as slave:
        end = slave.log.end
        left = -end % slave.log.segments.file_bytes
        assert slave.append_encoded(end, blank(left) + bytes(left - BLANK_BYTES)) == left
        slave.commit_encoded()
    return end


@pytest.mark.parametrize("messages", [0, 1, 40], ids=["nothing", "in its place", "beyond it"])
async def test_a_blank_at_the_end_that_the_master_lacks_is_cut(pair: Any, messages: int) -> None:
    """Else the slave would lack what the master has stored in its place."""
    end = await end_slave_with_blank(pair)
    async with pair.master() as master:
        await pair.send(master, *[b"m" * 300_000] * messages)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert not slave.restarting
            if not messages:
                assert slave.log.end == end
            await pair.send(master, b"more")
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            assert slave.queues.get("T", 0).max_offset == 20 + messages + 1


async def test_a_blank_at_the_end_that_the_master_has_stays(pair: Any) -> None:
    end = await end_slave_with_blank(pair)
    async with pair.master() as master:
        await pair.send(master, b"x" * (-end % master.log.segments.file_bytes))
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert not slave.restarting
            assert pair.bytes_of(slave) == pair.bytes_of(master)


@pytest.mark.usefixtures("as_rocketmq")
@pytest.mark.parametrize("has_blank", [True, False])
async def test_a_blank_at_the_end_is_compared_with_a_rocketmq_master(pair: Any, has_blank: bool) -> None:
    end = await end_slave_with_blank(pair)
    async with pair.master() as master:
        left = -end % master.log.segments.file_bytes
        await pair.send(master, b"x" * (left if has_blank else left // 2), b"more")
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting or slave.store.dispatched == master.log.end)
            assert slave.restarting is not has_blank


async def test_a_damaged_range_at_the_end_of_a_file_stays(pair: Any) -> None:
    """It may be a record that only this slave has."""
    end = await end_slave_with_blank(pair)
    (pair.root / "slave" / "gantrymq.quarantine").write_text(json.dumps([[end, 8 << 20]]))
    async with pair.master() as master:
        await pair.send(master, *[b"m" * 300_000] * 40)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert not slave.restarting


async def lose_last_messages(pair: Any, flush: str = "", before_cut: str = "") -> None:
    """A slave with 20 messages, and its master's store with 10 of them, as after a power cut of the master.

    ``flush``: the flush mode; empty if the master has another flush plugin. ``before_cut``: the flush mode in which the
    master has accepted the others, if it is another one.
    """
    master_home, before = pair.root / "master", pair.root / "before"
    settings = {"plugin.flush.mode": flush} if flush else {}
    async with pair.master(**settings) as master, pair.slave(master) as slave:
        await pair.send(master, *[b"early"] * 10)
        await pair.until(lambda: slave.store.dispatched == master.log.end)
    shutil.copytree(master_home, before)
    if before_cut:
        settings = {"plugin.flush.mode": before_cut}
    async with pair.master(**settings) as master, pair.slave(master) as slave:
        await pair.send(master, *[b"late"] * 10)
        await pair.until(lambda: slave.store.dispatched == master.log.end)
    shutil.rmtree(master_home)
    before.rename(master_home)


async def kept_from(slave: Broker) -> tuple[str | None, str | None]:
    """The offset behind which the slave has what its master has lost: in its runtime information, and in its answer to
    an epoch."""
    async with open_channel(slave.address) as channel:
        info = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        answer = await channel.call(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {EPOCH_FIELD: "0-"}))
    return KVTable.from_bytes(info.body or b"{}").table.get(LOG_KEPT_KEY), (answer.ext or {}).get(LOG_KEPT_FIELD)


@pytest.mark.parametrize("since", [0, 1, 30], ids=["nothing", "shorter", "longer"])
async def test_a_slave_keeps_what_a_master_with_asynchronous_flush_has_lost(
    pair: Any, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave keeps it for any number of messages that the master has accepted since."""
    monkeypatch.setattr(slave_module, "SETTLE_S", 0.2)
    await lose_last_messages(pair, "async")
    async with pair.master(**{"plugin.flush.mode": "async"}) as master:
        common = str(master.log.end)
        if since:
            await pair.send(master, *[b"new"] * since)
        master.registry.get(ConsumerOffsets).commit("G", "T", 0, 10 + since)
        master.registry.get(TopicTable).ensure(TopicConfig("New", 1, 1))
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                slave.registry.get(ConsumerOffsets).commit("G", "T", 0, 5)
                await pair.until(lambda: any(entry["event"] == "master_not_connected" for entry in logs))
                await trio.sleep(0.5)  # several fetches of the tables
                assert not slave.restarting
                assert slave.queues.get("T", 0).max_offset == 20
                assert slave.registry.get(ConsumerOffsets).query("G", "T", 0) == 5, "it counts other messages"
                assert slave.registry.get(TopicTable).get("New") is None
                assert await kept_from(slave) == (common, common)
        reason = next(entry["reason"] for entry in logs if entry["event"] == "master_not_connected")
        assert "has lost" in reason
        assert "promote this slave" in reason
    async with pair.slave("127.0.0.1:1", master_broker="127.0.0.1:1") as slave:
        assert await kept_from(slave) == (common, common), "the note is durable"
    async with pair.master(home="slave") as promoted:
        assert promoted.queues.get("T", 0).max_offset == 20
        async with pair.slave(promoted, home="master") as former:
            await pair.until(lambda: former.restarting or former.log.end == promoted.log.end)
        async with pair.slave(promoted, home="master") as former:
            await pair.until(lambda: former.log.end == promoted.log.end)


@pytest.mark.usefixtures("as_rocketmq")
@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_slave_cuts_what_a_rocketmq_master_has_lost_only_if_its_flush_was_synchronous(
    pair: Any, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's default is asynchronous."""
    monkeypatch.setattr(slave_module, "SETTLE_S", 0.2)
    await lose_last_messages(pair, flush)
    async with pair.master(**{"plugin.flush.mode": flush}) as master:
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                await pair.until(
                    lambda: slave.restarting or any(entry["event"] == "master_not_connected" for entry in logs)
                )
                assert slave.restarting is (flush == "sync")
                assert slave.queues.get("T", 0).max_offset == 20
        reasons = [str(entry["reason"]) for entry in logs if entry["event"] == "master_not_connected"]
        assert flush == "sync" or "has lost" in reasons[0]


@pytest.mark.parametrize(("flush", "before_cut"), [("sync", "async"), ("async", "sync")])
async def test_a_slave_keeps_what_its_master_has_lost_if_the_flush_was_asynchronous_at_any_time(
    pair: Any, flush: str, before_cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the power cut the master is restarted with synchronous flush."""
    monkeypatch.setattr(slave_module, "SETTLE_S", 0.2)
    await lose_last_messages(pair, flush, before_cut)
    async with pair.master(**{"plugin.flush.mode": "sync"}) as master:
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                await pair.until(lambda: any(entry["event"] == "master_not_connected" for entry in logs), timeout=60)
                assert not slave.restarting
                assert slave.queues.get("T", 0).max_offset == 20
        reason = next(entry["reason"] for entry in logs if entry["event"] == "master_not_connected")
        assert "whose flush is or was asynchronous, has lost" in reason


class LateFlush:
    """Flushes after the response."""

    name = "late_flush"
    slot = "flush"

    @hookimpl
    def make_flush_strategy(self, log: CommitLog) -> IntervalFlush:
        return IntervalFlush(log, 0.1, 1, 1.0)


async def test_a_slave_keeps_what_a_master_that_does_not_report_its_flush_has_lost(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master may have acknowledged it before the flush."""
    monkeypatch.setattr(slave_module, "SETTLE_S", 0.2)
    pair.flush = [LateFlush]
    await lose_last_messages(pair)
    async with pair.master() as master:
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                await pair.until(
                    lambda: slave.restarting or any(entry["event"] == "master_not_connected" for entry in logs)
                )
                assert not slave.restarting
                assert slave.queues.get("T", 0).max_offset == 20


async def test_a_slave_loses_what_a_master_with_synchronous_flush_has_not_acknowledged(pair: Any) -> None:
    """The master had not flushed it."""
    await lose_last_messages(pair, "sync")
    async with pair.master(**{"plugin.flush.mode": "sync"}) as master:
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            assert slave.queues.get("T", 0).max_offset == 10


async def test_a_planned_truncation_does_not_survive_a_time_as_the_master(pair: Any) -> None:
    """The offset lies before messages that the broker acknowledges as the master."""
    await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        await pair.send(master, *[b"other"] * 5)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
    assert (pair.root / "slave" / CUT_FILE).exists()
    with structlog.testing.capture_logs() as logs:
        async with pair.master(home="slave") as promoted:
            assert await pair.send(promoted, *[b"acknowledged"] * 100) == [0] * 100
            end = promoted.log.end
    assert [entry["event"] for entry in logs if "truncation" in entry["event"]] == ["planned_truncation_discarded"]
    async with pair.slave("127.0.0.1:1", master_broker="127.0.0.1:1") as slave:
        assert slave.log.end == end


async def test_messages_behind_a_truncated_tail_are_readable_where_it_had_a_quarantined_range(pair: Any) -> None:
    log, common = await diverge(pair, *[b"mine"] * 20)
    quarantine = pair.root / "slave" / "gantrymq.quarantine"
    size = (len(log) - common) // 20
    quarantine.write_text(json.dumps([[common + 3 * size, common + 5 * size]]))
    async with pair.master() as master:
        await pair.send(master, *[b"other"] * 50)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert slave.log.view(common, slave.log.end - common) == pair.bytes_of(master)[common:]
    assert json.loads(quarantine.read_bytes()) == []


async def test_a_group_beyond_the_truncated_tail_resumes_at_the_new_end(pair: Any) -> None:
    """Else it would skip, once this broker is the master again, as many messages as were cut off."""
    await diverge(pair)
    async with pair.master(home="slave") as promoted:
        common = promoted.queues.get("T", 0).max_offset
        await pair.send(promoted, *[b"mine"] * 20)
        promoted.registry.get(ConsumerOffsets).commit("shop", "T", 0, common + 20)
    async with pair.master() as master:
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.restarting)
        async with pair.slave(master) as slave:
            assert slave.registry.get(ConsumerOffsets).query("shop", "T", 0) == common


async def test_a_slave_serves_no_reader_before_its_log_was_compared(pair: Any) -> None:
    """The master accepts messages meanwhile."""
    _, common = await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        await pair.send(master, *[b"other"] * 50)
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                assert slave.restarting
                with pytest.raises(ConnectError):
                    async with open_channel(slave.address):
                        pass
            async with pair.slave(master) as slave:
                assert slave.log.end == common
        events = [entry["event"] for entry in logs]
        assert "serving_without_comparison" not in events


async def test_a_slave_without_a_master_serves_readers(pair: Any) -> None:
    log, _ = await diverge(pair, *[b"mine"] * 20)
    async with pair.master() as master:
        gone = master.address
    with structlog.testing.capture_logs() as logs:
        async with pair.slave("127.0.0.1:1", master_broker=gone) as slave, open_channel(slave.address) as channel:
            assert not slave.restarting
            assert slave.log.end == len(log)
            assert (await channel.call(Command(RequestCode.GET_BROKER_CONFIG))).code == 0
    (line,) = [entry for entry in logs if entry["event"] == "serving_without_comparison"]
    assert gone in line["reason"]


async def test_a_slave_whose_log_ends_with_a_half_message_resumes_at_once(pair: Any) -> None:
    """The master has it and does not show it."""
    async with pair.master() as master:
        await pair.send(master, b"before")
        async with open_channel(master.address) as channel:
            half = send("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
            half.ext = {**(half.ext or {}), "f": "4"}
            assert (await channel.call(half)).code == 0
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            end = slave.log.end
        await pair.send(master, b"after")
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end > end, timeout=5)


@pytest.mark.slow
async def test_a_block_that_the_master_cannot_read_truncates_no_slave(pair: Any) -> None:
    """The slave may have the only copy."""
    env = BadBlocksEnv()
    async with pair.master(env=env) as master:
        await pair.send(master, *[b"%d" % number * 2000 for number in range(10)])
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
        end = master.log.end
        await pair.send(master, b"after")
        env.spoil(f"commitlog/{0:020d}", end - 500, end)
        with structlog.testing.capture_logs() as logs:
            async with pair.slave(master) as slave:
                assert not slave.restarting
                assert slave.log.end == end
                assert any("cannot read its log" in str(entry.get("reason")) for entry in logs)
                env.bad.clear()
                await pair.until(lambda: slave.store.dispatched == master.log.end, timeout=20)
                assert not slave.restarting


async def test_an_unauthorized_slave_gets_nothing_of_the_log(pair: Any) -> None:
    async with pair.master(peers="10.1.2.3") as master, open_channel(master.address) as channel:
        header = CompareLogHeader(offset=0, size=100, digest="")
        answer = await channel.call(Command(RequestCode.COMPARE_LOG, header.to_ext()))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, -1), (0, 1 << 30), (-1, 10), (1 << 62, 10)])
async def test_invalid_comparison_requests_are_refused(pair: Any, offset: int, size: int) -> None:
    async with pair.master() as master, open_channel(master.address) as channel:
        await pair.send(master, b"mine")
        header = CompareLogHeader(offset=offset, size=size, digest="x")
        answer = await channel.call(Command(RequestCode.COMPARE_LOG, header.to_ext()))
        if answer.code == 0:
            assert read_header(CompareLogResponse, answer.ext).match == "absent"
        else:
            assert "no record has" in str(answer.remark)


async def test_a_store_of_another_cluster_is_refused_and_not_changed(pair: Any) -> None:
    async with pair.master(home="slave") as other:
        await pair.send(other, b"not yours")
        log = pair.bytes_of(other)
    async with pair.master() as master:
        await pair.send(master, b"mine", b"too")
        text = f"no record of the log in .*slave is one of the master at {master.address}"
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text), flatten_subgroups=True):
            async with pair.slave(master):
                await trio.sleep(10)
    async with pair.master(home="slave") as other:
        assert pair.bytes_of(other) == log


@pytest.mark.parametrize("setting", ["broker.name", "broker.cluster"])
async def test_a_master_of_another_name_or_cluster_is_refused_by_name(pair: Any, setting: str) -> None:
    async with pair.master() as master:
        await pair.send(master, b"mine")
        slave = pair.make_slave(master, **{setting: "other"})
        text = rf"{master.address} is the broker 'broker-a' of the cluster 'DefaultCluster', and this .*'other'"
        with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=text), flatten_subgroups=True):
            async with run_broker(slave):
                await trio.sleep(10)
        assert slave.log.end == 0


async def test_a_slave_of_a_slave_waits_for_its_master(pair: Any) -> None:
    """Roles change: what is a slave now may be the master in a moment."""
    async with pair.master() as master, pair.slave(master) as slave:
        await pair.send(master, b"mine")
        await pair.until(lambda: slave.log.end == master.log.end)
        misled = pair.make_slave(master.registry.get(Replication).ha_address, "misled", master_broker=slave.address)
        with structlog.testing.capture_logs() as logs:
            async with run_broker(misled):
                await pair.until(lambda: any("is a slave as well" in str(entry.get("reason")) for entry in logs))
                assert misled.log.end == 0


async def test_a_slave_waits_for_a_master_that_is_too_busy_to_report_its_settings(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take the missing settings for those of a master without synchronous flush."""

    async def busy(_self: BrokerAdmin, request: Request) -> Command:
        return request.command.answer(ResponseCode.SYSTEM_BUSY, "later")

    with monkeypatch.context() as patch:
        patch.setattr(BrokerAdmin, "config", busy)
        async with pair.master() as master:
            await pair.send(master, b"mine")
            with structlog.testing.capture_logs() as logs:
                async with pair.slave(master) as slave:
                    await pair.until(lambda: any("too busy" in str(entry.get("reason")) for entry in logs))
                    assert slave.log.end == 0


async def test_a_slave_that_cannot_compare_logs_appends_nothing(pair: Any) -> None:
    _, common = await diverge(pair)
    async with pair.master() as master:
        await pair.send(master, b"more")
        async with pair.slave(master.registry.get(Replication).ha_address) as slave:
            await trio.sleep(0.5)
            assert slave.log.end == common

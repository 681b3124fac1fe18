"""The strategy ``state_table``: discarded messages, a full disk, retired files, and a running broker."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.store.store import StoreConfig
from gantrymq.plugins.transaction.state_table import strategy as state_strategy
from gantrymq.plugins.transaction.state_table.marks import read_marks
from gantrymq.plugins.transaction.state_table.strategy import StateTableStrategy
from gantrymq.plugins.transaction.state_table.table import UNIT
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.records import decode_records
from gantrymq.testing.fault_env import FaultEnv
from gantrymq.testing.harness import broker_and_channel
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.requests import pull, send
from gantrymq.testing.transacted import COMMIT, ROLLBACK, TransactedStore
from support.unreadable import fail_reads

ROOMY = StoreConfig(commit_log_file_bytes=4 * 1024 * 1024, queue_file_units=30_000)


def fresh(env: MemoryEnv | FaultEnv | None = None, **settings: Any) -> TransactedStore:
    return TransactedStore(env or MemoryEnv(), "state_table", config=ROOMY, **settings)


@pytest.mark.parametrize("restart", [False, True])
def test_a_transaction_with_too_many_check_backs_is_discarded_and_rolled_back(restart: bool) -> None:
    world = fresh(check_max=3)
    producer = world.producers.join()
    half = world.half(b"x")
    world.commit()
    for _ in range(3):
        world.pass_time(70)
        world.scan()
        assert len(producer.take_check_backs()) == 1
    world.pass_time(70)
    world.scan()
    assert producer.take_check_backs() == []
    if restart:
        world.close()
        world = fresh(world.env, check_max=3)  # type: ignore[arg-type]
    assert world.plugin.strategy.open_count == 0
    [aside] = world.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert (aside.body, aside.sys_flag & 12) == (b"x", 0)
    assert (find_property(aside.properties, b"REAL_TOPIC"), find_property(aside.properties, b"REAL_QID")) == (
        b"T",
        b"0",
    )
    assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert world.bodies() == []


def test_a_transaction_that_cannot_be_discarded_stays_open() -> None:
    world = fresh(check_max=1)
    world.producers.join()
    half = world.half(b"x")
    world.commit()
    world.refuse = lambda batch: batch.refuse(0, 14, "no") if batch.topics[0] == TRANS_CHECK_MAX_TIME_TOPIC else None
    for _ in range(3):
        world.pass_time(70)
        world.scan()
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]


def test_a_transaction_whose_discarding_failed_is_not_ended() -> None:
    world = fresh()
    for more in (b"\x02K\x01" + b"k" * 32_650, b""):
        batch = world.halves([b"ok", b"x" * (10 if more else ROOMY.max_message_bytes), b"ok"], more=more)
        assert batch.statuses == ([13] * 3 if more else [0, 13, 0])
    assert world.plugin.strategy.open_count == 2
    assert world.half(b"next").queue_offset == 2


def test_a_too_old_transaction_is_discarded_with_or_without_producers() -> None:
    world = fresh(max_age=3600.0)
    world.half(b"old")
    world.commit()
    world.pass_time(3000)
    young = world.half(b"young")
    world.commit()
    world.pass_time(700)
    world.scan()
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"old"]
    assert world.plugin.strategy.floor() == young.offset


def test_producers_are_not_checked_back_before_their_requested_time() -> None:
    world = fresh()
    producer = world.producers.join()
    world.half(b"patient", more=b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01200")
    world.half(b"other")
    world.commit()
    asked = []
    for _ in range(4):
        world.pass_time(70)
        world.scan()
        asked.append([check_back.record.body for check_back in producer.take_check_backs()])
    assert asked == [[b"other"], [b"other"], [b"patient", b"other"], [b"patient", b"other"]]


def test_a_prepared_record_that_became_unreadable_is_ended_and_logged() -> None:
    world = fresh()
    world.producers.join()
    half = world.half(b"x")
    world.half(b"y")
    world.commit()
    world.log.quarantine_range(half.offset, half.offset + 10)
    world.pass_time(70)
    with structlog.testing.capture_logs() as lines:
        world.scan()
    assert "prepared_record_lost" in [line["event"] for line in lines]
    assert world.plugin.strategy.open_count == 1


def test_a_prepared_record_that_the_disk_could_not_read_for_a_while_is_still_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = fresh()
    producer = world.producers.join()
    half = world.half(b"x")
    world.half(b"y")
    world.commit()
    with monkeypatch.context() as patch:
        fail_reads(patch, half.offset)
        world.pass_time(70)
        world.scan()
        assert [check_back.half.body for check_back in producer.take_check_backs()] == [b"y"]
    assert world.plugin.strategy.open_count == 2
    world.pass_time(70)
    world.scan()
    assert [check_back.half.body for check_back in producer.take_check_backs()] == [b"x", b"y"]
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]


@pytest.mark.parametrize("ended", ["at once", "after a check-back", "after two starts", "rolled back"])
def test_a_prepared_record_that_a_rebuild_could_not_read_is_still_open(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = fresh()
    first, half, last = (world.half(body) for body in (b"first", b"x", b"last"))
    world.commit()
    for starts in range(2 if ended == "after two starts" else 1):
        with monkeypatch.context() as patch:
            fail_reads(patch, half.offset)
            world = fresh(world.env.kill())  # type: ignore[attr-defined]
            assert world.plugin.strategy.open_count == 3 - starts
            assert world.plugin.strategy.floor() == (half.offset if starts else first.offset)
            world.pass_time(70)
            world.scan()
            world.end_now(first, COMMIT)
            world.persist()
            world.persist()
            assert world.plugin.strategy.floor() == half.offset
    if ended == "after a check-back":
        producer = world.producers.join()
        for _ in range(2):
            world.pass_time(70)
            world.scan()
            assert b"x" in [check_back.half.body for check_back in producer.take_check_backs()]
    state = ROLLBACK if ended == "rolled back" else COMMIT
    assert world.end_now(half, state) == ResponseCode.SUCCESS
    assert world.end_now(half, state) == ResponseCode.SUCCESS
    assert world.bodies() == ([b"first"] if state == ROLLBACK else [b"first", b"x"])
    assert world.plugin.strategy.open_count == 1
    assert world.plugin.strategy.floor() == last.offset
    world = fresh(world.env.kill())  # type: ignore[attr-defined]
    assert world.plugin.strategy.open_count == 1


def test_rows_that_the_log_refused_release_their_numbers() -> None:
    world = fresh()

    def refuse(batch: AppendBatch) -> None:
        for row, body in enumerate(batch.bodies):
            if body.startswith(b"no"):
                batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")

    world.refuse = refuse
    world.halves([b"a", b"no1", b"b", b"no2"])
    assert world.plugin.strategy.open_count == 3  # the refused one in the middle is counted until it is dispatched
    world.halves([b"no3"])
    last = world.half(b"c")
    assert last.queue_offset == 3
    world.commit()
    assert world.plugin.strategy.open_count == 3
    world.close()
    world = fresh(world.env)  # type: ignore[arg-type]
    assert world.plugin.strategy.open_count == 3
    assert world.end_now(last, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"c"]


def test_sys_flags_that_a_client_forges_begin_and_end_nothing() -> None:
    world = fresh()
    half = world.half(b"x")
    world.commit()
    batch = AppendBatch()
    for sys_flag in (4, 8, 12):
        batch.add("T", 0, b"forged", b"PGROUP\x01orders", sys_flag=sys_flag, prepared_offset=half.offset + 1)
    world.append(batch)
    world.commit()
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"forged", b"x"]
    world = fresh(world.env.kill())  # type: ignore[attr-defined]
    assert world.plugin.strategy.open_count == 0


@pytest.mark.parametrize("sys_flag", [8, 12])
def test_a_sys_flag_that_a_client_forges_does_not_end_the_first_transaction_of_the_log(sys_flag: int) -> None:
    world = fresh()
    half = world.half(b"x")
    assert half.offset == 0, "what every message names that names no prepared record"
    batch = AppendBatch(traits=Trait.PREPARED)
    batch.add("T", 0, b"forged", b"PGROUP\x01orders", sys_flag=sys_flag)
    batch.add("%RETRY%G", 0, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01orders\x02DELAY\x013", sys_flag=8, reconsume_times=1)
    world.append(batch)
    world.commit()
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies()[-1] == b"x"
    world = fresh(world.env.kill())  # type: ignore[attr-defined]
    assert world.plugin.strategy.open_count == 0


def test_a_commit_that_a_plugin_moves_to_another_topic_ends_the_first_transaction_of_the_log() -> None:
    world = fresh()
    half = world.half(b"x")
    world.commit()
    assert half.offset == 0

    def move(batch: AppendBatch) -> None:
        batch.topics[0] = "moved"

    world.refuse = move
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    world.close()
    world = fresh(world.env)  # type: ignore[arg-type]
    assert world.plugin.strategy.open_count == 0
    assert (world.bodies(), world.bodies("moved")) == ([], [b"x"])


def test_a_returned_message_with_the_property_of_a_half_message_takes_no_row() -> None:
    """A client before 4.6.1 sends such ones; nothing stops others."""
    world = fresh()
    batch = AppendBatch(traits=Trait.PREPARED)
    properties = b"TRAN_MSG\x01true\x02PGROUP\x01orders\x02DELAY\x013"
    batch.add("T", 0, b"returned", properties, sys_flag=4, reconsume_times=1)
    world.append(batch)
    half = world.half(b"x")
    world.commit()
    assert world.plugin.strategy.open_count == 1
    assert world.bodies() == [b"returned"], "it is in its queue, or nobody would ever get it"
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"returned", b"x"]


def test_a_full_disk_refuses_new_transactions_and_open_ones_can_end() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, number=errno.ENOSPC, forever=True, kinds=("truncate",))
    world = fresh(env)
    env.fail_at, env.count = 1, 0
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.commit()
    assert world.halves([b"more"]).statuses == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert world.end_now(halves[0], COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(halves[0], ROLLBACK) == ResponseCode.SYSTEM_ERROR
    assert world.plugin.strategy.open_count == 2
    env.fail_at = 0
    world.persist()
    assert world.halves([b"more"]).statuses == [ResponseCode.SUCCESS]
    world.commit()
    assert world.end_now(halves[1], ROLLBACK) == ResponseCode.SUCCESS
    world.close()
    world = fresh(disk)
    assert world.plugin.strategy.open_count == 2
    assert world.bodies() == [b"0"]


def test_files_of_the_table_go_when_all_their_rows_have_ended() -> None:
    world = fresh(file_rows=16)
    folder = "store/transaction/statetable"
    halves = [world.half(b"%d" % number) for number in range(40)]
    world.commit()
    assert len(world.env.listdir(folder)) == 3
    for half in halves[:35]:
        world.end(half, COMMIT, oneway=True)
    world.commit()
    world.persist()
    world.persist()
    assert world.env.listdir(folder) == [f"{32 * 24:020d}"]
    assert world.end_now(halves[0], COMMIT) == ResponseCode.SUCCESS, "it ended, nobody knows how"
    assert len(world.bodies()) == 35
    world.close()
    world = fresh(world.env, file_rows=16)  # type: ignore[arg-type]
    assert (world.plugin.strategy.open_count, world.half(b"next").queue_offset) == (5, 40)


def test_a_repeated_oneway_end_is_answered_when_the_first_is_durable() -> None:
    world = fresh()
    half = world.half(b"x")
    world.commit()
    world.end(half, COMMIT, oneway=True)
    peer = world.end(half, COMMIT)
    assert peer.sent == []
    world.commit()
    assert [answer.code for answer in peer.sent] == [ResponseCode.SUCCESS]
    assert world.bodies() == [b"x"]


def test_a_failed_flush_is_not_recorded_as_durable() -> None:
    disk = MemoryEnv()
    env = FaultEnv(disk, number=errno.EIO, kinds=("datasync",))
    world = fresh(env)
    half = world.half(b"x")
    world.commit()
    before = read_marks(disk, "store")
    env.fail_at, env.count = 1, 0
    strategy = world.plugin.strategy
    assert isinstance(strategy, StateTableStrategy)
    strategy.flush()
    assert env.failed == 1
    for _ in range(2):
        world.persist()
    assert read_marks(disk, "store") == before
    world = fresh(disk.power_cut())
    assert world.plugin.strategy.open_count == 1
    world.end_now(half, COMMIT)
    assert world.bodies() == [b"x"]


def end(answer: Command, state: int) -> Command:
    assert answer.ext is not None
    header = EndTransactionHeader(
        producer_group="g",
        tran_state_table_offset=int(answer.ext["queueOffset"]),
        commit_log_offset=int(answer.ext["msgId"][16:], 16),
        commit_or_rollback=state,
        msg_id="K",
    )
    return Command(RequestCode.END_TRANSACTION, header.to_ext())


@pytest.mark.trio
async def test_a_broker_leaves_a_table_that_the_next_start_takes_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_strategy, "FLUSH_S", 0.01)
    settings = {
        "plugin.transaction.strategy": "state_table",
        "plugin.transaction.file_rows": "1000",
        "broker.persist_interval": "100ms",
    }
    properties = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01K"
    with structlog.testing.capture_logs() as lines:
        async with broker_and_channel(tmp_path, **settings) as (broker, channel):
            answers = [await channel.call(send("T", b"%d" % number, properties=properties)) for number in range(3)]
            assert [answer.ext and answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2"]
            ended = await channel.call(end(answers[0], COMMIT))
            assert ended.code == ResponseCode.SUCCESS, ended.remark
            [message] = decode_records((await channel.call(pull("T"))).body)
            assert (message.body, message.queue_offset) == (b"0", 0)
            with trio.fail_after(60):
                while (marks := read_marks(broker.env, broker.root)) is None or marks.offset < broker.log.end:  # noqa: ASYNC110 - a file
                    await trio.sleep(0.02)
            assert (marks.entries, marks.rows, marks.clean) == (4, 3, False)
        marks = read_marks(broker.env, broker.root)
        assert marks is not None
        assert marks.clean
        async with broker_and_channel(tmp_path, **settings) as (broker, channel):
            for answer, state in zip(answers, (COMMIT, COMMIT, ROLLBACK), strict=True):
                assert (await channel.call(end(answer, state))).code == ResponseCode.SUCCESS
            bodies = [message.body for message in decode_records((await channel.call(pull("T"))).body)]
            assert bodies == [b"0", b"1"]
    loaded = [line for line in lines if line["event"] == "state_table_loaded"]
    assert [(line["rebuilt"], line["open"]) for line in loaded] == [(False, 0), (False, 2)]


def test_a_slave_keeps_the_records_of_its_masters_open_transactions_and_no_others() -> None:
    master, env = fresh(), MemoryEnv()
    halves = [master.half(b"%d" % number) for number in range(3)]
    master.commit()
    slave = fresh(env, broker_id=1)
    slave.copy_from(master)
    slave.close()
    slave = fresh(env, broker_id=1)
    for ended, half in enumerate(halves):
        assert slave.plugin.strategy.floor() == master.plugin.strategy.floor() == half.offset
        assert master.end_now(half, COMMIT if ended else ROLLBACK) == ResponseCode.SUCCESS
        slave.copy_from(master)
    assert slave.plugin.strategy.floor() == slave.log.end
    later = master.half(b"later")
    master.commit()
    slave.copy_from(master)
    assert slave.plugin.strategy.floor() == later.offset


def test_a_slave_that_begins_with_a_later_log_file_keeps_its_open_transactions() -> None:
    master = TransactedStore(MemoryEnv(), "state_table")
    halves = [master.half(b"%d" % number) for number in range(200)]
    master.commit()
    later = next(segment.base for segment in master.log.segments if segment.base > halves[150].offset)
    kept = [half for half in halves if half.offset >= later]
    env = MemoryEnv()
    slave = TransactedStore(env, "state_table", broker_id=1)
    slave.copy_from(master, begin=later)
    assert slave.plugin.strategy.floor() == kept[0].offset
    first_file = kept[0].queue_offset // 64 * 64
    assert env.listdir("store/transaction/statetable")[0] == f"{first_file * UNIT:020d}", "no file has only fillers"
    for ended in (halves[0], kept[0]):
        assert master.end_now(ended, COMMIT) == ResponseCode.SUCCESS
    slave.copy_from(master)
    assert slave.plugin.strategy.floor() == kept[1].offset
    slave.close()
    promoted = TransactedStore(env, "state_table")
    assert promoted.plugin.strategy.open_count == len(kept) - 1
    assert promoted.half(b"new").queue_offset == 200

"""The strategy ``half``: records in RocketMQ's two topics, check-backs, and discarded half messages."""

from __future__ import annotations

import errno
from typing import Any

import attrs
import pytest
import structlog.testing

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.consume_queue import FILLER
from gantrymq.plugins.transaction.half import check_scan
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.properties import decode_properties, java_hash
from gantrymq.remoting.records import HEADS
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY
from gantrymq.testing.transacted import COMMIT, GROUP, ROLLBACK, Half, TransactedStore, in_order, killed
from support.unreadable import fail_log_reads, fail_reads, fail_writes

CONSUMER = "CID_RMQ_SYS_TRANS"
INTERVAL_S = 60
HOUR_MS = 3_600_000


def world_of(**settings: Any) -> TransactedStore:
    return TransactedStore(MemoryEnv(), **settings)


def copied_once() -> tuple[TransactedStore, Half, Half]:
    """A store with an open transaction, its half message, and the copy as which it continues after a check-back."""
    world = world_of()
    half = world.half(b"x")
    world.commit()
    producer = world.producers.join()
    world.pass_time(INTERVAL_S)
    world.scan()
    [check_back] = producer.take_check_backs()
    return world, half, check_back.half


def asked(world: TransactedStore) -> list[bytes]:
    world.scan()
    members = world.producers.groups.get(GROUP, [])
    return [check_back.half.body for member in members for check_back in member.take_check_backs()]


def properties_of(world: TransactedStore, topic: str = TRANS_HALF_TOPIC) -> list[dict[str, str]]:
    return [decode_properties(record.properties.decode()) for record in world.messages(topic)]


def foreign(world: TransactedStore, topic: str, body: bytes, properties: bytes) -> None:
    """A message as another broker left it in the store."""
    batch = AppendBatch()
    batch.add(topic, 0, body, properties, born_timestamp=world.env.wall_ms())
    world.append(batch)
    world.commit()


# -------------------------------------------------------------------------------------------------- what is written


def test_a_half_message_is_stored_with_its_original_topic_and_queue() -> None:
    world = world_of()
    half = world.half(b"x", topic="Orders", queue_id=5)
    world.commit()
    [record] = world.messages(TRANS_HALF_TOPIC)
    assert (record.offset, record.queue_id, record.queue_offset, record.sys_flag) == (half.offset, 0, 0, 0)
    properties = decode_properties(record.properties.decode())
    assert properties == {
        "TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "x", "TAGS": "a", "REAL_TOPIC": "Orders", "REAL_QID": "5",
    }  # fmt: skip


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_the_op_message_of_an_end_is_rocketmqs(state: int) -> None:
    world = world_of()
    world.half(b"x")
    half = world.half(b"y")
    world.commit()
    world.end_now(half, state)
    [note] = world.messages(TRANS_OP_HALF_TOPIC)
    assert (note.body, note.properties, note.sys_flag) == (b"1", b"WAIT\x01true\x02TAGS\x01d", 0)
    queue = world.store.queues.get(TRANS_OP_HALF_TOPIC, 0)
    assert queue is not None
    assert ENTRY.unpack(queue.entries(0, 1))[2] == java_hash("d"), "the tag code by which RocketMQ finds it"


def test_a_committed_message_and_its_op_message_are_one_write_in_this_order() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    before = world.log.end
    world.end_now(half, COMMIT)
    [message], [note] = world.messages(), world.messages(TRANS_OP_HALF_TOPIC)
    assert before == message.offset < note.offset
    assert note.store_timestamp == message.store_timestamp
    queue = world.store.queues.get("T", 0)
    assert queue is not None
    assert ENTRY.unpack(queue.entries(0, 1))[2] == java_hash("a"), "consumers filter it by its tag"


def test_an_answer_waits_for_the_disk_and_oneway_ends_wait_for_nothing() -> None:
    world = world_of()
    first, second = world.half(b"x"), world.half(b"y")
    world.commit()
    answered, again, silent = world.end(first, COMMIT), world.end(first, COMMIT), world.end(second, COMMIT, oneway=True)
    assert not answered.sent
    assert not again.sent, "nor is the same word again safe before the first is"
    world.commit()
    assert [peer.sent[0].code for peer in (answered, again)] == [0, 0]
    assert not silent.sent


def test_a_half_message_with_a_delay_without_a_group_or_too_large_is_refused() -> None:
    world = world_of()
    batch = AppendBatch(traits=Trait.PREPARED)
    half = b"TRAN_MSG\x01true\x02"
    batch.add("T", 0, b"x", half + b"PGROUP\x01g\x02DELAY\x013")
    batch.add("T", 0, b"x", half[:-1])
    batch.add("T", 0, b"x", half + b"PGROUP\x01g\x02k\x01" + b"v" * 32_600)
    batch.add("T", 0, b"x" * 3900, half + b"PGROUP\x01g")
    batch.add("T", 0, b"again", half + b"PGROUP\x01g\x02DELAY\x013", reconsume_times=1)
    batch.add("T", 0, b"no half", b"TRAN_MSG\x01false")
    for level in (b"0", b"00", b"-1"):  # RocketMQ delays above level 0 only
        batch.add("T", 0, b"x", half + b"PGROUP\x01g\x02DELAY\x01" + level)
    world.append(batch)
    assert batch.statuses == [ResponseCode.MESSAGE_ILLEGAL] * 4 + [ResponseCode.SUCCESS] * 5
    assert batch.topics[4:6] == ["T", "T"], "what clients before 4.6.1 send to be consumed again is no half message"
    assert not batch.traits & Trait.PREPARED, "the plugin took charge of the trait"


def test_a_broker_that_takes_no_half_messages_refuses_them_with_the_reason() -> None:
    batch = world_of(reject=True).halves([b"x", b"y"])
    assert batch.statuses == [ResponseCode.NO_PERMISSION] * 2


def test_a_slave_ends_no_transactions() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    slave: Any = slave_of(world)
    assert slave.end_now(half, COMMIT) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert slave.plugin.register_tasks(slave) == []


# ------------------------------------------------------------------------------------------------------- who is asked


def test_each_check_back_is_counted_and_the_last_one_discards_the_message() -> None:
    world = world_of(check_max=3)
    world.producers.join()
    world.half(b"x", queue_id=4)
    world.commit()
    for number in range(3):
        world.pass_time(INTERVAL_S)
        assert asked(world) == [b"x"]
        assert properties_of(world)[-1]["TRANSACTION_CHECK_TIMES"] == str(number + 1)
        assert properties_of(world)[-1]["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    world = killed(world, "half")
    world.producers.join()
    world.pass_time(INTERVAL_S)
    world = TransactedStore(world.env.kill() if isinstance(world.env, MemoryEnv) else world.env, check_max=3)
    world.producers.join()
    assert asked(world) == []
    [aside] = world.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert aside.body == b"x"
    assert decode_properties(aside.properties.decode())["REAL_QID"] == "4"
    assert world.plugin.strategy.open_count == 0
    assert world.bodies(queue_id=4) == []


def test_a_commit_of_a_discarded_message_takes_effect() -> None:
    world = world_of(check_max=1)
    world.producers.join()
    half = world.half(b"x")
    world.commit()
    for _ in range(2):
        world.pass_time(INTERVAL_S)
        world.scan()
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"x"]
    for _ in range(2):
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
        assert world.bodies() == [b"x"], "as in RocketMQ, which has it twice"
    assert world.plugin.strategy.open_count == 0


def test_check_backs_without_a_producer_are_not_counted_or_stored() -> None:
    world = world_of(check_max=2)
    world.half(b"x")
    world.commit()
    end = world.log.end
    for _ in range(20):
        world.pass_time(INTERVAL_S)
        assert asked(world) == []
    assert world.log.end == end, "RocketMQ writes the message again each minute"
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"x"]
    assert properties_of(world)[-1]["TRANSACTION_CHECK_TIMES"] == "1"


def test_the_immunity_time_of_a_producer_uses_up_no_check_backs() -> None:
    """Issue 8311: RocketMQ discards a message with an immunity time of ten minutes before its first check-back."""
    world = world_of(check_max=3)
    world.producers.join()
    world.half(b"later", more=b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01600")
    world.half(b"now", more=b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01nonsense")
    world.commit()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"now"]
    for _ in range(8):
        world.pass_time(INTERVAL_S)
        assert b"later" not in asked(world)
    world.pass_time(INTERVAL_S + 1)
    assert asked(world) == [b"later"]
    for _ in range(2):
        world.pass_time(INTERVAL_S)
        assert asked(world) == [b"later"], "and now it has its three check_backs"
    world.pass_time(INTERVAL_S)
    assert asked(world) == []
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"now", b"later"]


def test_no_ended_message_is_discarded_however_many_op_messages_there_are() -> None:
    """Issue 8311: RocketMQ decides on a message before it has read the op messages, 32 at a time."""
    world = world_of(check_max=1)
    world.producers.join()
    halves = [world.half(b"%d" % number) for number in range(40)]
    world.commit()
    world.pass_time(INTERVAL_S)
    assert len(asked(world)) == 40
    for half in halves:
        world.end(half, COMMIT, oneway=True)
    world.commit()
    for _ in range(2):
        world = in_order(world, "half")
        world.producers.join()
        world.pass_time(INTERVAL_S)
        assert asked(world) == []
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
    assert len(world.bodies()) == 40


def test_an_old_message_without_producers_is_discarded() -> None:
    world = world_of()
    world.half(b"x", more=b"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0199999999")
    world.commit()
    world.pass_time(71 * 3600)
    world.scan()
    assert world.plugin.strategy.open_count == 1
    world.pass_time(2 * 3600)
    world.scan()
    assert world.plugin.strategy.open_count == 0
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"x"]


def test_a_wrong_clock_of_the_producer_does_not_change_the_immunity_time() -> None:
    world = world_of()
    world.producers.join()
    for hours in (-5, 5):
        batch = AppendBatch(traits=Trait.PREPARED)
        born = world.env.wall_ms() + hours * 3_600_000
        batch.add("T", 0, b"%d" % hours, b"TRAN_MSG\x01true\x02PGROUP\x01orders", born_timestamp=born)
        world.append(batch)
    world.commit()
    assert asked(world) == []
    world.pass_time(5)
    assert asked(world) == []
    world.pass_time(2)
    assert asked(world) == [b"-5", b"5"]


@pytest.mark.parametrize("hours", [-100, 100])
@pytest.mark.parametrize("restart", [False, True])
def test_a_producer_whose_clock_is_far_off_is_asked_more_than_once(restart: bool, hours: int) -> None:
    world = world_of()
    batch = AppendBatch(traits=Trait.PREPARED)
    born = world.env.wall_ms() + hours * 3_600_000
    batch.add("T", 0, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01orders", born_timestamp=born)
    world.append(batch)
    world.commit()
    for number in range(4):
        if restart:
            world = in_order(world, "half")
        world.producers.join()
        world.pass_time(INTERVAL_S)
        assert asked(world) == [b"x"]
        assert properties_of(world)[-1]["TRANSACTION_CHECK_TIMES"] == str(number + 1)
    assert world.plugin.strategy.open_count == 1
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []
    world.pass_time(72 * 3600)
    world.scan()
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"x"], "its age counts from its first half message"


def test_without_its_first_half_message_a_transaction_is_no_older_than_the_log() -> None:
    world = world_of(max_age=3600.0)
    world.producers.join()
    oldest = world.half(b"oldest")
    world.commit()
    world.end_now(oldest, ROLLBACK)
    offsets = []
    for body, born in ((b"behind", -100 * HOUR_MS), (b"right", 0), (b"ahead", 100 * HOUR_MS)):
        batch = AppendBatch(traits=Trait.PREPARED)
        properties = b"TRAN_MSG\x01true\x02PGROUP\x01orders"
        batch.add("T", 0, body, properties, born_timestamp=world.env.wall_ms() + born)
        world.append(batch)
        offsets += batch.offsets
    world.commit()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"behind", b"right", b"ahead"]
    for offset in offsets:
        world.log.quarantine_range(offset + 88, offset + 89)
    world.pass_time(3600 - 2 * INTERVAL_S)
    assert asked(world) == [b"behind", b"right", b"ahead"]
    world.pass_time(2 * INTERVAL_S)
    assert asked(world) == [b"ahead"], "its age counts from its newest copy"
    assert world.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"behind", b"right"]


def test_half_messages_that_delay_cleanup_are_rewritten_without_a_check_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_scan, "FAR_HALVES", 10)
    world = world_of()
    old = world.half(b"old")
    others = [world.half(b"%d" % number, group="others") for number in range(12)]
    world.commit()
    for other in others:
        world.end(other, ROLLBACK, oneway=True)
    world.pass_time(INTERVAL_S)
    world.scan()
    assert "TRANSACTION_CHECK_TIMES" not in properties_of(world)[-1], "it was not asked about"
    world.persist()
    assert world.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) == 13
    world = in_order(world, "half")
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(old, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"old"]


def test_a_check_scan_keeps_the_rate_limit_of_check_backs() -> None:
    world = world_of(checks_per_second=100)
    producer = world.producers.join()
    for number in range(12):
        world.half(b"%d" % number)
    world.commit()
    world.pass_time(INTERVAL_S)
    counts = []
    for _ in world.plugin.strategy.scan():
        world.commit()
        counts.append(len(producer.take_check_backs()))
    world.commit()
    counts.append(len(producer.take_check_backs()))
    assert counts == [5, 5, 2], "50 ms lie between two of them"


def test_a_cancelled_check_scan_keeps_its_results() -> None:
    world = world_of(checks_per_second=20)
    producer = world.producers.join()
    for number in range(4):
        world.half(b"%d" % number)
    world.commit()
    world.pass_time(INTERVAL_S)
    walk = world.plugin.strategy.scan()
    next(walk)
    del walk
    world.commit()
    assert [check_back.half.body for check_back in producer.take_check_backs()] == [b"0"]
    assert world.plugin.strategy.open_count == 4
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"1", b"2", b"3", b"0"], "a message with a check-back comes last: none starves"


def test_only_producers_that_can_receive_a_check_back_get_one() -> None:
    world = world_of()
    gone, here = world.producers.join(), world.producers.join()
    gone.closed = True
    for number in range(8):
        world.half(b"%d" % number)
    world.commit()
    world.pass_time(INTERVAL_S)
    world.scan()
    assert len(here.take_check_backs()) == 8
    assert gone.sent == []


def test_a_producer_that_goes_before_the_copy_is_safe_is_replaced() -> None:
    world = world_of()
    first = world.producers.join()
    world.half(b"x")
    world.commit()
    world.pass_time(INTERVAL_S)
    for _ in world.plugin.strategy.scan():
        pass
    assert first.sent == [], "a check_back before its message is on the disk"
    first.closed = True
    second = world.producers.join()
    world.commit()
    assert [check_back.half.body for check_back in second.take_check_backs()] == [b"x"]


# ---------------------------------------------------------------------------------------------- other brokers' stores


def test_notes_of_many_ends_as_rocketmq_5_writes_them_are_read() -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(5)]
    world.commit()
    foreign(world, TRANS_OP_HALF_TOPIC, b"0,3,", b"TAGS\x01d")
    foreign(world, TRANS_OP_HALF_TOPIC, b"1", b"TAGS\x01d")
    foreign(world, TRANS_OP_HALF_TOPIC, b"nonsense,,-7,99999999999999999999,77,", b"TAGS\x01d")
    foreign(world, TRANS_OP_HALF_TOPIC, b"4", b"TAGS\x01other")
    world = in_order(world, "half")
    assert world.plugin.strategy.open_count == 2
    for half in halves:
        world.end_now(half, COMMIT)
    assert world.bodies() == [b"2", b"4"]


def test_copies_made_by_another_broker_without_op_messages_are_checked_back_once() -> None:
    """RocketMQ puts a message back without a note for the one before it; so does a crash between the two."""
    world = world_of()
    half = world.half(b"x")
    world.commit()
    properties = world.messages(TRANS_HALF_TOPIC)[0].properties + b"\x02TRANSACTION_CHECK_TIMES\x011"
    foreign(world, TRANS_HALF_TOPIC, b"x", properties + b"\x02TRAN_PREPARED_QUEUE_OFFSET\x010")
    world = in_order(world, "half")
    assert world.plugin.strategy.open_count == 1
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"x"]
    assert properties_of(world)[-1]["TRANSACTION_CHECK_TIMES"] == "2"
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("names_the_first", [True, False])
def test_a_transaction_that_ended_as_a_copy_stays_ended_though_a_crash_took_the_op_message_of_the_original(
    names_the_first: bool, state: int
) -> None:
    world = world_of()
    half = world.half(b"x")
    open_half = world.half(b"open")
    world.commit()
    properties = world.messages(TRANS_HALF_TOPIC)[0].properties + b"\x02TRANSACTION_CHECK_TIMES\x011"
    first = b"\x02TRAN_PREPARED_QUEUE_OFFSET\x010" if names_the_first else b""
    foreign(world, TRANS_HALF_TOPIC, b"x", properties + first)
    world = killed(world, "half")
    assert world.end_now(half, state) == ResponseCode.SUCCESS
    world.commit()
    world = killed(world, "half")
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(half, state) == ResponseCode.SUCCESS
    assert world.end_now(open_half, ROLLBACK) == ResponseCode.SUCCESS
    assert world.bodies() == ([b"x"] if state == COMMIT else [])


def test_progress_is_the_consumer_offsets_of_the_brokers_own_group() -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(4)]
    world.commit()
    for half in halves[:2]:
        world.end_now(half, COMMIT)
    world.end_now(halves[3], ROLLBACK)
    world.persist()
    assert world.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) == 2
    assert world.offsets.query(CONSUMER, TRANS_OP_HALF_TOPIC, 0) in (None, 0), "the note of the last one is needed"
    world.end_now(halves[2], COMMIT)
    world.persist()
    assert world.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) == 4
    assert world.offsets.query(CONSUMER, TRANS_OP_HALF_TOPIC, 0) == 4


def test_progress_waits_for_the_disk() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    world.end(half, COMMIT, oneway=True)
    world.persist()
    assert world.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) is None, "a power cut would take the end back"
    world.commit()
    world.persist()
    assert world.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) == 1


def test_only_a_damaged_half_message_is_given_up() -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.commit()
    world.log.quarantine_range(halves[1].offset, halves[1].offset + 10)
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"0", b"2"]
    assert world.plugin.strategy.open_count == 2


@pytest.mark.parametrize("at_the_start", [False, True])
def test_a_half_message_that_the_disk_could_not_read_for_a_while_is_still_open(
    at_the_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    half, other = world.half(b"x"), world.half(b"other")
    world.commit()
    with monkeypatch.context() as patch:
        fail_reads(patch, half.offset)
        if at_the_start:
            world = in_order(world, "half")
        world.producers.join()
        world.pass_time(INTERVAL_S)
        assert asked(world) == [b"other"]
        assert world.plugin.strategy.floor() == half.offset
    assert world.plugin.strategy.open_count == 2
    world.pass_time(INTERVAL_S)
    assert sorted(asked(world)) == [b"other", b"x"]
    assert world.end_now(other, COMMIT) == world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"other", b"x"]
    assert world.plugin.strategy.open_count == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_half_message_stays_open_while_its_record_cannot_be_read(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    half, other = world.half(b"x"), world.half(b"other")
    world.commit()
    world.store.flush_queues()
    with monkeypatch.context() as patch:
        fail_log_reads(patch, half.offset, 10, number)
        assert world.end_now(other, COMMIT, queue_offset=half.queue_offset) == ResponseCode.SYSTEM_ERROR
        world.producers.join()
        world.pass_time(INTERVAL_S)
        assert asked(world) == [b"other"]
    assert world.plugin.strategy.open_count == 2
    world.pass_time(INTERVAL_S)
    assert sorted(asked(world)) == [b"other", b"x"]


@pytest.mark.parametrize("names_the_copy", [False, True])
@pytest.mark.parametrize("is_scanned", [False, True])
def test_a_copy_that_a_start_could_not_read_is_joined_with_its_transaction_later(
    is_scanned: bool, names_the_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, half, copy = copied_once()
    with monkeypatch.context() as patch:
        fail_reads(patch, copy.offset)
        world = in_order(world, "half")
        assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR, "it may be open or not"
        assert world.bodies() == []
    if is_scanned:
        world.pass_time(INTERVAL_S)
        world.scan()
    elif not names_the_copy:
        assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR, "until the copy was read"
        world.scan()
    assert world.end_now(copy if names_the_copy else half, COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS, "it was committed before"
    assert world.bodies() == [b"x"]
    assert world.plugin.strategy.open_count == 0
    assert in_order(world, "half").plugin.strategy.open_count == 0


def test_a_copy_by_rocketmq_that_a_start_could_not_read_is_joined_with_its_transaction_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    [original] = world.messages(TRANS_HALF_TOPIC)
    foreign(world, TRANS_HALF_TOPIC, b"x", original.properties + b"\x02TRANSACTION_CHECK_TIMES\x011")
    with monkeypatch.context() as patch:
        fail_reads(patch, world.messages(TRANS_HALF_TOPIC)[1].offset)
        world = in_order(world, "half")
    world.pass_time(INTERVAL_S)
    world.scan()
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]
    assert world.plugin.strategy.open_count == 0


def test_a_commit_of_a_lost_half_message_is_refused_until_it_can_be_read() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    world.log.quarantine_range(half.offset, half.offset + 10)
    world.pass_time(INTERVAL_S)
    world.scan()
    assert world.plugin.strategy.open_count == 0
    assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR
    world.log.quarantine.clear()
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(half, ROLLBACK) == ResponseCode.SYSTEM_ERROR, "it was committed before"
    assert world.bodies() == [b"x"]


def test_a_transaction_whose_copy_is_lost_is_committed_from_its_first_half_message() -> None:
    world, half, copy = copied_once()
    world.log.quarantine_range(copy.offset, copy.offset + 10)
    world.pass_time(INTERVAL_S)
    world.scan()
    for _ in range(2):
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
        assert world.bodies() == [b"x"]


def test_a_commit_that_a_lost_copy_may_belong_to_is_refused_after_a_start() -> None:
    world, half, copy = copied_once()
    later = world.half(b"later")
    assert world.end_now(later, COMMIT) == ResponseCode.SUCCESS
    world.commit()
    env = world.env
    world.close()
    path = f"store/commitlog/{0:020d}"
    env.open(path).pwrite(b"?", copy.offset + HEADS[0].size)
    with structlog.testing.capture_logs() as lines:
        world = TransactedStore(env)
    assert [line["queue_offset"] for line in lines if line["event"] == "half_message_lost"] == [1]
    assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR, "SUCCESS would promise a delivery"
    assert world.end_now(later, COMMIT) == ResponseCode.SUCCESS, "the lost copy is older than this transaction"
    assert world.bodies() == [b"later"]


GARBAGE = ENTRY.pack(1 << 40, 77, 5)
FORWARD = ENTRY.pack(30, 50, 0)


def patch_entry(env: Any, topic: str, offset: int, entry: bytes) -> None:
    """Damage the stored entry at a queue offset."""
    env.open(f"store/consumequeue/{topic}/0/{0:020d}").pwrite(entry, offset * ENTRY.size)


def entry_of(world: TransactedStore, topic: str, offset: int) -> bytes:
    queue = world.store.queues.get(topic, 0)
    assert queue is not None
    return queue.entries(offset, 1)


def repair(world: TransactedStore) -> None:
    """Repair as the kernel's task does."""
    while world.store.repair.is_due:
        world.store.repair.step()


@pytest.mark.parametrize("damage", [GARBAGE, FORWARD, None])
def test_a_half_message_whose_queue_entry_is_damaged_while_the_broker_is_down_is_delivered_once(
    damage: bytes | None,
) -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.commit()
    right = entry_of(world, TRANS_HALF_TOPIC, 1)
    other = entry_of(world, TRANS_HALF_TOPIC, 2)
    world.close()
    patch_entry(world.env, TRANS_HALF_TOPIC, 1, damage or other)
    world = TransactedStore(world.env)
    assert world.plugin.strategy.open_count == 3
    assert entry_of(world, TRANS_HALF_TOPIC, 1) == right
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"0", b"1", b"2"]
    for half in halves:
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"0", b"1", b"2"]
    assert in_order(world, "half").plugin.strategy.open_count == 0


@pytest.mark.parametrize(("topic", "place"), [(TRANS_HALF_TOPIC, 2), (TRANS_OP_HALF_TOPIC, 1)])
def test_a_start_fails_while_the_queue_entry_of_a_transaction_cannot_be_repaired(
    topic: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.end_now(halves[0], COMMIT)
    world.end_now(halves[1], COMMIT)
    world.commit()
    env = world.env
    world.close()
    patch_entry(env, topic, place, GARBAGE)
    with monkeypatch.context() as patch:
        fail_writes(patch, f"store/consumequeue/{topic}/0")
        with pytest.raises(OSError, match="ENOSPC"):
            TransactedStore(env)
    world = TransactedStore(env)
    assert world.plugin.strategy.open_count == 1
    assert world.end_now(halves[2], COMMIT) == ResponseCode.SUCCESS


def test_a_start_fails_while_no_descriptor_is_left_to_read_an_op_message(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    half = world.half(b"x")
    world.end_now(half, COMMIT)
    [op_message] = world.messages(TRANS_OP_HALF_TOPIC)
    env = world.env
    world.close()
    with monkeypatch.context() as patch:
        fail_log_reads(patch, op_message.offset, 10, errno.EMFILE)
        with pytest.raises(OSError, match="EMFILE"):
            TransactedStore(env)
    world = TransactedStore(env)
    assert world.plugin.strategy.open_count == 0
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]


def test_a_half_message_stays_open_while_the_disk_cannot_read_where_its_queue_entry_should_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.commit()
    right = entry_of(world, TRANS_HALF_TOPIC, 1)
    env = world.env
    world.close()
    patch_entry(env, TRANS_HALF_TOPIC, 1, GARBAGE)
    with monkeypatch.context() as patch:
        fail_log_reads(patch, halves[1].offset, 100)
        world = TransactedStore(env)
        assert world.plugin.strategy.open_count == 3
        assert entry_of(world, TRANS_HALF_TOPIC, 1) == GARBAGE
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"0", b"2"]
    repair(world)
    assert entry_of(world, TRANS_HALF_TOPIC, 1) == right
    world.pass_time(INTERVAL_S)
    assert sorted(asked(world)) == [b"0", b"1", b"2"]
    for half in halves:
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("damage", [GARBAGE, FORWARD, None])
def test_a_half_message_whose_queue_entry_is_damaged_while_the_broker_runs_waits_for_the_repair(
    damage: bytes | None,
) -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(3)]
    world.commit()
    world.producers.join()
    world.store.flush_queues()
    patch_entry(world.env, TRANS_HALF_TOPIC, 0, damage or entry_of(world, TRANS_HALF_TOPIC, 2))
    assert world.plugin.strategy.floor() == halves[0].offset
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"1", b"2"]
    assert world.end_now(halves[0], COMMIT) == ResponseCode.SYSTEM_ERROR, "the entry does not confirm it"
    assert world.plugin.strategy.open_count == 3
    repair(world)
    assert world.plugin.strategy.floor() == halves[0].offset
    world.pass_time(INTERVAL_S)
    assert sorted(asked(world)) == [b"0", b"1", b"2"]
    for half in halves:
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"0", b"1", b"2"]


def test_a_commit_finds_a_damaged_queue_entry_and_has_it_repaired() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    world.store.flush_queues()
    patch_entry(world.env, TRANS_HALF_TOPIC, 0, GARBAGE)
    assert world.end_now(half, COMMIT) == ResponseCode.SYSTEM_ERROR
    repair(world)
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x"]


def test_forged_offsets_have_nothing_repaired() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()
    world.store.flush_queues()
    for offset, queue_offset in ((half.offset + 8, 0), (half.offset, 1), (half.offset, -1), (1 << 60, 0)):
        code = world.end_now(half, COMMIT, offset=offset, queue_offset=queue_offset)
        assert code == ResponseCode.SYSTEM_ERROR
    assert not world.store.repair.is_due


def test_a_filler_in_the_queue_is_no_half_message() -> None:
    world = world_of()
    halves = [world.half(b"%d" % number) for number in range(2)]
    world.commit()
    world.close()
    patch_entry(world.env, TRANS_HALF_TOPIC, 1, FILLER)
    world = TransactedStore(world.env)
    assert world.plugin.strategy.open_count == 1
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"0"], "the first record of the log is at the offset that a filler has"
    assert world.end_now(halves[0], COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"0"]


@pytest.mark.parametrize("damage", [GARBAGE, FORWARD, None])
@pytest.mark.parametrize("damaged", [0, 1])
def test_an_ended_transaction_whose_op_message_has_a_damaged_queue_entry_stays_ended(
    damaged: int, damage: bytes | None
) -> None:
    world = world_of()
    world.half(b"open")
    halves = [world.half(b"%d" % number) for number in range(2)]
    world.commit()
    for half in halves:
        world.end_now(half, COMMIT)
    other = entry_of(world, TRANS_OP_HALF_TOPIC, 1 - damaged)
    world.close()
    patch_entry(world.env, TRANS_OP_HALF_TOPIC, damaged, damage or other)
    world = TransactedStore(world.env)
    assert world.plugin.strategy.open_count == 1
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"open"]
    for half in halves:
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"0", b"1"]


def test_an_op_message_counts_by_its_tag_whatever_code_its_queue_entry_has() -> None:
    world = world_of()
    world.half(b"open")
    half = world.half(b"x")
    world.commit()
    world.end_now(half, COMMIT)
    entry = entry_of(world, TRANS_OP_HALF_TOPIC, 0)
    world.close()
    patch_entry(world.env, TRANS_OP_HALF_TOPIC, 0, entry[:12] + bytes(8))
    world = TransactedStore(world.env)
    assert world.plugin.strategy.open_count == 1


def test_the_floor_of_a_slave_does_not_follow_a_damaged_queue_entry() -> None:
    master = world_of()
    half = master.half(b"x")
    master.commit()
    slave = slave_of(master)
    slave.store.flush_queues()
    patch_entry(slave.env, TRANS_HALF_TOPIC, 0, GARBAGE)
    assert slave.plugin.strategy.floor() <= half.offset
    repair(slave)
    assert slave.plugin.strategy.floor() == half.offset


def test_a_half_message_without_a_topic_can_be_neither_ended_nor_checked_back() -> None:
    world = world_of()
    foreign(world, TRANS_HALF_TOPIC, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01orders\x02REAL_TOPIC\x01T\x02REAL_QID\x01q")
    world.half(b"y")
    world.commit()
    world = in_order(world, "half")
    world.producers.join()
    world.pass_time(INTERVAL_S)
    assert asked(world) == [b"y"]
    assert world.plugin.strategy.open_count == 2


def test_an_end_without_room_for_its_op_message_counts_and_gets_one_in_a_later_scan() -> None:
    world = world_of()
    half = world.half(b"x")
    world.commit()

    def refuse(batch: AppendBatch) -> None:
        for row, topic in enumerate(batch.topics):
            if topic == TRANS_OP_HALF_TOPIC:
                batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")

    world.refuse = refuse
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    world.scan()
    assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
    assert world.end_now(half, ROLLBACK) == ResponseCode.SYSTEM_ERROR
    world.refuse = lambda batch: None
    world.scan()
    world = killed(world, "half")
    assert world.plugin.strategy.open_count == 0
    assert world.bodies() == [b"x"]


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("copied_on", [False, True])
def test_an_end_that_names_the_place_before_rocketmq_put_the_message_back_counts_once(
    how: str, copied_on: bool
) -> None:
    world = world_of()
    half = world.half(b"x", topic="Orders", queue_id=5)
    world.commit()
    [original] = world.messages(TRANS_HALF_TOPIC)
    for checks in (b"1", b"2"):  # RocketMQ's copies do not say where they began
        foreign(world, TRANS_HALF_TOPIC, b"x", original.properties + b"\x02TRANSACTION_CHECK_TIMES\x01" + checks)
    if how == "stopped":
        world.offsets.commit(CONSUMER, TRANS_HALF_TOPIC, 0, 2)
    world = in_order(world, "half")
    assert world.plugin.strategy.open_count == 1
    if copied_on:
        producer = world.producers.join()
        world.pass_time(INTERVAL_S)
        world.scan()
        assert [check_back.half.queue_offset for check_back in producer.take_check_backs()] == [3]
    for _ in range(2):
        assert world.end_now(half, COMMIT) == ResponseCode.SUCCESS
        assert world.bodies("Orders", 5) == [b"x"]
    assert world.end_now(half, ROLLBACK) == ResponseCode.SYSTEM_ERROR, "it was committed before"
    assert world.plugin.strategy.open_count == 0
    world.pass_time(INTERVAL_S)
    assert asked(world) == []
    assert in_order(world, "half").plugin.strategy.open_count == 0


def test_a_unique_key_that_another_group_has_too_ends_none_of_its_transactions() -> None:
    """RocketMQ's copies are known by their unique key, which every producer can choose."""
    world = world_of()
    half, thief = world.half(b"x"), world.half(b"y", group="thieves")
    world.commit()
    properties = [message.properties for message in world.messages(TRANS_HALF_TOPIC)]
    foreign(world, TRANS_HALF_TOPIC, b"x", properties[0] + b"\x02TRANSACTION_CHECK_TIMES\x011")
    named = world.half(b"x", group="thieves")
    world.commit()
    assert world.end_now(named, ROLLBACK) == ResponseCode.SUCCESS
    world = in_order(world, "half")
    assert world.end_now(named, COMMIT) is not None
    assert world.bodies() == []
    assert world.plugin.strategy.open_count == 2, "the victim's and the thief's other one"
    assert world.end_now(half, COMMIT) == world.end_now(thief, COMMIT) == ResponseCode.SUCCESS
    assert world.bodies() == [b"x", b"y"]


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.parametrize(
    ("more", "refused"),
    [
        (b"\x02TIMER_DELAY_SEC\x015", True),
        (b"\x02TIMER_DELAY_MS\x011", True),
        (b"\x02TIMER_DELIVER_MS\x019999999999999", True),
        (b"\x02TIMER_DELAY_MS\x01soon", True),
        (b"\x02TIMER_DELAY_MS\x010", False),
        (b"\x02TIMER_DELIVER_MS\x011000", False),
        (b"\x02TIMER_DELAY_MS\x01500\x02TIMER_OUT_MS\x011000", False),
    ],
)
def test_a_half_message_for_a_later_time_is_refused(strategy: str, more: bytes, refused: bool) -> None:
    """RocketMQ 5.3.3 moves it to the timer's topic, where its transaction loses it; a past time has no effect."""
    world = TransactedStore(MemoryEnv(), strategy)
    batch = world.halves([b"x"], more=more)
    assert batch.statuses[0] == (ResponseCode.MESSAGE_ILLEGAL if refused else ResponseCode.SUCCESS)
    world.commit()
    assert world.plugin.strategy.open_count == (0 if refused else 1)


# -------------------------------------------------------------------------------------------------------- on a slave


def slave_of(master: TransactedStore, env: MemoryEnv | None = None) -> TransactedStore:
    slave = TransactedStore(env or MemoryEnv(), broker_id=1)
    slave.copy_from(master)
    return slave


def adopt_progress(slave: TransactedStore, master: TransactedStore) -> None:
    """Adopt the master's offsets as the plugin ``ha`` does."""
    master.persist()
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
        offset = master.offsets.query(CONSUMER, topic, 0)
        assert offset is not None
        slave.offsets.commit(CONSUMER, topic, 0, offset)


def test_a_slave_that_started_with_an_open_transaction_releases_its_log_when_the_transaction_has_ended() -> None:
    master = world_of()
    half = master.half(b"x")
    master.commit()
    env = MemoryEnv()
    slave_of(master, env).close()
    slave = slave_of(master, env)
    assert slave.plugin.strategy.floor() == half.offset
    assert master.end_now(half, COMMIT) == ResponseCode.SUCCESS
    for number in range(5):
        assert master.end_now(master.half(b"%d" % number), COMMIT) == ResponseCode.SUCCESS
    slave.copy_from(master)
    adopt_progress(slave, master)
    assert master.plugin.strategy.floor() == slave.plugin.strategy.floor() == slave.log.end


def test_a_slave_keeps_the_half_messages_that_its_master_keeps() -> None:
    master = world_of()
    slave = slave_of(master)
    assert slave.plugin.strategy.floor() == slave.log.end
    ended = master.half(b"ended")
    opened = master.half(b"open")
    assert master.end_now(ended, COMMIT) == ResponseCode.SUCCESS
    slave.copy_from(master)
    assert slave.plugin.strategy.floor() == ended.offset, "until the master has reported its progress"
    adopt_progress(slave, master)
    assert slave.plugin.strategy.floor() == master.plugin.strategy.floor() == opened.offset
    assert master.end_now(opened, ROLLBACK) == ResponseCode.SUCCESS
    slave.copy_from(master)
    adopt_progress(slave, master)
    assert slave.plugin.strategy.floor() == slave.log.end


def test_a_slave_that_begins_with_a_later_log_file_keeps_the_half_messages_that_it_has() -> None:
    master = world_of()
    for number in range(100):
        master.half(b"%d" % number)
    master.commit()
    later = next(segment.base for segment in master.log.segments if segment.base > 0)
    slave = TransactedStore(MemoryEnv(), broker_id=1)
    slave.copy_from(master, begin=later)
    [first, *_] = slave.messages(TRANS_HALF_TOPIC)
    assert slave.plugin.strategy.floor() == first.offset == later


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_half_message_larger_than_a_later_limit_is_checked_back_and_committed(is_checked: bool) -> None:
    env, body = MemoryEnv(), b"x" * 1500
    world = TransactedStore(env)
    half = world.half(body)
    world.close()
    world = TransactedStore(env, config=attrs.evolve(TINY, max_message_bytes=1000))
    assert world.halves([body]).statuses == [ResponseCode.MESSAGE_ILLEGAL], "the limit applies to new messages"
    if is_checked:
        producer = world.producers.join()
        world.pass_time(INTERVAL_S)
        world.scan()
        [check_back] = producer.take_check_backs()
        half = check_back.half
    assert world.end_now(half, COMMIT, checked=is_checked) == ResponseCode.SUCCESS
    assert world.bodies() == [body]


def test_a_slave_reports_no_number_of_open_transactions() -> None:
    """Its table does not follow the log, and each transaction would count twice in a sum over brokers."""
    master: Any = world_of()
    master.half(b"x")
    master.commit()
    slave: Any = slave_of(master)
    assert master.plugin.runtime_info(master) == {"openTransactions": "1", "transactionStrategy": "half"}
    assert slave.plugin.runtime_info(slave) == {"transactionStrategy": "half"}


def test_a_slave_commits_no_progress_of_its_own() -> None:
    master = world_of()
    half = master.half(b"x")
    assert master.end_now(half, COMMIT) == ResponseCode.SUCCESS
    env = MemoryEnv()
    slave_of(master, env).close()
    slave = slave_of(master, env)
    slave.persist()
    assert slave.offsets.query(CONSUMER, TRANS_HALF_TOPIC, 0) is None, "the op messages may be cut off"

"""Delayed messages are delivered complete, in order, never early and once; a failure skips none."""

from __future__ import annotations

import attrs
import pytest
import structlog.testing
import trio

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.layouts import ENTRY
from gantrymq.plugins.delay.levels.delivery import BATCH_ROWS, IDLE_MS, PIPELINE, RETRY_MS
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY
from support.delays import DELAY_FILE, DelayedStore
from support.unreadable import break_queue, run_out_of_descriptors

HOUR_MS = 3_600_000
LARGE = attrs.evolve(TINY, commit_log_file_bytes=1 << 20, queue_file_units=5000)


def test_a_message_comes_back_when_its_delay_is_over_and_not_a_millisecond_before() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"later", 2, more=b"\x02TAGS\x01a")
    world.commit()
    assert world.settle() == IDLE_MS
    world.env.advance(4999)
    assert world.settle() == 1
    assert world.bodies() == []
    world.env.advance(1)
    world.settle()
    assert world.bodies() == [b"later"]


def test_a_delivered_delayed_message_equals_the_sent_one_with_its_history() -> None:
    world = DelayedStore(MemoryEnv())
    batch = AppendBatch()
    batch.add("T", 3, b"body", b"DELAY\x011\x02TAGS\x01a\x02REAL_TOPIC\x01T\x02REAL_QID\x013", flag=9, sys_flag=0x1,
              born_timestamp=77, born_host=b"\x0a\0\0\x01\0\0\x10\0", reconsume_times=4)  # fmt: skip
    batch.topics[0], batch.queue_ids[0] = SCHEDULE_TOPIC, 0
    world.store.append(batch)
    world.commit()
    world.env.advance(1000)
    world.settle()
    waiting = world.delivered(SCHEDULE_TOPIC, 0)[0]
    (record,) = world.delivered("T", 3)
    assert record.store_timestamp == waiting.store_timestamp + 1000
    kept = attrs.evolve(
        record, topic=SCHEDULE_TOPIC, queue_id=0, offset=waiting.offset, store_timestamp=waiting.store_timestamp
    )
    assert kept == waiting
    queue = world.store.queues.get("T", 3)
    assert queue is not None
    assert ENTRY.unpack(queue.entries(0, 1))[2] == ord("a"), "the tag's code again"


def test_each_level_keeps_its_order_and_none_waits_for_another() -> None:
    world = DelayedStore(MemoryEnv())
    for number in range(30):
        world.send(b"%d" % number, number % 3 + 1, queue_id=number % 3)
        world.env.advance(10)
    world.commit()
    world.env.advance(990)
    world.settle()
    assert world.bodies(queue_id=0) == [b"%d" % number for number in range(0, 30, 3)]
    assert world.bodies(queue_id=1) == []
    world.env.advance(9000)
    world.settle()
    for queue_id in range(3):
        assert world.bodies(queue_id=queue_id) == [b"%d" % number for number in range(queue_id, 30, 3)]


@pytest.mark.parametrize(("pipelined", "flights"), [(True, PIPELINE), (False, 1)])
def test_synchronous_delivery_waits_for_the_disk_and_pipelined_goes_on(pipelined: bool, flights: int) -> None:
    world = DelayedStore(MemoryEnv(), pipelined=pipelined, config=LARGE)
    total = (PIPELINE + 2) * BATCH_ROWS
    batch = AppendBatch()
    for _ in range(total):
        batch.add(SCHEDULE_TOPIC, 0, b"", b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010")
    world.store.append(batch)
    world.commit()
    world.env.advance(1000)
    before = world.store.log.end
    sizes = []
    for _ in range(PIPELINE + 5):
        start = world.store.log.end
        world.delivery.turn()
        sizes.append(world.store.log.end > start)
    assert sum(sizes) == flights
    assert world.delivery.safe()[1] == 0, "nothing of it is committed"
    assert world.store.log.end > before
    world.settle()
    assert len(world.bodies()) == total
    assert world.delivery.safe()[1] == total


def test_the_position_waits_for_the_disk_where_an_acknowledgment_does_not() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 1)
    world.commit()
    world.env.advance(1000)
    world.delivery.turn()
    for _ in world.store.dispatch(world.store.log.end):  # as in flush mode async: readable before it is on the disk
        pass
    assert world.bodies() == [b"a"]
    assert world.delivery.safe()[1] == 0
    world.store.flush()
    assert world.delivery.safe()[1] == 1


def test_a_put_that_failed_is_tried_again_and_the_level_waits_for_it() -> None:
    world = DelayedStore(MemoryEnv())
    for body in (b"a", b"b", b"c"):
        world.send(body, 1)
    world.commit()
    world.env.advance(1000)

    def refuse_b(batch: AppendBatch) -> None:
        for row, body in enumerate(batch.bodies):
            if body == b"b":
                batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "no room")

    world.refuse = refuse_b
    with structlog.testing.capture_logs() as logs:
        world.settle()
        assert world.bodies() == [b"a", b"c"]
        assert world.delivery.safe()[1] == 1
        world.send(b"d", 1)
        world.commit()
        world.env.advance(RETRY_MS - 1)
        world.settle()
        world.env.advance(1)
        world.settle()
        assert world.bodies() == [b"a", b"c"], "refused once more, and nothing else overtook it"
        world.refuse = lambda batch: None
        world.env.advance(RETRY_MS)
        world.settle()
    logged = [(each["event"], each["level"]) for each in logs]
    assert logged == [("delayed_messages_refused", 1), ("outage_ended", 1)], "not for each attempt"
    assert world.bodies() == [b"a", b"c", b"b", b"d"]
    assert world.delivery.safe()[1] == 4


def test_delivery_waits_on_a_full_disk_and_continues_when_there_is_room() -> None:
    world = DelayedStore(MemoryEnv())
    bodies = [b"%d" % number + b"x" * 500 for number in range(12)]
    for body in bodies:
        world.send(body, 1)
    world.commit()
    world.env.advance(1000)
    world.env.free_bytes = 0
    world.settle()
    delivered = len(world.bodies())
    assert delivered < 12
    assert world.delivery.safe()[1] == delivered
    world.env.free_bytes = None
    world.env.advance(RETRY_MS)
    world.settle()
    assert world.bodies() == bodies


def test_a_message_that_can_never_be_stored_does_not_block_its_level() -> None:
    world = DelayedStore(MemoryEnv())
    batch = AppendBatch()
    for properties in (
        b"DELAY\x011", b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01x",
        b"DELAY\x011\x02REAL_TOPIC\x01T", b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x019999999999",
        b"DELAY\x011\x02REAL_TOPIC\x01../x\x02REAL_QID\x010",
        b"DELAY\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010",
        b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010",
    ):  # fmt: skip
        batch.add(SCHEDULE_TOPIC, 0, b"x", properties)
    world.store.append(batch)
    world.commit()
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"x"]
    assert world.delivery.safe()[1] == 7


def test_a_message_that_cannot_be_read_is_reported_and_skipped() -> None:
    world = DelayedStore(MemoryEnv())
    for body in (b"a", b"b", b"c"):
        world.send(body, 1)
    world.commit()
    second = world.delivered(SCHEDULE_TOPIC, 0)[1].offset
    world.store.log.quarantine_range(second, second + 1)
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a", b"c"]


def test_a_message_whose_entry_is_damaged_is_waited_for_until_that_is_corrected() -> None:
    world = DelayedStore(MemoryEnv())
    for body in (b"a", b"b", b"c"):
        world.send(body, 1)
    world.commit()
    world.store.flush_queues()
    queue = world.store.queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    third = queue.entries(2, 1)
    queue.correct({1: third[:12] + queue.entries(1, 1)[12:]})
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a"], "nothing is lost, and nothing comes twice"
    world.store.repair.step()
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a", b"b", b"c"]


def test_a_level_whose_queue_cannot_be_read_waits_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"one", 1)
    world.send(b"two", 2)
    world.commit()
    world.env.advance(5000)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        break_queue(patch, SCHEDULE_TOPIC, 0)
        assert world.settle() <= RETRY_MS
        world.env.advance(RETRY_MS)
        world.settle()
    assert world.bodies() == [b"two"]
    (outage,) = [line for line in logs if line["event"] == "delay_queue_unreadable"]
    assert (outage["log_level"], outage["topic"], outage["queue_id"]) == ("error", SCHEDULE_TOPIC, 0)
    world.env.advance(RETRY_MS)
    world.settle()
    assert world.bodies() == [b"two", b"one"]


def test_messages_that_no_descriptor_is_left_to_read_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 1)
    world.send(b"b", 1)
    world.commit()
    world.env.advance(1000)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        run_out_of_descriptors(patch, world.store.log)
        world.settle()
    assert [line["event"] for line in logs if line["event"].startswith("delay")] == ["delay_queue_unreadable"]
    assert world.bodies() == []
    world.env.advance(RETRY_MS)
    world.settle()
    assert world.bodies() == [b"a", b"b"]


@pytest.mark.parametrize(("stored", "again"), [(b"0", 3), (b"2", 1), (b"3", 0), (b"99", 0), (b"-5", 3)])
def test_a_stored_position_outside_of_the_queue_is_brought_inside(stored: bytes, again: int) -> None:
    world = DelayedStore(MemoryEnv())
    for body in (b"a", b"b", b"c"):
        world.send(body, 1)
    world.commit()
    world.env.advance(1000)
    world.settle()
    world.close()
    world.env.replace(DELAY_FILE, b'{"offsetTable":{1:%s}}' % stored)
    world = DelayedStore(world.env)
    world.settle()
    assert world.bodies() == [b"a", b"b", b"c", *[b"a", b"b", b"c"][3 - again :]]
    world.send(b"new", 1)
    world.commit()
    world.env.advance(1000)
    world.settle()
    assert world.bodies()[-1] == b"new"


def test_a_position_without_a_queue_hides_nothing_that_comes_later() -> None:
    env = MemoryEnv()
    DelayedStore(env).close()
    env.replace(DELAY_FILE, b'{"offsetTable":{1:500}}')
    world = DelayedStore(env)
    world.send(b"a", 1)
    world.commit()
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a"]


def test_no_message_is_lost_or_repeated_after_a_clean_stop() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 1)
    world.send(b"b", 2)
    world.commit()
    world.env.advance(1000)
    world.settle()
    world.close()
    assert world.env.read_bytes(DELAY_FILE) == b'{"offsetTable":{1:1,2:0}}'
    world.env.advance(HOUR_MS)
    world = DelayedStore(world.env)
    world.settle()
    assert world.bodies() == [b"a", b"b"]
    world.close()
    assert world.env.read_bytes(DELAY_FILE) == b'{"offsetTable":{1:1,2:1}}'


def test_after_a_power_cut_the_entries_still_say_when_their_messages_are_due() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 3, more=b"\x02TAGS\x01tag")
    world.store.flush()
    stored = world.env.wall
    world = DelayedStore(world.env.power_cut())
    queue = world.store.queues.get(SCHEDULE_TOPIC, 2)
    assert queue is not None
    assert ENTRY.unpack(queue.entries(0, 1))[2] == stored + 10_000
    world.env.advance(10_000)
    world.settle()
    assert world.bodies() == [b"a"]


@pytest.mark.parametrize(("levels", "delay_ms"), [("1s 5s 2h", 2 * HOUR_MS), ("1s 5s 3d", 72 * HOUR_MS)])
def test_levels_that_are_no_longer_configured_are_delivered_when_they_were_promised(levels: str, delay_ms: int) -> None:
    world = DelayedStore(MemoryEnv(), levels)
    world.send(b"a", 3)
    world.close()
    world = DelayedStore(world.env, "1s")
    for passed_ms in (HOUR_MS, delay_ms - HOUR_MS - 1):
        world.env.advance(passed_ms)
        world.settle()
        assert world.bodies() == []
    world.env.advance(1)
    world.settle()
    assert world.bodies() == [b"a"]


def test_a_message_that_is_larger_than_a_later_limit_is_delivered() -> None:
    world = DelayedStore(MemoryEnv())
    for body in (b"a" * 1500, b"b"):
        world.send(body, 1)
    world.close()
    world = DelayedStore(world.env, config=attrs.evolve(TINY, max_message_bytes=1000))
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a" * 1500, b"b"]


def test_entries_written_without_the_plugin_are_not_taken_for_due() -> None:
    world = DelayedStore(MemoryEnv())
    world.store.queues.tag_code_rules.clear()
    world.send(b"a", 2, more=b"\x02TAGS\x01tag")
    world.commit()
    world.env.advance(4999)
    world.settle()
    assert world.bodies() == []
    world.env.advance(1)
    world.settle()
    assert world.bodies() == [b"a"]


def test_a_clock_set_back_over_a_restart_neither_hastens_nor_long_delays_messages() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"before", 2)
    world.close()
    world.env.advance(-HOUR_MS)
    world = DelayedStore(world.env)
    world.settle()
    world.send(b"after", 2)
    world.commit()
    world.env.advance(4999)
    world.settle()
    assert world.bodies() == []
    world.env.advance(5000 // 9 + 2)  # a tenth late, while the store's clock waits for the machine's
    world.settle()
    assert world.bodies() == [b"before", b"after"]


def test_a_clock_that_steps_back_while_the_broker_runs_delivers_nothing_early() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 1)
    world.commit()
    world.env.advance(-HOUR_MS)
    world.settle()
    assert world.bodies() == []


def test_a_stopping_delivery_starts_no_message_and_counts_those_in_flight() -> None:
    world = DelayedStore(MemoryEnv())
    world.send(b"a", 1)
    world.commit()
    world.env.advance(1000)
    world.delivery.turn()
    world.delivery.stop()
    world.send(b"b", 1)
    world.commit()
    world.env.advance(1000)
    world.settle()
    assert world.bodies() == [b"a"]
    assert world.delivery.safe()[1] == 1


@pytest.mark.trio
async def test_the_service_sleeps_until_the_next_message_is_due(autojump_clock: trio.testing.MockClock) -> None:
    world = DelayedStore(MemoryEnv())
    began = world.env.wall
    turns = 0
    original = world.delivery.turn

    def turn() -> int:
        nonlocal turns
        turns += 1
        world.env.wall = began + round(trio.current_time() * 1000 - start)
        wait = original()
        world.commit()
        return wait

    start = trio.current_time() * 1000
    world.delivery.turn = turn  # type: ignore[method-assign]
    world.send(b"a", 3)
    world.commit()
    with trio.move_on_after(30):
        await world.delivery.run()
    (record,) = world.delivered()
    assert record.store_timestamp == began + 10_000, "on the millisecond"
    assert turns < 50


def test_a_level_that_was_made_shorter_waits_for_its_older_messages_and_says_so_once() -> None:
    env = MemoryEnv()
    world = DelayedStore(env, levels="1h 5s")
    world.send(b"old", 1)
    world.send(b"other", 2)
    world.settle()
    world.close()
    world = DelayedStore(env, levels="1s 5s")
    world.send(b"new", 1)
    with structlog.testing.capture_logs() as logs:
        world.settle()
        env.advance(2000)
        world.settle()
        assert world.bodies() == []
        env.advance(3_600_000)
        world.settle()
    assert world.bodies() == [b"old", b"new", b"other"]
    warnings = [entry for entry in logs if entry["event"] == "delay_level_waits_for_older"]
    assert warnings == [
        {"event": "delay_level_waits_for_older", "log_level": "warning", "level": 1, "due_in_ms": 3_600_000}
    ]


def test_messages_of_levels_that_are_longer_or_gone_are_not_reported() -> None:
    env = MemoryEnv()
    world = DelayedStore(env, levels="1s 5s 1h")
    for level in (1, 2, 3):
        world.send(b"%d" % level, level)
    world.settle()
    world.close()
    world = DelayedStore(env, levels="2s 5s")
    with structlog.testing.capture_logs() as logs:
        world.settle()
    assert logs == []

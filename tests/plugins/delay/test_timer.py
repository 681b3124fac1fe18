"""Timed messages are delivered at their millisecond, complete and once, also after damage to the files."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import PROPERTIES_LIMIT
from gantrymq.maintenance import store_repair
from gantrymq.maintenance.store_check import StoreCheck
from gantrymq.plugins.delay.levels.delivery import RETRY_MS
from gantrymq.plugins.delay.timer import enqueue as enqueue_module
from gantrymq.plugins.delay.timer.file_check import check_timer
from gantrymq.plugins.delay.timer.files import SIZES
from gantrymq.plugins.delay.timer.log import UNIT_BYTES, TimerLog, Unit
from gantrymq.plugins.delay.timer.wheel import Wheel
from gantrymq.plugins.index.layout import Shape
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.remoting.properties import find_property
from gantrymq.testing.memory_env import MemoryEnv
from support.timers import LARGER, SMALL, TimedStore
from support.unreadable import break_queue, run_out_of_descriptors

HOUR_MS = 3_600_000


@pytest.mark.parametrize("delay", [1, 999, 1000, 1001, 2500, 59_999])
def test_a_message_comes_at_its_millisecond_and_not_before(delay: int) -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_321))
    world.send_in(b"later", delay)
    world.settle()
    world.env.advance(delay - 1)
    world.settle()
    assert world.bodies() == []
    world.env.advance(1)
    world.settle()
    assert world.bodies() == [b"later"]
    assert world.delivered()[0].store_timestamp == 1_700_000_000_321 + delay


def test_the_message_is_moved_as_rocketmq_moves_it_and_keeps_its_history() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    batch = world.send(b"b", b"TAGS\x01a\x02TIMER_DELAY_MS\x011500\x02UNIQ_KEY\x01K", queue_id=3)
    assert (batch.topics, batch.queue_ids) == ([TIMER_TOPIC], [0])
    assert batch.properties[0] == (
        b"TAGS\x01a\x02TIMER_DELAY_MS\x011500\x02UNIQ_KEY\x01K"
        b"\x02TIMER_OUT_MS\x011700000001000\x02REAL_TOPIC\x01T\x02REAL_QID\x013"
    )
    world.settle()
    world.env.advance(1500)
    world.settle()
    (record,) = world.delivered("T", 3)
    assert record.properties == batch.properties[0] + (
        b"\x02TIMER_ENQUEUE_MS\x011700000000000\x02TIMER_DEQUEUE_MS\x011700000001500"
    )


@pytest.mark.parametrize(
    ("properties", "out"),
    [
        (b"TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x015000\x02TIMER_DELIVER_MS\x011", 1000),
        (b"TIMER_DELAY_MS\x015000\x02TIMER_DELIVER_MS\x011", 4000),
        (b"TIMER_DELIVER_MS\x011700000003001", 3000),
        (b"TIMER_DELIVER_MS\x011700000003000", 2000),
    ],
)
def test_seconds_count_before_milliseconds_before_a_point_in_time(properties: bytes, out: int) -> None:
    batch = TimedStore(MemoryEnv(start_ms=1_700_000_000_000)).send(b"", properties)
    assert find_property(batch.properties[0], b"TIMER_OUT_MS") == b"%d" % (1_700_000_000_000 + out)


def test_a_level_wins_and_drops_the_times() -> None:
    batch = TimedStore(MemoryEnv()).send(b"", b"TIMER_DELIVER_MS\x011\x02DELAY\x011\x02TIMER_DELAY_SEC\x015")
    assert batch.topics == [SCHEDULE_TOPIC]
    assert batch.properties[0] == b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010"


def test_messages_that_are_already_due_are_stored_in_their_topic_at_once() -> None:
    world = TimedStore(MemoryEnv())
    for properties in (b"TIMER_DELIVER_MS\x015", b"TIMER_DELAY_MS\x010", b"TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x019"):
        assert world.send(b"x", properties).topics == ["T"]


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        (b"TIMER_DELAY_SEC\x01101", "at most 100000 ms are allowed"),
        (b"TIMER_DELAY_MS\x01soon", "not a number"),
        (b"TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01T+a", "was due already"),
        (b"TIMER_DELAY_SEC\x015\x02TIMER_DEL_UNIQKEY\x01U+a", "of another topic"),
    ],
)
def test_a_time_that_cannot_be_is_refused(properties: bytes, remark: str) -> None:
    batch = TimedStore(MemoryEnv(), longest_ms=100_000).send(b"", properties)
    assert batch.statuses == [ResponseCode.MESSAGE_ILLEGAL]
    assert remark in batch.remarks[0]


def test_messages_of_one_time_keep_their_order_and_a_burst_comes_whole() -> None:
    world = TimedStore(MemoryEnv())
    due = world.now + 5000
    for number in range(1500):
        world.send(b"%d" % number, b"TIMER_DELIVER_MS\x01%d" % due)
    world.settle()
    world.env.advance(5000)
    world.settle()
    assert world.bodies() == [b"%d" % number for number in range(1500)]


def test_a_message_for_the_second_that_is_being_delivered_comes_in_time() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_100))
    world.send_in(b"a", 700)
    world.settle()
    world.env.advance(200)
    world.settle()
    world.send_in(b"b", 300)
    world.settle()
    world.env.advance(300)
    world.settle()
    assert world.bodies() == [b"b"]
    world.env.advance(200)
    world.settle()
    assert world.bodies() == [b"b", b"a"]


def test_a_message_whose_second_was_over_when_it_was_committed_comes_at_once() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_002))
    world.send_in(b"a", 1)
    world.settle()
    world.send_in(b"b", 999)
    world.env.advance(2500)
    world.timer.turn()  # the empty slot of b is passed over while that of a is not closed yet
    world.settle()
    assert world.bodies() == [b"a", b"b"]


def test_a_long_wait_is_put_back_on_the_way_and_comes_in_time() -> None:
    world = TimedStore(MemoryEnv())
    world.send_in(b"long", 150_000)
    for _ in range(150):
        world.settle()
        world.env.advance(1000)
        world.save()
    assert world.bodies() == []
    world.settle()
    assert world.bodies() == [b"long"]
    assert find_property(world.delivered()[0].properties, b"TIMER_ROLL_TIMES") == b"2"
    assert len(world.waiting()) == 3


def test_a_recalled_message_never_comes_even_when_its_second_has_begun() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    for body, delay in ((b"a", 5000), (b"b", 1900), (b"c", 5000)):
        world.send_in(body, delay)
    world.settle()
    world.recall(b"a", world.now + 5000)
    world.settle()
    world.env.advance(1000)
    world.settle()  # the slot of b is open
    assert world.recall(b"b", 1_700_000_001_900).statuses == [0]
    world.env.advance(900)
    world.settle()
    world.env.advance(10_000)
    world.settle()
    assert world.bodies() == [b"c"]


@pytest.mark.parametrize("lag", [700, 1500, 3000], ids=["in its second", "after it", "two seconds later"])
def test_a_recall_is_effective_although_it_is_dispatched_when_its_message_is_due(lag: int) -> None:
    """The disk or a slave is slow: the recall has its place in the log, and the timer reads it too late."""
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    world.send_in(b"m", 3050)
    world.send_in(b"other", 3060)
    world.settle()
    world.env.advance(2500)
    assert world.recall(b"m", 1_700_000_003_050).statuses == [0]
    assert world.recall(b"m", 1_700_000_003_050).statuses == [0]
    for _ in range(lag // 10):
        world.env.advance(10)
        world.timer.turn()
    assert len(world.timer.recalls) == 1
    world.settle()
    assert world.bodies() == [b"other"]
    assert len(world.timer.recalls) == 0, "what is in the wheel needs no memory"
    world.env.advance(5000)
    world.settle()
    assert world.bodies() == [b"other"]


def test_a_recall_is_effective_although_its_message_is_dispatched_first_and_too_late() -> None:
    """The timer's files are not open yet, and the slot is over before the message is in it."""
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    world.send_in(b"m", 1500)
    message_end = world.store.log.end
    assert world.recall(b"m", 1_700_000_001_500).statuses == [0]
    for _ in range(50):
        world.timer.turn()
        world.env.advance(100)
    world.store.flush()
    for _ in world.store.dispatch(message_end):
        pass
    for _ in range(50):
        world.timer.turn()
        world.env.advance(100)
    world.settle()
    assert world.bodies() == []
    assert len(world.timer.recalls) == 0


def refuse_recalls(batch: AppendBatch) -> None:
    for row in range(len(batch)):
        if batch.property_of(row, b"TIMER_DEL_UNIQKEY") is not None:
            batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "no room")


@pytest.mark.parametrize("elapsed", [0, 1000], ids=["before its slot is open", "in its second"])
def test_a_recall_that_could_not_be_stored_recalls_nothing(elapsed: int) -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    world.send_in(b"m", 1900)
    world.settle()
    world.env.advance(elapsed)
    world.settle()
    world.refuse = refuse_recalls
    assert world.recall(b"m", 1_700_000_001_900).statuses == [ResponseCode.SERVICE_NOT_AVAILABLE]
    world.env.advance(3000)
    world.settle()
    assert world.bodies() == [b"m"]


def test_a_recall_that_a_power_cut_removes_again_does_not_hide_its_message() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    world.send_in(b"m", 1900)
    world.settle()
    world.recall(b"m", 1_700_000_001_900)
    for _ in range(50):
        world.env.advance(100)
        world.timer.turn()
        world.save()
    assert world.timer.files.check.read_ms > 1_700_000_002_000
    world = TimedStore(world.env.power_cut(0))
    world.env.advance(5000)
    world.settle()
    world.env.advance(5000)
    world.settle()
    assert world.bodies() == [b"m"]


def test_a_recall_that_a_crash_leaves_only_in_the_log_is_effective() -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    world.send_in(b"m", 3050)
    world.settle()
    world.save()
    world.env.advance(2500)
    world.recall(b"m", 1_700_000_003_050)
    world = TimedStore(world.env.kill())
    for _ in range(200):
        world.env.advance(10)
        world.timer.turn()
    world.settle()
    assert world.bodies() == []


def test_a_message_of_another_topic_with_the_same_key_is_not_recalled() -> None:
    world = TimedStore(MemoryEnv())
    world.send(b"x", b"TIMER_DELAY_MS\x015000\x02UNIQ_KEY\x01k", topic="U")
    world.recall(b"k", world.now + 5000)
    world.settle()
    world.env.advance(6000)
    world.settle()
    assert [record.body for record in world.delivered("U")] == [b"x"]


@pytest.mark.parametrize("late", [200, 700])
def test_a_stop_in_the_middle_of_a_second_delivers_nothing_twice_and_loses_nothing(late: int) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    for number in range(10):
        world.send_in(b"%d" % number, 5000 + number * 100 + 1)
    world.send_in(b"next", 9000)
    world.settle()
    env.advance(5000 + late)
    world.settle()
    assert len(world.bodies()) == late // 100
    world.close()
    with structlog.testing.capture_logs() as logs:
        world = TimedStore(env)
        world.settle()
        assert len(world.bodies()) == late // 100
        env.advance(20_000)
        world.settle()
    assert world.bodies() == [*(b"%d" % number for number in range(10)), b"next"]
    assert [each["event"] for each in logs] == ["store_recovered"], "no message is reported as lost"


def test_a_recalled_message_stays_away_after_stops_in_the_middle_of_its_second() -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    for body, delay in ((b"a", 5101), (b"b", 5901), (b"c", 5401)):
        world.send_in(body, delay)
    world.settle()
    world.recall(b"b", world.now + 5901)
    world.settle()
    world.send_in(b"newest", 9000)
    world.settle()
    env.advance(5000)
    for came, number in (([b"a"], 1), ([b"a", b"c"], 0)):
        env.advance(300)
        world.settle()
        assert world.bodies() == came
        world.close()
        world = TimedStore(env)
        world.settle()
        slot = world.timer.files.wheel.get(1_700_000_005_000)
        assert slot is not None
        assert slot.number == number, "the waiting messages minus the recall"
    env.advance(20_000)
    world.settle()
    assert world.bodies() == [b"a", b"c", b"newest"]


def test_a_second_that_is_wholly_delivered_but_not_over_is_not_delivered_again_after_a_stop() -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    world.send_in(b"a", 100)
    world.settle()
    env.advance(100)
    world.settle()
    world.close()
    world = TimedStore(env)
    env.advance(10_000)
    world.settle()
    assert world.bodies() == [b"a"]


def test_a_wheel_that_was_built_again_after_a_crash_is_written_at_a_stop_with_nothing_new() -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    world.send_in(b"a", 3000)
    world.settle()
    world.close()
    TimedStore(env)
    env = env.kill()
    world = TimedStore(env)
    world.settle()
    world.close()
    world = TimedStore(env)
    env.advance(3000)
    world.settle()
    assert world.bodies() == [b"a"]


def test_a_start_and_a_stop_between_two_crashes_do_not_hide_what_they_left() -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    world.send_in(b"a", 3000)
    world.settle()
    world.save()
    env = env.kill()
    world = TimedStore(env)
    world.timer.turn()
    env = env.kill()
    TimedStore(env).close()
    world = TimedStore(env)
    env.advance(4000)
    world.settle()
    assert world.bodies() == [b"a"]


@pytest.mark.parametrize("cut", [None, 3])
def test_a_crash_loses_nothing_and_repeats_only_what_was_not_saved(cut: int | None) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    for number in range(8):
        world.send_in(b"%d" % number, 3000 * (number + 1))
    world.settle()
    env.advance(6100)
    world.settle()
    env.advance(1000)
    world.settle()
    world.save()
    env.advance(2000)
    world.settle()
    assert world.bodies() == [b"0", b"1", b"2"]
    env = env.kill() if cut is None else env.power_cut(cut)
    world = TimedStore(env)
    env.advance(30_000)
    world.settle()
    came = world.bodies()
    assert set(came) == {b"%d" % number for number in range(8)}
    assert (came.count(b"0"), came.count(b"1")) == (1, 1)


def damage_wheel(env: MemoryEnv) -> None:
    env.open("store/timerwheel").truncate(77)


def damage_log(env: MemoryEnv) -> None:
    name = env.listdir("store/timerlog")[0]
    env.open(f"store/timerlog/{name}").pwrite(b"\xff" * UNIT_BYTES, UNIT_BYTES)


def shorten_log(env: MemoryEnv) -> None:
    env.open(f"store/timerlog/{env.listdir('store/timerlog')[-1]}").truncate(100)


def lose_log(env: MemoryEnv) -> None:
    env.rmtree("store/timerlog")


def lose_wheel(env: MemoryEnv) -> None:
    env.unlink("store/timerwheel")


def spoil_slots(env: MemoryEnv) -> None:
    wheel = env.open("store/timerwheel")
    wheel.pwrite(wheel.pread(wheel.size(), 0).replace(b"\0\0\0\0\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\7\0\0\0\0\1"), 0)


def test_a_queue_of_the_timer_that_cannot_be_read_leaves_its_files_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimedStore(MemoryEnv())
    world.send_in(b"a", 5000)
    world.settle()
    world.send_in(b"b", 8000)
    world.commit()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        break_queue(patch, TIMER_TOPIC)
        for _ in range(6):
            world.env.advance(1000)
            world.settle()
        assert world.bodies() == [b"a"], "it was enqueued before"
    ours = [line["event"] for line in logs if line["event"].startswith(("delay", "timer"))]
    assert ours == ["delay_queue_unreadable"]
    for _ in range(4):
        world.env.advance(1000)
        world.settle()
    assert world.bodies() == [b"a", b"b"]


def test_messages_that_no_descriptor_is_left_to_read_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimedStore(MemoryEnv())
    world.send_in(b"a", 3000)
    world.send_in(b"recalled", 3500)
    world.settle()
    world.send_in(b"b", 5000)
    world.recall(b"recalled", world.now + 3500)
    world.commit()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        run_out_of_descriptors(patch, world.store.log)
        for _ in range(8):
            world.env.advance(1000)
            world.settle()
    events = {line["event"] for line in logs}
    assert "delayed_message_lost" not in events
    assert "timed_messages_unreadable" in events
    assert world.bodies() == []
    for _ in range(7):
        world.env.advance(1000)
        world.settle()
    assert sorted(world.bodies()) == [b"a", b"b"]


def test_a_timer_log_that_no_descriptor_is_left_to_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000))
    for number in range(1, 10):
        world.send_in(b"%d" % number, 5000 + number * 100)
    world.settle()
    world.env.advance(5500)
    world.settle()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:

        def failing(self: TimerLog, position: int) -> Unit:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr(TimerLog, "unit", failing)
        world.env.advance(200)
        world.settle()
    assert [line["event"] for line in logs] == ["timed_messages_unreadable"]
    world.env.advance(5000)
    world.settle()
    assert world.bodies() == [b"%d" % number for number in range(1, 10)]
    assert not world.env.listdir("store/lost+found")


def test_a_stop_that_is_killed_while_it_copies_waiting_units_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    def killed(log: TimerLog) -> None:
        raise Killed

    env = MemoryEnv(start_ms=1_700_000_000_000)
    sizes = attrs.evolve(SMALL, file_bytes=UNIT_BYTES * 1000)
    world = TimedStore(env, sizes=sizes)
    bodies = [b"%d" % number for number in range(200)]
    for number, body in enumerate(bodies):
        world.send_in(body, 5000 + number * 4)
    world.settle()
    env.advance(5100)
    world.settle()
    assert 0 < len(world.bodies()) < 100
    world.save()
    end = world.timer.files.log.end
    with monkeypatch.context() as patch:
        patch.setattr(TimerLog, "sync", killed)
        with pytest.raises(Killed):
            world.close()
    env = env.kill()
    units = env.open(f"store/timerlog/{0:020}")
    written = len(units.pread(units.size() - end, end).rstrip(b"\0"))
    assert written > 4096, "copies were written"
    units.pwrite(bytes(written - 4096), end + 4096)
    world = TimedStore(env, sizes=sizes)
    for _ in range(3):
        env.advance(2000)
        world.settle()
    assert set(world.bodies()) == set(bodies)


@pytest.mark.parametrize("damage", [damage_wheel, damage_log, shorten_log, lose_log, lose_wheel, spoil_slots])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_damaged_files_are_built_again_and_nothing_is_lost_or_repeated(damage: object, how: str) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    for number in range(60):
        world.send_in(b"%d" % number, 500 * (number + 1))
    world.settle()
    env.advance(10_100)
    world.settle()
    env.advance(900)
    world.settle()
    world.save()
    assert len(world.bodies()) == 22
    if how == "closed":
        world.close()
    else:
        env = env.kill()
    assert callable(damage)
    damage(env)
    world = TimedStore(env)
    env.advance(60_000)
    world.settle()
    came = world.bodies()
    assert sorted(came, key=int) == [b"%d" % number for number in range(60)]


def test_a_missing_checkpoint_repeats_the_messages_of_the_queue_rather_than_losing_them() -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    world.send_in(b"a", 1000)
    world.send_in(b"b", 50_000)
    world.settle()
    env.advance(2000)
    world.settle()
    world.close()
    for path in ("store/config/timercheck", "store/config/timercheck.bak"):
        if env.exists(path):
            env.unlink(path)
    world = TimedStore(env)
    env.advance(60_000)
    world.settle()
    assert sorted(world.bodies()) == [b"a", b"a", b"b"]


@pytest.mark.parametrize("step", [-HOUR_MS, -5000, HOUR_MS])
def test_a_clock_that_was_set_over_a_restart_delivers_nothing_early_and_nothing_twice(step: int) -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    for number in range(1, 9):
        world.send_in(b"%d" % number, 3000 * number)
    world.settle()
    env.advance(9000)
    world.settle()
    env.advance(3600_000 // 2)
    world.settle()
    world.send_in(b"new", 10_000)
    world.settle()
    env.advance(1500)
    world.settle()
    world.close()
    before = env.wall
    env.advance(step)
    world = TimedStore(env)
    world.settle()
    if step < 0:
        assert b"new" not in world.bodies()
        env.advance(8499)
        world.settle()
        assert b"new" not in world.bodies()
        env.advance(3000)  # the store's clock goes on from the last message, a tenth slower
        world.settle()
    assert sorted(world.bodies()) == sorted([*(b"%d" % number for number in range(1, 9)), b"new"])
    assert before <= world.store.log.last_timestamp


def refuse_all(batch: AppendBatch) -> None:
    for row in range(len(batch)):
        batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")


def with_an_overdue_message(env: MemoryEnv) -> TimedStore:
    """The message ``late`` was enqueued when its second was over, which the checkpoint has, and is not delivered."""
    world = TimedStore(env)
    for number in range(3):
        world.send_in(b"%d" % number, 500)
    world.settle()
    env.advance(2000)
    world.settle()
    world.send_in(b"late", 500)
    env.advance(8000)
    while not world.timer.turn():
        pass
    world.refuse = refuse_all
    world.settle()
    world.save()
    assert world.bodies() == [b"0", b"1", b"2"]
    return world


@pytest.mark.parametrize("stops", [0, 1, 3], ids=["whole", "interrupted", "often-interrupted"])
def test_an_overdue_message_survives_a_clock_that_was_set_back_over_a_crash(
    monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    monkeypatch.setattr(enqueue_module, "ROWS", 1)
    env = MemoryEnv(start_ms=1_700_000_000_000)
    with_an_overdue_message(env)
    env = env.kill()
    env.advance(-5000)
    for _ in range(stops):
        world = TimedStore(env)
        world.timer.turn()
        assert world.timer.files.rebuild is not None
        env = env.kill()
    world = TimedStore(env)
    for _ in range(10):
        world.settle()
        env.advance(1000)
    assert world.bodies() == [b"0", b"1", b"2", b"late"]
    for _ in range(2):  # nor does it come again later
        world.close()
        env.advance(-1500)
        world = TimedStore(env)
        world.settle()
    assert world.bodies() == [b"0", b"1", b"2", b"late"]


def repair_log(env: MemoryEnv) -> None:
    """Damage the timer log, and repair the store before the broker starts again."""
    damage_log(env)
    lock = env.lock("store/lock")
    found = StoreCheck(
        env, "store", Shape(64, 200), deep=True, check_files=partial(check_timer, slots=SMALL.slots)
    ).run()
    assert store_repair.repair(env, "store", found, lock).moved == [
        "store/lost+found/timerwheel.1", "store/lost+found/timerlog.1"
    ]  # fmt: skip
    lock.close()


@pytest.mark.parametrize("damage", [damage_wheel, lose_wheel, damage_log, spoil_slots, repair_log])
def test_an_overdue_message_survives_damaged_files(damage: Callable[[MemoryEnv], None]) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    with_an_overdue_message(env)
    env = env.kill()
    damage(env)
    world = TimedStore(env)
    env.advance(10_000)
    world.settle()
    assert world.bodies() == [b"0", b"1", b"2", b"late"]


@pytest.mark.parametrize("ahead", [0, 60_000, HOUR_MS, 365 * 24 * HOUR_MS])
def test_a_moment_is_one_of_the_machines_clock_however_far_the_stores_runs_ahead(ahead: int) -> None:
    """One start with a clock a year ahead once made messages of all later runs due at once."""
    env = MemoryEnv()
    env.advance(ahead)
    world = TimedStore(env)
    world.send_in(b"stamp", 1)
    world.settle()
    env.advance(1000)
    world.settle()
    world.close()
    env.advance(-ahead)
    world = TimedStore(env)
    world.send(b"moment", b"TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01m" % (env.wall + 20_000))
    world.send_in(b"delay", 20_000)
    world.settle()
    env.advance(19_999)
    world.settle()
    assert world.bodies() == [b"stamp"]
    env.advance(1001)  # at the end of its second at the latest
    world.settle()
    assert b"moment" in world.bodies()
    env.advance(2000)  # a delay may lose a tenth
    world.settle()
    assert sorted(world.bodies()) == [b"delay", b"moment", b"stamp"]


def test_a_message_with_a_moment_can_be_recalled_while_the_stores_clock_runs_ahead() -> None:
    env = MemoryEnv()
    env.advance(HOUR_MS)
    world = TimedStore(env)
    world.send_in(b"stamp", 1)
    world.settle()
    world.close()
    env.advance(-HOUR_MS)
    world = TimedStore(env)
    batch = world.send(b"body", b"TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01body" % (env.wall + 20_000))
    due = int(next(value for name, value in properties_of(batch) if name == b"TIMER_OUT_MS")) + 1
    world.recall(b"body", due)
    world.settle()
    env.advance(60_000)
    world.settle()
    assert b"body" not in world.bodies()


def properties_of(batch: AppendBatch) -> list[tuple[bytes, bytes]]:
    pairs = [pair.split(b"\x01") for pair in batch.properties[0].split(b"\x02") if pair]
    return [(name, value) for name, value in pairs]


def test_an_idle_broker_whose_clock_was_set_back_still_delivers_in_time() -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    world.send_in(b"old", 1000)
    world.settle()
    env.advance(1000)
    world.settle()
    env.advance(HOUR_MS)
    world.settle()
    world.close()
    env.advance(-HOUR_MS // 2)
    world = TimedStore(env)
    world.send_in(b"new", 5000)
    world.settle()
    env.advance(5000)
    world.settle()
    assert world.bodies() == [b"old", b"new"]


def test_a_message_that_could_not_be_stored_is_tried_again() -> None:
    world = TimedStore(MemoryEnv())
    for body in (b"a", b"b"):
        world.send_in(body, 1000)
    world.settle()

    def refuse(batch: AppendBatch) -> None:
        batch.refuse(0, ResponseCode.SERVICE_NOT_AVAILABLE, "no room")

    world.refuse = refuse
    with structlog.testing.capture_logs() as logs:
        world.env.advance(1000)
        world.settle()
        assert world.bodies() == [b"b"]
        for _ in range(3):
            world.env.advance(RETRY_MS)
            world.settle()
        world.refuse = lambda batch: None
        world.env.advance(RETRY_MS)
        world.settle()
    assert world.bodies() == [b"b", b"a"]
    logged = [each for each in logs if each["event"] in ("delayed_messages_refused", "outage_ended")]
    assert [each["event"] for each in logged] == ["delayed_messages_refused", "outage_ended"], "not for each attempt"
    assert logged[1]["failures"] >= 4


@pytest.mark.parametrize("delay", [5000, 70_000], ids=["once", "enqueued again on the way"])
def test_a_message_that_is_larger_than_a_later_limit_is_delivered(delay: int) -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    world.send_in(b"a" * 1500, delay)
    world.settle()
    world.close()
    world = TimedStore(env, config=attrs.evolve(LARGER, max_message_bytes=1000))
    for _ in range(delay // 1000):
        env.advance(1000)
        world.settle()
    assert world.bodies() == [b"a" * 1500]


@pytest.mark.parametrize("time", [b"TIMER_DELAY_MS\x015000", b"TIMER_DELAY_SEC\x01150"], ids=["once", "rolled"])
@pytest.mark.parametrize("left", [0, 40, 150, 159, 160, 200])
def test_properties_without_room_for_those_of_the_delivery_are_refused_at_the_send(time: bytes, left: int) -> None:
    world = TimedStore(MemoryEnv())
    added = len(world.send(b"short", time + b"\x02P\x01").properties[0])
    padding = PROPERTIES_LIMIT - left - added
    batch = world.send(b"long", time + b"\x02P\x01" + b"x" * padding)
    assert batch.statuses == [0 if left >= 160 else ResponseCode.MESSAGE_ILLEGAL]
    for _ in range(150):
        world.env.advance(1000)
        world.settle()
    assert world.bodies() == ([b"short", b"long"] if left >= 160 else [b"short"])


def test_waiting_timed_messages_hold_log_files_until_they_are_delivered() -> None:
    world = TimedStore(MemoryEnv())
    assert world.timer.floor() == world.store.log.end
    world.send_in(b"a", 2000)
    first = world.store.log.end
    world.send_in(b"b", 8000)
    world.settle()
    assert world.timer.floor() == 0
    for _ in range(6):
        world.env.advance(1000)
        world.settle()
        world.save()
    assert world.timer.floor() == first
    for _ in range(6):
        world.env.advance(1000)
        world.settle()
        world.save()
    assert world.timer.floor() == world.store.log.end


def test_old_files_of_the_timer_log_go() -> None:
    world = TimedStore(MemoryEnv())
    for _ in range(100):
        world.send_in(b"x", 1000)
        world.settle()
        world.env.advance(1000)
        world.settle()
        world.timer.floor()
        world.save()
    assert len(world.bodies()) == 100
    assert len(world.env.listdir("store/timerlog")) <= 2


def test_a_store_that_never_saw_such_a_message_has_no_timer_files() -> None:
    world = TimedStore(MemoryEnv())
    world.settle()
    world.save()
    world.close()
    assert not world.env.exists("store/timerwheel")
    assert not world.env.exists("store/config/timercheck")


@pytest.mark.parametrize("damage", [damage_log, spoil_slots])
def test_files_that_are_damaged_while_they_are_in_use_are_built_again(damage: object) -> None:
    env = MemoryEnv(start_ms=1_700_000_000_000)
    world = TimedStore(env)
    world.send_in(b"a", 1000)
    for number in range(60):
        world.send_in(b"%d" % number, 5000 + 100 * number)
    world.settle()
    env.advance(2000)
    world.settle()
    world.save()
    world.timer.files.wheel._kept.clear()
    assert callable(damage)
    damage(env)
    env.advance(2000)
    world.settle()
    env.advance(10_000)
    world.settle()
    env.advance(2000)
    world.settle()
    assert sorted(world.bodies()) == sorted([b"a", *(b"%d" % number for number in range(60))])


def test_a_disk_without_room_for_the_timer_s_files_is_waited_out() -> None:
    world = TimedStore(MemoryEnv(), sizes=attrs.evolve(SMALL, file_bytes=1 << 20))
    world.send_in(b"a", 5000)
    world.commit()
    world.env.free_bytes = 0
    assert world.timer.turn() > 0
    world.save()
    world.env.advance(1000)
    world.timer.turn()
    world.save()
    world.env.free_bytes = None
    world.env.advance(4000)
    world.settle()
    world.save()
    assert world.bodies() == [b"a"]
    assert world.timer.files.check.queue_offset == 1


@pytest.mark.trio
async def test_a_disk_that_takes_long_over_the_timer_s_files_makes_nothing_late(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    taken_up, released = threading.Event(), threading.Event()
    saves: list[int] = []

    def hold() -> None:
        taken_up.set()
        assert released.wait(30)

    def save() -> Callable[[], None] | None:
        if not world.timer.files.log.end:
            return None
        saves.append(env.wall_ms())
        return hold

    monkeypatch.setattr(world.timer, "save", save)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.timer.run)
        world.send_in(b"a", 1000)
        for _ in range(5):
            await trio.sleep(1)
            env.advance(1000)
            world.commit()
        assert world.bodies() == [b"a"]
        assert len(saves) == 1, "one after the other"
        assert await trio.to_thread.run_sync(taken_up.wait, 30)
        released.set()
        with trio.fail_after(1_000_000):
            while len(saves) < 2:  # noqa: ASYNC110
                await trio.sleep(1)
        nursery.cancel_scope.cancel()


def test_files_are_not_reopened_while_they_are_written() -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    for number in range(3):
        world.send_in(b"%d" % number, 3000)
    world.settle()
    world.save()
    world.timer._is_saving = True
    world.timer.files.wheel._kept.clear()
    damage_log(env)
    env.advance(4000)
    for _ in range(5):
        world.timer.turn()
    assert world.timer.files.spoilt
    world.timer._is_saving = False
    world.settle()
    env.advance(2000)
    world.settle()
    assert sorted(world.bodies()) == [b"0", b"1", b"2"]


def test_a_disk_that_takes_seconds_over_the_log_makes_nothing_late() -> None:
    env = MemoryEnv()
    world = TimedStore(env)
    for second in range(1, 13):
        world.send_in(b"%d" % second, 1000 * second)
    world.settle()
    durable = world.store.log.durable
    for second in range(1, 13):
        env.advance(1000)
        for _ in range(5):
            world.timer.turn()
        for _ in world.store.dispatch(world.store.log.end):
            pass
        assert world.bodies() == [b"%d" % number for number in range(1, second + 1)]
    assert world.store.log.durable == durable, "of what was delivered the disk has nothing yet"
    first = world.timer.files.read_ms
    world.settle()
    env.advance(1000)
    world.settle()
    assert world.timer.files.read_ms >= first + 11_000
    assert len(world.bodies()) == 12


def flip_body(world: TimedStore) -> None:
    path = f"store/commitlog/{0:020d}"
    at = world.env.read_bytes(path).index(b"second")
    world.env.open(path).pwrite(b"X", at)


def name_another_size(world: TimedStore) -> None:
    path = f"store/consumequeue/{TIMER_TOPIC}/0/{0:020d}"
    world.store.flush_queues()
    _, size, _ = ENTRY.unpack_from(world.env.read_bytes(path), ENTRY.size)
    world.env.open(path).pwrite((size + 1).to_bytes(4, "big"), ENTRY.size + 8)


@pytest.mark.parametrize("damage", [flip_body, name_another_size])
def test_a_message_that_became_unreadable_is_logged_and_the_others_are_delivered(
    damage: Callable[[TimedStore], None],
) -> None:
    world = TimedStore(MemoryEnv())
    for body in (b"first", b"second", b"third"):
        world.send_in(body, 2000)
    world.commit()
    damage(world)
    with structlog.testing.capture_logs() as logs:
        world.settle()
        world.env.advance(2000)
        world.settle()
    assert world.bodies() == [b"first", b"third"]
    assert [entry["queue_offset"] for entry in logs if entry["event"] == "delayed_message_lost"] == [1]


def test_a_full_disk_is_logged_once_until_the_timer_is_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TimedStore(MemoryEnv())
    world.send_in(b"x", 60_000)
    world.commit()
    world.settle()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saves = [fail, fail, lambda *_: fail, lambda *_: fail, lambda *_: lambda: None, fail]
    with structlog.testing.capture_logs() as logs:
        for checkpoint in saves:
            monkeypatch.setattr(world.timer.files, "checkpoint", checkpoint)
            world.save()
    assert [entry["event"] for entry in logs] == ["timer_not_saved", "timer_saved_again", "timer_not_saved"]


DAY_MS = 24 * HOUR_MS


def test_messages_that_became_due_during_a_long_downtime_are_delivered_within_a_few_turns() -> None:
    """Six days are 518,400 slots. A killed RocketMQ leaves a store that says it delivered nothing for days, too."""
    world = TimedStore(MemoryEnv(start_ms=1_700_000_000_000), sizes=SIZES)
    hours = (2, 30, 100, 143)
    for number in hours:
        world.send_in(b"%d" % number, number * HOUR_MS)
    world.settle()
    world.close()
    world.env.advance(6 * DAY_MS - HOUR_MS // 2)
    again = TimedStore(world.env, sizes=SIZES)
    again.settle(turns=60)
    assert again.bodies() == [b"%d" % number for number in hours]
    again.send_in(b"next", 1500)
    again.settle()
    again.env.advance(1500)
    again.settle()
    assert again.bodies()[-1] == b"next"


@pytest.mark.parametrize("written", [True, False], ids=["in the file", "in memory"])
def test_the_next_slot_that_is_set_is_found_as_by_looking_at_each(written: bool) -> None:
    slots = 100_000  # more than are read at once
    wheel = Wheel(MemoryEnv(), "timerwheel", slots)
    wheel.create({})
    first = 1_700_000_000
    lap = range(first, first + slots)
    # the last one lies behind the part of the file that is read first; seconds of an older lap share slots
    set_seconds = {first + 5, first + 40_000, first + 40_001, first + 99_999}
    old = {first + 7 - slots, first + 60_000 - slots}
    for second in set_seconds | old:
        wheel.put(second * 1000, 52, 104, 1)
    if written:
        wheel.write(wheel.take_changes())
    for since, until in ((first, first + slots), (first + 6, first + 40_000), (first + 40_001, first + 40_002)):
        found, at = [], since * 1000
        while at < until * 1000:
            at = wheel.next_set(at, until * 1000)
            if at < until * 1000 and wheel.get(at) is not None:
                found.append(at // 1000)
                at += 1000
        assert found == sorted(second for second in set_seconds if since <= second < until and second in lap)
    assert wheel.next_set(first * 1000, first * 1000) == first * 1000


@pytest.mark.parametrize("written", [True, False])
def test_the_messages_of_a_wheel_are_counted_by_ranges_of_time(written: bool) -> None:
    slots = 100_000  # more than are read at once
    wheel = Wheel(MemoryEnv(), "timerwheel", slots)
    wheel.create({})
    first = 1_700_000_000
    for ahead, number in ((0, 1), (4, 2), (5, 4), (59, 8), (60, 16), (90_000, 32), (99_998, 64), (-1, 128)):
        wheel.put((first + ahead) * 1000, 52, 104, number)
    if written:
        wheel.write(wheel.take_changes())
        wheel.put((first + 4) * 1000, 52, 156, 3)
    total, counts = wheel.count(first * 1000, [first * 1000, (first + 5) * 1000, (first + 60) * 1000])
    assert (total, counts) == (127 + written, [0, 3 + written, 12])
    assert wheel.count((first - 1) * 1000, [first * 1000])[1] == [128]


def test_a_slot_that_is_written_while_the_next_one_is_looked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel(MemoryEnv(), "timerwheel", 1000)
    wheel.create({})
    first = 1_700_000_000_000
    wheel.put(first + 5000, 52, 104, 1)
    changes = wheel.take_changes()
    file = wheel._open_file
    read = file.pread

    def read_and_write(size: int, at: int) -> bytes:
        data = read(size, at)
        wheel.write(changes)  # as the worker thread may at this moment
        return data

    monkeypatch.setattr(
        wheel, "_file", SimpleNamespace(pread=read_and_write, pwrite=file.pwrite, datasync=file.datasync)
    )
    assert wheel.next_set(first, first + 100_000) == first + 5000

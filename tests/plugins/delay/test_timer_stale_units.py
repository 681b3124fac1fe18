"""Units of the timer log without a record in the log deliver nothing and hide no new message."""

from __future__ import annotations

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.store.store import Store
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TRANS_HALF_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from support.timers import LARGER, TimedStore

START_MS = 1_700_000_000_000


def append_half(world: TimedStore, body: bytes = b"half") -> None:
    """A half message of the topic T, as ``Transaction`` appends it."""
    batch = AppendBatch()
    batch.add(TRANS_HALF_TOPIC, 0, body, b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TRAN_MSG\x01true\x02PGROUP\x01g")
    world.store.append(batch)


def refuse_all(batch: AppendBatch) -> None:
    for row in range(len(batch)):
        batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")


def pass_seconds(world: TimedStore, seconds: int) -> None:
    for _ in range(seconds):
        world.env.advance(1000)
        world.settle()


def test_the_timer_s_files_are_saved_behind_the_messages_that_they_name() -> None:
    world = TimedStore(MemoryEnv(start_ms=START_MS))
    world.send_in(b"message", 5000)
    for _ in world.store.dispatch(world.store.log.end):  # without a flush, as in the mode async
        pass
    world.timer.turn()
    world.save()
    world = TimedStore(world.env.power_cut(0))
    append_half(world)
    world.settle()
    pass_seconds(world, 8)
    assert world.bodies() == [b"message"]


def test_units_that_reach_the_disk_before_their_messages_do_nothing() -> None:
    """The system may write the timer log before anything is flushed."""
    world = TimedStore(MemoryEnv(start_ms=START_MS))
    world.send_in(b"kept", 3000)
    world.settle()
    world.save()
    world.send_in(b"lost", 5000)
    for _ in world.store.dispatch(world.store.log.end):
        pass
    world.timer.turn()
    world.timer.files.log.write()
    world.timer.files.log.sync()
    world = TimedStore(world.env.power_cut(0))
    append_half(world, b"lost")
    world.settle()
    pass_seconds(world, 8)
    assert world.bodies() == [b"kept"]


def cut_behind_common(*tail: tuple[bytes, int]) -> MemoryEnv:
    """A store that ends with the delivered message ``common``: ``tail``, bodies with delays, was enqueued and cut."""
    world = TimedStore(MemoryEnv(start_ms=START_MS))
    world.send_in(b"common", 1000)
    world.settle()
    pass_seconds(world, 3)
    world.save()
    end = world.store.log.end
    for body, delay in tail:
        world.send_in(body, delay)
    world.settle()
    world.save()
    env = world.env.kill()
    store = Store(env, "store", LARGER)
    store.open()
    store.cut(end)
    store.recover(lambda batch: None)
    store.close()
    return env


def test_messages_after_a_cut_come_in_time_though_their_queue_offsets_were_enqueued_before() -> None:
    world = TimedStore(cut_behind_common((b"tail1", 20_000), (b"tail2", 20_000)))
    world.send_in(b"first", 30_000)
    world.send_in(b"second", 30_000)
    world.settle()
    pass_seconds(world, 29)
    assert world.bodies() == [b"common"]
    pass_seconds(world, 2)
    assert world.bodies() == [b"common", b"first", b"second"]


def test_a_half_message_after_a_cut_is_not_delivered_at_the_time_of_a_cut_message() -> None:
    world = TimedStore(cut_behind_common((b"tail", 5000)))
    append_half(world)
    world.settle()
    pass_seconds(world, 10)
    assert world.bodies() == [b"common"]


@pytest.mark.parametrize("replacement", ["half", "timed", "longer"])
def test_a_unit_delivers_no_other_record_than_its_own(replacement: str) -> None:
    """The same number of timed messages came after the cut before a timer ran, so the queue offset proves nothing."""
    appended = TimedStore(cut_behind_common((b"tail", 5000)))
    if replacement == "half":
        append_half(appended)
        appended.send_in(b"new", 20_000)
    else:
        appended.send_in(b"new!" if replacement == "timed" else b"much longer", 20_000)
    appended.commit()
    appended.store.close()
    world = TimedStore(appended.env)
    world.settle()
    pass_seconds(world, 15)
    assert world.bodies() == [b"common"]


def test_a_crash_soon_after_a_cut_does_not_hide_the_cut() -> None:
    """The log has grown beyond its former end before the timer's files are saved."""
    world = TimedStore(cut_behind_common((b"tail1", 20_000), (b"tail2", 20_000)))
    world.timer.turn()
    for number in range(5):
        world.send_in(b"%d" % number, 30_000)
    world.commit()
    world = TimedStore(world.env.kill())
    world.settle()
    pass_seconds(world, 29)
    assert world.bodies() == [b"common"]
    pass_seconds(world, 2)
    assert world.bodies() == [b"common", *(b"%d" % number for number in range(5))]


def test_deliveries_that_were_cut_off_are_repeated_even_after_another_crash() -> None:
    world = TimedStore(MemoryEnv(start_ms=START_MS))
    world.send_in(b"a", 1000)
    world.send_in(b"b", 5000)
    world.settle()
    for _ in range(4):
        pass_seconds(world, 1)
        world.save()
    end = world.store.log.end
    for _ in range(6):
        pass_seconds(world, 1)
        world.save()
    assert world.bodies() == [b"a", b"b"]
    env = world.env.kill()
    store = Store(env, "store", LARGER)
    store.open()
    store.cut(end)
    store.recover(lambda batch: None)
    store.close()
    world = TimedStore(env)
    world.send_in(b"c" * 1000, 1000)
    world.refuse = refuse_all
    world.settle()
    world = TimedStore(world.env.kill())
    pass_seconds(world, 3)
    assert sorted(world.bodies()) == [b"a", b"b", b"c" * 1000]

"""A promoted slave continues its master's timer: it delivers all messages, none early, and repeats few."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import structlog.testing

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.delay.timer import enqueue as enqueue_module
from gantrymq.plugins.delay.timer import master_progress
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from support.timers import SlaveStore, TimedStore, sizes_read
from support.unreadable import break_queue, run_out_of_descriptors

START_MS = 1_700_000_000_000


def pass_seconds(seconds: int, *stores: TimedStore | SlaveStore) -> None:
    """Time passes; masters deliver and save each second, slaves only have the time."""
    for _ in range(seconds):
        for store in stores:
            store.env.advance(1000)
            if isinstance(store, TimedStore):
                store.settle()
                store.save()


def master() -> TimedStore:
    return TimedStore(MemoryEnv(start_ms=START_MS))


def slave_of(world: TimedStore) -> SlaveStore:
    env = MemoryEnv(1, START_MS)
    env.advance(world.env.wall - env.wall)
    return SlaveStore(env)


def promoted(slave: SlaveStore) -> TimedStore:
    slave.close()
    return TimedStore(slave.env)


def test_a_promoted_slave_repeats_nothing_that_was_delivered_and_delivers_the_rest_in_time() -> None:
    world = master()
    for number in range(3):
        world.send_in(b"done%d" % number, 1500)
    world.send_in(b"later", 30_000)
    world.settle()
    pass_seconds(10, world)
    slave = slave_of(world)
    slave.follow(world)
    new = promoted(slave)
    pass_seconds(19, new)
    assert new.bodies() == world.bodies() == [b"done0", b"done1", b"done2"]
    pass_seconds(2, new)
    assert new.bodies() == [b"done0", b"done1", b"done2", b"later"]


def test_recalled_messages_stay_recalled_however_far_behind_them_the_recall_is() -> None:
    world = master()
    world.send_in(b"recalled", 40_000)
    due = world.now + 40_000
    for _ in range(600):
        world.send_in(b"other", 35_000)
    world.recall(b"recalled", due)
    world.settle()
    slave = slave_of(world)
    slave.copy(world)  # and the master dies before it reports anything
    new = promoted(slave)
    new.env.advance(60_000)
    new.settle()
    pass_seconds(10, new)
    assert Counter(new.bodies()) == {b"other": 600}


def test_recalled_messages_stay_recalled_after_a_long_stop() -> None:
    """Neither the message nor the recall was enqueued, and both are overdue."""
    world = master()
    world.send_in(b"first", 1000)
    world.settle()
    pass_seconds(2, world)
    world.send_in(b"recalled", 40_000)
    due = world.now + 40_000
    for _ in range(600):
        world.send_in(b"other", 35_000)
    world.recall(b"recalled", due)
    world.commit()
    env = world.env.kill()
    env.advance(100_000)
    world = TimedStore(env)
    pass_seconds(10, world)
    assert Counter(world.bodies()) == {b"first": 1, b"other": 600}


def test_messages_since_the_last_report_are_repeated_and_not_lost() -> None:
    world = master()
    for number in range(40):
        world.send_in(b"%d" % number, 1000 * number + 500)
    world.settle()
    pass_seconds(20, world)
    slave = slave_of(world)
    slave.follow(world)
    pass_seconds(10, world, slave)
    slave.copy(world)
    new = promoted(slave)
    pass_seconds(15, new)
    counts = Counter(new.bodies())
    assert set(counts) == {b"%d" % number for number in range(40)}
    assert {int(body) for body, count in counts.items() if count > 1} <= set(range(15, 30))


def test_a_slave_without_any_report_repeats_rather_than_loses() -> None:
    world = master()
    world.send_in(b"a", 1000)
    world.send_in(b"b", 20_000)
    world.settle()
    pass_seconds(3, world)
    slave = slave_of(world)
    slave.copy(world)
    new = promoted(slave)
    pass_seconds(20, new)
    assert Counter(new.bodies()) == {b"a": 2, b"b": 1}


def test_an_overdue_message_that_still_waits_is_not_lost() -> None:
    world = master()
    world.send_in(b"done", 500)
    world.settle()
    pass_seconds(2, world)
    world.send_in(b"overdue", 500)
    world.env.advance(8000)

    def refuse(batch: AppendBatch) -> None:
        for row in range(len(batch)):
            batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, "not now")

    world.commit()
    while not world.timer.turn():
        pass
    world.refuse = refuse
    world.settle()
    world.save()
    slave = slave_of(world)
    slave.follow(world)
    new = promoted(slave)
    pass_seconds(5, new)
    assert new.bodies()[-1:] == [b"overdue"]
    assert new.bodies().count(b"overdue") == 1


def switched(world: TimedStore, slave: SlaveStore, *, cut: int | None = None) -> tuple[TimedStore, SlaveStore]:
    """The slave becomes the master; the master dies and comes back as its slave."""
    return promoted(slave), SlaveStore(world.env.kill(), cut=cut)


def test_a_broker_that_is_promoted_a_second_time_repeats_nothing_of_the_other_master() -> None:
    world = master()
    world.send_in(b"by a", 1000)
    world.settle()
    pass_seconds(5, world)
    slave = slave_of(world)
    slave.follow(world)
    world, slave = switched(world, slave)
    world.send_in(b"by b", 1000)
    world.send_in(b"later", 20_000)
    world.settle()
    pass_seconds(8, world, slave)
    slave.follow(world)
    world, slave = switched(world, slave)
    pass_seconds(20, world)
    assert world.bodies() == [b"by a", b"by b", b"later"]


@pytest.mark.parametrize("reports", [False, True])
def test_a_cut_tail_makes_no_message_of_the_new_master_early_or_lost(reports: bool) -> None:
    world = master()
    world.send_in(b"common", 1000)
    world.settle()
    pass_seconds(5, world)
    slave = slave_of(world)
    slave.follow(world)
    end = world.store.log.end
    world.send_in(b"tail1", 20_000)
    world.send_in(b"tail2", 20_000)
    world.settle()
    pass_seconds(1, world, slave)
    world, slave = switched(world, slave, cut=end)
    world.send_in(b"first", 30_000)
    world.send_in(b"second", 30_000)
    world.settle()
    pass_seconds(3, world, slave)
    slave.copy(world)
    if reports:
        slave.follow(world)
    world, slave = switched(world, slave)
    pass_seconds(26, world)
    assert world.bodies() == [b"common"]
    pass_seconds(2, world)
    assert world.bodies() == [b"common", b"first", b"second"]


def test_deliveries_in_a_cut_tail_are_delivered_by_the_next_master() -> None:
    world = master()
    for number in range(10):
        world.send_in(b"%d" % number, 20_000 * number + 1000)
    world.settle()
    pass_seconds(70, world)
    slave = slave_of(world)
    slave.follow(world)
    end = world.store.log.end
    pass_seconds(24, world, slave)
    world, slave = switched(world, slave, cut=end)
    slave.copy(world)  # the new master dies before it delivers or reports
    pass_seconds(1, slave)
    world, slave = switched(world, slave)
    pass_seconds(120, world)
    counts = Counter(world.bodies())
    assert set(counts) == {b"%d" % number for number in range(10)}
    assert max(counts.values()) == 1, "only the deliveries that were cut off are repeated, which this log lacks"


def test_a_report_of_less_than_is_known_changes_nothing() -> None:
    world = master()
    world.send_in(b"a", 1000)
    world.settle()
    pass_seconds(5, world)
    early = world.timer.progress()
    pass_seconds(5, world)
    slave = slave_of(world)
    slave.follow(world)
    assert early is not None
    before = slave.progress.check
    slave.progress.adopt(early.to_body(), world.store.log.end)
    assert slave.progress.check == before


def test_a_slave_holds_the_log_from_its_first_waiting_message_on() -> None:
    world = master()
    slave = slave_of(world)
    assert slave.progress.floor() == slave.store.log.end == 0
    world.send_in(b"a", 2000)
    first = world.store.log.end
    world.send_in(b"b", 30_000)
    world.settle()
    slave.copy(world)
    slave.progress.advance()
    assert slave.progress.floor() == 0
    pass_seconds(8, world, slave)
    slave.follow(world)
    assert slave.progress.floor() == first
    pass_seconds(30, world, slave)
    slave.follow(world)
    assert slave.progress.floor() == slave.store.log.end


def test_a_slave_that_cannot_read_the_timer_s_queue_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = master()
    world.send_in(b"a", 2000)
    world.settle()
    pass_seconds(8, world)
    slave = slave_of(world)
    slave.copy(world)
    assert slave.adopt(world)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        break_queue(patch, TIMER_TOPIC)
        assert not slave.progress.advance()
        assert not slave.progress.advance()
    assert [(line["event"], line["topic"]) for line in logs] == [("delay_queue_unreadable", TIMER_TOPIC)]
    slave.save()
    assert slave.progress.floor() == slave.store.log.end


def test_a_slave_keeps_waiting_messages_that_no_descriptor_is_left_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = master()
    world.send_in(b"waits", 60_000)
    world.settle()
    pass_seconds(8, world)
    slave = slave_of(world)
    slave.copy(world)
    assert slave.adopt(world)
    with monkeypatch.context() as patch:
        run_out_of_descriptors(patch, slave.store.log)
        slave.save()
    slave.save()
    assert slave.progress.floor() == world.delivered(TIMER_TOPIC)[0].offset


def test_a_slave_passes_many_delivered_messages_in_few_steps() -> None:
    world = master()
    for _ in range(3 * master_progress.ROWS_MAX):
        world.send_in(b"a", 2000)
    world.settle()
    pass_seconds(10, world)
    slave = slave_of(world)
    slave.copy(world)
    assert slave.adopt(world)
    steps = 1
    while slave.progress.advance():
        steps += 1
    assert slave.progress.floor() == slave.store.log.end
    assert steps < 10


def test_a_slave_reads_few_bytes_of_delivered_messages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = master()
    for number in range(200):
        world.send(b"x" * 500, b"TIMER_DELAY_MS\x011500\x02UNIQ_KEY\x01%d" % number)
    world.settle()
    pass_seconds(8, world)
    slave = slave_of(world)
    slave.copy(world)
    assert slave.adopt(world)
    monkeypatch.setattr(enqueue_module, "BATCH_BYTES", 8000)
    sizes = sizes_read(monkeypatch, slave.store.log)
    more = True
    while more:
        sizes.clear()
        more = slave.progress.advance()
        assert sum(sizes) < 12_000
    assert slave.progress.floor() == slave.store.log.end


def test_a_promoted_slave_enqueues_few_bytes_of_messages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = master()
    for number in range(100):
        world.send(b"%d" % number + b"x" * 500, b"TIMER_DELAY_MS\x0150000\x02UNIQ_KEY\x01%d" % number)
    world.settle()
    slave = slave_of(world)
    slave.copy(world)
    new = promoted(slave)
    monkeypatch.setattr(enqueue_module, "BATCH_BYTES", 8000)
    with monkeypatch.context() as patch:
        sizes = sizes_read(patch, new.store.log)
        turns = 0
        while not new.timer.turn():
            assert 0 < sum(sizes) < 12_000
            sizes.clear()
            turns += 1
        assert turns > 5
    pass_seconds(52, new)
    assert sorted(new.bodies()) == sorted(b"%d" % number + b"x" * 500 for number in range(100))


def test_the_next_start_begins_with_the_first_waiting_message() -> None:
    world = master()
    world.send_in(b"a", 2000)
    world.send_in(b"b", 30_000)
    world.settle()
    pass_seconds(10, world)
    slave = slave_of(world)
    slave.follow(world)
    slave.close()
    slave = SlaveStore(slave.env)
    assert slave.progress.check.queue_offset == 1
    new = promoted(slave)
    pass_seconds(25, new)
    assert new.bodies() == [b"a", b"b"]


def test_a_store_without_timed_messages_gets_no_checkpoint_on_its_slave() -> None:
    world = master()
    slave = slave_of(world)
    slave.follow(world)
    slave.close()
    assert not slave.env.exists("store/config/timercheck")


def test_a_checkpoint_of_rocketmq_is_not_trusted_on_a_slave() -> None:
    """Its broker may have truncated the log since, and its slave's wheel has more than was delivered."""
    world = master()
    world.send_in(b"a", 1000)
    world.send_in(b"b", 20_000)
    world.settle()
    pass_seconds(5, world)
    world.close()
    check = world.timer.files.check
    theirs = attrs.evolve(check, queue_offset=1, marks=()).to_bytes()[:56].ljust(4096, b"\0")
    world.env.replace("store/config/timercheck", theirs)
    slave = SlaveStore(world.env)
    assert slave.progress.floor() == 0
    new = promoted(slave)
    pass_seconds(20, new)
    assert Counter(new.bodies()) == {b"a": 2, b"b": 1}

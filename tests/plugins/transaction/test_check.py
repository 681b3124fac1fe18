"""The task of check scans keeps its interval, and check-backs choose a reachable producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gantrymq.kernel.store.log.record import Record
from gantrymq.plugins.transaction.check import SLICE_S, CheckBack, CheckBackSender
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.transacted import Producers, TransactedStore


class Walker:
    """A strategy of which only the walk matters; it notes when each slice of each walk began."""

    def __init__(self, slices: int) -> None:
        self.slices = slices
        self.times: list[list[float]] = []
        self.error: Exception | None = None

    def scan(self) -> Iterator[None]:
        self.times.append([])
        for _ in range(self.slices):
            self.times[-1].append(trio.current_time())
            if self.error is not None:
                raise self.error
            yield


async def run_for(seconds: float, task: CheckBack) -> None:
    with trio.move_on_after(seconds):
        await task.run()


@pytest.mark.trio
async def test_a_walk_begins_each_interval_and_its_slices_let_others_work(autojump_clock: MockClock) -> None:
    strategy: Any = Walker(3)
    began = trio.current_time()
    await run_for(150, CheckBack(strategy, 60))
    assert [[time - began for time in walk] for walk in strategy.times] == [
        pytest.approx([60, 60 + SLICE_S, 60 + 2 * SLICE_S]),
        pytest.approx([120 + 3 * SLICE_S, 120 + 4 * SLICE_S, 120 + 5 * SLICE_S]),
    ]


@pytest.mark.trio
async def test_a_failed_check_scan_does_not_stop_the_following_ones(autojump_clock: MockClock) -> None:
    strategy: Any = Walker(1)
    strategy.error = RuntimeError("on purpose")
    await run_for(200, CheckBack(strategy, 60))
    assert len(strategy.times) == 3


@pytest.mark.trio
async def test_cancellation_ends_the_check_scan_and_starts_no_other(autojump_clock: MockClock) -> None:
    strategy: Any = Walker(100)
    task = CheckBack(strategy, 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await trio.sleep(60 + 2.5 * SLICE_S)
        task.stop()
    assert [len(walk) for walk in strategy.times] == [3]


def test_check_backs_reach_each_reachable_producer_of_a_group_in_turn() -> None:
    producers: Any = Producers()
    check_backs = CheckBackSender(MemoryEnv(), producers)
    assert check_backs.find("orders") is None
    members = [producers.join() for _ in range(3)]
    members[1].closed = True
    members[2].is_congested = lambda: True
    found: Any = {check_backs.find("orders") for _ in range(50)}
    assert found == {members[0]}
    members[2].is_congested = lambda: False
    found = {check_backs.find("orders") for _ in range(50)}
    assert found == {members[0], members[2]}


def test_a_message_without_a_unique_key_is_checked_back_by_its_offset() -> None:
    producers: Any = Producers()
    member = producers.join()
    CheckBackSender(MemoryEnv(), producers).ask(member, Record("T", 1, b"x", queue_offset=7, offset=99))
    [check_back] = member.take_check_backs()
    assert (check_back.header.msg_id, check_back.header.transaction_id) == (None, None)
    assert (check_back.header.tran_state_table_offset, check_back.header.commit_log_offset) == (7, 99)
    assert check_back.header.offset_msg_id == check_back.record.message_id


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.parametrize(("checks_per_second", "slices"), [(1, 20), (2, 10), (7, 3), (20, 1), (30, 1)])
def test_a_scan_rests_for_several_slices_if_it_may_ask_less_than_once_in_each(
    strategy: str, checks_per_second: int, slices: int
) -> None:
    world = TransactedStore(MemoryEnv(), strategy, checks_per_second=checks_per_second)
    producer = world.producers.join()
    for number in range(3):
        world.half(b"%d" % number)
    world.commit()
    world.pass_time(60)
    counts = []
    for _ in world.plugin.strategy.scan():
        world.commit()
        counts.append(len(producer.take_check_backs()))
    assert counts[: 3 * slices] == [1, *[0] * (slices - 1)] * 3

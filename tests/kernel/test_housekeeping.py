"""The kernel's periodic tasks: how long they wait."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.housekeeping import REPAIR_RETRY_S, repair_queues


@pytest.mark.trio
async def test_a_failed_repair_is_tried_again_after_a_pause(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    def step() -> bool:
        times.append(trio.current_time())
        return False

    async def run_here(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    broker: Any = SimpleNamespace(store=SimpleNamespace(repair=SimpleNamespace(waiting=1, step=step)))
    with trio.move_on_after(4.5 * REPAIR_RETRY_S):
        await repair_queues(broker)
    assert len(times) == 5
    assert all(after - before >= REPAIR_RETRY_S for before, after in pairwise(times))


@pytest.mark.trio
async def test_repairs_that_fail_do_not_delay_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair: Any = SimpleNamespace(waiting=4)
    results = [False, False, False, True]  # the one that succeeds is the last

    def step() -> bool:
        done = results.pop(0) if results else False
        repair.waiting -= done
        return done

    async def run_here(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    repair.step = step
    broker: Any = SimpleNamespace(store=SimpleNamespace(repair=repair))
    with trio.move_on_after(REPAIR_RETRY_S / 2):
        await repair_queues(broker)
    assert repair.waiting == 3

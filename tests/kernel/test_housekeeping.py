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
    broker: Any = SimpleNamespace(store=SimpleNamespace(repair=SimpleNamespace(has_work=True, step=step)))
    with trio.move_on_after(4.5 * REPAIR_RETRY_S):
        await repair_queues(broker)
    assert len(times) == 5
    assert all(after - before >= REPAIR_RETRY_S for before, after in pairwise(times))

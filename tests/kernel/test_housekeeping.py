"""The kernel's periodic tasks: their waits, and failures in them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gantrymq.kernel.housekeeping import REPAIR_TICK_S, repair_queues


class Repair:
    """Repairs that fail, which are therefore not due any more."""

    def __init__(self) -> None:
        self.due = 3
        self.times: list[float] = []

    @property
    def is_due(self) -> bool:
        return self.due > 0

    def step(self) -> bool:
        self.due -= 1
        self.times.append(trio.current_time())
        return False


@pytest.mark.trio
async def test_repairs_that_fail_do_not_delay_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_here(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)
    repair = Repair()
    broker: Any = SimpleNamespace(store=SimpleNamespace(repair=repair))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repair_queues, broker)
        await trio.sleep(REPAIR_TICK_S / 2)
        assert len(repair.times) == 3
        assert len(set(repair.times)) == 1
        repair.due = 1
        await trio.sleep(REPAIR_TICK_S)
        assert len(repair.times) == 4
        nursery.cancel_scope.cancel()

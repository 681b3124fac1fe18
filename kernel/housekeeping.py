"""What the kernel does beside the hot path, once a second or so: deadlines, files ahead, tables and tails to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from gantrymq.kernel.acks import Acks
from gantrymq.kernel.sweep import Sweep

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.housekeeping")

TICK_S = 0.5


async def housekeeping(broker: Broker, sweep: Sweep, acks: Acks) -> None:
    """Run until cancelled. Disk work goes to a worker thread; a failure of it there is the store's to judge."""
    next_persist = trio.current_time() + broker.config.broker.persist_interval
    while True:
        await trio.to_thread.run_sync(broker.store.prepare_next)
        await trio.to_thread.run_sync(broker.store.flush_queues)
        acks.expire(broker.env.monotonic())
        sweep.check_deadlines()
        if trio.current_time() >= next_persist:
            next_persist = trio.current_time() + broker.config.broker.persist_interval
            broker.persist()
        await trio.sleep(TICK_S)

"""The kernel's periodic work: deadlines, the next log file, writing state files and queue tails to the disk.

It runs in two tasks, because a hanging disk must not delay the time-outs that report it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gantrymq.kernel.acks import Acks
from gantrymq.kernel.network.sweep import Sweep
from gantrymq.kernel.store.store import Store

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

DEADLINE_TICK_S = 0.25
DISK_TICK_S = 0.5
REPAIR_TICK_S = 0.5


async def watch_deadlines(broker: Broker, sweep: Sweep, acks: Acks) -> None:
    """Handle late acknowledgments, idle connections and unfinished frames, until cancelled."""
    while True:
        now = broker.env.monotonic()
        acks.expire(now)
        acks.report(now)
        sweep.check_deadlines()
        await trio.sleep(DEADLINE_TICK_S)


async def maintain_disk(broker: Broker) -> None:
    """Create the next log file before it is needed and write queue tails and state files, until cancelled; in a worker
    thread.

    The store decides about a failure: it poisons the log, and the broker stops.
    """
    interval = broker.config.broker.persist_interval
    next_persist = trio.current_time() + interval
    while True:
        await trio.to_thread.run_sync(_maintain, broker.store)
        if trio.current_time() >= next_persist:
            next_persist = trio.current_time() + interval
            broker.collect_state()
            await trio.to_thread.run_sync(broker.write_state)
        await trio.sleep(DISK_TICK_S)


async def repair_queues(broker: Broker) -> None:
    """Repair consume queue entries that readers found to be wrong, until cancelled; in a worker thread."""
    repair = broker.store.repair
    while True:
        while repair.is_due:
            await trio.to_thread.run_sync(repair.step)
        await trio.sleep(REPAIR_TICK_S)


def _maintain(store: Store) -> None:
    # One worker for both, because an idle broker spends its time on wake-ups.
    store.prepare_next()
    store.flush_queues()

"""Delete the front of the log, and what was derived from it. When and how much is a plugin's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.expiry")

QUEUES_AT_ONCE = 32
"""Queues that are searched before others get their turn."""


async def drop_before(broker: Broker, offset: int) -> int:
    """Delete the log's files that end at or before ``offset``; returns how many.

    Never the file in use, nothing that is not in the queues yet, and nothing behind the lowest offset that a plugin
    needs (hook ``retention_floor``). Queues follow: they begin with the first message that is left.
    """
    detached = broker.log.detach_before(min(offset, broker.store.dispatched, _floor(broker)))
    if not detached:
        return 0
    log.info("log files expired", files=len(detached), log_start=broker.log.min_offset)
    # First of all: until then a queue's first offset names a message that is gone.
    for number, queue in enumerate(broker.queues, start=1):
        queue.correct_min(broker.log.min_offset)
        if number % QUEUES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    try:
        await trio.to_thread.run_sync(broker.store.discard, detached)
    except OSError as error:
        log.warning("expired files not deleted, the next start finds them", error=str(error))
    await trio.to_thread.run_sync(broker.queues.drop_expired)
    return len(detached)


def _floor(broker: Broker) -> int:
    floor = broker.log.end
    for info, call in broker.manager.calls("retention_floor", broker=broker):
        try:
            floor = min(floor, call())
        except Exception:
            # Who cannot say what it needs may need everything.
            log.exception("retention_floor failed, nothing is deleted", plugin=info.name)
            return 0
    return floor

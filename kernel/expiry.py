"""Delete the oldest part of the log and the data derived from it. A plugin decides when and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog
import trio

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.expiry")

QUEUES_AT_ONCE = 32
"""Queues that are searched before other tasks run."""


@attrs.frozen
class Expired:
    """The result of one round: the number of files taken out of the log, and the bytes that the plugin ``holder``
    prevents from being deleted.

    ``error``: why files could not be deleted on the disk or a queue could not be read, which the next start does; empty
    if all was done.
    """

    files: int
    held_bytes: int = 0
    holder: str = ""
    error: str = ""


async def drop_before(broker: Broker, offset: int) -> Expired:
    """Delete the log's files that end at or before ``offset``.

    The current file, records that are not in the queues yet, and everything behind the lowest offset that a plugin
    needs (hook ``retention_floor``) are kept. The queues then begin with the first remaining message.
    """
    floor, holder = _floor(broker)
    detached = broker.log.detach_before(min(offset, broker.store.dispatched, floor))
    held = sum(segment.end - segment.base for segment in broker.log.segments if segment.end <= offset) if holder else 0
    expired = Expired(len(detached), held, holder if held else "")
    if not detached:
        return expired
    log.info("log_files_expired", files=len(detached), log_start=broker.log.min_offset)
    # First, because until then a queue's first offset names a deleted message.
    for number, queue in enumerate(broker.queues, start=1):
        try:
            queue.correct_min(broker.log.min_offset)
        except OSError as error:
            expired = attrs.evolve(expired, error=str(error))
        if number % QUEUES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    try:
        for segment in detached:
            # One at a time, so that a stop waits for one only. The next start deletes the rest.
            await trio.to_thread.run_sync(broker.store.discard, [segment])
    except OSError as error:
        expired = attrs.evolve(expired, error=str(error))
    try:
        await trio.to_thread.run_sync(broker.queues.drop_expired)
    except OSError as error:
        expired = attrs.evolve(expired, error=str(error))
    return expired


def _floor(broker: Broker) -> tuple[int, str]:
    """Return the lowest offset that a plugin needs, and which one does; the log's end if none needs less."""
    floor, holder = broker.log.end, ""
    for info, call in broker.manager.calls("retention_floor", broker=broker):
        try:
            needed = call()
        except Exception as error:
            # The floor of a failing plugin is unknown: it may need everything.
            broker.manager.activity.failed(info.name, "retention_floor", error)
            log.exception("retention_floor_failed", plugin=info.name)
            return 0, info.name
        if needed < floor:
            floor, holder = needed, info.name
    return floor, holder

"""Delete the oldest part of the log and the data derived from it. A plugin decides when and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from gantrymq.kernel.errors import NoRoom

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.expiry")

QUEUES_AT_ONCE = 32
"""Queues that are searched before other tasks run."""


@attrs.frozen
class Expired:
    """The result of one round: the number of files taken out of the log, and the bytes that the plugin ``holder``
    prevents from being deleted.

    ``error``: why files could not be deleted on the disk or a queue could not be read; empty if all was done. ``late``:
    the number of files that an earlier round took out of the log and could not delete, and that are deleted now.
    """

    files: int
    held_bytes: int = 0
    holder: str = ""
    error: str = ""
    late: int = 0


async def drop_before(broker: Broker, offset: int, expired_end: int = 0) -> Expired:
    """Delete the log's files that end at or before ``offset``; with 0 only those that an earlier round left.

    The current file, records that are not in the queues yet, and everything behind the lowest offset that a plugin
    needs (hook ``retention_floor``) are kept. The queues then begin with the first remaining message. While a file of
    an earlier round cannot be deleted, no others are: the files on the disk would have a gap, or messages would become
    unreadable without freeing space.

    ``expired_end``: the offset before which files have expired, if that is more: they are not deleted now, but those
    that a plugin holds are counted.
    """
    late, error = await _delete_detached(broker)
    end = max(offset, expired_end)
    if not end:
        return Expired(0, error=error, late=late)
    floor, holder = _floor(broker, is_due=bool(offset))
    detached = [] if error else broker.log.detach_before(min(offset, broker.store.dispatched, floor))
    held = 0
    if holder:
        held = sum(segment.end - segment.base for segment in broker.log.segments if floor < segment.end <= end)
    expired = Expired(len(detached), held, holder if held else "", error, late)
    if not detached:
        return expired
    log.info("log_files_expired", files=len(detached), log_start=broker.log.min_offset)
    # First, because until then a queue's first offset names a deleted message.
    for number, queue in enumerate(broker.queues, start=1):
        try:
            queue.correct_min(broker.log.min_offset)
        except OSError as failure:
            expired = attrs.evolve(expired, error=str(failure))
        if number % QUEUES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    _, error = await _delete_detached(broker)
    if error:
        expired = attrs.evolve(expired, error=error)
    try:
        await trio.to_thread.run_sync(broker.queues.drop_expired)
    except OSError as failure:
        expired = attrs.evolve(expired, error=str(failure))
    return expired


async def _delete_detached(broker: Broker) -> tuple[int, str]:
    """Delete all files that were taken out of the log, the oldest first, up to the first failure.

    Returns how many were deleted, and the error; without a failure it is empty.
    """
    deleted = 0
    for segment in broker.log.segments.undeleted:
        # One at a time, so that a stop waits for one only. The next start deletes the rest.
        try:
            await trio.to_thread.run_sync(broker.store.discard, [segment])
        except (OSError, NoRoom) as error:
            return deleted, str(error)
        deleted += 1
    return deleted, ""


def _floor(broker: Broker, *, is_due: bool) -> tuple[int, str]:
    """Return the lowest offset that a plugin needs, and which one does; the log's end if none needs less.

    Errors of plugins are logged if files are to be deleted (``is_due``): expired ones are counted every few seconds.
    """
    floor, holder = broker.log.end, ""
    for info, call in broker.manager.calls("retention_floor", broker=broker):
        try:
            needed = call()
            if not isinstance(needed, int):
                raise TypeError(f"retention_floor returned {needed!r:.100}, it must be a log offset")
        except Exception as error:
            # The floor of a failing plugin is unknown: it may need everything.
            broker.manager.activity.failed(info.name, "retention_floor", error)
            if is_due:
                log.exception("retention_floor_failed", plugin=info.name)
            return 0, info.name
        if needed < floor:
            floor, holder = needed, info.name
    return floor, holder

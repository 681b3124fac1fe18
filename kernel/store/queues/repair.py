"""Repair entries of consume queues that disagree with the log, from which the queues are derived.

An entry is verified when it is read: the record at its log offset names its topic, queue and queue offset. For a wrong
entry, the log is searched between the nearest correct entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.fast import QueueEntries
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import HOST_V6_BITS, SYS_FLAG_AT, owner_of
from gantrymq.kernel.store.queues.consume_queue import FILLER, FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.records import HEADS, MAGIC_V1

if TYPE_CHECKING:
    from gantrymq.kernel.store.queues.table import ConsumeQueues

log = structlog.get_logger("gantrymq.queues")


def is_right(commit_log: CommitLog, queue: ConsumeQueue, queue_offset: int, at: int, size: int) -> bool:
    """Return whether the record at ``at`` has this size and names this queue and queue offset, with consistent lengths.

    Its body is not checked. Raises :class:`CorruptRange` if the log cannot be read there.
    """
    try:
        head = commit_log.view(at, min(size, HEADS[HOST_V6_BITS].size))
        if len(head) < HEADS[0].size:
            return False
        fixed = HEADS[int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & HOST_V6_BITS].size
        body = int.from_bytes(head[fixed - 4 : fixed], "big")
        width = 1 if int.from_bytes(head[4:8], "big") == MAGIC_V1 else 2
        names = commit_log.view(at + fixed + body, width + len(queue.topic.encode()) + 2)
    except OutOfLog:
        return False
    return owner_of(head, names, at, size) == (queue.topic, queue.queue_id, queue_offset)


def repair_queue(commit_log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue, suspect: int, end: int) -> int:
    """Repair the entry at the queue offset ``suspect`` and wrong entries beside it; for a worker thread.

    The log is searched up to ``end``, the dispatched offset. An entry without a record becomes a filler. Returns how
    many entries were changed. ``UnreadableRange`` if the record of ``suspect`` may be where the disk cannot read the
    log now; :class:`OSError` if no file descriptor is left to read it, or entries cannot be written.
    """
    first, left = _last_right(commit_log, queue, suspect)
    behind, right = _next_right(commit_log, queue, suspect, end)
    found, unreadable = _find_entries(commit_log, queues, queue, range(first, behind), left, right)
    failure: UnreadableRange | None = None
    changes = {}
    for place in range(first, behind):
        known = queue.entries(place, 1)
        if len(known) != UNIT:
            continue  # deleted meanwhile
        wanted = found.get(place)
        if wanted is None and unreadable is not None:
            failure = unreadable if place == suspect else failure
        elif wanted is None and not _may_be_there(commit_log, known):
            wanted = FILLER
        if wanted is not None and wanted[:12] != known[:12]:
            changes[place] = wanted
    queue.correct(changes)
    if failure is not None:
        raise failure
    return len(changes)


def _find_entries(
    commit_log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue, places: range, start: int, end: int
) -> tuple[dict[int, bytes], UnreadableRange | None]:
    """Return the entries of the undamaged records in a part of the log, by queue offset, and where the disk cannot read
    that part now."""
    found: dict[int, bytes] = {}
    unreadable: UnreadableRange | None = None
    while start < end:
        try:
            for batch in commit_log.scan(start, end):
                start = batch.end
                for each in queues.entries_of(batch):
                    if (each.topic, each.queue_id) == (queue.topic, queue.queue_id):
                        found |= {place: entry for place, entry in _places(each) if place in places}
            break
        except CorruptRange as error:
            if isinstance(error, UnreadableRange):
                error.raise_if_temporary()
                unreadable = unreadable or error
            behind = find_record(commit_log.segments, start + 1)
            if behind is None:
                break
            start = behind[0]
    return found, unreadable


def _places(each: QueueEntries) -> Iterator[tuple[int, bytes]]:
    """Yield queue offset and bytes of each entry."""
    places = each.queue_offsets or range(each.first, each.first + len(each.entries) // UNIT)
    for number, place in enumerate(places):
        yield place, each.entries[number * UNIT : (number + 1) * UNIT]


def _last_right(commit_log: CommitLog, queue: ConsumeQueue, suspect: int) -> tuple[int, int]:
    """Return the first queue offset that may be wrong, and the log offset at which its records can begin."""
    place = suspect
    while place > queue.min_offset and (entry := queue.entries(place - 1, 1)):
        at, size, _ = ENTRY.unpack(entry)
        if size != FILLER_SIZE and _is_surely_right(commit_log, queue, place - 1, at, size):
            return place, at + size
        place -= 1
    return place, commit_log.min_offset


def _next_right(commit_log: CommitLog, queue: ConsumeQueue, suspect: int, end: int) -> tuple[int, int]:
    """Return the queue offset behind those that may be wrong, and the log offset at which their records end."""
    place = suspect + 1
    while place < queue.max_offset and (entry := queue.entries(place, 1)):
        at, size, _ = ENTRY.unpack(entry)
        if size != FILLER_SIZE and _is_surely_right(commit_log, queue, place, at, size):
            return place, at
        place += 1
    return place, end


def _is_surely_right(commit_log: CommitLog, queue: ConsumeQueue, place: int, at: int, size: int) -> bool:
    try:
        return is_right(commit_log, queue, place, at, size)
    except UnreadableRange as error:
        error.raise_if_temporary()
    except CorruptRange:
        pass
    return False


def _may_be_there(commit_log: CommitLog, entry: bytes) -> bool:
    """Return whether an entry points to an unreadable part of the log, or is a filler: then it stays unchanged."""
    at, size, _ = ENTRY.unpack(entry)
    if size == FILLER_SIZE:
        return True
    try:
        commit_log.view(at, min(size, HEADS[HOST_V6_BITS].size))
    except UnreadableRange as error:
        error.raise_if_temporary()
        return True
    except CorruptRange:
        return True
    except OutOfLog:
        return False
    return False


class QueueRepair:
    """Repairs entries that readers found to be wrong. :meth:`step` and :meth:`repair` are for a worker thread."""

    def __init__(self, env: Env, commit_log: CommitLog, queues: ConsumeQueues, dispatched: Callable[[], int]) -> None:
        self._log = commit_log
        self._queues = queues
        self._dispatched = dispatched
        self._outages = Outages(log, env.monotonic)

    @property
    def is_due(self) -> bool:
        """Whether the repair of an entry that readers have reported is due."""
        return self._queues.next_suspect() is not None

    def step(self) -> bool:
        """Repair the entries around one whose repair is due; False if there is none, or that failed and must be tried
        again later."""
        suspect = self._queues.next_suspect()
        if suspect is None:
            return False
        try:
            self.repair(*suspect)
        except (OSError, UnreadableRange):
            return False
        return True

    def repair(self, queue: ConsumeQueue, place: int) -> None:
        """Repair the entries around the one at the queue offset ``place``.

        :class:`OSError` or ``UnreadableRange`` if that is impossible now: the entry stays suspect, and is due again
        after a pause.
        """
        try:
            changed = repair_queue(self._log, self._queues, queue, place, self._dispatched())
        except (OSError, UnreadableRange) as error:
            if self._queues.get(queue.topic, queue.queue_id) is not queue:
                self._queues.settle(queue, place)  # the topic was deleted
                return
            self._queues.postpone(queue, place)
            self._outages.error(
                "consume_queue_repair_failed", queue.folder,
                path=queue.folder, queue_offset=place, reason=str(error),
            )  # fmt: skip
            raise
        self._queues.settle(queue, place)
        self._outages.over("consume_queue_repair_failed", queue.folder)
        log.warning(
            "consume_queue_repaired",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=place,
            entries=changed,
        )

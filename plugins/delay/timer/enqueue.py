"""Enqueue timed messages: from the timer topic's queue into timer log and wheel.

Source: RocketMQ 5.3.3 ``TimerMessageStore.enqueue``, ``doEnqueue``. Unlike RocketMQ, the time at which a message is
enqueued again follows from its store time, so that a rebuilt log is the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.kernel.store.reading import belongs_to_entry, is_wrong_entry, read_many
from gantrymq.plugins.delay.levels.delivery import BATCH_BYTES, NO_RECORD
from gantrymq.plugins.delay.timer.dequeue import stored_bytes
from gantrymq.plugins.delay.timer.log import DEFAULT, DELETE, NOWHERE, ROLL, Unit
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.property_bytes import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_ROLL_TIMES
from gantrymq.remoting.timer_times import exact, floor, read_number

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.record import Record
    from gantrymq.kernel.store.store import Store
    from gantrymq.plugins.delay.prefetch import Prefetch
    from gantrymq.plugins.delay.timer.counts import TimerCounts
    from gantrymq.plugins.delay.timer.dequeue import Dequeue
    from gantrymq.plugins.delay.timer.files import TimerFiles
    from gantrymq.plugins.delay.timer.pending_recalls import PendingRecalls

ROWS: Final = 512
"""Entries that are enqueued at once."""

log = structlog.get_logger("gantrymq.delay")


@lru_cache(maxsize=1024)
def _topic_hash(topic: bytes) -> int:
    return java_hash(topic.decode("utf-8", "replace"))


class Enqueue:
    """Moves messages from the queue to the wheel; ``dequeue`` knows which slots are open or past."""

    def __init__(
        self,
        store: Store,
        files: TimerFiles,
        dequeue: Dequeue,
        counts: TimerCounts,
        recalls: PendingRecalls,
        prefetch: Prefetch,
    ) -> None:
        self._store = store
        self._prefetch = prefetch
        self._counts = counts
        self._files = files
        self._dequeue = dequeue
        self._recalls = recalls
        self._outages = Outages(log, lambda: store.log.clock.now_ms() / 1000)

    def turn(self) -> bool:
        """Enqueue the next entries; False if there are no more that can be read now."""
        files = self._files
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None or self._prefetch.is_running:
            return False
        low, high = queue.min_offset, queue.max_offset
        if not low <= files.queue_offset <= high:
            if files.queue_offset:
                log.warning("timer_offset_corrected", offset=files.queue_offset, low=low, high=high)
            files.queue_offset = min(max(files.queue_offset, low), high)
        try:
            entries = queue.entries(files.queue_offset, ROWS)
            taken = first_entries(entries)
            if taken:
                taken = taken[: self._prefetch.ready(taken)]
                if not taken:
                    return False
            rows = [
                (number, offset, size)
                for number, (offset, size) in enumerate(taken, files.queue_offset)
                if size != FILLER_SIZE
            ]
            records = read_many(self._store.log, [offset for _, offset, _ in rows]) if rows else ()
        except OSError as error:
            self._outages.error("delay_queue_unreadable", topic=TIMER_TOPIC, queue_id=0, reason=str(error))
            return False  # the timer's own files are undamaged
        self._outages.over("delay_queue_unreadable")
        end = files.queue_offset + len(taken)
        now = self._store.log.clock.now_ms()
        for row, record in zip(rows, records, strict=True):
            if not belongs_to_entry(record, queue, row[0]) and is_wrong_entry(self._store.log, queue, *row):
                files.queue_offset = row[0]  # the entry is wrong and will be repaired
                return False
            unit = self._unit(*row, record, now)
            if unit is not None and record is not None:
                self._dequeue.opened(files.add(unit), unit, record)
            files.queue_offset = row[0] + 1  # also if a later row fails
        if rows:
            self._dequeue.log_offset = max(self._dequeue.log_offset, rows[-1][1] + rows[-1][2])
            self._recalls.enqueued(rows[-1][1])
        files.queue_offset = end
        if files.rebuild is not None and files.queue_offset >= min(files.rebuild.queue_offset, high):
            log.info("timer_rebuilt", queue_offset=files.queue_offset)
            files.rebuild = None
        return files.queue_offset < high

    def _unit(self, queue_offset: int, offset: int, size: int, record: Record | None, now: int) -> Unit | None:
        """Return the unit for the message of an entry; None if it is unreadable, or was delivered before the files were
        damaged."""
        try:
            if record is None or record.topic != TIMER_TOPIC or stored_bytes(record) != size:
                raise ValueError(NO_RECORD)  # RocketMQ may continue with the unit and reads this many bytes
            find = record.property_of
            out = read_number(find(TIMER_OUT_MS) or b"")
        except ValueError as error:
            log.error("delayed_message_lost", queue_offset=queue_offset, at=offset, reason=str(error))
            return None
        stored = record.store_timestamp
        time, magic = slot_for(out, stored, self._files.sizes.roll_ms)
        # A recall is enqueued again, because its message may follow it in the queue, stored again on the way.
        is_recall = find(TIMER_DEL_UNIQKEY) is not None
        rebuild = self._files.rebuild
        is_repeatable = is_recall and not magic & ROLL
        if rebuild is not None and not is_repeatable and rebuild.has_delivered(queue_offset, time, offset):
            return None
        if is_recall:
            magic |= DELETE
        place = self._dequeue.place(time)
        if place != time and not is_repeatable:
            self._files.overdue(place, queue_offset)
        due = exact(find, stored, out, self._store.log.clock.at_wall) if place == time or magic & ROLL else place
        written = floor(now)
        topic_hash = _topic_hash(find(REAL_TOPIC) or b"")
        if not magic & DELETE and find(TIMER_ROLL_TIMES) is None:
            topic = (find(REAL_TOPIC) or b"").decode("utf-8", "replace")
            self._counts.came(topic, (out - record.born_timestamp) // 1000, stored, now)
        return Unit(NOWHERE, magic, written, place - written, offset, size, topic_hash, due)


def first_entries(entries: bytes) -> list[tuple[int, int]]:
    """Return log offset and size of the first queue entries whose records are read at once, at least one: records are
    read whole, and large ones take much memory."""
    taken: list[tuple[int, int]] = []
    total = 0
    for offset, size, _ in ENTRY.iter_unpack(entries):
        if total >= BATCH_BYTES:
            break
        taken.append((offset, size))
        total += 0 if size == FILLER_SIZE else size
    return taken


def slot_for(out: int, stored: int, window: int) -> tuple[int, int]:
    """Return the slot, and the magic, for a message of the slot ``out`` that was stored at ``stored``.

    ``window``: the longest wait in the wheel, in ms; the message is enqueued again in between if it waits longer.
    """
    begin = floor(stored)
    if out - begin < window:
        return floor(out), DEFAULT
    if out - begin - window < window // 3:
        # Leave enough time for the last enqueue.
        return begin + floor(window // 2), DEFAULT | ROLL
    return begin + floor(window), DEFAULT | ROLL

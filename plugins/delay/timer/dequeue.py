"""Deliver the messages of the wheel slot by slot, each at its own millisecond, in batches.

Source: RocketMQ 5.3.3 ``TimerMessageStore.dequeue``, ``convert``, ``doPut``. RocketMQ empties a slot when its second is
over. GantryMQ opens a slot before its second begins, and delivers each message when it is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.errors import NO_DESCRIPTORS
from gantrymq.kernel.store.log.record import HOST_V6_BITS, Record
from gantrymq.kernel.store.reading import read_many
from gantrymq.plugins.delay.levels.delivery import (
    BACKLOG_BYTES,
    BATCH_BYTES,
    BATCH_ROWS,
    IDLE_MS,
    NO_RECORD,
    POLL_MS,
    RETRY_MS,
)
from gantrymq.plugins.delay.timer.log import DELETE, NOWHERE, ROLL, DamagedUnit, Unit
from gantrymq.plugins.delay.timer.pending_recalls import PendingRecalls, recall_key
from gantrymq.plugins.delay.timer.slots import OpenSlot
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
)
from gantrymq.remoting.records import HEADS
from gantrymq.remoting.timer_times import PRECISION_MS, floor

if TYPE_CHECKING:
    from gantrymq.kernel.store.reading import Place
    from gantrymq.kernel.store.store import Store
    from gantrymq.plugins.delay.prefetch import Prefetch
    from gantrymq.plugins.delay.timer.counts import TimerCounts
    from gantrymq.plugins.delay.timer.files import TimerFiles

LEAD_MS: Final = 300
"""How long before its second a slot is opened, so that its units are read before the first message is due."""
UNITS_A_TURN: Final = 4096
SLOTS_A_TURN: Final = 4096
OPEN_MAX: Final = 4
"""The most open slots with messages to deliver, for the time after an outage when many slots are overdue."""
_NOWHERE: Final = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TIMER_TOPIC})
_LENGTHS_AND_TOPIC: Final = 1 + len(TIMER_TOPIC) + 2
OTHER_RECORD: Final = "the log has another record there"
_ILLEGAL = ResponseCode.MESSAGE_ILLEGAL

log = structlog.get_logger("gantrymq.delay")


@attrs.frozen
class _WrittenBatch:
    """A written batch, complete when the log is flushed up to ``end``; ``rows`` has the number of its rows by slot."""

    end: int
    rows: list[tuple[OpenSlot, int]]


class Dequeue:
    """Delivers messages from the wheel to their topics, except recalled ones.

    ``append`` takes a batch through the write path; ``recalls`` are those that the wheel lacks. ``slot_prefetch`` reads
    units and recalls, ``prefetch`` due messages, which do not wait for the slots that are opened meanwhile.
    """

    def __init__(
        self,
        store: Store,
        files: TimerFiles,
        append: Callable[[AppendBatch], None],
        counts: TimerCounts,
        recalls: PendingRecalls,
        slot_prefetch: Prefetch,
        prefetch: Prefetch,
    ) -> None:
        self._store = store
        self._slot_prefetch = slot_prefetch
        self._prefetch = prefetch
        self._counts = counts
        self._files = files
        self._append = append
        self._recalls = recalls
        self._open: deque[OpenSlot] = deque()
        self._next = files.read_ms
        self._in_flight: deque[_WrittenBatch] = deque()
        self.log_offset = store.log.durable
        """The log offset before which every enqueued message and every complete delivery is, or a higher one."""
        self.stopping = False
        self._outages = Outages(log, lambda: store.log.clock.now_ms() / 1000)

    # ------------------------------------------------------------------------------------------------------ events

    def place(self, time: int) -> int:
        """Return the slot for a message of the slot ``time``: that one, or if it is over, an open or the next one."""
        if time >= self._next or any(slot.time == time for slot in self._open):
            return time
        return self._open[0].time if self._open else self._next

    def opened(self, position: int, unit: Unit, record: Record) -> None:
        """A unit was added to the wheel. An open slot gets it here, because it is not read from the wheel again."""
        for slot in self._open:
            if slot.time == floor(unit.time):
                if _is_recall(unit):
                    _add_recall(slot, position, unit, record)
                else:
                    slot.add(unit.due, position)

    # ------------------------------------------------------------------------------------------------------- turn

    def turn(self, now: int) -> int:
        """Deliver one batch of due messages. Returns the ms until the next turn, 0 for now."""
        self.settle()
        if self.stopping:
            return POLL_MS
        busy = self._open_slots(now)
        self._read_units()
        self._read_recalls()
        self._files.log.forget_window()
        batch = AppendBatch(source=Source.TIMER)
        taken: list[tuple[OpenSlot, list[int]]] = []
        backlog = self._store.log.end - self._store.dispatched
        if backlog <= BACKLOG_BYTES:
            size = 0
            for slot in self._open:
                is_full = len(batch) >= BATCH_ROWS or size >= BATCH_BYTES
                if slot.is_read and not is_full and not self._prefetch.is_running:
                    size += self._collect(slot, batch, taken, now)
            if len(batch):
                self._put(batch, taken, now)
        self._close_slots(now)
        reads_slots = self._slot_prefetch.is_running
        if busy or (not reads_slots and any(not slot.is_read for slot in self._open)):
            return 0
        if backlog > BACKLOG_BYTES or self._prefetch.is_running:
            return POLL_MS
        waits = [slot.next_due() - now for slot in self._open if slot.has_more and slot.is_read]
        waits.append(POLL_MS if self._is_full() else self._next - LEAD_MS - now)
        if self._in_flight or len(self._open) > 1 or reads_slots:
            waits.append(POLL_MS)
        return min(max(min(waits), 0), IDLE_MS)

    def _open_slots(self, now: int) -> bool:
        """Open the slots that have begun or begin soon. Returns whether more slots can be opened at once."""
        if now - self._next > SLOTS_A_TURN * PRECISION_MS and not self._is_full():
            # After a long outage, or if RocketMQ was killed before it wrote its progress, which may be days old.
            self._next = self._files.wheel.next_set(self._next, floor(now))
            if not self._open:
                self._files.read_ms = self._next
        for _ in range(SLOTS_A_TURN):
            if self._next > now + LEAD_MS or self._is_full():
                return False
            time = self._next
            slot = self._files.wheel.get(time)
            self._next = time + PRECISION_MS
            if slot is not None and slot.last != NOWHERE:
                self._open.append(OpenSlot(time, slot.last))
            elif self._next > now:
                self._open.append(OpenSlot(time, None))
            elif not self._open:
                self._files.read_ms = self._next
        return True

    def _is_full(self) -> bool:
        """Return whether enough slots are open. Slots that only wait for a flush do not count, because it may take
        long."""
        open_ = self._open
        return len(open_) >= OPEN_MAX and sum(slot.has_more or not slot.is_read for slot in open_) >= OPEN_MAX

    def _read_units(self) -> None:
        """Read the units of open slots, the newest first; a worker thread reads those that are only on the disk."""
        left, units = UNITS_A_TURN, self._files.log
        for slot in self._open:
            while slot.reading is not None and left and not self._slot_prefetch.is_running:
                position = slot.reading
                if not units.is_cached(position) and self._slot_prefetch.begin(
                    position, partial(units.fetch, position, UNITS_A_TURN)
                ):
                    return
                try:
                    unit = units.unit(position)
                    if floor(unit.time) != slot.time:
                        raise DamagedUnit(f"the unit at {position} belongs to {unit.time}, not to {slot.time}")
                except DamagedUnit as error:
                    if position < units.start:  # deleted together with its message
                        slot.read_to(NOWHERE)
                        break
                    raise error
                left -= 1
                if _is_recall(unit):
                    slot.unread_recalls.append((position, unit))
                else:
                    slot.add(unit.due, position)
                slot.read_to(unit.previous)

    def _read_recalls(self) -> None:
        """Read one batch of recalls for each open slot whose units are read."""
        for slot in self._open:
            if slot.reading is not None or not slot.unread_recalls or self._slot_prefetch.is_running:
                continue
            places: list[Place] = []
            size = 0
            for _, unit in slot.unread_recalls[:BATCH_ROWS]:
                if size >= BATCH_BYTES:
                    break
                places.append((unit.offset, unit.size))
                size += unit.size
            count = self._slot_prefetch.ready(places)
            if count:
                records = read_many(self._store.log, [offset for offset, _ in places[:count]])
                for (position, unit), record in zip(slot.unread_recalls, records, strict=False):
                    _add_recall(slot, position, unit, record)
                del slot.unread_recalls[:count]

    def _close_slots(self, now: int) -> None:
        while self._open and self._open[0].is_done and now >= self._open[0].time + PRECISION_MS:
            slot = self._open.popleft()
            self._files.read_ms = self._open[0].time if self._open else max(self._next, slot.time + PRECISION_MS)

    # -------------------------------------------------------------------------------------------------- one batch

    def _collect(self, slot: OpenSlot, batch: AppendBatch, taken: list[tuple[OpenSlot, list[int]]], now: int) -> int:
        """Add the due messages of ``slot``. Returns their size in bytes. The slot waits while they cannot be read."""
        keys = slot.take(now, BATCH_ROWS - len(batch))
        units: list[Unit] = []
        size = 0
        try:
            for key in keys:
                if size >= BATCH_BYTES:
                    break
                unit = self._files.log.unit(slot.position(key))
                units.append(unit)
                size += unit.size
            if units:
                del units[self._prefetch.ready([(unit.offset, unit.size) for unit in units]) :]
            records = self._read(units)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            slot.try_again(keys, now + RETRY_MS)
            self._outages.error("timed_messages_unreadable", reason=str(error))
            return 0
        if units:
            self._outages.over("timed_messages_unreadable")
        slot.put_back(keys[len(units) :])
        added: list[int] = []
        dequeued = b"\x02" + TIMER_DEQUEUE_MS + b"\x01%d" % now
        for key, unit, record in zip(keys, units, records, strict=False):
            if record is None or self._is_recalled(slot, record):
                continue
            if self._add(batch, unit, record, dequeued):
                added.append(key)
        if added:
            taken.append((slot, added))
            slot.unsettled += len(added)
        return size

    def _is_recalled(self, slot: OpenSlot, record: Record) -> bool:
        if slot.recalled and recall_key(record) in slot.recalled:
            return True
        pending = self._recalls.find(record)
        if pending is None:
            return False
        self.log_offset = max(self.log_offset, pending + 1)  # a log that loses the recall has to deliver the message
        return True

    def _read(self, units: Sequence[Unit]) -> Sequence[Record | None]:
        records = read_many(self._store.log, [unit.offset for unit in units]) if units else []
        for row, (unit, record) in enumerate(zip(units, records, strict=True)):
            if record is None or not _belongs_to(record, unit):
                records[row] = None
                reason = NO_RECORD if record is None else OTHER_RECORD
                log.error("delayed_message_lost", at=unit.offset, reason=reason)
        return records

    @staticmethod
    def _add(batch: AppendBatch, unit: Unit, record: Record, dequeued: bytes) -> bool:
        """Add the message for its real queue, or unchanged if it is enqueued again; False without a valid
        destination."""
        properties = record.properties
        enqueued = b"%d" % unit.written
        if unit.magic & ROLL:
            topic, queue_id = record.topic, record.queue_id
            rolls = record.property_of(TIMER_ROLL_TIMES) or b"0"
            changes: dict[bytes, bytes | None] = {
                TIMER_ENQUEUE_MS: enqueued,
                TIMER_DEQUEUE_MS: None,
                TIMER_ROLL_TIMES: b"%d" % (int(rolls) + 1 if rolls.isdigit() else 1),
            }
            if unit.due:  # a delay relative to the store time would be wrong for the new record
                changes |= {TIMER_DELAY_SEC: None, TIMER_DELAY_MS: None, TIMER_DELIVER_MS: b"%d" % unit.due}
            properties = replace_properties(properties, changes)
        else:
            topic = (record.property_of(REAL_TOPIC) or b"").decode("utf-8", "replace")
            number = record.property_of(REAL_QID) or b""
            if not topic or topic in _NOWHERE or not number.isdigit() or len(number) > 10:
                log.error("delayed_message_lost", at=record.offset, reason=f"belongs to queue {number!r} of {topic!r}")
                return False
            queue_id = int(number)
            if TIMER_ENQUEUE_MS in properties:
                properties = replace_properties(properties, {TIMER_ENQUEUE_MS: enqueued, TIMER_DEQUEUE_MS: None})
            else:
                properties = properties.rstrip(b"\x02") + b"\x02" + TIMER_ENQUEUE_MS + b"\x01" + enqueued
        batch.add_stored(record, topic, queue_id, properties=properties + dequeued, wait=False)
        return True

    def _put(self, batch: AppendBatch, taken: list[tuple[OpenSlot, list[int]]], now: int) -> None:
        self._append(batch)
        offsets = batch.offsets or [-1] * len(batch)
        row = refused = 0
        rows: list[tuple[OpenSlot, int]] = []
        for slot, keys in taken:
            failed = []
            for key in keys:
                if offsets[row] < 0:
                    if batch.statuses[row] == _ILLEGAL:  # it can never be stored
                        log.error("delayed_message_lost", reason=batch.remarks.get(row))
                    else:
                        failed.append(key)
                    slot.unsettled -= 1
                elif batch.topics[row] != TIMER_TOPIC:
                    self._counts.left(batch.topics[row])
                row += 1
            if failed:
                slot.try_again(failed, now + RETRY_MS)
                refused += len(failed)
                self._outages.warning("delayed_messages_refused", slot=slot.time, messages=len(failed))
            rows.append((slot, sum(offset >= 0 for offset in offsets[row - len(keys) : row])))
        if batch.end > batch.start:
            if not refused:
                self._outages.over("delayed_messages_refused")
            self._in_flight.append(_WrittenBatch(batch.end, rows))

    # ---------------------------------------------------------------------------------------------------- progress

    def settle(self) -> None:
        """Count the deliveries of flushed batches as complete."""
        durable = self._store.log.durable
        while self._in_flight and self._in_flight[0].end <= durable:
            batch = self._in_flight.popleft()
            self.log_offset = max(self.log_offset, batch.end)
            for slot, count in batch.rows:
                slot.unsettled -= count

    def leave(self) -> None:
        """At the broker's stop, keep only the undelivered messages and the recalls in partly delivered slots."""
        self.settle()
        for slot in self._open:
            if slot.is_read and not slot.unsettled and slot.delivered:
                self._files.relink(slot.time, slot.positions())
                slot.delivered = False


def stored_bytes(record: Record) -> int:
    """Return the size in the log of a record of the timer topic."""
    head = HEADS[record.sys_flag & HOST_V6_BITS].size
    return head + record.body_size + _LENGTHS_AND_TOPIC + record.properties_size


def _is_recall(unit: Unit) -> bool:
    return bool(unit.magic & DELETE) and not unit.magic & ROLL


def _add_recall(slot: OpenSlot, position: int, unit: Unit, record: Record | None) -> None:
    """Add the recall ``unit`` at ``position``, whose record was read, to its slot."""
    if record is None or not _belongs_to(record, unit):
        return  # as the unit that TimerFiles.relink adds, it recalls nothing
    key = record.property_of(TIMER_DEL_UNIQKEY)
    if key is not None:
        slot.recalled[key] = position


def _belongs_to(record: Record, unit: Unit) -> bool:
    """Return whether ``unit`` can be one of the message ``record``: after a cut of the log another record may have its
    offset."""
    return (
        record.topic == TIMER_TOPIC
        and stored_bytes(record) == unit.size
        and (bool(unit.magic & ROLL) or _is_due(record, unit))
    )


def _is_due(record: Record, unit: Unit) -> bool:
    """Return whether the second of ``record`` is not later than that of ``unit``, or was over when it was enqueued."""
    out = record.property_of(TIMER_OUT_MS) or b""
    return out.isdigit() and len(out) < 19 and floor(int(out)) <= max(floor(unit.time), unit.written)

"""Deliver due messages level by level, in the order of their queue, in batches through the ordinary write path.

Source: RocketMQ 4.9.7 ``ScheduleMessageService.DeliverDelayedMessageTimerTask``. Unlike RocketMQ, a step of the clock
delivers nothing early (``kernel/store/log/clock.py``), and a message that could not be stored is retried before the
level continues, also with pipelined delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog
import trio

from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.kernel.store.reading import belongs_to_entry, is_wrong_entry, read_many
from gantrymq.plugins.delay.levels.level import Level
from gantrymq.plugins.delay.levels.levels import PLAUSIBLE_DELAY_MS, Levels
from gantrymq.plugins.delay.levels.positions import Positions
from gantrymq.plugins.delay.prefetch import Prefetch
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.property_bytes import REAL_QID, REAL_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
    from gantrymq.kernel.store.store import Store

BATCH_ROWS = 512
BATCH_BYTES = 4 * 1024 * 1024
"""The size of a batch of one level, after which the broker serves its sockets."""
PIPELINE = 16
"""The most batches of a level that wait for the disk with pipelined delivery."""
BACKLOG_BYTES = 16 * 1024 * 1024
"""While more bytes of the log wait for the disk, no level delivers."""
RETRY_MS = 1000
"""The time before a failed message is stored again (RocketMQ: 0.1 s; 10 s after an exception)."""
POLL_MS = 10
"""How often batches in flight are checked if nothing reports them as complete."""
IDLE_MS = 1000
"""The longest sleep."""

log = structlog.get_logger("gantrymq.delay")

_NOWHERE = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC})
"""Topics that cannot be the destination of a delayed message."""
_Entry = tuple[int, int, int, int]
"""Queue offset, log offset, size and tag code."""
NO_RECORD = "there is no whole record"


class Delivery:
    """Delivers the messages of all levels. ``append`` takes a batch through the write path and fills its columns at
    once.

    :meth:`turn` is one step, without waiting; :meth:`run` calls it when there is something to do.
    """

    def __init__(
        self,
        store: Store,
        levels: Levels,
        positions: Positions,
        append: Callable[[AppendBatch], None],
        *,
        pipelined: bool,
    ) -> None:
        self._store = store
        self._append = append
        self._levels = levels
        self._in_flight_max = PIPELINE if pipelined else 1
        self._woken = trio.Event()
        self._stopping = False
        self._outages = Outages(log, lambda: store.log.clock.now_ms() / 1000)
        existing = {queue.queue_id for queue in store.queues if queue.topic == SCHEDULE_TOPIC}
        # Messages may still wait in levels that the configuration no longer has.
        self._states = [
            Level(queue_id, positions.get(queue_id + 1) if queue_id in existing else 0)
            for queue_id in sorted({*range(len(levels)), *existing})
        ]
        self._prefetches = {state.queue_id: Prefetch(store.log, self._wake) for state in self._states}

    async def run(self) -> None:
        """Deliver until :meth:`stop`; track batches in flight until cancelled."""
        async with trio.open_nursery() as nursery:
            for prefetch in self._prefetches.values():
                nursery.start_soon(prefetch.run)
            while True:
                self._woken = trio.Event()
                wait_ms = self.turn()
                if wait_ms:
                    with trio.move_on_after(wait_ms / 1000):
                        await self._woken.wait()
                else:
                    await trio.lowlevel.checkpoint()

    def stop(self) -> None:
        """Start no more deliveries."""
        self._stopping = True

    def safe(self) -> dict[int, int]:
        """By level, the queue offset before which all messages are delivered and flushed."""
        durable = self._store.log.durable
        for state in self._states:
            state.settle(self._store.dispatched)
        return {
            state.queue_id + 1: state.safe(durable)
            for state in self._states
            if self._store.queues.get(SCHEDULE_TOPIC, state.queue_id) is not None
        }

    def floor(self) -> int:
        """Return the log offset of the first message that is not durably delivered; the log's end if there is none."""
        floor = self._store.log.end
        for level, unit in self.safe().items():
            queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
            entry = b"" if queue is None else queue.entries(max(unit, queue.min_offset), 1)
            if entry:
                floor = min(floor, int.from_bytes(entry[:8], "big"))
        return floor

    def turn(self) -> int:
        """Deliver one batch of each level with due messages. Returns the ms until the next turn, 0 for now."""
        return min(max(self._turn_of(state), 0) for state in self._states)

    def _turn_of(self, state: Level) -> int:
        state.settle(self._store.dispatched)
        queue = self._store.queues.get(SCHEDULE_TOPIC, state.queue_id)
        now = self._store.log.clock.now_ms()
        if queue is None or self._stopping:
            return POLL_MS if state.in_flight else self._sleep(state)
        if state.correct(queue.min_offset, queue.max_offset):
            log.warning("delay_offset_corrected", level=state.queue_id + 1, offset=state.cursor)
        if state.retry and now < state.retry_at:
            return min(state.retry_at - now, IDLE_MS)
        waits = self._prefetches[state.queue_id].is_running
        if waits or len(state.in_flight) >= self._in_flight_max or self._backlog > BACKLOG_BYTES:
            return POLL_MS
        batch = AppendBatch(done=self._wake, source=Source.DELAY)
        units, due = self._collect(state, queue, batch, now)
        if len(batch):
            self._put(state, batch, units, now)
        if due is None and state.cursor < queue.max_offset:
            return 0
        wait = self._sleep(state) if due is None else due - now
        return min(wait, POLL_MS if state.in_flight else IDLE_MS)

    @property
    def _backlog(self) -> int:
        """The number of bytes of the log that are written and not yet dispatched."""
        return self._store.log.end - self._store.dispatched

    def _sleep(self, state: Level) -> int:
        """Return how long to sleep if a level is empty: nothing can become due before its delay is over."""
        return min(self._levels.delay_ms(state.queue_id + 1), IDLE_MS)

    def _collect(self, state: Level, queue: ConsumeQueue, batch: AppendBatch, now: int) -> tuple[list[int], int | None]:
        """Fill ``batch`` with due messages.

        Returns the queue offset of each row, and the due time of the next message if the batch ends because of it.
        The level continues later if its queue cannot be read.
        """
        units: list[int] = []
        try:
            due = self._fill(units, state, queue, batch, now)
        except OSError as error:
            self._outages.error(
                "delay_queue_unreadable", str(state.queue_id),
                topic=queue.topic, queue_id=queue.queue_id, reason=str(error),
            )  # fmt: skip
            return units, now + RETRY_MS
        self._outages.over("delay_queue_unreadable", str(state.queue_id))
        return units, due

    def _fill(self, units: list[int], state: Level, queue: ConsumeQueue, batch: AppendBatch, now: int) -> int | None:
        """See :meth:`_collect`; adds the queue offset of each row to ``units``."""
        entries, due = self._entries_due(state, queue, now)
        places = [(offset, size) for _, offset, size, _ in entries]
        ready = self._prefetches[state.queue_id].ready(places) if places else 0
        if ready < len(entries):
            entries, due = entries[:ready], None if ready else now + POLL_MS
        for (unit, offset, size, code), record in zip(entries, self._read(entries), strict=True):
            if size != FILLER_SIZE and not belongs_to_entry(record, queue, unit):
                if is_wrong_entry(self._store.log, queue, unit, offset, size):
                    return now + RETRY_MS  # a repair will correct the entry
                record = None
            if record is not None:
                exactly = self._levels.due(code, record.properties, record.store_timestamp)
                if exactly > now:
                    return exactly
                if self._add(batch, record):
                    units.append(unit)
            elif size != FILLER_SIZE:
                log.error(
                    "delayed_message_lost", level=state.queue_id + 1, queue_offset=unit, at=offset, reason=NO_RECORD
                )
            state.taken(unit)
        return due

    def _entries_due(self, state: Level, queue: ConsumeQueue, now: int) -> tuple[list[_Entry], int | None]:
        """Return the due entries for one batch by their tag codes, and the due time of the next if they end because of
        it."""
        entries: list[_Entry] = []
        left = BATCH_BYTES
        for entry in self._entries(state, queue):
            _, _, size, code = entry
            if len(entries) >= BATCH_ROWS or left <= 0:
                break
            if size != FILLER_SIZE:
                if now < code <= now + PLAUSIBLE_DELAY_MS:
                    self._warn_of_older(state, code - now)
                    return entries, code
                left -= size
            entries.append(entry)
        return entries, None

    def _warn_of_older(self, state: Level, due_in_ms: int) -> None:
        """Warn once per level if its next message is due later than a new one would be: the level was made shorter, and
        new messages wait behind those from before."""
        level = state.queue_id + 1
        if level <= len(self._levels) and due_in_ms > self._levels.delay_ms(level) and not state.waits_for_older:
            state.waits_for_older = True
            log.warning("delay_level_waits_for_older", level=level, due_in_ms=due_in_ms)

    @staticmethod
    def _entries(state: Level, queue: ConsumeQueue) -> Iterator[_Entry]:
        """Yield the next entries; while there are failed ones, only these."""
        if state.retry:
            for unit in list(state.retry):
                for offset, size, code in ENTRY.iter_unpack(queue.entries(unit, 1)):
                    yield unit, offset, size, code
            return
        for unit, (offset, size, code) in enumerate(
            ENTRY.iter_unpack(queue.entries(state.cursor, BATCH_ROWS)), state.cursor
        ):
            yield unit, offset, size, code

    def _read(self, entries: list[_Entry]) -> list[Record | None]:
        """Return the record of each entry; None for a filler or an unreadable record."""
        offsets = [offset for _, offset, size, _ in entries if size != FILLER_SIZE]
        records = iter(read_many(self._store.log, offsets) if offsets else ())
        return [None if size == FILLER_SIZE else next(records) for _, _, size, _ in entries]

    @staticmethod
    def _add(batch: AppendBatch, record: Record) -> bool:
        """Add the message for its real queue. It keeps all properties, as in RocketMQ."""
        topic = (record.property_of(REAL_TOPIC) or b"").decode("utf-8", "replace")
        queue_id = record.property_of(REAL_QID) or b""
        if not topic or topic in _NOWHERE or not queue_id.isdigit() or len(queue_id) > 10:
            log.error("delayed_message_lost", at=record.offset, reason=f"it belongs to queue {queue_id!r} of {topic!r}")
            return False
        batch.add_stored(record, topic, int(queue_id))
        return True

    def _put(self, state: Level, batch: AppendBatch, units: list[int], now: int) -> None:
        self._append(batch)
        offsets = batch.offsets or [-1] * len(batch)
        failed = []
        for row, unit in enumerate(units):
            if offsets[row] >= 0:
                continue
            if batch.statuses[row] == ResponseCode.MESSAGE_ILLEGAL:  # it can never be stored
                reason = batch.remarks.get(row)
                log.error("delayed_message_lost", level=state.queue_id + 1, queue_offset=unit, reason=reason)
            else:
                failed.append(unit)
        if failed:
            state.failed(failed, now + RETRY_MS)
            row = units.index(failed[0])
            self._outages.warning(
                "delayed_messages_refused",
                str(state.queue_id),
                level=state.queue_id + 1,
                messages=len(failed),
                code=batch.statuses[row],
                reason=batch.remarks.get(row),
            )
        stored = [unit for row, unit in enumerate(units) if offsets[row] >= 0]
        if stored:
            if not failed:
                self._outages.over("delayed_messages_refused", str(state.queue_id))
            state.written(min(stored), batch.end)

    def _wake(self, _batch: AppendBatch | None = None) -> None:
        self._woken.set()

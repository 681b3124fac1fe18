"""The progress of a master's timer, as its slave knows it: for a promotion, and for the retention of waiting messages.

The slave stores it in ``config/timercheck``. A promoted slave builds wheel and timer log from the queue of the timer
topic, without the messages that the master has delivered. Timer files of an earlier mastership are deleted at the
start as a slave: the log may be cut, and the new master delivers meanwhile. Source: RocketMQ 5.3.3
``SlaveSynchronize.syncTimerCheckPoint``, whose slave has a wheel of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.kernel.store.reading import (
    Place,
    belongs_to_entry,
    count_cached,
    fetch,
    is_wrong_entry,
    read_many,
    stored_at,
)
from gantrymq.plugins.delay.timer.check import Mark, TimerCheck
from gantrymq.plugins.delay.timer.enqueue import first_entries, slot_for
from gantrymq.plugins.delay.timer.files import MARGIN_MS, TimerFiles
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.property_bytes import TIMER_DEL_UNIQKEY, TIMER_OUT_MS
from gantrymq.remoting.timer_times import read_number

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.store.log.record import Record
    from gantrymq.kernel.store.store import Store

log = structlog.get_logger("gantrymq.delay")

ROWS_MIN: Final = 16
ROWS_MAX: Final = 512
"""Entries that are checked at once: few while the first one waits, more while they are delivered."""
LOOK_S: Final = 1.0
"""How often the first waiting message is checked."""
NEVER: Final = 1 << 62


class MasterProgress:
    """Begins as the checkpoint in ``files``, of which it deletes the wheel and the timer log."""

    def __init__(self, store: Store, env: Env, files: TimerFiles) -> None:
        self._store = store
        self._env = env
        self._files = files
        self._rows = ROWS_MIN
        self._is_changed = False
        self._outages = Outages(log, env.monotonic)
        self.check = self._first_check()
        self._low = self.check.queue_offset
        """The queue offset before which every message is delivered."""

    def _first_check(self) -> TimerCheck:
        written = self._files.read_check() or TimerCheck(0, 0, 0)
        known = written.within(self._store.log.end)
        if not known.marks:  # it is RocketMQ's, and whether the log was cut since is unknown
            known = known.following(Mark(0, 0, 0), 0)
        elif not known.is_slaves:
            known = known.following(known.marks[-1], 0)
        if self._files.exist() and (known is not written or self._files.has_derived()):
            for _ in range(2):  # the file and its .bak, before the files that the old checkpoint describes are deleted
                self._env.replace(self._files.check_path, known.to_bytes())
        self._files.delete_derived()
        return known

    def adopt(self, body: bytes, log_end: int) -> None:
        """Adopt the master's checkpoint ``body``. The log must be durable up to ``log_end``, which has all deliveries
        that it counts. :class:`RemoteFault` if it is invalid."""
        try:
            said = TimerCheck.from_bytes(body)
        except ValueError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, str(error)) from None
        known = self.check
        if said.read_ms <= known.read_ms and said.master_offset <= known.master_offset:
            return
        if known.master_offset and not said.master_offset:
            return  # it says nothing about any message
        self.check = attrs.evolve(
            known.following(Mark(said.read_ms, said.master_offset, log_end), self._low),
            state_version=said.state_version, timestamp=said.timestamp, counter=said.counter,
        )  # fmt: skip
        self._is_changed = True

    def reported(self) -> TimerCheck | None:
        """Return the checkpoint if a master has reported one."""
        return self.check if self.check.read_ms else None

    def changes(self) -> dict[str, bytes] | None:
        """Return the file if it has changed since the last call. There is none before the first timed message."""
        if not self._is_changed or not (self.check.master_offset or self._files.exist()):
            return None
        self._is_changed = False
        return {self._files.check_path: self.check.to_bytes()}

    async def run(self) -> None:
        """Find the first waiting message, again and again, until cancelled; records that are only on the disk are
        read in a worker thread."""
        while True:
            places = self._next_places()
            if places and count_cached(self._store.log, places) < len(places):
                await trio.to_thread.run_sync(fetch, self._store.log, places)
            if self.advance():
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(LOOK_S)

    def _next_places(self) -> list[Place]:
        """Return the records that the next step reads; none if the queue cannot be read, which that step reports."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return []
        with suppress(OSError):
            rows = [*self._next_rows(queue), *first_entries(queue.entries(self.check.master_offset, 1))]
            return [row for row in rows if row[1] != FILLER_SIZE]
        return []

    def _next_rows(self, queue: ConsumeQueue) -> list[Place]:
        """Return the first entries from ``_low`` on that are checked at once."""
        self._low = min(max(self._low, queue.min_offset), queue.max_offset)
        return first_entries(queue.entries(self._low, self._rows))

    def advance(self) -> bool:
        """Pass some delivered messages; returns whether there may be more of them, which can be read now."""
        try:
            more = self._advance()
        except OSError as error:
            self._outages.error("delay_queue_unreadable", topic=TIMER_TOPIC, queue_id=0, reason=str(error))
            return False
        self._outages.over("delay_queue_unreadable")
        return more

    def _advance(self) -> bool:
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None:
            return False
        rows = self._next_rows(queue)
        places = [offset for offset, size in rows if size != FILLER_SIZE]
        records = iter(read_many(self._store.log, places) if places else ())
        before, newer = self._low, self._stored_at(self.check.master_offset)
        for at, size in rows:
            record = None if size == FILLER_SIZE else next(records)
            is_right = size == FILLER_SIZE or belongs_to_entry(record, queue, self._low)
            if not is_right and is_wrong_entry(self._store.log, queue, self._low, at, size):
                break  # it will be repaired
            if record is not None and not self._is_delivered(self._low, record, newer):
                break
            self._low += 1
        passed = self._low - before
        if self.check.queue_offset < self._low <= self.check.master_offset:
            self.check = attrs.evolve(self.check, queue_offset=self._low)
            self._is_changed = True
        self._rows = min(self._rows * 4, ROWS_MAX) if passed and passed == len(rows) else ROWS_MIN
        return bool(passed) and passed == len(rows)

    def _stored_at(self, queue_offset: int) -> int:
        """Return when the message at ``queue_offset`` was stored; a time in the far future if there is none."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        entry = b"" if queue is None else queue.entries(queue_offset, 1)
        stored = stored_at(self._store.log, ENTRY.unpack(entry)[0]) if entry else None
        return NEVER if stored is None else stored

    def _is_delivered(self, queue_offset: int, record: Record, newer: int) -> bool:
        """Return whether a promoted slave needs ``record`` no more. ``newer``: when the first message was stored of
        those that the master may not have enqueued."""
        check, window, stored = self.check, self._files.sizes.roll_ms, record.store_timestamp
        if not check.read_ms:
            # No master has reported any progress: one that delivers timed messages has enqueued this one again since.
            return stored + window + MARGIN_MS < self._store.log.clock.now_ms()
        try:
            time, _ = slot_for(read_number(record.property_of(TIMER_OUT_MS) or b""), stored, window)
        except ValueError:
            return True  # it is never delivered
        if record.property_of(TIMER_DEL_UNIQKEY) is not None and time >= newer:
            return False  # the message that it recalls may follow, stored again on the way
        return queue_offset < check.master_offset and time < check.read_ms - MARGIN_MS

    def floor(self) -> int:
        """Return the log offset of the first waiting message, or a lower one; the log's end if none waits."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        entry = b"" if queue is None else queue.entries(max(self._low, queue.min_offset), 1)
        return ENTRY.unpack(entry)[0] if entry else self._store.log.end

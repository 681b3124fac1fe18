"""Timed messages: the task that enqueues and delivers them, and maintains its files.

The files are opened when the first timed message arrives. Source: RocketMQ 5.3.3 ``TimerMessageStore``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_DESCRIPTORS, LogPoisoned, NoRoom
from gantrymq.kernel.layouts import ENTRY
from gantrymq.plugins.delay.levels.delivery import IDLE_MS
from gantrymq.plugins.delay.prefetch import Prefetch
from gantrymq.plugins.delay.timer.check import TimerCheck
from gantrymq.plugins.delay.timer.counts import TimerCounts
from gantrymq.plugins.delay.timer.dequeue import Dequeue
from gantrymq.plugins.delay.timer.enqueue import Enqueue
from gantrymq.plugins.delay.timer.files import SIZES, StartEnds, TimerFiles, TimerSizes
from gantrymq.plugins.delay.timer.log import DamagedUnit
from gantrymq.plugins.delay.timer.pending_recalls import PendingRecalls
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.timer_times import floor

if TYPE_CHECKING:
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.store.store import Store

SAVE_MS: Final = 1000
"""How often the files are written (``timerFlushIntervalMs``): a crash may repeat the deliveries since then."""
LOOK_MS: Final = 5
"""How often the queue is checked while timed messages arrive."""
SLOW_LOOK_MS: Final = 200
"""How often otherwise."""
FLOOR_STEPS: Final = 200_000

log = structlog.get_logger("gantrymq.delay")


class Timer:
    """:meth:`turn` is one step, without waiting; :meth:`run` calls it when there is something to do."""

    def __init__(
        self, store: Store, env: Env, append: Callable[[AppendBatch], None], sizes: TimerSizes = SIZES
    ) -> None:
        self._store = store
        self._append = append
        self.files = TimerFiles(env, store.root, sizes)
        self.counts = TimerCounts()
        self.recalls = PendingRecalls()
        """Also while the files are closed or are opened again."""
        self._dequeue: Dequeue | None = None
        self._enqueue: Enqueue | None = None
        self._slot_prefetch = Prefetch(store.log, self._wake)
        self._dequeue_prefetch = Prefetch(store.log, self._wake)
        self._enqueue_prefetch = Prefetch(store.log, self._wake)
        self._woken = trio.Event()
        self._stopping = False
        self.ended = False
        self._is_saving = False
        """Whether a worker thread writes the files, which must not be opened again meanwhile."""
        self._lively_until = 0
        self._save_at = 0
        self._outages = Outages(log, lambda: store.log.clock.now_ms() / 1000)
        self._is_failing = False
        """Whether the last write of the files failed, so that it is logged once and not every second."""
        queue = store.queues.get(TIMER_TOPIC, 0)
        self._ends = StartEnds(0 if queue is None else queue.max_offset, store.log.end)
        self._enqueue_first = 0
        """The queue offset before which everything is enqueued before anything is delivered, because a recall may
        follow long after its message."""

    # ------------------------------------------------------------------------------------------------------ events

    def moved(self, batch: AppendBatch, row: int, slot: int, recalls: bytes | None) -> None:
        """``row`` of ``batch``, which is appended next, will wait in ``slot``, or recalls a message of it."""
        if recalls is not None:
            self.recalls.add_row(batch, row, slot, recalls)
        self._lively_until = self._store.log.clock.now_ms() + IDLE_MS
        self._wake()

    def _wake(self) -> None:
        self._woken.set()

    @property
    def is_open(self) -> bool:
        """Whether the files are open; they are closed until the first timed message arrives."""
        return self._dequeue is not None

    def stop(self) -> None:
        """Stop delivering."""
        self._stopping = True

    def progress(self) -> TimerCheck | None:
        """Return the checkpoint for slaves: what is delivered, and durable in the log. None if it is not known yet."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        check = self.files.check
        if self._dequeue is not None and check.marks:
            read_ms, offset, _ = check.marks[-1]
            return attrs.evolve(check, read_ms=read_ms, queue_offset=offset, master_offset=offset)
        if (queue is None or not queue.max_offset) and not self.files.exist():
            # RocketMQ's slave goes through all seconds from this one on when it becomes the master.
            return TimerCheck(floor(self._store.log.clock.now_ms()), 0, 0)
        return None

    # -------------------------------------------------------------------------------------------------- work

    async def run(self) -> None:
        """Enqueue and deliver until cancelled, and save every second in parallel, so that a slow disk delays no
        message."""
        try:
            async with trio.open_nursery() as nursery:
                for prefetch in (self._slot_prefetch, self._dequeue_prefetch, self._enqueue_prefetch):
                    nursery.start_soon(prefetch.run)
                while True:
                    self._woken = trio.Event()
                    wait_ms = self.turn()
                    save = None if self._is_saving else self.save()
                    if save is not None:
                        self._is_saving = True
                        nursery.start_soon(self._save_beside, save)
                    if wait_ms:
                        with trio.move_on_after(wait_ms / 1000):
                            await self._woken.wait()
                    else:
                        await trio.lowlevel.checkpoint()
        finally:
            self.ended = True

    async def _save_beside(self, save: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(save)
        finally:
            self._is_saving = False

    def turn(self) -> int:
        """Enqueue some messages, deliver one batch. Returns the ms until the next turn, 0 for now."""
        now = self._store.log.clock.now_ms()
        self.recalls.appended()
        try:
            if not self._open(now):
                return LOOK_MS if now < self._lively_until else SLOW_LOOK_MS
        except (NoRoom, OSError) as error:
            log.error("timer_not_opened", reason=str(error))
            self.files.close()
            return IDLE_MS
        enqueue, dequeue = self._ways(now)
        try:
            more = enqueue.turn()
            if self.files.rebuild is not None or self.files.queue_offset < self._enqueue_first:
                return 0 if more else SLOW_LOOK_MS
            dequeue.stopping = self._stopping
            wait = dequeue.turn(now)
        except (DamagedUnit, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:  # the files are sound
                self._outages.error("timed_messages_unreadable", reason=str(error))
                return IDLE_MS
            log.error("timer_files_damaged", reason=str(error))
            self._dequeue = self._enqueue = None
            self.files.spoilt = True
            return IDLE_MS
        self._outages.over("timed_messages_unreadable")
        if more:
            return 0
        return min(wait, LOOK_MS if now < self._lively_until else SLOW_LOOK_MS)

    def _open(self, now: int) -> bool:
        """Open the files if needed; returns whether they are open."""
        if self._dequeue is not None:
            return True
        if self._is_saving or self._slot_prefetch.is_running:
            return False
        if self._enqueue is None:
            queue = self._store.queues.get(TIMER_TOPIC, 0)
            if (queue is None or not queue.max_offset) and not self.files.exist():
                return False
            report = self._store.recovered
            trusted = report is not None and report.clean and not report.foreign
            self.files.open(now, self._entry_at, self._ends, trusted=trusted)
            self._enqueue_first = 0 if queue is None else queue.max_offset
        return True

    def _ways(self, now: int) -> tuple[Enqueue, Dequeue]:
        if self._dequeue is None or self._enqueue is None:
            self._dequeue = Dequeue(
                self._store,
                self.files,
                self._append,
                self.counts,
                self.recalls,
                self._slot_prefetch,
                self._dequeue_prefetch,
            )
            self._enqueue = Enqueue(
                self._store, self.files, self._dequeue, self.counts, self.recalls, self._enqueue_prefetch
            )
            self._save_at = now + SAVE_MS
        return self._enqueue, self._dequeue

    def _entry_at(self, queue_offset: int) -> int | None:
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        entry = b"" if queue is None else queue.entries(max(queue_offset, queue.min_offset), 1)
        return ENTRY.unpack(entry)[0] if entry else None

    # -------------------------------------------------------------------------------------------------- keep

    def save(self, *, at_once: bool = False) -> Callable[[], None] | None:
        """Return a function that flushes the files, for a worker thread, if it is time."""
        now = self._store.log.clock.now_ms()
        if self._dequeue is None or not (at_once or now >= self._save_at):
            return None
        self._save_at = now + SAVE_MS
        self._dequeue.settle()
        dispatched = self._store.dispatched
        try:
            save = self.files.checkpoint(self.files.read_ms, now, self._dequeue.log_offset)
        except (NoRoom, OSError) as error:
            self._not_saved(error)
            return None
        return None if save is None else partial(self._write, save, dispatched)

    def _write(self, save: Callable[[], None], dispatched: int) -> None:
        try:
            if self._store.log.durable < dispatched:
                self._store.flush()  # units must not name messages that a power cut could lose
            save()
        except (OSError, LogPoisoned) as error:
            self._not_saved(error)
        else:
            if self._is_failing:
                self._is_failing = False
                log.info("timer_saved_again")

    def _not_saved(self, error: NoRoom | OSError | LogPoisoned) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("timer_not_saved", reason=str(error))

    def close(self) -> None:
        """Save everything and close the files, at the end of the broker's life."""
        if self._dequeue is None:
            return
        self._store.flush()
        self._dequeue.leave()
        save = self.save(at_once=True)
        if save is not None:
            save()
        self._dequeue = None
        self.files.close()

    def floor(self) -> int:
        """Return the log offset of the first waiting message, or a lower one; the log's end if none waits."""
        if self._dequeue is None and self._enqueue is None:
            queue = self._store.queues.get(TIMER_TOPIC, 0)
            if queue is None or not self.files.exist():
                return self._store.log.end
            return 0  # unknown until the files are opened
        if self.files.rebuild is not None:
            return 0
        first = self.files.floor(FLOOR_STEPS)
        if first is None:
            first = self._entry_at(self.files.check.queue_offset)
        return self._store.log.end if first is None else first

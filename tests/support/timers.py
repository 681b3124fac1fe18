"""A store with timed messages on a machine in memory, driven step by step without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import pytest

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.store import Store, StoreConfig
from gantrymq.plugins.delay.levels.levels import Levels
from gantrymq.plugins.delay.rewrite import TimerTerms, move_delayed
from gantrymq.plugins.delay.timer.files import TimerFiles, TimerSizes
from gantrymq.plugins.delay.timer.master_progress import MasterProgress
from gantrymq.plugins.delay.timer.timer import Timer
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.tinystore import TINY

SMALL: Final = TimerSizes(slots=240, roll_ms=60_000, file_bytes=52 * 20)
"""A wheel of four minutes; what is due in a minute or later is put back on the way."""
LARGER: Final = attrs.evolve(TINY, commit_log_file_bytes=1 << 20, queue_file_units=5000)
_LEVELS = Levels.parse("1s")


def sizes_read(patch: pytest.MonkeyPatch, log: CommitLog) -> list[int]:
    """A list that gets the size of each read of ``log``, until ``patch`` is undone."""
    pread = Segments.pread
    sizes: list[int] = []

    def counted(self: Segments, offset: int, size: int) -> bytes:
        data = pread(self, offset, size)
        if self is log.segments:
            sizes.append(len(data))
        return data

    patch.setattr(Segments, "pread", counted)
    return sizes


class SlaveStore:
    """A slave's store on ``env``, which may have been a master's, and what the plugin ``delay`` has there.

    ``cut``: the log offset at which the log is truncated before, because it is not the master's behind it.
    """

    def __init__(
        self, env: MemoryEnv, *, cut: int | None = None, sizes: TimerSizes = SMALL, config: StoreConfig = LARGER
    ) -> None:
        self.env = env
        self.store = Store(env, "store", config)
        self.store.open()
        if cut is not None:
            self.store.cut(cut)
        self.store.recover(lambda batch: None)
        self.progress = MasterProgress(self.store, env, TimerFiles(env, "store", sizes))

    def copy(self, master: TimedStore, most: int = 1 << 30, *, flush: bool = True) -> None:
        """Receive up to ``most`` bytes of the master's log, in whole records."""
        log, size = master.store.log, 0
        while (at := self.store.log.end) < log.end and size < most:
            room = log.segments.file_bytes - at % log.segments.file_bytes
            taken = self.store.append_encoded(at, log.view(at, min(log.end - at, most - size, room, 1 << 16)))
            if not taken:
                break
            size += taken
        for _ in self.store.dispatch(self.store.flush() if flush else self.store.log.end):
            pass

    def adopt(self, master: TimedStore) -> bool:
        """Adopt the master's progress, if this log has all of the master's; returns whether it did."""
        check = master.timer.progress()
        if check is None or self.store.log.durable < master.store.log.end:
            return False
        self.progress.adopt(check.to_body(), master.store.log.end)
        return True

    def follow(self, master: TimedStore) -> None:
        """Receive everything, and write the progress."""
        self.copy(master)
        assert self.adopt(master)
        self.save()

    def save(self) -> None:
        """Write the progress, as the broker does from time to time and at its stop."""
        while self.progress.advance():
            pass
        for path, data in (self.progress.changes() or {}).items():
            self.env.replace(path, data)

    def close(self) -> None:
        """Stop in order."""
        self.save()
        self.store.close()


class TimedStore:
    """The timer of the plugin ``delay`` around a store on ``env``, driven only by the methods of this class.

    ``refuse`` may take rows out of what is delivered, as another plugin might.
    """

    def __init__(
        self, env: MemoryEnv, *, sizes: TimerSizes = SMALL, config: StoreConfig = LARGER, longest_ms: int = 10**9
    ) -> None:
        self.env = env
        self.refuse: Callable[[AppendBatch], None] = lambda batch: None
        self.store = Store(env, "store", config)
        self.store.open()
        self.report = self.store.recover(lambda batch: None)
        self.timer = Timer(self.store, env, self._append, sizes)
        self._terms = TimerTerms(
            self.store.log.clock.now_ms, self.store.log.clock.at_wall, longest_ms, "b", self.timer.moved
        )

    @property
    def now(self) -> int:
        """The store's clock, ms since 1970."""
        return self.store.log.clock.now_ms()

    def _append(self, batch: AppendBatch) -> None:
        self.refuse(batch)
        if batch.refused < len(batch):
            self.store.append(batch)

    def send(self, body: bytes, properties: bytes, topic: str = "T", queue_id: int = 0) -> AppendBatch:
        """A message, written but not committed."""
        batch = AppendBatch(traits=Trait.DELAY)
        batch.add(topic, queue_id, body, properties)
        move_delayed(batch, _LEVELS, self._terms)
        self._append(batch)
        return batch

    def send_in(self, body: bytes, delay_ms: int) -> None:
        """A message that is due in so many ms; its unique key is its body."""
        self.send(body, b"TIMER_DELAY_MS\x01%d\x02UNIQ_KEY\x01%b" % (delay_ms, body))

    def recall(self, body: bytes, due: int) -> AppendBatch:
        """Recall the message ``body``, due at ``due``, as RECALL_MESSAGE does."""
        out = (due - 1) // 1000 * 1000
        return self.send(
            b"0", b"TIMER_DEL_UNIQKEY\x01T+%b\x02UNIQ_KEY\x01%b\x02TIMER_DELIVER_MS\x01%d" % (body, body, out + 1)
        )

    def commit(self) -> None:
        """Flush and dispatch all appended records."""
        for _ in self.store.dispatch(self.store.flush()):
            pass

    def settle(self, turns: int = 2000) -> int:
        """Take in and deliver all that can be, and commit it. Returns after how many ms there may be more."""
        for _ in range(turns):
            self.commit()
            wait = self.timer.turn()
            if wait and self.store.dispatched == self.store.log.end:
                return wait
        raise AssertionError(f"not done after {turns} turns")

    def save(self) -> None:
        """Bring the timer's files onto the disk."""
        save = self.timer.save(at_once=True)
        if save is not None:
            save()

    def close(self) -> None:
        """Stop in order."""
        self.timer.stop()
        self.commit()
        self.timer.close()
        self.store.close()

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """The messages of a queue, in its order."""
        queue = self.store.queues.get(topic, queue_id)
        if queue is None:
            return []
        entries = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)
        return [self.store.log.read_record(offset) for offset, _, _ in ENTRY.iter_unpack(entries)]

    def bodies(self) -> list[bytes]:
        """The bodies of what was delivered."""
        return [record.body for record in self.delivered()]

    def waiting(self) -> list[bytes]:
        """The bodies of what lies in the timer topic, delivered or not."""
        return [record.body for record in self.delivered(TIMER_TOPIC)]

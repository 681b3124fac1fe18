"""Wheel, timer log and checkpoint together: opened, repaired, and written in an order that survives a crash.

The timer log has the waiting messages, the wheel is an index of it, and the timer topic's queue is the source of both.
So an unreliable wheel is rebuilt from the log, and if the log is damaged, both are rebuilt from the queue. Source:
RocketMQ 5.3.3 ``TimerMessageStore.recover``, ``recoverAndRevise``, ``prepareTimerCheckPoint``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import structlog

from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.kernel.store.recovery.salvage import free_name
from gantrymq.plugins.delay.timer.check import Mark, TimerCheck
from gantrymq.plugins.delay.timer.log import (
    DEFAULT,
    DELETE,
    FILE_BYTES,
    NOWHERE,
    UNIT_BYTES,
    DamagedUnit,
    TimerLog,
    Unit,
    units_in,
)
from gantrymq.plugins.delay.timer.wheel import SLOTS, Slot, Wheel
from gantrymq.remoting.timer_times import PRECISION_MS, floor

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.delay")


@attrs.frozen
class TimerSizes:
    """Sizes of the files; RocketMQ's broker opens no others."""

    slots: int = SLOTS
    roll_ms: int = 172_800 * PRECISION_MS
    """``timerRollWindowSlot``: a message that is due later is enqueued again on the way."""
    file_bytes: int = FILE_BYTES


SIZES: Final = TimerSizes()


LATE_MS: Final = 2 * PRECISION_MS
"""A message whose slot is over is enqueued in one that begins at most this long after."""
MARGIN_MS: Final = LATE_MS
"""How long before the master's progress a promoted slave begins to deliver: RocketMQ's master determines the slot in
which a message is enqueued again when it enqueues it, GantryMQ when it is stored, which is a little earlier."""


@attrs.frozen
class Rebuild:
    """In the queue before ``queue_offset``, every message of a slot before ``read_ms`` was delivered already, except
    the messages at the log offsets ``late``."""

    queue_offset: int
    read_ms: int
    start: int = 0
    """The first queue offset to enqueue; every message before it was delivered."""
    late: frozenset[int] = frozenset()
    """A message that was enqueued when its slot was over waits in a later one."""

    def has_delivered(self, queue_offset: int, time: int, offset: int) -> bool:
        """Whether the message at ``queue_offset`` and at the log offset ``offset``, of the slot ``time``, was
        delivered."""
        return queue_offset < self.queue_offset and time < self.read_ms and offset not in self.late


@attrs.frozen
class StartEnds:
    """The ends of the timer topic's queue and of the commit log at a broker's start."""

    queue: int
    log: int


class TimerFiles:
    """The files in the store's folder ``root``. ``read_ms`` is the first slot that may have messages to deliver."""

    def __init__(self, env: Env, root: str, sizes: TimerSizes = SIZES) -> None:
        self._env = env
        self._root = root
        self.sizes = sizes
        self.wheel = Wheel(env, f"{root}/timerwheel", sizes.slots)
        self.log = TimerLog(env, f"{root}/timerlog", f"{root}/staging", sizes.file_bytes)
        self.check_path = f"{root}/config/timercheck"
        self.check = TimerCheck(0, 0, 0)
        self.read_ms = 0
        self.queue_offset = 0
        """The next entry of the timer topic's queue to enqueue."""
        self.newest = NOWHERE
        """The position of the last unit of the log."""
        self.rebuild: Rebuild | None = None
        """Set while damaged files are rebuilt from the queue."""
        self.low = 0
        """The position in the timer log before which no message waits."""
        self.spoilt = False
        """Whether the open files are damaged and must be opened again."""
        self._lost = False
        self._overdue: dict[int, int] = {}
        """By slot: the first queue offset of a message that waits there because its own slot was over."""
        self._marks_from = 0
        """The slot before which overdue messages may wait that ``_overdue`` lacks: from a run before this one."""

    def exist(self) -> bool:
        """Return whether a broker has used the timer in this store."""
        return self._env.exists(self.check_path) or self.has_derived()

    # ------------------------------------------------------------------------------------------------------- open

    def open(self, now: int, entry_at: Callable[[int], int | None], ends: StartEnds, *, trusted: bool) -> None:
        """Open the files and determine where to continue; ``entry_at`` returns the log offset of a queue entry.

        ``ends``: of the queue and of the commit log at the broker's start, before anything was appended.
        ``trusted``: a GantryMQ broker stopped cleanly, so the wheel matches the log.
        """
        if self.spoilt:
            self._begin_again(self.rebuild or Rebuild(self.queue_offset, self.read_ms), now)
            self.spoilt = False
            return
        written = self.read_check()
        if written is None:
            if self.exist():
                log.warning("timer_check_missing", path=self.check_path)
            self._begin_again(Rebuild(0, 0), now)
            return
        known = self.check = self._within(written, ends)
        self.read_ms, self.queue_offset = floor(known.read_ms), known.queue_offset
        if known.is_slaves:
            start = known.queue_offset if known.marks else 0
            delivered = min(known.master_offset, ends.queue)
            self._begin_again(Rebuild(delivered, self.read_ms - MARGIN_MS, min(start, ends.queue)), now)
            return
        damaged = Rebuild(known.queue_offset, self.read_ms)
        self._marks_from = known.timestamp + LATE_MS + PRECISION_MS
        try:
            self.log.open()
            self._find_end(entry_at)
        except (StoreDamaged, DamagedUnit) as error:
            log.error("timer_files_damaged", reason=str(error))
            self._begin_again(damaged, now)
            return
        if not now - self.wheel.span_ms // 2 < self.read_ms <= now:
            # The wheel may have wrapped around since; or the clock was set back, and delivered slots would be delivered
            # again.
            log.warning("timer_rebuilt", read_ms=self.read_ms, now=now)
            self._begin_again(damaged, now)
            return
        try:
            if not (self.wheel.open() and trusted and self._fits()):
                self._index()
        except DamagedUnit as error:
            log.error("timer_files_damaged", reason=str(error))
            self._begin_again(damaged, now)

    def _within(self, check: TimerCheck, ends: StartEnds) -> TimerCheck:
        """Return what ``check`` says about this log. After a cut, units lead to offsets at which other records are now
        or will be."""
        known = check.within(ends.log)
        if known is check and check.queue_offset > ends.queue:
            known = check.following(Mark(check.read_ms, ends.queue, ends.log), 0)
        if known is not check:
            log.warning("timer_rebuilt", queue_offset=check.queue_offset, queue_end=ends.queue)
            for _ in range(2):  # also the .bak: when the log has grown again, a later start would trust them
                self._env.replace(self.check_path, known.to_bytes())
        return known

    def read_check(self) -> TimerCheck | None:
        """Return the checkpoint, or the one before it if it is damaged; None if there is none."""
        for path in (self.check_path, f"{self.check_path}.bak"):
            if self._env.exists(path):
                try:
                    return TimerCheck.from_bytes(self._env.read_bytes(path))
                except ValueError as error:
                    log.error("timer_check_damaged", path=path, reason=str(error))
        return None

    def _find_end(self, entry_at: Callable[[int], int | None]) -> None:
        """Truncate units of entries that will be enqueued again, and invalid units.

        RocketMQ's checkpoint can have a lower log position than its queue offset implies, so more units may follow.
        Behind GantryMQ's checkpoint, units of earlier entries are only copies that a stop has not finished: those
        that are complete would hide the original units of the others.
        """
        end = self.check.log_end
        if end > self.log.start:
            self.log.end_behind(end)
            self.newest = end - UNIT_BYTES if end % self.log.file_bytes else NOWHERE
        if self.check.is_own:
            self.log.end_at(end)
            return
        limit = entry_at(self.queue_offset)
        if limit is None:  # whatever follows the queue's last entry names a message that the log has lost
            last = entry_at(self.queue_offset - 1) if self.queue_offset else None
            limit = 0 if last is None else last + 1
        for position, unit in self.log.scan(end):
            if unit.offset >= limit:
                break
            self.newest, end = position, position + UNIT_BYTES
        self.log.end_at(end)

    def _fits(self) -> bool:
        """Return whether each slot points to a unit of that slot."""
        for time, slot in self.wheel.live(self.read_ms):
            try:
                if not self.log.start <= slot.last < self.log.end or floor(self.log.unit(slot.last).time) != time:
                    raise DamagedUnit(f"the slot of {time} leads to {slot.last}")
            except DamagedUnit as error:
                log.warning("timer_wheel_inconsistent", reason=str(error))
                return False
        return True

    def _index(self) -> None:
        """Build the wheel from the log."""
        slots: dict[int, Slot] = {}
        end = self.log.start
        for position, unit in self.log.scan(self.log.start):
            if position >= self.log.end:
                break
            end = position + UNIT_BYTES
            time = floor(unit.time)
            if time >= self.read_ms:
                first, _, number = slots.get(time, Slot(position, 0, 0))
                if unit.previous == NOWHERE:
                    first, number = position, 0
                slots[time] = Slot(first, position, number + (-1 if unit.magic & DELETE else 1))
        if end != self.log.end and self.log.next_position(end - UNIT_BYTES) < self.log.end:
            raise DamagedUnit(f"the timer log ends at {end}, not at {self.log.end}")
        self.wheel.create(slots)

    def _begin_again(self, rebuild: Rebuild, now: int) -> None:
        self.close()
        lost_and_found = f"{self._root}/lost+found"
        self._env.mkdirs(lost_and_found)
        paths = [f"{self.log.folder}/{name}" for name in self._env.listdir(self.log.folder)]
        for path in [path for path in (self.wheel.path, *paths) if self._env.exists(path)]:
            self._move_to_lost_and_found(path, f"{lost_and_found}/{path[len(self._root) + 1 :].replace('/', '-')}")
        self.log = TimerLog(self._env, self.log.folder, f"{self._root}/staging", self.sizes.file_bytes)
        self.log.open()
        self.wheel.create({})
        self.rebuild = None
        if rebuild.queue_offset:
            self.rebuild = attrs.evolve(rebuild, late=self._late(lost_and_found, rebuild.read_ms))
        self.low = 0
        self._overdue.clear()
        self._marks_from = 0
        # Overdue messages go into the first slot.
        self.read_ms, self.queue_offset, self.newest = floor(now), rebuild.start, NOWHERE

    def _move_to_lost_and_found(self, path: str, target: str) -> None:
        """Move a file to a free name: a rebuild that was interrupted needs the files of the first attempt."""
        if self._env.exists(target):
            target = free_name(self._env, target)
        self._env.rename(path, target)
        log.warning("timer_file_moved_to_lost_and_found", path=target)

    def _late(self, lost_and_found: str, read_ms: int) -> frozenset[int]:
        """Return the log offsets of messages that wait from ``read_ms`` on and may have been due before.

        Files are here as :meth:`_move_to_lost_and_found` moves them, and whole folders as a repair of the store does.
        Older ones may be among them, but all their slots are over.
        """
        late: set[int] = set()
        names = [name for name in self._env.listdir(lost_and_found) if name.startswith("timerlog")]
        moved = [f"{lost_and_found}/{name}" for name in names]
        for path in moved:
            if self._env.is_dir(path):
                moved += [f"{path}/{name}" for name in self._env.listdir(path)]
                continue
            try:
                late.update(
                    unit.offset
                    for unit in units_in(self._env, path)
                    if floor(unit.time) >= read_ms and unit.delay <= LATE_MS
                )
            except OSError as error:
                log.error("timer_file_unreadable", path=path, reason=str(error))
        return frozenset(late)

    def has_derived(self) -> bool:
        """Return whether there is a wheel or a timer log."""
        return any(self._env.exists(path) for path in (self.wheel.path, self.log.folder))

    def delete_derived(self) -> None:
        """Delete the wheel and the timer log, which are not open."""
        if self._env.exists(self.wheel.path):
            self._env.unlink(self.wheel.path)
        if self._env.exists(self.log.folder):
            self._env.rmtree(self.log.folder)
        if self._env.exists(self._root):
            self._env.sync_dir(self._root)

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        self.wheel.close()

    # ------------------------------------------------------------------------------------------------------ write

    def add(self, unit: Unit) -> int:
        """Append ``unit`` to its slot; returns its position. Durable after :meth:`checkpoint`."""
        time = floor(unit.time)
        slot = self.wheel.get(time)
        number = -1 if unit.magic & DELETE else 1
        if slot is None or slot.last == NOWHERE:
            position = self.log.append(unit)
            self.wheel.put(time, position, position, number)
        else:
            position = self.log.append(Unit(slot.last, *unit[1:]))
            self.wheel.put(time, slot.first, position, slot.number + number)
        self.newest = position
        return position

    def relink(self, time: int, positions: list[int]) -> None:
        """Reduce the partly delivered slot of ``time`` to the units at ``positions``.

        A unit with a recall that matches nothing follows them: RocketMQ reads the slot's last unit from the log and
        follows its chain, and determines from the log's last unit where to continue in the queue.
        """
        slot = self.wheel.get(time)
        if slot is None:
            return
        last = self.log.unit(slot.last if self.newest == NOWHERE else self.newest)
        units = [self.log.unit(position) for position in sorted(positions)]
        self.wheel.put(time, NOWHERE, NOWHERE, 0)
        for unit in units:
            self.add(unit._replace(previous=NOWHERE))
        self.add(last._replace(previous=NOWHERE, magic=DEFAULT | DELETE, delay=time - last.written, due=0))
        slot = self.wheel.get(time)
        if slot is not None:
            number = sum(-1 if unit.magic & DELETE else 1 for unit in units)
            self.wheel.put(time, slot.first, slot.last, number)

    def overdue(self, slot: int, queue_offset: int) -> None:
        """The message at ``queue_offset`` waits in ``slot`` although its own slot is over."""
        self._overdue.setdefault(slot, queue_offset)

    def checkpoint(self, read_ms: int, now: int, log_offset: int) -> Callable[[], None] | None:
        """Return a function that flushes everything that was added, for a worker thread; None if nothing is new.

        Meanwhile the files may be used, except for another checkpoint and :meth:`open`. ``read_ms``: every message
        before this slot is durably delivered, before ``log_offset`` of the commit log. There is no checkpoint during a
        rebuild, so that a crash restarts it.
        """
        if self._lost or self.rebuild is not None:
            return None
        end = self.log.end
        known = self.check
        if (read_ms, end, self.queue_offset) == (known.read_ms, known.log_end, known.queue_offset) and (
            not self.wheel.is_changed
        ):
            return None
        self.log.write()
        check = self.check.moved(read_ms, end, self.queue_offset, now, self._mark(read_ms, log_offset))
        old = self.log.detach_before(self.low)
        changes = self.wheel.take_changes()

        def save() -> None:
            try:
                self.log.sync()
            except OSError as error:
                # Linux reports a lost page once: only the next start, from the last checkpoint, can determine what is
                # on the disk.
                self._lost = True
                log.error("timer_log_not_synced", reason=str(error))
                return
            self.wheel.write(changes)
            self._env.replace(self.check_path, check.to_bytes())
            self.check = check
            self.log.discard(old)

        return save

    def _mark(self, read_ms: int, log_offset: int) -> Mark | None:
        if read_ms < self._marks_from:
            return None
        self._overdue = {slot: offset for slot, offset in self._overdue.items() if slot >= read_ms}
        return Mark(read_ms, min([self.queue_offset, *self._overdue.values()]), log_offset)

    def floor(self, steps: int) -> int | None:
        """Return the log offset of the first waiting message of the wheel, or a lower one; None if none waits.

        ``low`` advances by at most ``steps`` units.
        """
        for position, unit in self.log.scan(self.low):
            self.low = position
            steps -= 1
            if floor(unit.time) >= self.check.read_ms or steps <= 0:
                return unit.offset
        return None

"""Find the end of the log after any kind of stop, and rebuild the derived data up to there.

The rule for the end: *above* the durable offset, bytes that are not a record are the place where a crash tore the log.
The log is cut off there with a log event, and the bytes are saved to ``lost+found/``. *Below* it, they are corruption:
the range is quarantined (reads of it fail), and nothing behind it is deleted. The durable offset comes from the
watermark file. A store that RocketMQ's broker wrote has none: after a clean stop everything that its queues point to is
durable, after a crash everything that was stored before the checkpoint's timestamp. ``docs/format/store.md`` has the
details.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import Stop, scan
from gantrymq.kernel.layouts import ENTRY, PLACES
from gantrymq.kernel.store.log.commitlog import SCAN_ROWS, CommitLog
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.kernel.store.queues.consume_queue import LIGHT_TOPIC, ConsumeQueue
from gantrymq.kernel.store.queues.table import ConsumeQueues
from gantrymq.kernel.store.recovery.checkpoint import Checkpoint, Marks
from gantrymq.kernel.store.recovery.quarantine import QuarantineList, Range, Rewritten, find_rewritten
from gantrymq.kernel.store.recovery.salvage import find_record, save_to_lost_and_found
from gantrymq.remoting.records import MAGIC_V1, MAGIC_V2

log = structlog.get_logger("gantrymq.recovery")

LAST_ENTRIES = 64
"""How many of a queue's last entries are compared with their records, to find out how far the log was written."""


@attrs.frozen
class RecoveryReport:
    """The result of a recovery. Offsets and sizes are bytes of the log.

    ``clean``: the last broker was stopped cleanly. ``foreign``: another broker than GantryMQ wrote the store last.
    ``corrupt``: damaged ranges (start, end), including those known before. ``kept``: the files with the bytes that were
    cut off.
    """

    clean: bool
    foreign: bool
    end: int
    scanned_bytes: int
    dispatched: int
    cut_bytes: int
    kept: tuple[str, ...]
    corrupt: tuple[tuple[int, int], ...]
    seconds: float


@attrs.define
class _Plan:
    """The offset to read from, the offset below which everything is durable, and how the queues were checked."""

    start: int
    floor: int
    trusted: bool
    flushed_before: int = 0
    """Store timestamp before which records are durable: the floor of a store that crashed under RocketMQ's broker."""


class Recovery:
    """One recovery of a store with open files. ``clean``: there was no abort file."""

    def __init__(
        self,
        env: Env,
        root: str,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        checkpoint: Checkpoint,
        marks: Marks | None,
        clean: bool,
    ) -> None:
        self._env = env
        self._root = root
        self._log = commit_log
        self._segments = commit_log.segments
        self._queues = queues
        self._checkpoint = checkpoint
        self._marks = marks
        self._clean = clean and (marks is None or marks.clean)
        self._quarantine_list = QuarantineList(env, root)
        self._last_timestamp = 0
        self._dispatched = 0
        self._rewritten: Rewritten | None = None

    def run(self, on_dispatch: Callable[[DispatchBatch], None], replay_from: int | None) -> RecoveryReport:
        """Recover. ``on_dispatch`` sees every record that is dispatched again, at least from ``replay_from`` on.

        Raises :class:`StoreDamaged` when files are missing, ``LogPoisoned`` when the disk fails.
        """
        began = self._env.monotonic()
        self._log.quarantine = self._in_log(self._quarantine_list.load())
        plan = self._plan_from_marks(self._marks) if self._marks is not None else self._plan_without_marks()
        if replay_from is not None:
            plan.start = min(plan.start, self._record_start(max(replay_from, self._segments.start)))
        if any(queue.needs_rebuild for queue in self._queues):
            plan.start = self._segments.start
        start = plan.start
        self._sync_from(start)
        end = self._replay(plan, on_dispatch)
        if any(stop > end for _, stop in self._log.quarantine):
            self._log.quarantine = self._in_log(self._quarantine_list.cut(end))
        cut_bytes, kept = self._cut(end) if not (plan.trusted and self._clean) else (0, ())
        if not plan.trusted:
            self._queues.truncate(end, self._is_entry)
        self._queues.correct_min(self._segments.start)
        self._queues.count()
        self._queues.limit_log_ends(end)
        self._log.set_end(end, self._last_timestamp)
        report = RecoveryReport(
            clean=self._clean,
            foreign=self._marks is None and end > 0,
            end=end,
            scanned_bytes=end - start,
            dispatched=self._dispatched,
            cut_bytes=cut_bytes,
            kept=kept,
            corrupt=tuple(self._log.quarantine),
            seconds=self._env.monotonic() - began,
        )
        log.info("store_recovered", **attrs.asdict(report))
        return report

    # ----------------------------------------------------------------------------------------------------- plans

    def _plan_from_marks(self, marks: Marks) -> _Plan:
        if marks.durable > self._segments.end:
            raise StoreDamaged(
                f"{self._root}/commitlog ends at offset {self._segments.end}, but everything up to {marks.durable} was "
                f"acknowledged: restore the missing files; or delete {self._root}/gantrymq.watermark to start without "
                "them"
            )
        self._last_timestamp = self._checkpoint.log_timestamp
        start = max(marks.dispatched, self._segments.start)
        if not self._clean or self._queues.units != marks.units:
            start = max(min(start, self._queues.truncate(start, self._is_entry)), self._segments.start)
            if self._queues.units != marks.units:
                log.warning("consume_queues_incomplete", entries=self._queues.units)
                start = self._segments.start
        self._queues.limit_log_ends(max(marks.dispatched, self._segments.start))
        return _Plan(start, marks.durable, trusted=True)

    def _plan_without_marks(self) -> _Plan:
        self._forget_rewritten()
        if self._clean:
            floor = max((self._believed_end(queue) for queue in self._queues), default=0)
            floor = min(floor, self._segments.end)
            segment = self._segments.at(max(floor - 1, 0))
            return _Plan(segment.base if segment else self._segments.start, floor, trusted=False)
        start = self._segments.start
        safe = self._checkpoint.safe_timestamp
        if safe > self._env.wall_ms():
            # The checkpoint claims more than can have been flushed, so it is ignored.
            log.warning("checkpoint_in_the_future", timestamp=safe)
            safe = 0
        for segment in self._segments:
            try:
                batch, _ = scan_block(self._segments, segment.base, segment.end, 1, check_body=False)
            except OSError:
                continue  # reading begins with an earlier file
            if len(batch) and 0 < batch.store_timestamps[0] <= safe:
                start = segment.base
        self._queues.truncate(start, self._is_entry)
        return _Plan(start, start, trusted=False, flushed_before=self._checkpoint.log_timestamp)

    def _forget_rewritten(self) -> None:
        """Drop the ranges behind the first one that begins with intact data: RocketMQ's broker cut the log there."""
        self._rewritten = found = find_rewritten(self._segments, self._log.quarantine)
        if found is not None:
            log.info("quarantine_list_shortened", end=found.start, removed=len(self._log.quarantine) - found.row)
            self._log.quarantine = self._log.quarantine[: found.row]
            self._quarantine_list.save(self._log.quarantine)

    def _believed_end(self, queue: ConsumeQueue) -> int:
        """Return the end of the last record to which an entry of the queue points; 0 if none of its last entries points
        to its own record."""
        first = max(queue.min_offset, queue.max_offset - LAST_ENTRIES)
        entries = list(ENTRY.iter_unpack(queue.entries(first, LAST_ENTRIES)))
        return next((at + size for at, size, _ in reversed(entries) if self._is_entry(queue, at, size)), 0)

    def _record_start(self, offset: int) -> int:
        """``offset`` if a record begins there, else the start of its file."""
        segment = self._segments.at(offset)
        if segment is None or offset == segment.base:
            return offset
        try:
            _, stop = scan_block(self._segments, offset, segment.end, 1, check_body=False)
        except OSError:
            return segment.base
        return offset if stop in (Stop.ROWS, Stop.DATA, Stop.BLANK, Stop.ZERO) else segment.base

    def _is_entry(self, queue: ConsumeQueue, offset: int, size: int) -> bool | None:
        """Return whether the record at ``offset`` has that size and queue; None if there is no record, or no longer.

        Light queues hold records of other queues.
        """
        try:
            data = self._segments.pread(offset, PLACES.size)
        except OSError:
            return None
        if len(data) < PLACES.size:
            return None
        real_size, magic, queue_id, _, real_offset, _ = PLACES.unpack(data)
        if magic not in (MAGIC_V1, MAGIC_V2) or real_offset != offset:
            return None
        return bool(real_size == size and (queue_id == queue.queue_id or queue.topic.startswith(LIGHT_TOPIC)))

    # ---------------------------------------------------------------------------------------------------- the log

    def _sync_from(self, offset: int) -> None:
        """Flush the log before it is read, so that the next crash cannot take back what is dispatched."""
        try:
            for segment in self._segments:
                if segment.end > offset:
                    segment.file.datasync()
        except OSError as error:
            raise self._log.poison("flushing the commit log", error) from error

    def _replay(self, plan: _Plan, on_dispatch: Callable[[DispatchBatch], None]) -> int:
        """Read and dispatch from the plan's start on; returns the end of the log."""
        position = covered = plan.start
        reported_at = self._env.monotonic()
        while (segment := self._segments.at(position)) is not None:
            unreadable: OSError | None = None
            try:
                batch, stop = self._scan(position, segment.end, SCAN_ROWS)
            except OSError as error:
                batch, stop, unreadable = scan(b"", position, 0, check_body=False)[0], Stop.BAD, error
            torn = self._torn_row(batch, plan)
            if torn is not None:
                batch, stop = self._scan(position, segment.end, torn)[0], Stop.BAD
            position = segment.end if stop is Stop.BLANK else batch.end
            if self._env.monotonic() - reported_at >= 1:
                reported_at = self._env.monotonic()
                log.info("store_recovering", offset=position, files_end=self._segments.end)
            if position > covered:
                batch.start, batch.end = covered, position
                covered = position
                self._dispatch(batch, on_dispatch)
            if stop not in (Stop.ROWS, Stop.DATA, Stop.BLANK):
                behind = next((end for first, end in self._log.quarantine if first <= position < end), None)
                if behind is None:
                    behind = self._judge(position, plan) if unreadable is None else self._find_behind(position, plan)
                    if behind is None and unreadable is not None:
                        raise unreadable
                    if behind is None:
                        break
                    self._quarantine(position, behind)
                position = min(behind, self._segments.end)  # a list of another version of the log may name more
        return position

    def _scan(self, position: int, limit: int, rows: int) -> tuple[DispatchBatch, Stop]:
        return scan_block(self._segments, position, limit, rows, check_body=True, replay=True)

    @staticmethod
    def _torn_row(batch: DispatchBatch, plan: _Plan) -> int | None:
        """Return the first row with torn properties: no CRC covers them, but GantryMQ accepts no zero byte in them."""
        if plan.trusted and batch.end > plan.floor:
            for row, properties in enumerate(batch.properties):
                if b"\0" in properties and batch.offsets[row] >= plan.floor:
                    return row
        return None

    def _dispatch(self, batch: DispatchBatch, on_dispatch: Callable[[DispatchBatch], None]) -> None:
        self._last_timestamp = max(self._last_timestamp, batch.newest_timestamp)
        self._dispatched += len(batch)
        self._queues.put(batch)
        self._log.set_readable(batch.end)
        on_dispatch(batch)

    def _judge(self, position: int, plan: _Plan) -> int | None:
        """Handle bytes at ``position`` that are not a record: returns None if the log ends here, else the offset at
        which it continues."""
        if position < plan.floor:
            found = find_record(self._segments, position + 1)
            if found is None:
                return plan.floor
            if self._was_cut_off(position, found[1]):
                return None
            return min(found[0], plan.floor)
        if plan.flushed_before:
            found = find_record(self._segments, position + 1)
            # A record older than the records before it is a remainder of a tail that was cut off earlier.
            if found is not None and self._last_timestamp <= found[1] < plan.flushed_before:
                return found[0]
        return None

    def _was_cut_off(self, position: int, timestamp: int) -> bool:
        return self._rewritten is not None and self._rewritten.was_cut_off(position, timestamp)

    def _find_behind(self, position: int, plan: _Plan) -> int | None:
        """Handle an unreadable block at ``position``: returns the offset at which the log continues, None if that is
        unknown.

        A crash tears a log, but does not make blocks unreadable: acknowledged records may be there and behind it.
        """
        found = find_record(self._segments, position + 1)
        if position < plan.floor:
            if found is None:
                return plan.floor
            return None if self._was_cut_off(position, found[1]) else min(found[0], plan.floor)
        # A record older than the records before it is a remainder of a tail that was cut off.
        return None if found is None or found[1] < self._last_timestamp else found[0]

    def _quarantine(self, start: int, end: int) -> None:
        log.error("log_range_quarantined", start=start, end=end)
        self._log.quarantine = sorted([*self._log.quarantine, (start, end)])
        self._quarantine_list.save(self._log.quarantine)

    def _in_log(self, ranges: list[Range]) -> list[Range]:
        """Return the ranges that retention has not deleted."""
        return [(start, end) for start, end in ranges if end > self._segments.start]

    def _cut(self, end: int) -> tuple[int, tuple[str, ...]]:
        """Overwrite everything behind ``end`` with zeros. Returns the number of bytes that were cut off, and their
        copies."""
        last = self._segments.last_nonzero(end)
        kept: tuple[str, ...] = ()
        if last > end:
            kept = save_to_lost_and_found(self._env, self._segments, end, last, f"{self._root}/lost+found")
            log.warning("log_tail_truncated", offset=end, bytes=last - end, kept=kept)
        self._segments.truncate(end)
        return last - end, kept

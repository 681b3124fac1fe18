"""State table and redo log of a store, and how they follow the log.

Both are derived from the log. A start reads data that was not flushed from the log again. After a clean stop the table
is used as it is; otherwise it is deleted and rebuilt from the redo log, as in RocketMQ 3.x, but each row keeps its
number. Damaged files are moved to ``lost+found``.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_ROOM, NoRoom, UnreadableRange
from gantrymq.kernel.store.log.segments import Segment, StoreDamaged
from gantrymq.kernel.store.recovery.salvage import free_name
from gantrymq.plugins.transaction.state_table.marks import StateMarks, marks_path, read_marks
from gantrymq.plugins.transaction.state_table.redo import RedoLog
from gantrymq.plugins.transaction.state_table.rows import (
    STATE_BITS,
    find_rows,
    is_record,
    read_prepared,
    row_of,
    scan_whole,
    state_row,
)
from gantrymq.plugins.transaction.state_table.table import StateRow, StateTable

if TYPE_CHECKING:
    from gantrymq.kernel.batch import DispatchBatch
    from gantrymq.kernel.store.store import Store

log = structlog.get_logger("gantrymq.transaction")


class StateFiles:
    """The files under ``transaction/``, in a store that is recovered. One thread drives it beside :meth:`flush`."""

    table: StateTable
    redo: RedoLog

    def __init__(self, env: Env, store: Store, *, file_rows: int) -> None:
        self._env = env
        self._store = store
        self._file_rows = file_rows
        self.folder = f"{store.root}/transaction"
        self._flushing = Lock()
        self._failed = False
        self._open_from = 0
        self._expired = 0
        self._vouched = self._progress = StateMarks(0, 0, 0, 0)
        self._flushed: StateMarks | None = None
        self._written: StateMarks | None = None
        self._detached: deque[Segment] = deque()
        self.position = 0
        """The log offset up to which the files are complete."""
        self.unread: dict[int, int] = {}
        """The size of each open prepared record that a rebuild of the table could not read, by its log offset. The
        table has fillers in place of their rows; their transactions are open until they end."""

    # ------------------------------------------------------------------------------------------------------- start

    def open(self) -> None:
        """Load both, read missing data from the log, and rebuild an unreliable table."""
        marks = read_marks(self._env, self._store.root)
        self._make()
        known = marks is not None or self._env.is_dir(self.folder)
        trusted = self._load(marks) if known else self._begin()
        self._vouch(marks)
        self._catch_up(with_table=trusted)
        if not trusted:
            try:
                self._rebuild()
            except StoreDamaged as error:
                self._begin_anew(error)
                self._vouch(marks)
                self._catch_up(with_table=False)
                self._rebuild()
        self._advance()
        log.info("state_table_loaded", open=self.table.open_count, rows=self.table.end, rebuilt=not trusted)

    def _make(self) -> None:
        staging = f"{self._store.root}/staging"
        self.table = StateTable(self._env, f"{self.folder}/statetable", staging, file_rows=self._file_rows)
        self.redo = RedoLog(self._env, f"{self.folder}/redolog", staging, file_entries=self._file_rows)

    def _begin(self) -> bool:
        """Begin in a store without this strategy, at the first record that the recovery read: the log may be a copy."""
        report = self._store.recovered
        self.position = self._store.log.min_offset if report is None else report.end - report.scanned_bytes
        self._vouched = StateMarks(self.position, 0, 0, self.position)
        return True

    def _vouch(self, marks: StateMarks | None) -> None:
        """Write the marks before the table changes in place, and before truncated records are replaced by others."""
        if self._vouched != marks:
            self._env.replace(marks_path(self._store.root), self._vouched.encode())

    def _load(self, marks: StateMarks | None) -> bool:
        """Determine the offset from which the log must be read. Returns whether the table is reliable."""
        commit_log = self._store.log
        report = self._store.recovered
        clean = report is not None and report.clean
        self._vouched = StateMarks(0, 0, 0, 0) if marks is None else marks
        try:
            self.redo.load()
            if marks is None:
                if not clean:
                    raise StoreDamaged("RocketMQ's broker did not stop cleanly, and its redo log may be incomplete")
                self.position = self.redo.log_end
            else:
                self.position = min(marks.offset, commit_log.end)
                self.redo.truncate(self.position, partial(is_record, commit_log))
                if marks.offset > commit_log.end:
                    self._vouched = self._marks_before_cut(marks)
                elif self.redo.end != marks.entries:
                    raise StoreDamaged(f"the redo log has {self.redo.end} of {marks.entries} entries")
        except StoreDamaged as error:
            self._begin_anew(error)
            return False
        open_from = min(self._vouched.open_from, self.position)
        self._vouched = StateMarks(self.position, self.redo.end, self._vouched.rows, open_from)
        self.position = max(self.position, commit_log.min_offset)
        if marks is None or not (clean and marks.clean and marks.offset <= commit_log.end):
            return False
        try:
            self.table.load()
            if self.table.end != marks.rows:
                raise StoreDamaged(f"the state table ends with row {self.table.end} instead of {marks.rows}")
        except StoreDamaged as error:
            self._move_to_lost_and_found(self.table.folder, "the state table is built again from the redo log", error)
            return False
        return True

    def _marks_before_cut(self, marks: StateMarks) -> StateMarks:
        """Return ``marks`` without what they count of the log's end, which is cut off: ends of transactions, which may
        be open again, and rows, whose numbers are used again."""
        newest = self.redo.find_open(0).newest
        row = None if newest is None else row_of(self._store.log, newest)
        return attrs.evolve(marks, open_from=0, rows=marks.rows if row is None else row + 1)

    def _catch_up(self, *, with_table: bool) -> None:
        for batch in scan_whole(self._store.log, self.position, self._store.dispatched):
            self._take(batch, with_table=with_table)
        self.position = self._store.dispatched

    def _begin_anew(self, error: StoreDamaged) -> None:
        self._move_to_lost_and_found(self.folder, "redo log and state table are built again from the log", error)
        self.position = self._store.log.min_offset
        self._vouched = StateMarks(self.position, 0, self._vouched.rows, 0)

    def _move_to_lost_and_found(self, folder: str, what: str, error: StoreDamaged) -> None:
        kept = free_name(self._env, f"{self._store.root}/lost+found/{folder.rpartition('/')[2]}")
        log.error("state_files_moved_to_lost_and_found", path=folder, kept=kept, reason=str(error), then=what)
        self.redo.close()
        self.table.close()
        if self._env.is_dir(folder):
            _move(self._env, folder, kept)
        entries = self.redo if folder == self.table.folder else None
        self._make()
        if entries is not None:
            self.redo = entries

    def _rebuild(self) -> None:
        """Rebuild the table: a row for each prepared record without an outcome, under the number in its record."""
        commit_log = self._store.log
        self.table.close()
        self._env.rmtree(self.table.folder)
        known = self.redo.find_open(self._vouched.open_from)
        self.unread.clear()
        rows = []
        for offset, size in sorted(known.open.items()):
            if offset < commit_log.min_offset:
                log.error("prepared_record_lost", log_offset=offset, reason="deleted with its file of the log")
                continue
            try:
                record = read_prepared(commit_log, offset)
            except UnreadableRange as error:
                log.error("prepared_record_unreadable", log_offset=offset, reason=str(error))
                self.unread[offset] = size
                continue
            if record is not None:
                rows.append((record.queue_offset, state_row(record, size)))
        newest = None if known.newest is None else row_of(commit_log, known.newest)
        end = max(self._vouched.rows, 0 if newest is None else newest + 1)
        entries = self.redo
        self._make()
        self.redo = entries
        self.table.append(rows)
        self.table.fill_to(end, StateRow(self.position, 1, 0, 0))

    # -------------------------------------------------------------------------------------------------- the log's way

    def apply(self, batch: DispatchBatch) -> None:
        """Process a dispatched batch; known records are skipped. ``OSError`` if the disk failed."""
        self._take(batch, with_table=True)
        self.position = max(self.position, batch.end)
        self._advance()

    def _take(self, batch: DispatchBatch, *, with_table: bool) -> None:
        if not batch.sys_flag_bits & STATE_BITS or batch.end <= self.position:
            return
        found = find_rows(batch, self.position, self._store.log)
        if not found.offsets:
            return
        self.redo.put(found.offsets, found.sizes, found.prepared_offsets)
        if with_table:
            self.table.append(found.opened)
            self.table.finish(self._without_unread(found.ended))

    def _without_unread(self, ended: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Return the ends of transactions that have a row; :attr:`unread` loses the others."""
        if not self.unread:
            return ended
        return {number: end for number, end in ended.items() if self.unread.pop(end[0], None) is None}

    def _advance(self) -> None:
        self._progress = StateMarks(self.position, self.redo.end, self.table.end, self._open_from)

    # ---------------------------------------------------------------------------------------------------- keep house

    def retire(self) -> None:
        """Determine what can be deleted: entries without records, files whose rows have all ended."""
        found = self.table.first_open()
        self._open_from = min([self.position if found is None else found[1].log_offset, *self.unread])
        log_min = self._store.log.min_offset
        if log_min != self._expired:
            self._expired = log_min
            self.redo.expire(log_min)
        detached = self.table.detach_finished()
        if detached:
            log.info("state_files_retired", files=len(detached), first_row=self.table.start)
            self._detached.extend(detached)
        self.table.write_rest()
        self._advance()

    def flush(self, *, clean: bool = False) -> None:
        """Flush the redo log, and with ``clean`` the table too; without ``clean`` for a worker thread.

        Without disk space a later call tries again. After any other failure the marks are not written until the next
        start.
        """
        with self._flushing:
            if self._failed:
                return
            progress = self._progress
            try:
                self.redo.flush()
                self.redo.drop_expired()
                detached = list(self._detached)
                self.table.discard(detached)
                for _ in detached:  # only now: after a failure the next call tries again
                    self._detached.popleft()
                if clean:
                    self.table.sync()
            except (OSError, NoRoom) as error:
                self._failed = isinstance(error, OSError) and error.errno not in NO_ROOM
                log.error("state_files_not_flushed", path=self.folder, error=str(error))
                return
            self._flushed = attrs.evolve(progress, clean=clean and not (self.table.unwritten or self.unread))

    def changed_marks(self) -> dict[str, bytes] | None:
        """Return the file of marks, if they changed since the last call."""
        flushed = self._flushed
        if flushed is None or flushed == self._written:
            return None
        self._written = flushed
        return {marks_path(self._store.root): flushed.encode()}

    def close(self) -> None:
        """Close the files."""
        self.table.close()
        self.redo.close()


def _move(env: Env, source: str, target: str) -> None:
    """Move the files of a folder, and of those in it."""
    env.mkdirs(target)
    for name in env.listdir(source):
        if env.is_dir(f"{source}/{name}"):
            _move(env, f"{source}/{name}", f"{target}/{name}")
        else:
            env.rename(f"{source}/{name}", f"{target}/{name}")
    env.sync_dir(target)
    env.rmtree(source)

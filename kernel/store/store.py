"""The store: lock, log, queues, watermark and recovery together, usable without an event loop.

``open``, ``recover``, then ``append`` / ``flush`` / ``dispatch`` in any order, then ``close``. One thread uses it;
``flush``, ``flush_queues`` and ``prepare_next`` may run in worker threads at the same time. ``docs/format/store.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import TypeVar

import attrs
import structlog

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.env import Lock as StoreLock
from gantrymq.kernel.errors import NoRoom, StartError, blame
from gantrymq.kernel.fast import dispatch_batch
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import BODY_MAX_BYTES
from gantrymq.kernel.store.log.segments import Segment, StoreDamaged
from gantrymq.kernel.store.queues.deletions import Deletions
from gantrymq.kernel.store.queues.extension import FILE_BYTES as EXTENSION_FILE_BYTES
from gantrymq.kernel.store.queues.repair import QueueRepair
from gantrymq.kernel.store.queues.table import ConsumeQueues, ExtensionPlace, check_topic
from gantrymq.kernel.store.recovery.checkpoint import MarkFiles, Marks
from gantrymq.kernel.store.recovery.quarantine import QuarantineList
from gantrymq.kernel.store.recovery.queue_ends import QueueEndList
from gantrymq.kernel.store.recovery.recovery import Recovery, RecoveryReport
from gantrymq.kernel.store.recovery.salvage import save_to_lost_and_found
from gantrymq.remoting.outages import Outages

log = structlog.get_logger("gantrymq.store")

Batch = TypeVar("Batch", AppendBatch, DispatchBatch)

RESTORING = "gantrymq.restoring"
"""A file that is in a store while a backup is restored into it. A store with it has a part of its messages only."""
UNFINISHED_RESTORE = (
    "a restore into {root} has not finished: it still runs, or it failed; then delete the folder and restore again"
)


@attrs.frozen
class StoreConfig:
    """Sizes of the store, with RocketMQ's defaults. An existing store needs the first two unchanged."""

    commit_log_file_bytes: int = 1024 * 1024 * 1024
    queue_file_units: int = 300_000
    max_message_bytes: int = BODY_MAX_BYTES
    store_host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f"
    """The broker's advertised address as stored in every record: 8 bytes, 20 for IPv6."""
    queue_tail_bytes: int = 64 * 1024
    """The most bytes of one queue's entries in memory before they are written between two flushes."""
    dispatch_rows: int = 4096
    """The most records in one dispatched batch."""
    queue_extension: bool = False
    """Whether tag codes and store times go to ``consumequeue_ext``."""
    queue_extension_file_bytes: int = EXTENSION_FILE_BYTES
    clock_ahead_max_ms: int | None = None
    """How far the last record's time may be ahead of the machine's clock; None: any time."""
    backlog_bytes: int = 64 * 1024 * 1024
    """The most bytes of appended batches that are kept for dispatch; beyond it they are read from the log again."""


class Store:
    """The store in the folder ``root``."""

    def __init__(self, env: Env, root: str, config: StoreConfig | None = None) -> None:
        self._env = env
        self._outages = Outages(log, env.monotonic)
        self.root = root
        self.config = config = config or StoreConfig()
        staging = f"{root}/staging"
        self.queues = ConsumeQueues(
            env,
            f"{root}/consumequeue",
            staging,
            file_units=config.queue_file_units,
            tail_bytes=config.queue_tail_bytes,
            extension=ExtensionPlace(
                f"{root}/consumequeue_ext", config.queue_extension_file_bytes, config.queue_extension
            ),
            deletions=Deletions(env, f"{root}/gantrymq.deleted"),
        )
        self.log = CommitLog(
            env,
            f"{root}/commitlog",
            staging,
            file_bytes=config.commit_log_file_bytes,
            next_offsets=self.queues.next_offsets,
            store_host=config.store_host,
            max_body_bytes=config.max_message_bytes,
        )
        self._lock: StoreLock | None = None
        self._mark_files: MarkFiles | None = None
        self._was_clean = False
        self._backlog: deque[AppendBatch] = deque()
        self._taken: deque[DispatchBatch] = deque()
        self._backlog_bytes = 0
        self._progress = (0, 0, 0)
        self._saving = Lock()
        self.repair = QueueRepair(env, self.log, self.queues, lambda: self.dispatched)
        """Repairs queue entries that readers found to be wrong."""
        self.recovered: RecoveryReport | None = None
        """The result of the recovery at this start."""
        self.index_timestamp = 0
        """The checkpoint's index time: index files whose last message was stored at or before it are flushed. The index
        plugin raises it; it is written with the next checkpoint."""

    @property
    def dispatched(self) -> int:
        """The log offset up to which everything is in the queues."""
        return self._progress[0]

    # ------------------------------------------------------------------------------------------------ open, close

    def open(self, lock: StoreLock | None = None, *, is_restore: bool = False) -> None:
        """Lock the store and open its files; creates a store in an empty folder.

        ``lock``: the store's lock, if the caller holds it already; the store then releases it. ``is_restore``: the
        caller is restoring it; otherwise an unfinished restore is refused.
        Raises ``StoreInUse``, ``StoreNotWritable``, ``NoRoom`` or ``StoreDamaged``; then nothing stays open.
        """
        self._lock = lock
        try:
            self._open(is_restore=is_restore)
        except OSError as error:
            self.abandon()
            raise blame(error.filename or self.root, error) from error
        except BaseException:
            self.abandon()
            raise

    def _open(self, *, is_restore: bool) -> None:
        env, root = self._env, self.root
        env.mkdirs(root)
        if self._lock is None:
            self._lock = env.lock(f"{root}/lock")
        if not is_restore and env.exists(f"{root}/{RESTORING}"):
            raise StoreDamaged(UNFINISHED_RESTORE.format(root=root))
        env.rmtree(f"{root}/staging")
        for name in ("commitlog", "consumequeue", "config", "lost+found", "staging"):
            env.mkdirs(f"{root}/{name}")
        # Found out now, and not when a recovery has something to save: at the root of an ext4 disk it belongs to root.
        env.open(f"{root}/lost+found/probe", create=True).close()
        env.unlink(f"{root}/lost+found/probe")
        self._mark_files = MarkFiles(env, root)
        self.index_timestamp = self._mark_files.checkpoint.index_timestamp
        self._was_clean = not env.exists(f"{root}/abort")
        self.log.open()
        self._check_start(self._mark_files)
        self.queues.deletions.load(trusted=self._mark_files.marks is not None)
        self.queues.open()
        env.open(f"{root}/abort", create=True).close()
        env.sync_dir(root)

    def _check_start(self, files: MarkFiles) -> None:
        """Detect that the log's oldest files are missing, which leaves no gap between files.

        After a crash the start is refused, because the files may be restored. After a clean stop an administrator has
        removed them: the broker logs what is lost.
        """
        start, there = files.log_start, self.log.min_offset
        if files.marks is None or start is None or not len(self.log.segments) or there <= start:
            return
        if not (self._was_clean and files.marks.clean):
            raise StoreDamaged(
                f"{self.root}/commitlog begins at offset {there}, but it began at {start} when the broker ran last: "
                f"restore the missing files; or delete {self.root}/gantrymq.watermark to start without them"
            )
        log.error("log_files_missing", path=self.log.segments.folder, start=start, end=there, bytes=there - start)

    def _check_clock(self) -> None:
        """Refuse to continue with a clock that is far ahead: everything that waits for a time would follow it for
        years."""
        ahead, most = self.log.clock.ahead_ms, self.config.clock_ahead_max_ms
        if most is not None and ahead > most:
            raise StartError(
                f"the last message in {self.root} was stored {ahead / 3_600_000:.1f} hours ahead of this machine's"
                " clock: set the clock right; or, if it was wrong when that message was stored, start with "
                f'store.clock_ahead_max = "{ahead // 3_600_000 + 1}h": the times of messages run ahead until both agree'
            )
        if ahead > 0:
            log.warning("store_clock_ahead", milliseconds=ahead)

    def check_room(self) -> None:
        """:class:`StartError` if the log has no file yet and the disk has no space for the first one."""
        need, free = self.config.commit_log_file_bytes, self._env.disk_usage(self.root).free
        if not len(self.log.segments) and free < need:
            raise StartError(
                f"the disk of {self.root} has {free >> 20} MiB free, and the first file of the log needs {need >> 20} "
                "MiB: free some space, choose another data folder, or set store.commit_log_file_bytes to a lower value"
            )

    def discard(self, detached: list[Segment]) -> None:
        """Delete files that :meth:`CommitLog.detach_before` took out of the log, and before them older ones that an
        earlier call could not delete; for a worker thread.

        The log's new start is recorded first, so that the files do not count as missing. :class:`OSError` or
        :class:`NoRoom` leaves the rest for the next call, or for the next start.
        """
        if self._files.log_start != self.log.min_offset:
            self._files.save_start(self.log.min_offset)
        self.log.discard(detached)

    def cut(self, offset: int) -> tuple[str, ...]:
        """Between :meth:`open` and :meth:`recover`: truncate the log at ``offset``, where a record ends.

        The rest is first copied to ``lost+found/``; returns those files. The list of quarantined ranges loses those
        behind ``offset``. After a crash meanwhile, the log is complete at least up to ``offset`` and can be truncated
        again. Recovery rebuilds the queues.
        """
        files, segments = self._files, self.log.segments
        kept = save_to_lost_and_found(
            self._env, segments, offset, segments.last_nonzero(offset), f"{self.root}/lost+found"
        )
        if files.marks is not None:
            marks, checkpoint = files.marks, files.checkpoint
            files.save(
                Marks(min(marks.durable, offset), min(marks.dispatched, offset), 0, clean=False),
                checkpoint.log_timestamp,
                checkpoint.queue_timestamp,
                checkpoint.index_timestamp,
            )
        # After the marks: before they are written, recovery does not read this part of the log, and would not find the
        # damage again. Before the truncation: recovery would continue behind a listed range, although it is zeros.
        QuarantineList(self._env, self.root).cut(offset)
        segments.truncate(offset)
        self._was_clean = False
        return kept

    def recover(self, on_dispatch: Callable[[DispatchBatch], None], replay_from: int | None = None) -> RecoveryReport:
        """Find the log's end and build the queues up to there; ``on_dispatch`` gets what is dispatched again.

        Queues that a repair of the store has moved away continue where they ended (``gantrymq.ends``).
        ``replay_from``: the log offset from which ``on_dispatch`` must get all records.
        """
        files = self._files
        recovery = Recovery(self._env, self.root, self.log, self.queues, files.checkpoint, files.marks, self._was_clean)
        try:
            self.recovered = report = recovery.run(on_dispatch, replay_from)
            with_messages = {queue.topic for queue in self.queues if queue.max_offset > queue.min_offset}
            self.queues.deletions.settle(self.log.min_offset, report.end, with_messages)
            repaired = QueueEndList(self._env, self.root)
            for topic, queue_id, end in repaired.load():
                self.queues.extend(topic, queue_id, end, self.log.min_offset)
        except OSError as error:
            raise self.log.poison("recovering the store", error) from error
        self._check_clock()
        self._progress = (report.end, self.queues.units, self.log.last_timestamp)
        if self._save(clean=False):
            with suppress(OSError):  # otherwise the next start does it again
                repaired.remove()
        return report

    def close(self) -> None:
        """Flush and dispatch everything and leave a store that opens without a recovery. Safe to call twice."""
        if self._lock is None:
            return
        try:
            for _ in self.dispatch(self.log.flush()):
                pass
            if self._save(clean=True):
                self._env.unlink(f"{self.root}/abort")
                self._env.sync_dir(self.root)
        except OSError as error:
            raise self.log.poison("closing the store", error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and release the lock, as a crash would: nothing is flushed, the abort file stays."""
        self._backlog.clear()
        self._taken.clear()
        self.log.close()
        self.queues.close()
        if self._mark_files is not None:
            self._mark_files.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    @property
    def _files(self) -> MarkFiles:
        if self._mark_files is None:
            raise RuntimeError("the store is not open")
        return self._mark_files

    # --------------------------------------------------------------------------------------------------- the path

    def append(self, batch: AppendBatch) -> None:
        """See :meth:`CommitLog.append`."""
        self.log.append(batch)
        if batch.end > batch.start:
            self._keep(self._backlog, batch)

    def append_encoded(self, position: int, data: bytes | memoryview) -> int:
        """See :meth:`CommitLog.append_encoded`; returns how many bytes were taken."""
        batch = self.log.append_encoded(position, data)
        if self.dispatched < self.log.min_offset:
            self._progress = (position, *self._progress[1:])
        if batch.end > position:
            self._keep(self._taken, batch)
        return batch.end - position

    def is_short_of(self, size: int) -> bool:
        """Return whether less than ``size`` bytes can be appended to the log's files, and no other file can be made.

        Creates the next file if it does not exist. Raises ``LogPoisoned``.
        """
        segments = self.log.segments
        if not len(segments) or segments.prepared_end - self.log.end >= size:
            return False
        try:
            return not segments.prepare_next()
        except OSError as error:
            raise self.log.poison("making room for the commit log", error) from error

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        """Delete all queues of ``topic``: its messages that are in the log now can no longer be read.

        ``before``: only messages before this log offset; if a queue has later ones, nothing happens.

        The deletion survives a crash and a rebuild of the queues. If the topic is created again while the broker runs,
        its queue offsets continue. :class:`OSError` if the deletion cannot be recorded; then nothing was deleted.
        ``ValueError`` for an invalid topic name.
        """
        check_topic(topic)
        end = self.log.end if before is None else before
        if any(queue.topic == topic and queue.log_end > end for queue in self.queues):
            return
        if end and any(known == topic for known, _ in (*self.queues.next_offsets, *self.queues.keys())):
            self.queues.deletions.add(topic, end)
        self.queues.delete_topic(topic)
        self._progress = (self._progress[0], self.queues.units, self._progress[2])

    def extend_queue(self, topic: str, queue_id: int, end: int) -> None:
        """Let the next message of a queue get the queue offset ``end`` at least: it ended there when its last messages
        were still in the log. After :meth:`recover`.

        Nothing if the end is too far away to be right. ``ValueError`` for an invalid topic or number; :class:`OSError`.
        """
        self.queues.extend(topic, queue_id, end, self.log.min_offset)
        self._progress = (self._progress[0], self.queues.units, self._progress[2])

    def _keep(self, batches: deque[Batch], batch: Batch) -> None:
        """Keep ``batch`` for its dispatch; beyond the limit, batches are read from the log again."""
        batches.append(batch)
        self._backlog_bytes += batch.end - batch.start
        if self._backlog_bytes > self.config.backlog_bytes:
            self._backlog.clear()
            self._taken.clear()
            self._backlog_bytes = 0

    def flush(self) -> int:
        """See :meth:`CommitLog.flush`."""
        return self.log.flush()

    def dispatch(self, committed: int) -> Iterator[DispatchBatch]:
        """Add all records that end at or below ``committed`` to their queues, in log order.

        Yields them in batches without gaps; a yielded batch is in the queues, and the rest follows with the next call.
        """
        committed = min(committed, self.log.end)
        while (start := self._progress[0]) < committed:
            batch = (
                self._from_taken(start, committed)
                or self._from_memory(start, committed)
                or self._from_log(start, committed)
            )
            if batch is None:
                return
            self.queues.put(batch)
            timestamp = batch.newest_timestamp if len(batch) else self._progress[2]
            self._progress = (batch.end, self.queues.units, timestamp)
            yield batch

    def _from_taken(self, start: int, committed: int) -> DispatchBatch | None:
        """As :meth:`_from_memory`, of another log's records."""
        taken = self._taken
        while taken and taken[0].end <= start:
            self._drop_first(taken)
        if not taken or taken[0].start != start or taken[0].end > committed:
            return None
        return self._drop_first(taken)

    def _from_memory(self, start: int, committed: int) -> DispatchBatch | None:
        """Return the next batch of those just appended; None if they do not begin at ``start``, the dispatched
        offset."""
        backlog = self._backlog
        while backlog and backlog[0].end <= start:
            self._drop_first(backlog)
        if not backlog or backlog[0].start != start or backlog[0].end > committed:
            return None
        batches = [self._drop_first(backlog)]
        rows, kind = len(batches[0]), type(batches[0])
        while backlog and backlog[0].end <= committed and rows < self.config.dispatch_rows:
            if type(backlog[0]) is not kind:
                break  # C rows of sends must not become lists because of a plugin's batch between them
            batches.append(self._drop_first(backlog))
            rows += len(batches[-1])
        return dispatch_batch(batches)

    def _drop_first(self, batches: deque[Batch]) -> Batch:
        batch = batches.popleft()
        self._backlog_bytes -= batch.end - batch.start
        return batch

    def _from_log(self, start: int, committed: int) -> DispatchBatch | None:
        stop = min([committed, *(batch.start for batch in list(self._backlog)[:1] if batch.start > start)])
        return next(self.log.scan(start, stop, rows=self.config.dispatch_rows), None)

    # ------------------------------------------------------------------------------------------- for worker threads

    def flush_queues(self) -> None:
        """Flush queues and watermark, so that a recovery begins here. Without disk space it does nothing."""
        self._save(clean=False)

    def prepare_next(self) -> bool:
        """See :meth:`CommitLog.prepare_next`."""
        return self.log.prepare_next()

    def _save(self, *, clean: bool) -> bool:
        with self._saving:
            files = self._files
            dispatched, units, timestamp = self._progress
            if self.log.durable < dispatched:
                self.log.flush()
            durable, durable_timestamp = self.log.durable_mark
            marks = Marks(durable, dispatched, units, clean)
            start_is_known = files.log_start == self.log.min_offset or not len(self.log.segments)
            if marks == files.marks and start_is_known:
                return True
            try:
                if not start_is_known:
                    files.save_start(self.log.min_offset)
                self.queues.flush()
                files.save(marks, durable_timestamp, timestamp, self.index_timestamp)
            except NoRoom as error:
                self._outages.warning("consume_queues_not_flushed", reason=str(error))
                return False
            except OSError as error:
                raise self.log.poison("writing the watermark", error) from error
            self._outages.over("consume_queues_not_flushed")
            return True

"""One consume queue: the entries of one topic and queue, in files of one size, with the newest ones in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import EIO
from itertools import count as count_from
from threading import Lock
from typing import Final

import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_DESCRIPTORS, NO_ROOM, NoRoom
from gantrymq.kernel.fast import QueueEntries
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import Segments, StoreDamaged
from gantrymq.kernel.store.queues.extension import QueueExtension, last_address
from gantrymq.kernel.store.queues.open_files import OpenFiles
from gantrymq.kernel.store.queues.queue_outages import QueueOutages
from gantrymq.kernel.store.queues.search import TimeBound, find_by_time, first, first_kept

log = structlog.get_logger("gantrymq.queues")

UNIT: Final = ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a filler, an entry without a message (RocketMQ pre-fills a queue that does not begin at 0)."""
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
REACH_UNITS: Final = 300_000
"""The largest gap that is filled; a queue offset further ahead is taken as damaged."""
LIGHT_TOPIC: Final = "%LMQ%"
"""The prefix of RocketMQ's light queues, whose entries point to records of other topics."""
_CHUNK_UNITS: Final = 512
_PAGE_UNITS: Final = 4096 // UNIT


class ConsumeQueue:
    """The queue in ``folder``. ``min_offset`` is the first entry whose record is still in the log.

    One thread puts; :meth:`flush` may be called from another thread, :meth:`entries` from any.
    """

    def __init__(
        self,
        env: Env,
        folder: str,
        staging: str,
        topic: str,
        queue_id: int,
        *,
        file_units: int,
        tail_bytes: int,
        open_files: OpenFiles,
        extension: QueueExtension | None = None,
        report: Callable[[ConsumeQueue, int], bool] = lambda queue, offset: False,
        outages: QueueOutages | None = None,
    ) -> None:
        """``outages``: shared with the other queues; None if this is the only one."""
        self._env = env
        self._report = report
        self._outages = outages or QueueOutages(env)
        self._extension = extension or QueueExtension(env, f"{folder}_ext", staging)
        self._open_files = open_files
        self.folder = folder
        self.topic = topic
        self.queue_id = queue_id
        self._staging = staging
        self._file_units = file_units
        self._tail_bytes = tail_bytes
        self._segments = self._make_segments()
        self._written = 0
        self._tail = bytearray()
        self._guard = Lock()
        self._writing = Lock()
        self._reading = Lock()
        self._gone = False
        self.min_offset = 0
        self.max_offset = 0
        """The queue offset behind the last entry."""
        self.generation = 0
        """Entries of one generation do not change; removing entries begins a new generation."""
        self.log_end = 0
        """The log offset behind the last record that has an entry here."""
        self._fillers = range(0)
        """The queue offsets of the fillers at the end; outdated if entries were added behind them."""
        self.needs_rebuild = False
        """Whether damaged files were found and deleted, so that the whole log has to be read again."""
        self.corrected_for = 0
        """The log's first offset when ``min_offset`` was set last."""

    def _make_segments(self) -> Segments:
        return Segments(self._env, self.folder, self._file_units * UNIT, self._staging, sparse=True)

    @property
    def _low(self) -> int:
        """The first queue offset that has an entry or a filler."""
        return (self._segments.start if len(self._segments) else self._written) // UNIT

    def load(self) -> None:
        """Find the files and the last entry; damaged files are deleted and will be rebuilt."""
        try:
            self._load()
        except (StoreDamaged, OSError) as error:
            if isinstance(error, OSError) and error.errno != EIO:
                raise
            log.error("consume_queue_rebuilt", path=self.folder, reason=str(error))
            self.needs_rebuild = True
            self._segments.close()
            self._env.rmtree(self.folder)
            self._segments = self._make_segments()
            self._load()
        self._extension.load()
        self._cut_extension()
        self._segments.close()

    def _load(self) -> None:
        self._segments.load()
        self._written = self._segments.start
        for segment in reversed(list(self._segments)):
            low, high = segment.base // UNIT, segment.end // UNIT
            if count := self._count_written(low, high):
                self._written = (low + count) * UNIT
                break
        self.min_offset = self._low
        self.max_offset = self._written // UNIT
        self._find_log_end()

    def _count_written(self, low: int, high: int) -> int:
        """Return how many entries the file from queue offset ``low`` to ``high`` has.

        It reads a page of entries at a time: most queues have no more in their last file.
        """
        count = self._written_from(low, high)
        if count < _PAGE_UNITS:
            return count
        pages = -(-(high - low) // _PAGE_UNITS)
        last = first(1, pages, lambda page: not self._written_from(low + page * _PAGE_UNITS, high)) - 1
        return last * _PAGE_UNITS + self._written_from(low + last * _PAGE_UNITS, high)

    def _written_from(self, unit: int, high: int) -> int:
        """Return how many entries are written in the page that begins at ``unit``, before ``high``."""
        data = self._segments.pread(unit * UNIT, min(_PAGE_UNITS, high - unit) * UNIT)

        def is_free(number: int) -> bool:
            offset, size, _ = ENTRY.unpack_from(data, number * UNIT)
            return bool(offset < 0 or size <= 0)

        return first(0, len(data) // UNIT, is_free)

    def _find_log_end(self) -> None:
        """Find ``log_end`` and the fillers at the end."""
        self.log_end, fillers = 0, self.max_offset
        for unit in range(self.max_offset - 1, self._low - 1, -1):
            offset, size, _ = self.entry(unit)
            if size == FILLER_SIZE:
                fillers = unit if fillers == unit + 1 else fillers
            elif offset >= 0 and size > 0:
                self.log_end = offset + size
                break
        self._fillers = range(fillers, self.max_offset)

    # ------------------------------------------------------------------------------------------------------- read

    def entries(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from the queue offset on, 20 bytes each; none outside the queue's range.

        Addresses of the extension are replaced by their tag codes, where it is intact.
        """
        return self._extension.resolve(self._read(offset, count, self._segments.pread), Segments.pread) or b""

    def peek(self, offset: int, count: int) -> bytes | None:
        """As :meth:`entries`; None instead of waiting for the disk."""
        return self._extension.resolve(self._read(offset, count, self._segments.peek), Segments.peek)

    def _read(self, offset: int, count: int, read: Callable[[int, int], bytes | None]) -> bytes | None:
        start, end = offset * UNIT, (offset + count) * UNIT
        tail = b""
        if end > self._written:  # if it becomes less meanwhile, the files still have the fillers that were there
            with self._guard:
                written = self._written
                end = min(end, written + len(self._tail))
                if start >= written:
                    return bytes(self._tail[start - written : max(end - written, 0)])
                tail = bytes(self._tail[: max(end - written, 0)])
                end = min(end, written)
        if start < self._segments.start or end <= start:
            return b""
        parts = []
        self._open_files.use(self)
        with self._reading:
            while start < end:
                part = read(start, end - start)
                if not part:
                    return part
                parts.append(part)
                start += len(part)
        return b"".join((*parts, tail))

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return the entry at a queue offset, which must exist; a filler if its file was deleted meanwhile."""
        entry: tuple[int, int, int] = ENTRY.unpack(self.entries(offset, 1) or FILLER)
        return entry

    def next_real(self, unit: int, end: int, *, any_place: bool = False) -> int:
        """See :meth:`gantrymq.kernel.store.queues.search.Entries.next_real`."""
        while unit < end:
            data = self.entries(unit, min(_CHUNK_UNITS, end - unit))
            if not data:
                if unit >= self._low:
                    break
                unit = self._low  # another thread has deleted the first files
                continue
            for at, size, _ in ENTRY.iter_unpack(data):
                if size != FILLER_SIZE and (any_place or (at >= 0 and size > 0)):
                    return unit
                unit += 1
        return end

    # ------------------------------------------------------------------------------------------------------ write

    def put(self, more: QueueEntries, stored: Mapping[int, int] | None = None) -> None:
        """Add entries; :class:`OSError` if they could not be written.

        With ``stored`` (store timestamps by log offset) the tag codes go to the extension, together with the
        timestamps.
        """
        if stored is not None:
            more = self._extension.take(more, stored, self.log_end)
        if more.queue_offsets is None and more.first == self.max_offset and more.begin >= self.log_end:
            # No lock is needed: this thread adds at the end, the other one removes at the start.
            self._tail += more.entries
            self.max_offset = more.first + len(more.entries) // UNIT
            self.log_end = more.end
        else:
            queue_offsets = more.queue_offsets or count_from(more.first)
            for queue_offset, (offset, size, code) in zip(queue_offsets, ENTRY.iter_unpack(more.entries), strict=False):
                self._put_one(queue_offset, offset, size, code)
        waiting = len(self._tail)
        if self._fillers.stop == self.max_offset:
            # A write puts these fillers into the files, and the next entry that replaces one takes them out again.
            waiting -= len(self._fillers) * UNIT
        if waiting >= self._tail_bytes and self._writing.acquire(blocking=False):
            # Not while the other thread writes: it either includes these entries or leaves them for the next flush.
            try:
                self._write_tail()
            except NoRoom as error:
                self._outages.queue_failed(self.folder, error)
            finally:
                self._writing.release()

    def _put_one(self, queue_offset: int, offset: int, size: int, code: int) -> None:
        """Add an entry that is not simply the next one."""
        if offset + size <= self.log_end:
            return
        expected = self.max_offset
        fillers = self._fillers
        if fillers.stop == expected and queue_offset in fillers and queue_offset >= self._low:
            self._replace_filler(queue_offset, ENTRY.pack(offset, size, code))
            self.log_end = offset + size
            return
        if queue_offset == 0 and expected > 0:
            # The log decides: the topic was deleted and created again.
            log.warning("consume_queue_restarted", path=self.folder, entries=expected, log_offset=offset)
            self._restart()
            expected = 0
        if queue_offset < expected:
            log.error("queue_offset_taken", path=self.folder, queue_offset=queue_offset, log_offset=offset)
            return
        if queue_offset > expected:
            if expected == 0 and not len(self._segments):
                start = queue_offset - queue_offset % self._file_units
                self._written = start * UNIT
                self.min_offset = queue_offset
                expected = start
            elif queue_offset - expected > max(self._file_units, REACH_UNITS):
                log.error("queue_offset_out_of_range", path=self.folder, queue_offset=queue_offset, next=expected)
                return
            else:
                log.warning("consume_queue_gap", path=self.folder, first=expected, missing=queue_offset - expected)
        self._tail += FILLER * (queue_offset - expected) + ENTRY.pack(offset, size, code)
        self.max_offset = queue_offset + 1
        self.log_end = offset + size

    def _replace_filler(self, queue_offset: int, entry: bytes) -> None:
        """Give the message of a filler at the end, which the log has after all, its entry.

        It needs no file: fillers that are in one wait in memory again, with the entry, until the next write.
        """
        with self._writing, self._guard:
            if queue_offset < self._low:
                return  # its file was deleted meanwhile
            place = queue_offset * UNIT - self._written
            if place < 0:
                self._tail[:0] = FILLER * (-place // UNIT)
                self._written += place
                place = 0
            self._tail[place : place + UNIT] = entry
            self._fillers = range(queue_offset + 1, self._fillers.stop)
            self.generation += 1
        self.min_offset = min(self.min_offset, queue_offset)

    def extend(self, end: int, log_start: int) -> None:
        """Let the next entry have the queue offset ``end`` at least; nothing if that is too far away.

        A queue without entries gets those of expired messages, whose records lay before the log offset ``log_start``,
        another one fillers. :class:`OSError` if they could not be written.
        """
        is_empty = not self.max_offset
        begin = self.max_offset
        if is_empty and not len(self._segments):
            begin = max(end - 1, 0) // self._file_units * self._file_units
        missing = end - begin
        if not 0 < missing <= max(self._file_units, REACH_UNITS) or (is_empty and log_start < missing):
            return
        if is_empty:
            self._written = begin * UNIT
            self._tail += b"".join(ENTRY.pack(place, 1, 0) for place in range(log_start - missing, log_start))
            self.min_offset, self.log_end = end, log_start
        else:
            self._tail += FILLER * missing
            self._fillers = range(self._fillers.start if self._fillers.stop == begin else begin, end)
        self.max_offset = end
        with self._writing:
            self._write_tail()

    def _restart(self) -> None:
        with self._writing, self._reading:
            self._segments.close()
            self._env.rmtree(self.folder)
            self._extension.discard()
            self._segments = self._make_segments()
            self.generation += 1
            with self._guard:
                self._tail.clear()
                self._written = 0
            self.min_offset = self.max_offset = 0
            self._fillers = range(0)

    def _write_tail(self, *, durable: bool = True) -> None:
        """Write the entries in memory to the files; with ``_writing`` held. ``durable``: flush names of new folders."""
        with self._guard:
            data = memoryview(bytes(self._tail))
            start = self._written
        done = 0
        if data:
            self._open_files.use(self)
        try:
            if data and not len(self._segments):
                self._env.mkdirs(self.folder, durable=durable)
            while done < len(data):
                segment = self._segments.ensure(start + done)
                part = data[done : done + segment.end - start - done]
                self._segments.write(start + done, part)
                done += len(part)
        except OSError as error:
            if error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
                raise NoRoom(self.folder, error) from error
            raise
        finally:
            with self._guard:
                del self._tail[:done]
                self._written = start + done
        self._outages.queue_written(self.folder)

    def flush(self) -> None:
        """Flush all entries. :class:`NoRoom`, :class:`OSError`."""
        with self._writing:
            if not self._gone:
                self._extension.sync()
                self._write_tail()
                self._segments.sync()

    @property
    def has_files(self) -> bool:
        """Whether entries were ever written to files."""
        return len(self._segments) > 0

    def write(self) -> None:
        """Write all entries; the caller then flushes the folder of all queues. :class:`NoRoom`, :class:`OSError`."""
        with self._writing:
            if not self._gone:
                self._extension.sync()
                self._write_tail(durable=False)
                self._segments.flushed_elsewhere()

    def suspect(self, offset: int) -> bool:
        """Report that the entry at a queue offset points to another record than its own, or to none.

        True: it will be repaired from the log, and readers must stop before it. False: it was checked already, and its
        message is lost.
        """
        if offset >= self._written // UNIT or self.topic.startswith(LIGHT_TOPIC):
            return False  # it was built from the log since the start, or points to another topic's records by design
        return self._report(self, offset)

    def is_wrong(self, offset: int, at: int, size: int) -> bool:
        """Report an entry as :meth:`suspect` does; ``at`` and ``size`` are what the caller has read as the entry.

        Also true if the entry was repaired after the caller had read it: the caller must read it again.
        """
        return self.suspect(offset) or self.entries(offset, 1)[:12] != ENTRY.pack(at, size, 0)[:12]

    def correct(self, entries: Mapping[int, bytes]) -> None:
        """Replace entries, given by queue offset; :class:`OSError`."""
        with self._writing:
            try:
                for offset, entry in entries.items():
                    if not self._gone and self._segments.start <= offset * UNIT < self._written:
                        self._open_files.use(self)
                        self._segments.write(offset * UNIT, entry)
                        if offset in self._fillers and entry != FILLER:
                            self._fillers = range(offset + 1, self._fillers.stop)
            finally:
                self.generation += 1

    def limit_log_end(self, bound: int) -> None:
        """No record of this queue ends behind the log offset ``bound``; if the last entry says so, it is wrong."""
        if self.log_end > bound:
            self.log_end = bound
            self.suspect(self.max_offset - 1)

    # --------------------------------------------------------------------------------------------------- both ends

    def correct_min(self, log_min: int) -> None:
        """Set ``min_offset`` to the first entry of a record at or behind ``log_min``."""
        self.min_offset = first_kept(self, self._low, self.max_offset, log_min)
        self.corrected_for = log_min

    def drop_expired(self) -> None:
        """Delete the files that lie completely before ``min_offset``; for a worker thread."""
        with self._writing:
            self._segments.delete_before(min(self.min_offset * UNIT, self._written))
            if self._extension.exists:
                self._extension.drop_before(last_address(self._read(self.min_offset, 1, self._segments.pread)))

    def _cut_extension(self) -> None:
        """Truncate the extension behind the last entry that has a unit there."""
        if self._extension.exists:
            place, end = None, self.max_offset
            while place is None and end > self._low:
                start = max(end - _CHUNK_UNITS, self._low)
                place = last_address(self._read(start, end - start, self._segments.pread))
                end = start
            self._extension.cut_behind(place)

    def truncate(self, bound: int, is_entry: Callable[[ConsumeQueue, int, int], bool | None]) -> int:
        """See :meth:`ConsumeQueues.truncate`."""
        low = self._low

        def is_behind(unit: int) -> bool:
            offset, size, _ = self.entry(unit)
            return size <= 0 or offset < 0 or offset >= bound

        place = end = first(low, self.max_offset, is_behind)
        lowest = bound
        while place > low:
            place -= 1
            offset, size, _ = self.entry(place)
            if size == FILLER_SIZE:
                continue  # it stays behind a correct entry: its queue offset was given to a message
            if 0 <= offset < bound:
                verdict = is_entry(self, offset, size)
                follows = place == low or self.entry(place - 1)[0] < offset
                if verdict or (verdict is None and follows):
                    break
                if follows:
                    lowest = min(lowest, offset)
            end = place
        with self._guard:
            del self._tail[max(end * UNIT - self._written, 0) :]
            self._written = min(self._written, end * UNIT)
        self.generation += 1
        self.max_offset = end
        self._segments.truncate(self._written)
        self.min_offset = min(self.min_offset, end)
        self._find_log_end()
        self._cut_extension()
        return lowest

    def offset_by_time(
        self, timestamp: int, stored_at: Callable[[int], int | None], bound: TimeBound = "nearest"
    ) -> int:
        """See :meth:`ConsumeQueues.offset_by_time`."""
        return find_by_time(self, self.min_offset, self.max_offset, timestamp, stored_at, bound)

    def discard(self) -> None:
        """Close the files, and write nothing more: the queue was deleted."""
        with self._writing, self._reading:
            self._gone = True
            self._segments.close()
            self._extension.discard()
        self._outages.queue_written(self.folder)
        self._open_files.forget(self)

    def close_files(self) -> bool:
        """Close the files, which are opened again on use; not while another thread writes, or before a flush.

        A flush through a file that was opened later would not report earlier errors.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if any(segment.unsynced for segment in self._segments) or self._extension.is_unsynced:
                return False
            with self._reading:
                self._segments.close()
                self._extension.close()
            return True
        finally:
            self._writing.release()

    def close(self) -> None:
        """Close the files."""
        self._segments.close()
        self._extension.close()

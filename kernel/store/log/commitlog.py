"""The commit log: all messages of the broker in the order of arrival, in files of one size.

It has no policy. One batch is one write per file; the log assigns offsets, queue offsets and the store timestamp. A
failed write or flush poisons the log permanently: Linux reports a lost page once and then considers it clean, so a
second flush that succeeds would prove nothing. ``docs/format/record.md``, ``docs/format/store.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import EIO

import structlog

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.env import Env, Waker
from gantrymq.kernel.errors import NO_ROOM, CorruptRange, LogPoisoned, NoRoom, OutOfLog, UnreadableRange
from gantrymq.kernel.fast import Layout, Stop, encode_rows, scan
from gantrymq.kernel.store.log.clock import StoreClock
from gantrymq.kernel.store.log.prefault import LogPrefault
from gantrymq.kernel.store.log.record import BLANK_BYTES, BadRecord, Record, blank, decode_at
from gantrymq.kernel.store.log.scan import checked_size
from gantrymq.kernel.store.log.segments import Segment, Segments
from gantrymq.kernel.store.log.unreadable import UnreadablePlaces
from gantrymq.kernel.store.log.write_behind import WriteBehind
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.outages import Outages

log = structlog.get_logger("gantrymq.commitlog")

__all__ = ["SCAN_ROWS", "USUAL_BYTES", "CommitLog", "CorruptRange", "LogPoisoned", "OutOfLog", "UnreadableRange"]

SCAN_ROWS = 4096
USUAL_BYTES = 1024
"""Most records are not longer: reading one record takes this much at once."""


class CommitLog:
    """The log in ``folder``. One thread appends; :meth:`flush` and the reading methods may be called from any thread.

    ``next_offsets`` is the table of the next queue offset by (topic, queue id); the log reads and advances it.
    """

    def __init__(
        self,
        env: Env,
        folder: str,
        staging: str,
        *,
        file_bytes: int,
        next_offsets: dict[tuple[str, int], int],
        store_host: bytes,
        max_body_bytes: int,
    ) -> None:
        self._env = env
        self.clock = StoreClock(env)
        self.segments = Segments(env, folder, file_bytes, staging)
        self._next_offsets = next_offsets
        self._layout = Layout(store_host, max_body_bytes, file_bytes - BLANK_BYTES)
        self._tail = (0, 0)
        self._is_end_known = False
        self._outages = Outages(log, env.monotonic)
        self._is_refusing = False
        self._flusher = env.flusher()
        self._followed: Segment | None = None
        self._behind: WriteBehind | None = None
        self.ahead = LogPrefault(self.segments, self._flusher.sync)
        self._poison: str | None = None
        self.quarantine: list[tuple[int, int]] = []
        """Ranges of bytes, start and end, that may not be read."""
        self._places = UnreadablePlaces(self.segments, env.monotonic)

    # ------------------------------------------------------------------------------------------------- watermarks

    @property
    def min_offset(self) -> int:
        """The offset of the first byte."""
        return self.segments.start

    @property
    def end(self) -> int:
        """The offset behind the last record that was appended."""
        return self._tail[0]

    @property
    def written(self) -> int:
        """The offset up to which records can be read: :attr:`end`, unless they are written behind."""
        return self._tail[0] if self._behind is None else self._behind.written

    @property
    def durable(self) -> int:
        """The offset behind the last record that is known to be flushed."""
        return self._flusher.durable

    @property
    def durable_mark(self) -> tuple[int, int]:
        """:attr:`durable` and the store timestamp (ms since 1970) of that record, consistent with each other."""
        return self._flusher.durable_mark

    @property
    def sync_times(self) -> tuple[list[int], float]:
        """The durations of flushes of a file: counts by the bounds of ``gantrymq.kernel.fast.durations``, and the
        seconds of all."""
        return self._flusher.sync_times

    @property
    def fast_flushes(self) -> int:
        """How many flushes of the log took at most a millisecond, 64 at most; each millisecond of a longer one takes
        one away."""
        return self._flusher.fast_flushes

    @property
    def last_timestamp(self) -> int:
        """Store timestamp of the last record; the next one is not lower."""
        return self._tail[1]

    def open(self) -> None:
        """Find the files. Recovery determines the end of the log (:meth:`set_end`)."""
        self.segments.load()
        self.ahead.large_folios = self._env.has_large_folios(self.segments.folder)

    def set_readable(self, end: int) -> None:
        """Let the records before ``end`` be read while recovery searches for the end of the log."""
        self._tail = (end, 0)

    def set_end(self, end: int, timestamp: int) -> None:
        """Set the end of the log, all of which is flushed; its last record was stored at ``timestamp``."""
        self._tail = (end, timestamp)
        self._is_end_known = True
        self._flusher.start_at(end, timestamp)
        self._followed = None
        self.clock.begin(timestamp)
        self.ahead.start_at(end)

    def check(self) -> None:
        """Raise :class:`LogPoisoned` if the log is poisoned."""
        if self._poison is not None:
            raise LogPoisoned(self._poison)

    def _check_appendable(self) -> None:
        """:meth:`check`, and ``RuntimeError`` before :meth:`set_end`: an append would overwrite the log's records."""
        self.check()
        if not self._is_end_known:
            raise RuntimeError("the end of the log is not known yet: recover the store first")

    def poison(self, doing: str, error: BaseException) -> LogPoisoned:
        """Poison the log because ``error`` happened while ``doing``. Returns the exception to raise."""
        is_disk = isinstance(error, OSError)
        reason = str(error) if is_disk else f"{error!r:.1000}"
        what_to_do = "Check the disk, then start the broker again" if is_disk else "Start the broker again"
        self._poison = (
            f"{doing} failed: {reason}. Nothing more is acknowledged. {what_to_do}: "
            f"everything up to offset {self.durable} is durable"
        )
        self._flusher.fail(error if isinstance(error, OSError) else OSError(EIO, reason))
        log.error("log_poisoned", doing=doing, error=reason, durable=self.durable)
        return LogPoisoned(self._poison)

    # ------------------------------------------------------------------------------------------------------ write

    def append(self, batch: AppendBatch) -> None:
        """Write the live rows of ``batch`` and fill its columns; refused rows get offset -1 and size 0.

        Rows that are too large are refused with MESSAGE_ILLEGAL. Without disk space for the next file, the remaining
        rows are refused with SERVICE_NOT_AVAILABLE, and a later batch tries again. Raises :class:`LogPoisoned`. Any
        other failure, including lack of memory, poisons the log, because queue offsets may have been assigned to
        records that are not in it.
        """
        self._check_appendable()
        try:
            self._append(batch)
        except OSError as error:
            raise self.poison("writing to the commit log", error) from error
        except BaseException as error:
            raise self.poison("appending to the commit log", error) from error

    def _append(self, batch: AppendBatch) -> None:
        start, timestamp = self._tail
        timestamp = max(self.clock.now_ms(), timestamp)
        batch.place(start, timestamp)
        rows = batch.live
        index, position = 0, start
        try:
            while index < len(rows):
                index, position = self._append_to_file(batch, rows, index, position)
        except NoRoom as error:
            self._is_refusing = True
            for row in rows[index:]:
                batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
            self._outages.warning("rows_refused", reason=str(error), rows=len(rows) - index)
        else:
            if self._is_refusing and rows and batch.refused == len(batch) - len(rows):
                self._is_refusing = False
                self._outages.over("rows_refused")
        if position > start:
            batch.end = position
            self._tail = (position, timestamp)
            (self._behind or self._flusher).appended(position, timestamp)

    def append_encoded(self, position: int, data: bytes | memoryview) -> DispatchBatch:
        """Write the complete, intact records, and the blank, at the start of ``data``; ``position`` is the log's end.

        The bytes come from another log and are written unchanged. A log without files may begin at the start of any
        file. Returns the written batch, at most some thousand records; records of the next file and an incomplete
        record are left to the next call. Raises :class:`OutOfLog`, ``BadRecord`` (nothing was written then),
        :class:`NoRoom`, :class:`LogPoisoned`.
        """
        self._check_appendable()
        end, timestamp = self._tail
        first = not len(self.segments) and end == 0
        if position % self.segments.file_bytes if first else position != end:
            raise OutOfLog(f"records for {position}: the log, files of {self.segments.file_bytes}, ends at {end}")
        data = data[: self.segments.file_bytes - position % self.segments.file_bytes]
        batch, why = scan(data, position, SCAN_ROWS, check_body=True, copied=True)
        if why is Stop.BAD or why is Stop.ZERO:
            raise BadRecord(f"no intact record at {batch.end}")
        batch.end = position + len(data) if why is Stop.BLANK else batch.end
        if batch.end > position:
            try:
                self._put(self.segments.ensure(position), position, data[: batch.end - position])
            except NoRoom:
                raise
            except OSError as error:
                raise self.poison("writing to the commit log", error) from error
            except BaseException as error:
                raise self.poison("appending to the commit log", error) from error
            self._tail = (batch.end, max(batch.newest_timestamp if len(batch) else 0, timestamp))
            (self._behind or self._flusher).appended(*self._tail)
        return batch

    def _append_to_file(
        self, batch: AppendBatch, rows: range | list[int], index: int, position: int
    ) -> tuple[int, int]:
        """Write as many rows as the file at ``position`` takes. Returns the next index and position."""
        segment = self.segments.ensure(position)
        room = segment.end - position
        parts, next_index, end = encode_rows(batch, rows, index, position, room, self._next_offsets, self._layout)
        if next_index < len(rows):
            # The next file first: without it there is no place for the records behind the blank.
            try:
                self.segments.ensure(segment.end)
            except NoRoom as error:
                self._write(segment, batch, rows[index:next_index], position, parts)
                for row in rows[next_index:]:
                    batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
                self._is_refusing = True
                self._outages.warning("rows_refused", reason=str(error), rows=len(rows) - next_index)
                return len(rows), end
            parts.append(blank(segment.end - end))
            end = segment.end
        self._write(segment, batch, rows[index:next_index], position, parts)
        return next_index, end

    def _write(
        self, segment: Segment, batch: AppendBatch, rows: range | list[int], position: int, parts: list[bytes]
    ) -> None:
        data = b"".join(parts)
        if not data:
            return
        try:
            self._put(segment, position, data)
        except NoRoom:
            self._return_queue_offsets(batch, rows)
            raise

    def _put(self, segment: Segment, position: int, data: bytes | memoryview) -> None:
        """Pass ``data``, within one file, to the operating system or to the write-behind thread. After :class:`NoRoom`
        nothing of it is in the log."""
        if self._behind is None and segment is not self._followed:
            self._flusher.follow(segment.file)
            self._followed = segment
        end = position + len(data)
        zeros = min(self.ahead.appending(end), segment.end) - end
        if self._behind is not None:
            self._behind.put(segment, position, bytes(data), zeros)
            return
        try:
            segment.write(position, data, zeros)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The space was reserved, but copy-on-write file systems cannot guarantee it. The part that was written must
            # not look like a record behind the end.
            self._erase_failed_write(position, len(data))
            raise NoRoom(self.segments.folder, error) from error

    def _erase_failed_write(self, position: int, size: int) -> None:
        """Overwrite the range of a failed write with zeros. If nothing was written, there may be no space for zeros
        either."""
        try:
            self.segments.write(position, bytes(size))
        except OSError as error:
            if error.errno not in NO_ROOM or self.segments.pread(position, size).strip(b"\0"):
                raise

    def _return_queue_offsets(self, batch: AppendBatch, rows: range | list[int]) -> None:
        for row in reversed(rows):
            if batch.queue_offsets[row] >= 0 and not batch.sys_flags[row] & 4:
                self._next_offsets[batch.topics[row], batch.queue_ids[row]] = batch.queue_offsets[row]
            batch.offsets[row], batch.sizes[row], batch.queue_offsets[row] = -1, 0, -1

    def prepare_next(self) -> bool:
        """Create in advance what the log will need next; for a worker thread. False without disk space.

        That is the next file, once this one is half full, and what
        :class:`~gantrymq.kernel.store.log.prefault.LogPrefault` does.
        """
        self.check()
        try:
            middle = self.segments.end - self.segments.file_bytes // 2
            made = self.segments.prepare_next() if self.end >= middle else True
            self.ahead.prepare(self._tail[0])
            return made
        except OSError as error:
            raise self.poison("making room for the commit log", error) from error

    def flush(self) -> int:
        """Flush everything that was appended and return the durable offset. Raises :class:`LogPoisoned`."""
        self.check()
        if self._behind is not None:
            self._behind.write_out()
        try:
            return self._flusher.flush()
        except OSError as error:
            raise self._flush_failed(error) from error

    def flush_when_asked(self, waker: Waker) -> None:
        """For a thread: flush whenever :meth:`ask_flush` was called, wake after each, until :meth:`end_flushing`.

        The next flush covers everything that is appended during one flush; the last flush covers all. Raises
        :class:`LogPoisoned`.
        """
        self.ahead.zeros = True
        try:
            self._flusher.run(waker)
        except OSError as error:
            raise self._flush_failed(error) from error

    def flush_at_once(self) -> bool:
        """Flush in this thread, which blocks meanwhile, unless another flush runs; returns whether all is durable.

        After a failure it returns False; :meth:`flush_when_asked` raises it, once :meth:`ask_flush` is called.
        """
        return self._flusher.flush_at_once()

    def ask_flush(self) -> None:
        """Let the thread in :meth:`flush_when_asked` flush; never blocks."""
        self._flusher.ask()

    def end_flushing(self) -> None:
        """Let :meth:`flush_when_asked` return when all is flushed."""
        self._flusher.stop()

    def write_behind(self, waker: Waker) -> WriteBehind:
        """From now on appended records stay in memory until the returned object, or :meth:`flush`, writes them.

        Until then they can be neither read nor flushed; ``waker`` is woken each time :attr:`written` has moved. If a
        disk then has no space for bytes that were reserved, it is too late to refuse rows: the log is poisoned.
        """
        self._behind = WriteBehind(self._flusher, self.end, waker, self.check, self.poison)
        return self._behind

    def _flush_failed(self, error: OSError) -> LogPoisoned:
        self.check()  # another thread may have got the error first, or something else failed
        return self.poison("flushing the commit log", error)

    # ------------------------------------------------------------------------------------------------------- read

    def view(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``. :class:`OutOfLog`, :class:`CorruptRange`, or its kind ``UnreadableRange``."""
        self.check_range(offset, size)
        data = self._places.read(offset, size)
        if len(data) != size:
            raise OutOfLog(f"{size} bytes at {offset} reach over the end of a file")
        return data

    def check_range(self, offset: int, size: int) -> None:
        """Raise :class:`OutOfLog` or :class:`CorruptRange` where :meth:`view` would without reading."""
        if offset < self.segments.start or size < 0 or offset + size > self.written:
            raise OutOfLog(f"{size} bytes at {offset}: the log reaches from {self.segments.start} to {self.written}")
        for start, end in self.quarantine:
            if offset < end and offset + size > start:
                raise CorruptRange(f"{size} bytes at {offset}: the log is damaged from {start} to {end}")

    def quarantine_range(self, start: int, end: int) -> None:
        """Quarantine a damaged range until the next start."""
        self.quarantine = sorted({*self.quarantine, (start, end)})

    def read_record(self, offset: int) -> Record:
        """Return the record at ``offset``, checked. :class:`OutOfLog`, :class:`CorruptRange`, or ``BadRecord``."""
        usual = 0 if self.quarantine or offset < 0 else min(USUAL_BYTES, self.written - offset)
        data = self._places.read_if_readable(offset, max(usual, 0))
        if not 4 <= int.from_bytes(data[:4], "big") <= len(data):
            data = self.view(offset, checked_size(self.view, offset))
        return decode_at(data, offset)

    def scan(self, start: int, stop: int, *, rows: int = SCAN_ROWS) -> Iterator[DispatchBatch]:
        """Yield the records from ``start`` (where one begins) to ``stop``, in batches of at most ``rows``.

        Each batch begins where the previous one ended, unless the start of the log was deleted meanwhile: then the next
        batch begins with the remaining log. Quarantined ranges are skipped. Raises :class:`CorruptRange` for bytes that
        are not a record, :class:`UnreadableRange` if the disk fails, in both cases after all records before that place.
        A record that crosses ``stop`` is left out.
        """
        stop = min(stop, self.written)
        position = max(start, self.segments.start)
        while position < stop:
            hole = next((end for first, end in self.quarantine if first <= position < end), None)
            if hole is not None:
                batch, why = scan(b"", position, 0, check_body=False)
                batch.end = min(hole, stop)
            else:
                limit = min([stop, *(first for first, _ in self.quarantine if first > position)])
                batch, why = self._places.scan(position, limit, rows)
                if why is Stop.BLANK:
                    segment = self.segments.at(position)
                    batch.end = limit if segment is None else min(limit, segment.end)
                elif (why is Stop.BAD or why is Stop.ZERO) and batch.end == position:
                    # Otherwise the records before the damage come first, and the next iteration raises.
                    raise CorruptRange(f"no record at {batch.end}, below the end of the log at {self._tail[0]}")
            if batch.end > position:
                yield batch
            elif position < self.segments.start:
                position = self.segments.start  # another thread has deleted the start of the log
                continue
            elif why is not Stop.CUT:
                if self.segments.at(position) is None:
                    return  # the end was cut off meanwhile
                raise CorruptRange(f"nothing can be read at {position}, below the end of the log at {self._tail[0]}")
            if why is Stop.CUT:
                return
            position = batch.end

    # ---------------------------------------------------------------------------------------------------- the ends

    def detach_before(self, offset: int) -> list[Segment]:
        """Remove the files that end at or before ``offset`` from the log, but never the current one.

        They can no longer be read; :meth:`discard` deletes them, which can take a worker thread a while.
        """
        detached = self.segments.detach_before(min(offset, self.written))
        self.quarantine = [place for place in self.quarantine if place[1] > self.min_offset]
        return detached

    def discard(self, detached: list[Segment]) -> None:
        """Delete detached files, and older ones before them. :class:`OSError` leaves the rest for the next call."""
        self.segments.discard(detached)

    def close(self) -> None:
        """Close the files; unflushed data stays with the operating system."""
        self.segments.close()

"""The state table of RocketMQ 3.x: a row of 24 bytes for each prepared message, in files of a fixed number of rows.

Log offset (8), size (4), store time in seconds (4), Java hash of the producer's group (4), state (4), all big-endian;
the state is a value of ``TransactionState`` and is written in place. The number of a row is the queue offset of its
record. Source: RocketMQ 3.2 ``TransactionStateService``. ``docs/format/transaction-state.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_ROOM, NoRoom
from gantrymq.kernel.store.log.segments import Segment, Segments
from gantrymq.remoting.headers.transactions import TransactionState

ROW: Final = struct.Struct(">qiIii")
UNIT: Final = ROW.size
FILE_ROWS: Final = 2_000_000
"""``tranStateTableMapedFileSize`` of RocketMQ 3.x, in rows."""
PREPARED: Final = int(TransactionState.PREPARED)
ENDS: Final = (int(TransactionState.COMMIT), int(TransactionState.ROLLBACK))

_STATE_AT = 20
_STATE_BYTE = 23
_OPEN = bytes((PREPARED,))
_STATES = bytes((PREPARED, *ENDS))
_NOT_NEGATIVE = bytes(range(128))
_SIZE_AT, _SIZE_END = 8, 12
_SIGNS_AT = (0, _SIZE_AT)
_CHUNK_ROWS = 32_768
_NEAR_ROWS = 64
"""Changed rows at most this far apart are written together."""

log = structlog.get_logger("gantrymq.transaction")


@attrs.frozen
class StateRow:
    """One row. ``seconds``: since 1970, when the prepared record was stored."""

    log_offset: int
    size: int
    seconds: int
    group_hash: int
    state: int = PREPARED

    def encode(self) -> bytes:
        """Its 24 bytes."""
        return ROW.pack(self.log_offset, self.size, self.seconds & 0xFFFFFFFF, self.group_hash, self.state)

    def filler(self) -> bytes:
        """Return the bytes of a filler in front of this row: rolled back, without a group.

        It has this row's log offset, so that deletion by log offset treats both alike.
        """
        return ROW.pack(self.log_offset, self.size, self.seconds & 0xFFFFFFFF, 0, ENDS[1])


class StateTable:
    """The rows from ``start`` to ``end`` in ``folder``, identified by their numbers.

    One thread uses it; :meth:`sync` may be called from another. Without disk space, rows stay in memory until a later
    :meth:`write_rest` (:attr:`unwritten`).
    """

    def __init__(self, env: Env, folder: str, staging: str, *, file_rows: int = FILE_ROWS) -> None:
        self._env = env
        self.folder = folder
        self._file_rows = file_rows
        self._segments = Segments(env, folder, file_rows * UNIT, staging, sparse=True)
        self._unwritten: dict[int, bytes] = {}
        self._low = 0
        self._done_files: set[int] = set()
        self.start = 0
        """The number of the first row."""
        self.end = 0
        """The number of the next row."""
        self.open_count = 0
        """How many rows are prepared."""

    @property
    def unwritten(self) -> bool:
        """Whether rows wait in memory for disk space."""
        return bool(self._unwritten)

    def load(self) -> None:
        """Find the files and the last row. ``StoreDamaged`` for inconsistent files or invalid rows."""
        self._segments.load()
        self.start = self.end = self._low = self._segments.start // UNIT
        for number, data in self._chunks(self.start, self._segments.end // UNIT):
            rows = _rows_in(data)
            self.end = number + rows
            self.open_count += data[_STATE_BYTE : rows * UNIT : UNIT].count(PREPARED)
            if rows * UNIT < len(data):
                break

    # ------------------------------------------------------------------------------------------------------- read

    def get(self, number: int) -> StateRow | None:
        """Return the row, None where there is none."""
        if not self.start <= number < self.end:
            return None
        return StateRow(*ROW.unpack(self._read(number, 1)))

    def first_open(self) -> tuple[int, StateRow] | None:
        """Return the prepared row with the lowest number."""
        for number, row in self.open_rows(self._low):
            if row is not None:
                self._low = number
                return number, row
            self._low = number
        return None

    def open_rows(self, number: int = 0) -> Iterator[tuple[int, StateRow | None]]:
        """Yield the prepared rows from ``number`` on; after each slice the number at which it continues, with None.

        Rows that change meanwhile are returned in their old or new state.
        """
        number = max(number, self._low, self.start)
        while number < self.end:
            base = number - number % self._file_rows
            if base in self._done_files:
                number = base + self._file_rows
                continue
            data = self._read(number, min(_CHUNK_ROWS, base + self._file_rows - number, self.end - number))
            states = data[_STATE_BYTE::UNIT]
            found = states.find(_OPEN)
            if number == base and found < 0 and len(states) == self._file_rows:
                self._done_files.add(base)
            while found >= 0:
                yield number + found, StateRow(*ROW.unpack_from(data, found * UNIT))
                found = states.find(_OPEN, found + 1)
            number += len(states)
            yield number, None

    def _read(self, number: int, count: int) -> bytes:
        """Return consecutive rows, which must exist and lie in one file."""
        data = self._segments.pread(number * UNIT, count * UNIT)
        if self._unwritten:
            patched = bytearray(data.ljust(count * UNIT, b"\0"))
            for at in range(count):
                if (row := self._unwritten.get(number + at)) is not None:
                    patched[at * UNIT : (at + 1) * UNIT] = row
            data = bytes(patched)
        return data

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        while start < stop:
            count = min(_CHUNK_ROWS, self._file_rows - start % self._file_rows, stop - start)
            yield start, self._segments.pread(start * UNIT, count * UNIT)
            start += count

    # ------------------------------------------------------------------------------------------------------ write

    def append(self, rows: Iterable[tuple[int, StateRow]]) -> None:
        """Add rows in the order of their numbers; gaps get fillers. A row with a used number is left out and logged."""
        parts: list[bytes] = []
        first = self.end
        for number, row in rows:
            behind = first + len(parts)
            if number < behind:
                log.error("state_row_taken", row=number, next=behind, log_offset=row.log_offset)
                continue
            if number > behind:
                self._put(first, parts)
                self.fill_to(number, row)
                first, parts = number, []
            parts.append(row.encode())
            self.open_count += row.state == PREPARED
        self._put(first, parts)

    def fill_to(self, number: int, row: StateRow) -> None:
        """Let the table end before row ``number``, with fillers of ``row``; an empty table begins with the file of that
        row."""
        if self.start == self.end and not len(self._segments):
            self.start = self.end = self._low = number - number % self._file_rows
        while self.end < number:
            self._put(self.end, [row.filler()] * min(number - self.end, _CHUNK_ROWS))

    def _put(self, first: int, parts: list[bytes]) -> None:
        if parts:
            self._write(first, b"".join(parts))
            self.end = first + len(parts)

    def finish(self, changes: dict[int, tuple[int, int]]) -> None:
        """Write new states in place: by row number the log offset that the row must name, and the state.

        A row that has ended before keeps its state. Rows near each other are read and written as one.
        """
        numbers = sorted(number for number in changes if self.start <= number < self.end)
        while numbers:
            first = numbers[0]
            limit = first - first % self._file_rows + self._file_rows
            count = 1
            while count < len(numbers) and numbers[count] < min(limit, numbers[count - 1] + _NEAR_ROWS):
                count += 1
            run, numbers = numbers[:count], numbers[count:]
            data = bytearray(self._read(first, run[-1] + 1 - first))
            for number in run:
                self._change(data, (number - first) * UNIT, number, *changes[number])
            self._write(first, bytes(data))

    def _change(self, data: bytearray, at: int, number: int, log_offset: int, state: int) -> None:
        found = StateRow(*ROW.unpack_from(data, at))
        if found.log_offset != log_offset:
            log.error("state_row_mismatch", row=number, log_offset=log_offset, found=found.log_offset)
        elif found.state == PREPARED:
            struct.pack_into(">i", data, at + _STATE_AT, state)
            self.open_count -= 1

    def _write(self, number: int, data: bytes) -> None:
        """Write rows; without disk space they stay in memory."""
        view = memoryview(data)
        if not len(self._segments):
            self._env.mkdirs(self.folder)
        while view:
            segment_rows = self._file_rows - number % self._file_rows
            part = view[: segment_rows * UNIT]
            try:
                self._segments.ensure(number * UNIT)
                self._segments.write(number * UNIT, part)
            except (OSError, NoRoom) as error:
                if isinstance(error, OSError) and error.errno not in NO_ROOM:
                    raise
                log.warning("state_rows_stay_in_memory", path=self.folder, reason=str(error))
                for at in range(0, len(view), UNIT):
                    self._unwritten[number + at // UNIT] = bytes(view[at : at + UNIT])
                return
            if self._unwritten:
                for at in range(len(part) // UNIT):
                    self._unwritten.pop(number + at, None)
            number += len(part) // UNIT
            view = view[len(part) :]

    def write_rest(self) -> None:
        """Try again to write what stayed in memory."""
        for number, row in sorted(self._unwritten.items()):
            self._write(number, row)
            if number in self._unwritten:
                return

    # ------------------------------------------------------------------------------------------------------- files

    def detach_finished(self) -> list[Segment]:
        """Remove the oldest files in which all rows have ended from the list, except for the last one; :meth:`discard`
        deletes them."""
        found = self.first_open()
        detached = self._segments.detach_before((self.end if found is None else found[0]) * UNIT)
        if detached:
            self.start = self._segments.start // UNIT
        self._done_files -= {segment.base // UNIT for segment in detached}
        return detached

    def discard(self, detached: list[Segment]) -> None:
        """Delete files that were detached; for a worker thread."""
        self._segments.discard(detached)

    def sync(self) -> None:
        """Flush everything that was written before."""
        self._segments.sync()

    def close(self) -> None:
        """Close the files."""
        self._segments.close()


def _rows_in(data: bytes) -> int:
    """Return the number of rows before the first invalid one (offset, size or state).

    Column by column, because a table may have millions of rows and is read as a whole at the start.
    """
    states = data[_STATE_BYTE::UNIT]
    rows = len(states) - len(states.lstrip(_STATES))
    for at in (_STATE_AT, _STATE_AT + 1, _STATE_AT + 2):
        zeros = data[at : rows * UNIT : UNIT]
        rows = len(zeros) - len(zeros.lstrip(b"\0"))
    for at in _SIGNS_AT:
        signs = data[at : rows * UNIT : UNIT]
        rows = len(signs) - len(signs.lstrip(_NOT_NEGATIVE))
    lows = data[_SIZE_END - 1 : rows * UNIT : UNIT]
    at = lows.find(0)
    while at >= 0:
        if not any(data[at * UNIT + _SIZE_AT : at * UNIT + _SIZE_END]):
            return at
        at = lows.find(0, at + 1)
    return rows

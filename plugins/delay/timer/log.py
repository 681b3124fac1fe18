"""The timer log, ``timerlog/``: one unit of 52 bytes per waiting message; the units of one second form a backward
chain.

Byte for byte as RocketMQ 5.3.3 (``TimerLog``, ``TimerMessageStore.doEnqueue``) reads and writes it, in files of one
size. RocketMQ leaves the last field of a unit 0. GantryMQ stores the millisecond there at which the message is due, so
that it does not wait for the end of its second. ``docs/format/timer.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.kernel.errors import NO_ROOM, NoRoom
from gantrymq.kernel.store.log.segments import Segment, Segments

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

FILE_BYTES: Final = 100 * 1024 * 1024
"""``mappedFileSizeTimerLog``."""
UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = UNIT.size
_WINDOW_BYTES: Final = 16 * 1024
_SCAN_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 1260 * UNIT_BYTES
_BLANK: Final = struct.Struct(">iqI")
BLANK_MAGIC: Final = 0xCBD43194
_SIGNED_BLANK_MAGIC: Final = BLANK_MAGIC - (1 << 32)
NOWHERE: Final = -1
"""The position before a slot's first unit."""
DEFAULT, ROLL, DELETE = 1, 2, 4
"""Bits of the magic: a message; enqueue again, because it is beyond the wheel's range; a recall of another message."""


class Unit(NamedTuple):
    """One unit. ``written`` plus ``delay`` is the time of its slot (ms); ``due`` is the exact due time, or 0.

    ``offset`` and ``size`` are the message's in the commit log, ``topic_hash`` is Java's of its real topic.
    """

    previous: int
    magic: int
    written: int
    delay: int
    offset: int
    size: int
    topic_hash: int
    due: int

    @property
    def time(self) -> int:
        """The time of its slot, ms since 1970."""
        return self.written + self.delay


class DamagedUnit(Exception):
    """The bytes are not a valid unit."""


def _is_in(window: tuple[int, bytes], position: int) -> bool:
    """Return whether the whole unit at ``position`` is in ``window``: the position of the first byte, and the bytes."""
    base, data = window
    return base <= position <= base + len(data) - UNIT_BYTES


def units_in(env: Env, path: str) -> Iterator[Unit]:
    """Yield the valid units of a file that belongs to no open log; it may be damaged. :class:`OSError`."""
    file = env.open(path)
    try:
        for start in range(0, file.size(), _CHUNK_BYTES):
            data = file.pread(_CHUNK_BYTES, start)
            if data.strip(b"\0"):
                for size, *fields in UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES]):
                    if size == UNIT_BYTES and 1 <= fields[1] <= 0xF:
                        yield Unit._make(fields)
    finally:
        file.close()


class TimerLog:
    """The log in ``folder``. One thread uses it; :meth:`sync` may run in another."""

    def __init__(self, env: Env, folder: str, staging: str, file_bytes: int = FILE_BYTES) -> None:
        self._env = env
        self.folder = folder
        self.file_bytes = file_bytes
        self._segments = Segments(env, folder, file_bytes, staging, sparse=True)
        self._written = 0
        self._waiting = bytearray()
        self._window: tuple[int, bytes] = (0, b"")

    def open(self) -> None:
        """Find the files; ``StoreDamaged`` if they do not form one log."""
        self._env.mkdirs(self.folder)
        self._segments.load()
        self._written = self._segments.start

    def close(self) -> None:
        """Close the files; unwritten units are lost."""
        self._window = (0, b"")
        self._waiting.clear()
        self._segments.close()

    @property
    def start(self) -> int:
        """The position of the first unit."""
        return self._segments.start

    @property
    def end(self) -> int:
        """The position behind the last unit."""
        return self._written + len(self._waiting)

    # ------------------------------------------------------------------------------------------------------ write

    def append(self, unit: Unit) -> int:
        """Append ``unit`` and return its position; :meth:`write` writes it to the file."""
        room = self.file_bytes - self.end % self.file_bytes
        if room < UNIT_BYTES + _BLANK.size:
            self._waiting += _BLANK.pack(room, 0, BLANK_MAGIC) + bytes(room - _BLANK.size)
        position = self.end
        self._waiting += UNIT.pack(UNIT_BYTES, *unit)
        return position

    def write(self) -> None:
        """Write appended units. After :class:`NoRoom` they stay readable in memory until the next attempt."""
        data = memoryview(bytes(self._waiting))
        done = 0
        try:
            while done < len(data):
                at = self._written + done
                segment = self._segments.ensure(at)
                part = data[done : done + segment.end - at]
                self._segments.write(at, part)
                done += len(part)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NoRoom(self.folder, error) from error
            raise
        finally:
            self._written += done
            del self._waiting[:done]
            self._window = (0, b"")

    def sync(self) -> None:
        """Flush everything that was written before."""
        self._segments.sync()

    def end_at(self, position: int) -> None:
        """Truncate the log at ``position``; the bytes behind become zeros."""
        self._waiting.clear()
        self._window = (0, b"")
        if position < self._segments.end:
            self._segments.truncate(position)
        self._written = position

    def detach_before(self, position: int) -> list[Segment]:
        """Remove the files that end at or before ``position`` from the list, but never the last one; :meth:`discard`
        deletes them."""
        self._window = (0, b"")
        return self._segments.detach_before(min(position, self._written))

    def discard(self, detached: list[Segment]) -> None:
        """Delete files that were detached; may run in another thread."""
        self._segments.discard(detached)

    # ------------------------------------------------------------------------------------------------------- read

    def unit(self, position: int) -> Unit:
        """Return the unit at ``position``. :class:`DamagedUnit`."""
        try:
            if position >= self._written:
                size, *fields = UNIT.unpack_from(self._waiting, position - self._written)
            else:
                if not _is_in(self._window, position):
                    base = self._window_start(position)
                    self._window = (base, self._segments.pread(base, position + UNIT_BYTES - base))
                base, window = self._window
                size, *fields = UNIT.unpack_from(window, position - base)
        except struct.error:
            raise DamagedUnit(f"nothing at {position} of the timer log") from None
        if size != UNIT_BYTES or not 1 <= fields[1] <= 0xF:
            raise DamagedUnit(f"no unit at {position} of the timer log")
        return Unit._make(fields)

    def is_cached(self, position: int) -> bool:
        """Return whether :meth:`unit` can read the unit at ``position`` now without waiting for the disk."""
        if position >= self._written or _is_in(self._window, position):
            return True
        base = self._window_start(position)
        window = self._segments.peek(base, position + UNIT_BYTES - base)
        if window is not None:
            self._window = (base, window)
        return window is not None

    def fetch(self, position: int, count: int) -> None:
        """Read up to ``count`` units into the page cache, from the one at ``position`` backward through its chain; for
        a worker thread."""
        window = (position, b"")
        with suppress(OSError, struct.error):  # the reader that needs the unit shows the error
            for _ in range(count):
                if not _is_in(window, position):
                    base = self._window_start(position)
                    window = (base, self._segments.pread(base, position + UNIT_BYTES - base))
                base, data = window
                _, previous, *_ = UNIT.unpack_from(data, position - base)
                if not 0 <= previous < position:
                    return
                position = previous

    def _window_start(self, position: int) -> int:
        """Return where to begin reading for the unit at ``position``: the units of a second form a backward chain."""
        return max(position - position % self.file_bytes, position + UNIT_BYTES - _WINDOW_BYTES)

    def forget_window(self) -> None:
        """Drop the read buffer."""
        self._window = (0, b"")

    def scan(self, start: int) -> Iterator[tuple[int, Unit]]:
        """Positions and units from ``start`` (where one begins) up to the first invalid one."""
        position = max(start, self.start)
        while (file_end := position - position % self.file_bytes + self.file_bytes) <= self._segments.end:
            base, data = position, b""
            while file_end - position >= UNIT_BYTES + _BLANK.size:
                if position + UNIT_BYTES > base + len(data):
                    base, data = position, self._segments.pread(position, _SCAN_BYTES)
                size, *fields = UNIT.unpack_from(data, position - base)
                if size != UNIT_BYTES or not 1 <= fields[1] <= 0xF:
                    if fields[1] == _SIGNED_BLANK_MAGIC:
                        break
                    return
                yield position, Unit._make(fields)
                position += UNIT_BYTES
            position = file_end

    def end_behind(self, position: int) -> None:
        """Raise :class:`DamagedUnit` unless a unit ends at ``position``."""
        self._written = max(self._written, position)
        if position > self._segments.end:
            raise DamagedUnit(f"the timer log has {self._segments.end} bytes, {position} were written")
        if position % self.file_bytes:
            self.unit(position - UNIT_BYTES)

    def next_position(self, position: int) -> int:
        """Return the position of the unit that follows the one at ``position``."""
        position += UNIT_BYTES
        room = self.file_bytes - position % self.file_bytes
        return position + room if room < UNIT_BYTES + _BLANK.size else position

"""The timing wheel, ``timerwheel``: the positions of the first and last unit of each second in the timer log.

Byte for byte as RocketMQ 5.3.3 (``TimerWheel``, ``Slot``) reads and writes it: 2 x 7 x 86,400 slots of 32 bytes, big
endian: i64 time in seconds, i64 first and i64 last position in the timer log, i32 number of messages, i32 magic (0).
A slot whose time is another one is empty. ``docs/format/timer.md``.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gantrymq.remoting.timer_times import PRECISION_MS

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env, File

SLOTS: Final = 2 * 7 * 86_400
"""``TIMER_WHEEL_TTL_DAY`` days, twice."""
SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = SLOT.size
_CHUNK_BYTES: Final = SLOT_BYTES * 32_768
_KEPT_MAX: Final = 65_536
"""The most slots in memory that are also in the file."""


class Slot(NamedTuple):
    """First and last position in the timer log, and the number of waiting messages minus recalls."""

    first: int
    last: int
    number: int


class Wheel:
    """The file at ``path``. One thread puts and gets; :meth:`write` may run in another thread at the same time."""

    def __init__(self, env: Env, path: str, slots: int = SLOTS) -> None:
        self._env = env
        self.path = path
        self._slots = slots
        self._file: File | None = None
        self._kept: dict[int, bytes] = {}
        self._changed: dict[int, bytes] = {}
        self._writing: dict[int, bytes] = {}
        self._guard = threading.Lock()

    @property
    def span_ms(self) -> int:
        """The time until a slot is used again."""
        return self._slots * PRECISION_MS

    @property
    def is_open(self) -> bool:
        """Whether slots can be read."""
        return self._file is not None

    def open(self) -> bool:
        """Open the file. Returns False, without opening it, if it is missing or has the wrong size."""
        if not self._env.exists(self.path):
            return False
        file = self._env.open(self.path)
        if file.size() != self._slots * SLOT_BYTES:
            file.close()
            return False
        self._file = file
        return True

    def create(self, slots: Mapping[int, Slot]) -> None:
        """Replace the wheel by one with these ``slots`` by time, and flush it.

        If the broker ends meanwhile, the old or the new file remains.
        """
        self.close()
        path = f"{self.path}.new"
        file = self._env.open(path, create=True)
        file.truncate(0)
        file.truncate(self._slots * SLOT_BYTES)
        self._file = file
        for time, slot in slots.items():
            self.put(time, *slot)
        self.write(self.take_changes())
        file.datasync()
        self._env.rename(path, self.path)
        self._env.sync_dir(self.path.rpartition("/")[0])

    def close(self) -> None:
        """Close the file; unwritten slots are lost."""
        file, self._file = self._file, None
        self._kept.clear()
        self._changed.clear()
        self._writing.clear()
        if file is not None:
            file.close()

    def get(self, time: int) -> Slot | None:
        """Return the slot of ``time`` (ms, a multiple of 1000); None if it is empty."""
        second = time // PRECISION_MS
        index = second % self._slots
        raw = self._kept.get(index)
        if raw is None:
            raw = self._open_file.pread(SLOT_BYTES, index * SLOT_BYTES)
            if len(self._kept) >= _KEPT_MAX:
                self._forget()
            self._kept[index] = raw
        stored, first, last, number, _ = SLOT.unpack(raw)
        return Slot(first, last, number) if stored == second else None

    def next_set(self, time: int, until: int) -> int:
        """Return the first time from ``time`` on (ms, multiples of 1000) whose slot is set; ``until`` if there is none
        before.

        It reads about 30,000 slots at once; if none of them is set, it returns the time that follows them.
        """
        first = time // PRECISION_MS
        index = first % self._slots
        count = min(until // PRECISION_MS - first, _CHUNK_BYTES // SLOT_BYTES, self._slots - index)
        if count <= 0:
            return time
        with self._guard:  # before the file is read: what is in neither later, another thread has written meanwhile
            unwritten = (*self._writing.values(), *self._changed.values())
        data = self._open_file.pread(count * SLOT_BYTES, index * SLOT_BYTES)
        found = first + count
        if data.count(0) != len(data):
            stored = (slot[0] for slot in SLOT.iter_unpack(data))
            found = next((second for second, seen in enumerate(stored, first) if second == seen), found)
        seconds = (SLOT.unpack(raw)[0] for raw in unwritten)
        return min((second for second in seconds if first <= second < found), default=found) * PRECISION_MS

    def put(self, time: int, first: int, last: int, number: int) -> None:
        """Set the slot of ``time``; it is in the file after the next :meth:`write`."""
        second = time // PRECISION_MS
        index = second % self._slots
        raw = SLOT.pack(second, first, last, number, 0)
        self._kept[index] = raw
        with self._guard:
            self._changed[index] = raw

    def _forget(self) -> None:
        with self._guard:
            self._kept = {**self._writing, **self._changed}

    def live(self, since: int) -> Iterator[tuple[int, Slot]]:
        """Time and slot of each set slot from ``since`` (ms) on; not in order."""
        for start, end in self._open_file.data_ranges(0):
            start -= start % SLOT_BYTES
            for at in range(start, end, _CHUNK_BYTES):
                data = self._open_file.pread(min(_CHUNK_BYTES, end - at), at)
                data = data[: len(data) - len(data) % SLOT_BYTES]
                for second, first, last, number, _ in SLOT.iter_unpack(data):
                    if second and second * PRECISION_MS >= since:
                        yield second * PRECISION_MS, Slot(first, last, number)

    def count(self, since: int, bounds: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many messages wait in slots from ``since`` (ms) on, and how many of them in each range of
        ``bounds``.

        ``bounds``: ascending times (ms); a range begins at the previous one, the first at ``since``. It reads all
        slots that were ever set, up to 37 MiB, and may run in another thread.
        """
        total, counts = 0, [0] * len(bounds)
        with self._guard:  # before the file is read: what is in neither later, another thread has written meanwhile
            unwritten = {**self._writing, **self._changed}
        first, ends = since // PRECISION_MS, [bound // PRECISION_MS for bound in bounds]
        for start, end in self._open_file.data_ranges(0):
            for at in range(start - start % SLOT_BYTES, end, _CHUNK_BYTES):
                data = self._open_file.pread(min(_CHUNK_BYTES, end - at), at)
                data = data[: len(data) - len(data) % SLOT_BYTES]
                if data.count(0) == len(data):
                    continue
                seconds, numbers = array("q", data), array("i", data)
                if sys.byteorder == "little":
                    seconds.byteswap()
                    numbers.byteswap()
                found = zip(seconds[:: SLOT_BYTES // 8], numbers[6 :: SLOT_BYTES // 4], strict=True)
                for index, (second, number) in enumerate(found, at // SLOT_BYTES):
                    if second >= first and number and index not in unwritten:
                        total += number
                        _add_to_range(counts, ends, second, number)
        for raw in unwritten.values():
            second, _, _, number, _ = SLOT.unpack(raw)
            if second >= first:
                total += number
                _add_to_range(counts, ends, second, number)
        return total, counts

    @property
    def is_changed(self) -> bool:
        """Whether slots must be written."""
        return bool(self._changed)

    def take_changes(self) -> dict[int, bytes]:
        """Return the changes for :meth:`write`: everything that was put so far."""
        with self._guard:
            changes = self._writing = self._changed
            self._changed = {}
        return changes

    def write(self, changes: dict[int, bytes]) -> None:
        """Write and flush ``changes``. After an :class:`OSError` they must be written again."""
        try:
            start, run = -1, bytearray()
            for index in sorted(changes):
                if start + len(run) // SLOT_BYTES != index:
                    if run:
                        self._open_file.pwrite(run, start * SLOT_BYTES)
                    start, run = index, bytearray()
                run += changes[index]
            if run:
                self._open_file.pwrite(run, start * SLOT_BYTES)
                self._open_file.datasync()
        except OSError:
            with self._guard:
                self._changed = {**changes, **self._changed}
            raise
        finally:
            self._writing = {}

    @property
    def _open_file(self) -> File:
        if self._file is None:
            raise RuntimeError("the wheel is not open")
        return self._file


def _add_to_range(counts: list[int], ends: list[int], second: int, number: int) -> None:
    place = bisect_right(ends, second)
    if place < len(ends):
        counts[place] += number

"""One index file: entries are appended, slots stay in memory while it grows, any thread reads chains."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env, File
from gantrymq.plugins.index.build import put_rows, rebuild_slots
from gantrymq.plugins.index.layout import ENTRY, HEADER_BYTES, SLOT_BYTES, Header, Shape

log = structlog.get_logger("gantrymq.index")

_CHUNK_ENTRIES = 1 << 18
_CHUNK_BYTES = 1 << 16
_PAGE = bytes(4096)


class IndexFile:
    """The file ``path``. One thread adds entries, one writes, any thread reads.

    ``found``: the headers that may be on the disk now, the last one the newest.
    """

    def __init__(self, env: Env, path: str, shape: Shape, header: Header, found: tuple[bytes, ...]) -> None:
        self._env = env
        self.path = path
        self.name = path.rpartition("/")[2]
        self.shape = shape
        self.header = header
        self.found = found
        self._slots: bytearray | None = None
        self._written = header.count
        """The number of the first entry that is not on the disk."""
        self._tail = bytearray()
        self._writing = b""
        self._guard = Lock()
        """For slots, header and the entries in memory. The broker's thread takes it, so no thread may hold it while it
        waits for the disk."""
        self._file_lock = Lock()
        """For the descriptor: otherwise a thread could close it during a read, and the system reuse it."""
        self._file: File | None = None
        self._closed = False
        self._is_zero_on_disk = True
        """Whether slots that are zero in memory are zero in the file too, which is not so in a file that was found half
        written."""
        self.unsynced = False

    @property
    def is_full(self) -> bool:
        """Whether the next entry needs a new file."""
        return self.header.count >= self.shape.entries

    @property
    def is_nearly_full(self) -> bool:
        """Whether an eighth of the entries is left, or less."""
        return self.header.count >= self.shape.entries - self.shape.entries // 8

    @property
    def is_settled(self) -> bool:
        """Whether slots and header on the disk equal those in memory."""
        return self.found == (self.header.encode(),)

    @property
    def slots(self) -> bytes:
        """The hash slots in memory; empty if they are not there."""
        return bytes(self._slots or b"")

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the entries that are in memory only."""
        return len(self._tail) + len(self._writing)

    # ------------------------------------------------------------------------------------------------------ begin

    def begin(self, slots: bytearray) -> None:
        """Start without entries; ``slots``: the zeros that exist already, which belong to the file from now on."""
        slots += bytes(self.shape.slots * SLOT_BYTES - len(slots))
        self._slots = slots

    def load_slots(self) -> bool:
        """Read the slots from the disk; False if the file is too short."""
        slots = bytearray(self.shape.slots * SLOT_BYTES)
        for start in range(0, len(slots), _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, len(slots) - start)
            data = self._pread(size, HEADER_BYTES + start)
            if len(data) < size:
                return False
            if data.strip(b"\0"):  # memory that is never written is not allocated
                slots[start : start + size] = data
        self._slots = slots
        return True

    def rebuild(self) -> bool:
        """Build the slots from the entries; False if an entry contradicts earlier ones, because the file is damaged."""
        slots = bytearray(self.shape.slots * SLOT_BYTES)
        number, used, offset = 1, 0, self.header.begin_offset
        while number < self.header.count:
            count = min(_CHUNK_ENTRIES, self.header.count - number)
            data = self._pread(count * ENTRY.size, self.shape.entries_at + number * ENTRY.size)
            sound, more_used, offset = rebuild_slots(data, number, offset, slots)
            used += more_used
            if sound < count:
                log.warning("index_file_damaged", path=self.path, entry=number + sound, entries=self.header.count)
                return False
            number += count
        self._slots = slots
        self._is_zero_on_disk = False
        return used == self.header.slots_used and (number == 1 or offset == self.header.end_offset)

    def continues(self, earlier: Header) -> bool:
        """Return whether the last entry of an earlier state of the file is still in its place.

        RocketMQ's broker goes on where the header on the disk says, which after a crash may be before that entry. It
        then indexes only the part of the log that its recovery reads, and the entries in between are missing.
        """
        number = earlier.count - 1
        return number < self.header.count and ENTRY.unpack(self._entry(number))[1] == earlier.end_offset

    def last_keys(self) -> tuple[int, bool]:
        """Return how many of the last entries belong to one message, and whether all entries of the file do."""
        number = self.header.count - 1
        while number > 0 and ENTRY.unpack(self._entry(number))[1] == self.header.end_offset:
            number -= 1
        return self.header.count - 1 - number, number == 0

    # -------------------------------------------------------------------------------------------------------- put

    def put(self, batch: DispatchBatch, row: int, key: int) -> tuple[int, int]:
        """Add keys of ``batch`` from ``row`` and ``key`` on. Returns the row and key at which the next file
        continues."""
        if self._slots is None:
            raise RuntimeError(f"{self.path}: the file is closed; no entries can be added")
        with self._guard:  # so that a search finds the bytes of every entry that slots and header name
            data, row, key = put_rows(batch, row, key, self._slots, self.header, self.shape.entries)
            self._tail += data
        return row, key

    # ------------------------------------------------------------------------------------------------------ write

    def write_tail(self) -> None:
        """Write the entries in memory to the file. After an :class:`OSError` they stay in memory."""
        with self._guard:
            if not self._writing:
                self._writing, self._tail = bytes(self._tail), bytearray()
            data, number = self._writing, self._written
        if not data:
            return
        self._open().pwrite(data, self.shape.entries_at + number * ENTRY.size)
        self.unsynced = True
        with self._guard:
            self._written = number + len(data) // ENTRY.size
            self._writing = b""

    def write_head(self) -> None:
        """Write slots and header. No entries may be added meanwhile."""
        if self._slots is not None:
            view = memoryview(self._slots)
            for start, end in self._used_ranges():
                self._open().pwrite(view[start:end], HEADER_BYTES + start)
            view.release()
        self._open().pwrite(self.header.encode(), 0)
        self.unsynced = True

    def _used_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the slots to write, without pages of zeros, so that the file stays sparse."""
        slots = self._slots or b""
        first = -1
        for start in range(0, len(slots), len(_PAGE)):
            used = not self._is_zero_on_disk or slots[start : start + len(_PAGE)].strip(b"\0")
            if used and first < 0:
                first = start
            elif not used and first >= 0:
                yield first, start
                first = -1
        if first >= 0:
            yield first, len(slots)

    def sync(self) -> None:
        """Flush everything that was written to the disk."""
        if self.unsynced:
            self._open().datasync()
            self.unsynced = False

    def forget_slots(self) -> None:
        """Free the slots in memory. They must be on the disk, and no more entries may be added."""
        self._slots = None

    # ------------------------------------------------------------------------------------------------------- read

    def chain(self, hashed: int, begin: int, end: int) -> Iterator[int]:
        """Follow the chain of a key hash, newest first; yield the log offset of each entry stored in the time range.

        An entry of another hash or time yields -1, so that the caller can count steps. Entry times are whole seconds,
        so entries within less than a second of the range are included. It ends early at a broken chain: one whose next
        entry is not older, or whose offsets rise.
        """
        at = hashed % self.shape.slots * SLOT_BYTES
        with self._guard:
            header, slots = self.header.copy(), self._slots
            slot = None if slots is None else bytes(slots[at : at + SLOT_BYTES])
        if slot is None:
            slot = self._pread(SLOT_BYTES, HEADER_BYTES + at)
        number = int.from_bytes(slot, "big", signed=True)
        limit, newest = header.count, header.end_offset
        while 0 < number < limit:
            data = self._entry(number)
            if len(data) < ENTRY.size:
                return
            found, offset, seconds, before = ENTRY.unpack(data)
            if seconds < 0 or not 0 <= offset <= newest:
                return
            # The seconds of the first entry count from the end of the previous file.
            stored = header.begin_timestamp + (seconds * 1000 if number > 1 else 0)
            yield offset if found == hashed and begin < stored + 1000 and stored <= end else -1
            if stored + 1000 <= begin:
                return
            limit, number, newest = number, before, offset

    def _entry(self, number: int) -> bytes:
        with self._guard:
            at = (number - self._written) * ENTRY.size
            if at >= 0:
                if at < len(self._writing):
                    return self._writing[at : at + ENTRY.size]
                at -= len(self._writing)
                return bytes(self._tail[at : at + ENTRY.size])
        return self._pread(ENTRY.size, self.shape.entries_at + number * ENTRY.size)

    def _pread(self, size: int, offset: int) -> bytes:
        with self._file_lock:
            return b"" if self._closed else self._opened().pread(size, offset)

    def _open(self) -> File:
        with self._file_lock:
            return self._opened()

    def _opened(self) -> File:
        if self._file is None:
            file = self._env.open(self.path, create=True)
            if file.size() < self.shape.file_bytes:
                file.truncate(self.shape.file_bytes)
            self._file = file
        return self._file

    def close(self, *, for_good: bool = False) -> None:
        """Close the file. It opens again on use unless ``for_good`` is set; then searches find nothing in it."""
        with self._file_lock:
            self._closed = self._closed or for_good
            file, self._file = self._file, None
        if file is not None:
            file.close()

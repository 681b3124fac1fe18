"""Read many records of the log without waiting for the disk in the sweep.

A wait for the disk would block the sweep, and with it every client. So these functions return only data from the page
cache; a worker thread reads everything else and prefetches. Blocks that are read repeatedly, and those at the log's
end, stay in the broker's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.fast import empty_buffer
from gantrymq.kernel.store.log.block_cache import BLOCK_BYTES, Block, BlockCache, most_blocks
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.log.record import BadRecord, record_owner
from gantrymq.kernel.store.log.scan import checked_size

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.store.log.segments import Segment

HOT_BYTES: Final = 1024 * 1024
"""Within this distance from the log's end a block is kept from its first use on; elsewhere from its second."""
READS_KEPT: Final = 4096
FETCH_BYTES: Final = 1024 * 1024
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""How far the worker thread prefetches behind missing data."""
_PIECE_BYTES: Final = 256 * 1024


class NotCached(Exception):
    """The data is only on the disk. ``fetch`` reads it into memory, in a worker thread."""

    def __init__(self, fetch: Callable[[], object]) -> None:
        super().__init__("the data is not in the page cache")
        self.fetch = fetch


class LogWindows:
    """Parts of the log in memory. All methods but :meth:`fetch` are for the thread of the sweep."""

    def __init__(self, env: Env, log: CommitLog) -> None:
        self._env = env
        self._log = log
        self._blocks = BlockCache(most_blocks(env.memory_bytes()))
        self._reads: dict[int, None] = {}

    @property
    def min_offset(self) -> int:
        """The offset of the log's first byte."""
        return self._log.min_offset

    def quarantine_range(self, start: int, end: int) -> None:
        """See :meth:`CommitLog.quarantine_range`."""
        self._log.quarantine_range(start, end)

    def holds_damaged(self, offset: int, size: int, owner: tuple[str, int, int]) -> bool:
        """Return whether the lengths show a record of this size there that names ``owner``: topic, queue id, queue
        offset.

        For a record with a damaged body.
        """
        try:
            if checked_size(self._log.view, offset) != size:
                return False
            return record_owner(self._log.view(offset, size), offset) == owner
        except (OutOfLog, CorruptRange, BadRecord):
            return False

    def span(self, offset: int, size: int, goes_on: bool = False) -> tuple[int, memoryview] | None:
        """Return the part of the log that has these ``size`` bytes, as far as it is in memory, and its start.

        None if they are outside the log, in a damaged range, across the end of a file, or only on the disk. The part
        does not change while it is referenced. ``goes_on``: the caller needs data close behind it too, so the whole
        block is read at once.
        """
        if size > BLOCK_BYTES and not self._has_size(offset, size):
            return None
        return self._span(offset, size, goes_on)

    def record(self, offset: int, size: int, *, wait: bool) -> memoryview | bytes:
        """As :meth:`window`, for a record. ``OutOfLog`` if a large record has another size: it is then not read."""
        if size > BLOCK_BYTES:
            self._log.check_range(offset, size)
            stored = self.window(offset, 4, wait=wait)[:4]
            if int.from_bytes(stored, "big", signed=True) != size:
                raise OutOfLog(f"no record of {size} bytes at {offset}")
        return self.window(offset, size, wait=wait)

    def _has_size(self, offset: int, size: int) -> bool:
        found = self._span(offset, 4)
        return found is not None and int.from_bytes(found[1][offset - found[0] :][:4], "big", signed=True) == size

    def _span(self, offset: int, size: int, goes_on: bool = False) -> tuple[int, memoryview] | None:
        log = self._log
        segment = log.segments.at(offset)
        written = log.written
        if segment is None or size < 0 or offset + size > min(segment.end, written):
            return None
        try:
            found = self._find(segment, offset, size, written, goes_on)
        except OSError:
            return None  # the slow path handles this
        if found is None or not log.quarantine:
            return found
        start, data = found
        low, high = start, start + len(data)
        for first, last in log.quarantine:
            if last <= offset:
                low = max(low, last)
            elif first >= offset + size:
                high = min(high, first)
            else:
                return None
        return low, data[low - start : high - start]

    def window(self, offset: int, size: int, *, wait: bool) -> memoryview | bytes:
        """As :meth:`CommitLog.view`, with the bytes behind it, as far as they are in memory.

        :class:`NotCached` if it is only on the disk, unless ``wait`` is set.
        """
        log = self._log
        found = self._span(offset, size)
        if found is not None:
            start, data = found
            return data[offset - start :]
        log.check_range(offset, size)
        segment = log.segments.at(offset)
        if segment is None or offset + size > segment.end:
            raise OutOfLog(f"{size} bytes at {offset} reach over the end of a file")
        if not wait:
            raise NotCached(partial(self.fetch, offset, size))
        return log.view(offset, size)

    def fetch(self, offset: int, size: int) -> None:
        """Read this part of the log into memory and prefetch; for a worker thread.

        ``UnreadableRange`` if the disk cannot read it, or another :class:`CorruptRange` or :class:`OutOfLog` if it was
        quarantined or deleted meanwhile.
        """
        segment = self._log.segments.at(offset)
        if segment is None:
            return
        start = offset - (offset - segment.base) % FETCH_BYTES
        stop = min(start + -(-(offset + size - start) // FETCH_BYTES) * FETCH_BYTES, segment.end, self._log.written)
        with suppress(OSError):  # the failing block may be one that was not requested
            segment.file.read_ahead(start - segment.base, min(AHEAD_BYTES, segment.end - start))
            for at in range(start, stop, _PIECE_BYTES):
                segment.file.pread(min(_PIECE_BYTES, stop - at), at - segment.base)
        self._log.view(offset, size)

    def _find(
        self, segment: Segment, offset: int, size: int, written: int, goes_on: bool
    ) -> tuple[int, memoryview] | None:
        """As :meth:`span`, for a part within one file of the log."""
        start = offset - (offset - segment.base) % BLOCK_BYTES
        needed = offset + size - start
        if needed <= BLOCK_BYTES:
            block = self._blocks.get(start)
            if block is not None and needed <= block.filled:
                return start, block.content
            if block is not None or goes_on or self._is_kept(start, written):
                return self._fill(segment, start, block, needed, min(BLOCK_BYTES, segment.end - start), written)
        memory = memoryview(empty_buffer(size))
        if segment.file.peek_into(memory, offset - segment.base) < size:
            return None
        return offset, memory

    def _is_kept(self, start: int, written: int) -> bool:
        """Return whether to keep a block, now that it is used."""
        if start >= written - HOT_BYTES or start in self._reads:
            return True
        if len(self._reads) >= READS_KEPT:
            self._reads.clear()
        self._reads[start] = None
        return False

    def _fill(
        self, segment: Segment, start: int, block: Block | None, needed: int, size: int, written: int
    ) -> tuple[int, memoryview] | None:
        """Read what a block lacks."""
        end = min(size, written - start)
        if block is None:
            block = Block(size)
            into = block.memory if end == size else block.memory[:end]
        else:
            into = block.memory[block.filled : end]
        block.filled += segment.file.peek_into(into, start + block.filled - segment.base)
        if block.filled < needed:
            return None
        if start not in self._blocks:
            self._reads.pop(start, None)
            self._blocks.add(start, block)
        return start, block.content

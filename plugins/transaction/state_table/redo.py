"""The redo log of RocketMQ 3.x: prepared records and their outcomes in log order.

It is a consume queue of the topic TRANSACTION_REDOLOG_TOPIC_XXXX, queue 0, in a folder of its own: 20 bytes per record:
its log offset (8), size (4), and in place of a tag code (8) the log offset of the prepared record that it ends; -1 for
a prepared record itself. Source: RocketMQ 3.2 ``TransactionStateService.getTranRedoLog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import QueueEntries
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.segments import Segments, StoreDamaged
from gantrymq.kernel.store.queues.consume_queue import UNIT, ConsumeQueue
from gantrymq.kernel.store.queues.open_files import OpenFiles

TOPIC: Final = "TRANSACTION_REDOLOG_TOPIC_XXXX"
QUEUE_ID: Final = 0
FILE_ENTRIES: Final = 2_000_000
"""``tranRedoLogMapedFileSize`` of RocketMQ 3.x, in entries."""
PREPARED_MARK: Final = -1
"""``PreparedMessageTagsCode``."""

_TAIL_BYTES = 64 * 1024
_CHUNK_ENTRIES = 50_000


@attrs.frozen
class OpenRecords:
    """The open transactions of the redo log: ``open`` has the size of each open prepared record by its log offset.

    ``newest``: the log offset of the last prepared record, open or not; ``end``: the one behind the last record.
    """

    open: dict[int, int]
    newest: int | None
    end: int


class RedoLog:
    """The redo log under ``folder``. One thread adds; :meth:`flush` and :meth:`drop_expired` may run in another."""

    def __init__(self, env: Env, folder: str, staging: str, *, file_entries: int = FILE_ENTRIES) -> None:
        self._env = env
        self._staging = staging
        self._file_entries = file_entries
        self.folder = f"{folder}/{TOPIC}/{QUEUE_ID}"
        self._queue = ConsumeQueue(
            env,
            self.folder,
            staging,
            TOPIC,
            QUEUE_ID,
            file_units=file_entries,
            tail_bytes=_TAIL_BYTES,
            open_files=OpenFiles(1),
        )

    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self._queue.max_offset

    @property
    def start(self) -> int:
        """The number of the first entry whose record is still in the log."""
        return self._queue.min_offset

    @property
    def log_end(self) -> int:
        """The log offset behind the last record that has an entry."""
        return self._queue.log_end

    def load(self) -> None:
        """Find the files and the last entry. ``StoreDamaged`` for inconsistent files, which are not changed."""
        looked_at = Segments(self._env, self.folder, self._file_entries * UNIT, self._staging, sparse=True)
        try:
            looked_at.load()
        finally:
            looked_at.close()
        self._queue.load()

    def truncate(self, bound: int, is_record: Callable[[int, int], bool]) -> None:
        """Remove the entries of records at or behind the log offset ``bound``, which will be added again.

        ``is_record`` (log offset, size) checks the last remaining entries; invalid ones are removed too.
        """
        self._queue.truncate(bound, lambda queue, offset, size: is_record(offset, size))

    def put(self, offsets: list[int], sizes: list[int], prepared_offsets: list[int]) -> None:
        """Append entries. ``OSError`` if the disk failed; without disk space they wait in memory."""
        rows = zip(offsets, sizes, prepared_offsets, strict=True)
        entries = b"".join([ENTRY.pack(*row) for row in rows])
        self._queue.put(QueueEntries(TOPIC, QUEUE_ID, self.end, offsets[0], offsets[-1] + sizes[-1], entries, None))

    def find_open(self, log_offset: int, stop: int | None = None) -> OpenRecords:
        """Scan all entries from ``log_offset`` on, before which all transactions have ended.

        With ``stop`` only through those before that number. ``StoreDamaged`` when they are not in the log's order.
        """
        first = self._first_from(log_offset)
        found: dict[int, int] = {}
        newest = None
        behind = 0
        entries = self._entries(first, self.end if stop is None else stop)
        for number, (offset, size, prepared_offset) in enumerate(entries, first):
            if offset < behind or size <= 0 or prepared_offset >= offset:
                raise StoreDamaged(f"{self.folder}: entry {number} cannot be right")
            behind = offset + size
            if prepared_offset == PREPARED_MARK:
                found[offset] = size
                newest = offset
            else:
                found.pop(prepared_offset, None)
        return OpenRecords(found, newest, behind)

    def is_prepared(self, log_offset: int) -> bool:
        """Return whether it has an entry for a prepared record at ``log_offset``."""
        number = self._first_from(log_offset)
        found = next(iter(self._entries(number, min(number + 1, self.end))), None)
        return found is not None and (found[0], found[2]) == (log_offset, PREPARED_MARK)

    def _first_from(self, log_offset: int) -> int:
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if next(iter(self._entries(middle, middle + 1)))[0] >= log_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def _entries(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        while first < end:
            data = self._queue.entries(first, min(_CHUNK_ENTRIES, end - first))
            if not data:
                return
            yield from ENTRY.iter_unpack(data)
            first += len(data) // UNIT

    def expire(self, log_min: int) -> None:
        """Begin with the first record that is still in the log."""
        self._queue.correct_min(log_min)

    def drop_expired(self) -> None:
        """Delete the files before :attr:`start`; for a worker thread."""
        self._queue.drop_expired()

    def flush(self) -> None:
        """Flush all entries; for a worker thread. ``NoRoom``, ``OSError``."""
        self._queue.flush()

    def close(self) -> None:
        """Close the files; unflushed entries are lost."""
        self._queue.close()

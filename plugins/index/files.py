"""The index: its files in order, adding keys, and writing the files.

It is derived from the log, so no failure is fatal. Without disk space, entries wait or are added later; after any other
disk failure the index stops growing, and the next start builds the missing part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

import structlog

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_DESCRIPTORS, NO_ROOM
from gantrymq.plugins.index.build import first_with_keys, key_hash
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.index.layout import HEADER_BYTES, SLOT_BYTES, Header, Shape, file_name
from gantrymq.plugins.index.marks import FileMark, IndexMarks
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.commitlog import CommitLog

log = structlog.get_logger("gantrymq.index")

STEPS_MAX: Final = 200_000
"""The most entries that one search examines. RocketMQ has no limit; a chain may have millions."""
WAITING_MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of entries in memory; beyond it no keys are added until they are written."""
PIECE_BYTES: Final = 2 * 1024 * 1024
"""How much of the next file's slots one call prepares: all of them within 5 s if the files have the default shape."""

UNREADABLE_REMEDY: Final = (
    "searches by key miss messages that this file names; messages themselves are not affected. Stop the broker, delete "
    "the file, and start the broker: it builds the file again from the log"
)


class IndexFiles:
    """The index in ``root``. One thread puts, one writes; any thread may call :meth:`find`.

    ``position``: all keys of the log below this offset are in the index. ``failed``: the disk failed, and no keys are
    added.
    """

    def __init__(self, env: Env, root: str, shape: Shape) -> None:
        self._env = env
        self.folder = f"{root}/index"
        self._staging = f"{root}/staging"
        self.marks_path = f"{root}/gantrymq.index"
        self.shape = shape
        self.files: list[IndexFile] = []
        self.position = 0
        self.keys_done = 0
        """How many keys of the message at ``position`` are in the index already: a file may end between two."""
        self.failed = False
        self.settled_timestamp = 0
        """End timestamp of the newest full file that is flushed with all its slots (``indexMsgTimestamp``)."""
        self._expired: list[IndexFile] = []
        """Files that are no longer searched and not deleted yet, the oldest first."""
        self._outages = Outages(log, env.monotonic)
        self._unreadable: set[str] = set()
        self._lock = Lock()
        self._saving = Lock()
        self._names_unsynced = False
        self._saved: IndexMarks | None = None
        self._next_slots = bytearray()
        """The first part of the slots of the file after the last one."""

    @property
    def waiting_bytes(self) -> int:
        """Entries that are in memory only."""
        waiting = 0
        for file in self.files[-2:]:
            waiting += file.waiting_bytes
        return waiting

    @property
    def last(self) -> tuple[int, int]:
        """Store timestamp and log offset of the newest message that has a key; zeros without one."""
        files = self.files
        return (files[-1].header.end_timestamp, files[-1].header.end_offset) if files else (0, 0)

    # -------------------------------------------------------------------------------------------------------- put

    def put(self, batch: DispatchBatch) -> None:
        """Add all keys of ``batch``, which begins at ``position``."""
        if batch.start != self.position:
            raise ValueError(f"the next batch of the index starts at {self.position}, not at {batch.start}")
        with self._lock:
            row, key, self.keys_done = 0, self.keys_done, 0
            if not self.files or self.files[-1].is_full:
                row = first_with_keys(batch)
                key = key if row == 0 else 0
            rows = len(batch)
            while 0 <= row < rows:
                if not self.files or self.files[-1].is_full:
                    self._add()
                row, key = self.files[-1].put(batch, row, key)
            self.position = batch.end

    def skip_to(self, offset: int) -> None:
        """Move the position to ``offset``: there are no keys to add before it."""
        with self._lock:
            if offset > self.position:
                self.position, self.keys_done = offset, 0

    def _add(self) -> None:
        last = self.files[-1] if self.files else None
        header = Header()
        if last is not None:
            end_timestamp, end_offset = last.header.end_timestamp, last.header.end_offset
            header = Header(end_timestamp, end_timestamp, end_offset, end_offset)
        name = file_name(self._env.wall_ms(), last.name if last is not None else "")
        # A worker creates it on the disk with its first entries.
        file = IndexFile(self._env, f"{self.folder}/{name}", self.shape, header, (bytes(HEADER_BYTES),))
        file.begin(self._next_slots)
        self._next_slots = bytearray()
        self.files.append(file)
        self._names_unsynced = True
        log.info("index_file_created", path=file.path)

    # ----------------------------------------------------------------------------------------- for a worker thread

    def write(self) -> bool:
        """Write the entries in memory, and prepare a part of the next file; False without disk space or after
        :attr:`failed`."""
        with self._saving:
            if self.failed:
                return False
            try:
                self._write_tails()
            except OSError as error:
                return self._is_passing(error)
        self._prepare()
        return True

    def _prepare(self) -> None:
        """Make one piece of the next file's slots while the last file is nearly full.

        All of them at once would stop the thread that serves clients: 8 ms for 20 MB, and 25 to 40 ms if the host of a
        virtual machine must first provide the memory. No call takes long, because it holds the interpreter's lock.
        """
        with self._lock:
            if self.files and self.files[-1].is_nearly_full:
                missing = self.shape.slots * SLOT_BYTES - len(self._next_slots)
                self._next_slots += bytes(min(PIECE_BYTES, missing))

    def save(self, commit_log: CommitLog, *, settle: bool = False) -> bool:
        """Flush everything that was added, so that a start continues from here; False without disk space.

        Full files get their slots and header; with ``settle`` the last file too, and then no keys may be added
        meanwhile.
        """
        with self._saving:
            if self.failed:
                return False
            try:
                self._save(commit_log, settle)
            except OSError as error:
                return self._is_passing(error)
            # Not after a write alone: a disk may have room for entries, but none for the slots of a file.
            self._outages.over("index_entries_not_written")
            return True

    def _is_passing(self, error: OSError) -> bool:
        if error.errno not in NO_ROOM and error.errno not in NO_DESCRIPTORS:
            self.failed = True
            log.error("index_stopped", error=str(error))
        else:
            self._outages.warning("index_entries_not_written", reason=str(error), bytes=self.waiting_bytes)
        return False

    def _write_tails(self) -> None:
        for file in list(self.files):
            if file.waiting_bytes:
                self._env.mkdirs(self.folder)
                file.write_tail()

    def _save(self, commit_log: CommitLog, settle: bool) -> None:
        with self._lock:
            offset = self.position
            states = [(file, file.header.encode(), file.is_full) for file in self.files if file.header.count > 1]
        due = [(file, state) for file, state, full in states if (full or settle) and file.found != (state,)]
        if self._saved is not None and self._saved.offset == offset and not due:
            return
        self._write_tails()
        for file, _, _ in states:
            file.sync()
        if self._names_unsynced and self._env.is_dir(self.folder):
            self._names_unsynced = False
            self._env.sync_dir(self.folder)
        if commit_log.durable < offset:
            # Data that the marks declare as flushed must be flushed before them.
            commit_log.flush()
        for file, state in due:
            if state not in file.found:  # as after a save that failed
                file.found = (*file.found, state)
        self._write_marks(offset, states)
        if due:
            for file, state in due:
                file.write_head()
                file.sync()
                file.found = (state,)
            self._write_marks(offset, states)
        for file, _, full in states:
            if full:
                file.forget_slots()
                self.settled_timestamp = max(self.settled_timestamp, file.header.end_timestamp)

    def _write_marks(self, offset: int, states: list[tuple[IndexFile, bytes, bool]]) -> None:
        marks = IndexMarks(offset, tuple(FileMark(file.name, file.found, state) for file, state, _ in states))
        self._env.replace(self.marks_path, marks.encode())
        self._saved = marks

    def delete_before(self, offset: int) -> int:
        """Delete the files whose entries all lie before ``offset``, the oldest first, never the last one. Returns how
        many.

        :class:`OSError` leaves the rest for the next call.
        """
        with self._lock:
            count = 0
            while count < len(self.files) - 1 and self.files[count].header.end_offset < offset:
                count += 1
            self._expired += self.files[:count]
            self.files = self.files[count:]
        deleted = 0
        while self._expired:
            file = self._expired[0]
            file.close(for_good=True)
            with suppress(FileNotFoundError):
                self._env.delete_large(file.path, self._staging)
            del self._expired[0]
            deleted += 1
            log.info("index_file_deleted", path=file.path, log_starts=offset)
        return deleted

    def close(self) -> None:
        """Close all files; they are opened again on use."""
        for file in self.files:
            if not file.unsynced:
                file.close()

    # ------------------------------------------------------------------------------------------------------- find

    def find(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """Log offsets, newest first, of messages that may have ``key``, stored from ``begin`` to ``end``, each once.

        Another key may have the same hash, and times are in seconds, so the caller must check the messages. It ends
        after :data:`STEPS_MAX` entries.
        """
        hashed = key_hash(f"{topic}#{key}".encode("utf-8", "replace"))
        steps, before = 0, -1
        for file in reversed(list(self.files)):
            if file.header.begin_timestamp <= end and file.header.end_timestamp >= begin:
                for offset in self._readable(file, hashed, begin, end):
                    steps += 1
                    if steps > STEPS_MAX:
                        log.warning("index_search_stopped", topic=topic, steps=STEPS_MAX)
                        return
                    if offset >= 0 and offset != before:
                        before = offset
                        yield offset
            if file.header.begin_timestamp < begin:
                return

    def _readable(self, file: IndexFile, hashed: int, begin: int, end: int) -> Iterator[int]:
        """Yield the readable part of the file's chain; a failure is logged once for each file."""
        try:
            yield from file.chain(hashed, begin, end)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self._outages.warning("index_search_without_descriptor", path=file.path, reason=str(error))
            elif file.path not in self._unreadable:
                self._unreadable.add(file.path)
                log.error("index_unreadable", path=file.path, error=str(error), reason=UNREADABLE_REMEDY)

"""Files of one size, named by the 20-digit offset of their first byte, which together form one long file.

The log and every consume queue consist of such files. A file is created in ``staging/`` and renamed when it has its
full size, because RocketMQ's broker refuses to start if a file has another size. Bytes that were never written read as
zeros.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import structlog

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import NO_DESCRIPTORS, NO_ROOM, NoRoom, StartError
from gantrymq.remoting.outages import Outages

log = structlog.get_logger("gantrymq.segments")

_NAME = re.compile(r"[0-9]{20}")
DISK_BLOCK_BYTES = 4096
"""Disk blocks and the system's pages are multiples of this."""
_END_MAX = 2**63 - 1
"""Offsets are numbers of 64 bits in the files and in compiled code."""
_CHUNK_BYTES = 1024 * 1024
_ZEROS = bytes(_CHUNK_BYTES)
_OPENING = threading.Lock()


class StoreDamaged(StartError):
    """Files of the store contradict each other, and no repair is safe."""


class Segment:
    """One file: ``base`` is the offset of its first byte. It is opened on first use."""

    def __init__(self, env: Env, path: str, base: int, size: int, file: File | None = None) -> None:
        self._env = env
        self.path = path
        self.base = base
        self.end = base + size
        self.unsynced = False
        self._file = file

    @property
    def file(self) -> File:
        """The open file."""
        file = self._file
        if file is None:
            with _OPENING:  # otherwise a reading and a writing thread could leave a second descriptor open
                file = self._file
                if file is None:
                    file = self._file = self._env.open(self.path)
        return file

    def write(self, offset: int, data: bytes | memoryview, zeros: int = 0) -> None:
        """Write ``data`` and so many bytes of zeros. :class:`ValueError` unless they belong in this file."""
        if offset < self.base or offset + len(data) + zeros > self.end:
            raise ValueError(f"{self.path}: {len(data) + zeros} bytes at {offset} are not within one file")
        self.file.pwrite(data, offset - self.base, zeros)
        self.unsynced = True

    def close(self) -> None:
        """Close the file if it is open; the next use opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_blocks(segment: Segment, start: int, size: int) -> Iterator[tuple[int, bytes, OSError | None]]:
    """The ``size`` bytes of the file at ``start``, block by block: where it begins in the file, its bytes, and the
    error if it cannot be read; then the bytes are zeros."""
    at, end = start, start + size
    while at < end:
        piece = min(DISK_BLOCK_BYTES - at % DISK_BLOCK_BYTES, end - at)
        try:
            yield at, segment.file.pread(piece, at), None
        except OSError as error:
            yield at, bytes(piece), error
        at += piece


def read_around(segment: Segment, start: int, size: int, filler: bytes = b"\0") -> bytes:
    """``size`` bytes of the file at ``start``, with the byte ``filler`` in place of unreadable blocks."""
    try:
        return segment.file.pread(size, start)
    except OSError:
        blocks = read_blocks(segment, start, size)
        return b"".join(data if error is None else filler * len(data) for _, data, error in blocks)


class Segments:
    """The row of files in ``folder``.

    ``sparse`` files have no reserved disk space, and their names are flushed later, by :meth:`sync`: they are for data
    that can be rebuilt. Reading and :meth:`sync` may be called from any thread, :meth:`prepare_next` from one worker
    beside the thread that writes.
    """

    def __init__(self, env: Env, folder: str, file_bytes: int, staging: str, *, sparse: bool = False) -> None:
        self._env = env
        self.folder = folder
        self.file_bytes = file_bytes
        self._staging = staging
        self._sparse = sparse
        self._segments: list[Segment] = []
        self._detached: deque[Segment] = deque()
        self._discarding = threading.Lock()
        self._prepared: Segment | None = None
        self._outages = Outages(log, env.monotonic)
        self._names_unsynced = False
        self._creating = threading.Lock()

    def __iter__(self) -> Iterator[Segment]:
        return iter(list(self._segments))

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def start(self) -> int:
        """Offset of the first byte; 0 without files."""
        segments = self._segments
        return segments[0].base if segments else 0

    @property
    def end(self) -> int:
        """Offset behind the last file; 0 without files."""
        segments = self._segments
        return segments[-1].end if segments else 0

    @property
    def prepared_end(self) -> int:
        """Offset behind the last file with reserved space: :attr:`end`, or the end of the file that was created in
        advance."""
        prepared = self._prepared
        return self.end if prepared is None else prepared.end

    def load(self) -> None:
        """Find the files. :class:`StoreDamaged` when one has another size, is missing, or does not belong there."""
        for name in self._env.listdir(self.folder):
            path = f"{self.folder}/{name}"
            if not _NAME.fullmatch(name) or self._env.is_dir(path):
                raise StoreDamaged(f"{path} does not belong in {self.folder}: move it out; nothing was changed")
            segment = Segment(self._env, path, int(name), self.file_bytes)
            size = segment.file.size()
            segment.close()
            if size == 0 and name == max(self._env.listdir(self.folder)):
                # RocketMQ's broker was interrupted while it created the next file.
                self._env.unlink(path)
                continue
            if size != self.file_bytes:
                raise StoreDamaged(
                    f"{path} has {size} bytes where {self.file_bytes} are configured: set the file size that this "
                    "store was written with, or restore the whole file"
                )
            if segment.base % self.file_bytes or segment.end > _END_MAX:
                raise StoreDamaged(
                    f"{path} begins where no file of {self.file_bytes} bytes can: move it out; nothing was changed"
                )
            if self._segments and self._segments[-1].end != segment.base:
                raise StoreDamaged(
                    f"{self.folder}: no file between offset {self._segments[-1].end} and {segment.base}: restore "
                    "the missing file; nothing was changed"
                )
            self._segments.append(segment)

    def at(self, offset: int) -> Segment | None:
        """Return the file that holds ``offset``."""
        segments = self._segments
        if not segments or not segments[0].base <= offset < segments[-1].end:
            return None
        return segments[(offset - segments[0].base) // self.file_bytes]

    def pread(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, no further than the end of that file; nothing where there is no file."""
        segment = self.at(offset)
        if segment is None:
            return b""
        try:
            return segment.file.pread(min(size, segment.end - offset), offset - segment.base)
        except OSError:
            self._raise_if_there(segment, offset)
            return b""

    def read_readable(self, offset: int, size: int) -> bytes:
        """As :meth:`pread`, up to the first unreadable block; :class:`OSError` if the first block is unreadable."""
        try:
            return self.pread(offset, size)
        except OSError:
            found = bytearray()
            while len(found) < size:
                at = offset + len(found)
                try:
                    piece = self.pread(at, min(DISK_BLOCK_BYTES - at % DISK_BLOCK_BYTES, size - len(found)))
                except OSError:
                    break
                if not piece:
                    break
                found += piece
            if not found:
                raise
            return bytes(found)

    def peek(self, offset: int, size: int) -> bytes | None:
        """As :meth:`pread`; None instead of waiting for the disk."""
        segment = self.at(offset)
        if segment is None:
            return b""
        try:
            return segment.file.peek(min(size, segment.end - offset), offset - segment.base)
        except OSError:
            self._raise_if_there(segment, offset)
            return b""

    def _raise_if_there(self, segment: Segment, offset: int) -> None:
        """Raise the current exception, unless another thread has deleted the file meanwhile."""
        if self.at(offset) is segment:
            raise

    def write(self, offset: int, data: bytes | memoryview, zeros: int = 0) -> None:
        """Write ``data`` and so many bytes of zeros, which must lie within one existing file."""
        segment = self.at(offset)
        if segment is None:
            raise ValueError(f"{self.folder}: {len(data) + zeros} bytes at {offset} are not within one file")
        segment.write(offset, data, zeros)

    def ensure(self, offset: int) -> Segment:
        """Return the file that holds ``offset``; it is created if it is the next (or the first) one. :class:`NoRoom`
        without disk space."""
        segment = self.at(offset)
        if segment is not None:
            return segment
        base = offset - offset % self.file_bytes
        if self._segments and base != self.end:
            raise ValueError(f"{self.folder}: the file at {base} would leave a gap behind {self.end}")
        with self._creating:
            prepared, self._prepared = self._prepared, None
            segment = prepared if prepared is not None and prepared.base == base else self._create(base)
            self._segments.append(segment)
        return segment

    def prepare_next(self) -> bool:
        """Create the next file, unless it exists; False without disk space."""
        with self._creating:
            if self._segments and self._prepared is None:
                try:
                    self._prepared = self._create(self.end)
                except NoRoom as error:
                    self._outages.warning("next_file_not_prepared", reason=str(error))
                    return False
                self._outages.over("next_file_not_prepared")
        return True

    def _create(self, base: int) -> Segment:
        path = f"{self.folder}/{base:020d}"
        staged = f"{self._staging}/{self._env.random_int(1 << 62):020d}"
        try:
            file = self._env.open(staged, create=True)
            try:
                if self._sparse:
                    file.truncate(self.file_bytes)
                else:
                    file.preallocate(self.file_bytes)
                    file.datasync()
                self._env.rename(staged, path)
            except BaseException:
                file.close()
                if self._env.exists(staged):
                    self._env.unlink(staged)
                raise
        except OSError as error:
            if error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
                raise NoRoom(path, error) from error
            raise
        if self._sparse:
            self._names_unsynced = True
        else:
            try:
                self._sync_names()
            except BaseException:
                file.close()
                raise
        return Segment(self._env, path, base, self.file_bytes, file)

    def sync(self) -> None:
        """Flush everything that was written before, and the names of the files."""
        for segment in list(self._segments):
            if segment.unsynced:
                segment.unsynced = False
                segment.file.datasync()
        if self._names_unsynced:
            self._names_unsynced = False
            try:
                self._sync_names()
            except NoRoom:
                self._names_unsynced = True
                raise

    def flushed_elsewhere(self) -> None:
        """The caller flushes the folder as a whole: what was written before needs no :meth:`sync`."""
        for segment in list(self._segments):
            segment.unsynced = False
        self._names_unsynced = False

    def _sync_names(self) -> None:
        try:
            self._env.sync_dir(self.folder)
        except OSError as error:
            # A failed flush must not be retried: it could succeed without effect. This one was not begun.
            if error.errno in NO_DESCRIPTORS:
                raise NoRoom(self.folder, error) from error
            raise

    def last_nonzero(self, offset: int) -> int:
        """Return the offset behind the last byte at or after ``offset`` that is not zero; ``offset`` if there is
        none."""
        last = offset
        for segment in self:
            for start, chunk in _nonzero_chunks(segment, max(offset, segment.base)):
                last = start + len(chunk.rstrip(b"\0"))
        return last

    def truncate(self, offset: int) -> None:
        """Turn everything from ``offset`` on into zeros: delete the later files, overwrite the rest, flush.

        Overwrite, because truncating and extending could fail on a full disk and leave a file too short.
        """
        with self._creating:
            prepared, self._prepared = self._prepared, None
            doomed = [segment for segment in self._segments if segment.base >= offset and segment.base > self.start]
            for segment in reversed([*doomed, *([prepared] if prepared else [])]):
                if segment in self._segments:
                    self._segments.remove(segment)
                segment.close()
                self._env.unlink(segment.path)
        if doomed or prepared:
            self._env.sync_dir(self.folder)
        last = self.at(offset)
        if last is not None:
            self._zero(last, offset)

    def _zero(self, segment: Segment, offset: int) -> None:
        for start, chunk in _nonzero_chunks(segment, offset):
            segment.write(start, _ZEROS[: len(chunk)])
        self.sync()

    def detach_before(self, offset: int) -> list[Segment]:
        """Remove the files that end at or before ``offset`` from the list, but never the last one; :meth:`discard`
        deletes them.

        A thread that is reading continues with its own list.
        """
        segments = self._segments
        count = sum(segment.end <= offset for segment in segments[:-1])
        self._segments = segments[count:]
        self._detached.extend(segments[:count])
        return segments[:count]

    @property
    def undeleted(self) -> list[Segment]:
        """The detached files that are not deleted yet, the oldest first."""
        return list(self._detached)

    def discard(self, detached: list[Segment]) -> None:
        """Delete detached files, and before them all older ones that were detached.

        The oldest goes first, and after an :class:`OSError` a later call begins with the file that failed: so the files
        on the disk never have a gap, after which no start would be possible. A call waits for another one.
        """
        last = detached[-1].base if detached else -1
        deleted = False
        with self._discarding:
            while self._detached and self._detached[0].base <= last:
                segment = self._detached[0]
                segment.close()
                with suppress(FileNotFoundError):  # it was deleted, and then an error followed
                    self._env.delete_large(segment.path, self._staging)
                self._detached.popleft()
                deleted = True
            if deleted:
                self._env.sync_dir(self.folder)

    def delete_before(self, offset: int) -> int:
        """Delete the files that end at or before ``offset``, never the last one. Returns how many.

        An :class:`OSError` leaves the rest for the next call; while a file of an earlier call cannot be deleted, no
        others are removed from the list.
        """
        self.discard(self.undeleted)
        detached = self.detach_before(offset)
        self.discard(detached)
        return len(detached)

    def close(self) -> None:
        """Close all files."""
        for segment in [*self._segments, *self._detached, *([self._prepared] if self._prepared else [])]:
            segment.close()


def _nonzero_chunks(segment: Segment, offset: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of the parts of ``segment``, from ``offset`` on, that are not all zero.

    Unreadable blocks are among them, so that zeros are written over them too.
    """
    for first, last in segment.file.data_ranges(offset - segment.base):
        for start in range(first, last, _CHUNK_BYTES):
            chunk = read_around(segment, start, min(_CHUNK_BYTES, last - start), filler=b"\xff")
            if chunk != _ZEROS[: len(chunk)]:
                yield segment.base + start, chunk

"""Verify the index files at a start, and determine the log offset from which to build the index.

Files that match the marks are accepted. Files of another broker are accepted after its clean stop, and after its crash
if the checkpoint covers them (``IndexService.load``). All others, and the files behind them, are deleted and rebuilt
from the log. RocketMQ deletes them too, but rebuilds only the part that its log recovery happens to read (#3868 there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import structlog

from gantrymq.kernel.env import Env
from gantrymq.kernel.errors import NO_DESCRIPTORS, CorruptRange
from gantrymq.plugins.index.files import IndexFiles
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.index.layout import HEADER_BYTES, NAME, Header, decode_header
from gantrymq.plugins.index.marks import FileMark, IndexMarks, read_marks

if TYPE_CHECKING:
    from gantrymq.kernel.store.log.commitlog import CommitLog

log = structlog.get_logger("gantrymq.index")

REBUILT = "the file and those after it are deleted and built again from the log"


@attrs.frozen
class StopKind:
    """How the store was stopped: cleanly or not, and the checkpoint's index timestamp (ms)."""

    clean: bool
    index_timestamp: int


class IndexVerification:
    """One verification of the files of ``index``, after the log's recovery."""

    def __init__(self, env: Env, index: IndexFiles, commit_log: CommitLog, stop: StopKind) -> None:
        self._env = env
        self._index = index
        self._log = commit_log
        self._stop = stop
        self._vouched = True

    def load(self) -> None:
        """Fill ``index.files`` and set ``index.position``; delete unreliable files.

        After an :class:`OSError`, ``index.files`` are the reliable ones, and no keys may be added. If the process has
        no file descriptor left, nothing has changed, and a new verification may try again.
        """
        index = self._index
        marks = read_marks(self._env, index.marks_path)
        if marks is not None and marks.offset > self._log.end:
            # The log was cut. After a crash, when it has grown beyond that offset, they would seem valid.
            self._env.unlink(index.marks_path)
            self._env.sync_dir(index.marks_path.rpartition("/")[0])
        known = {} if marks is None else {mark.name: mark for mark in marks.files}
        names = [
            name
            for name in self._env.listdir(index.folder)
            if NAME.fullmatch(name) and not self._env.is_dir(f"{index.folder}/{name}")
        ]
        missing = self._missing(known, names)
        kept: list[IndexFile] = []
        for name in names:
            file = None
            if missing is None or name < missing:
                try:
                    file = self._open(name, known.get(name), kept[-1] if kept else None)
                except OSError as error:
                    _raise_without_descriptors(error, kept)
                    _log_unreadable(f"{index.folder}/{name}", error)
            if file is None:
                break
            kept.append(file)
        whole = self._vouched and missing is None and len(kept) == len(names)
        index.position = self._first_missing(marks if whole else None, kept)
        index.files = kept
        for name in names[len(kept) :]:
            log.warning("index_file_rebuilt", path=f"{index.folder}/{name}")
            self._env.unlink(f"{index.folder}/{name}")
        log.info("index_loaded", files=len(kept), position=index.position, log_end=self._log.end)

    def _missing(self, known: dict[str, FileMark], names: list[str]) -> str | None:
        """Return the name of the first missing file."""
        start = self._log.min_offset
        gone = [name for name, mark in known.items() if name not in names and mark.header.end_offset >= start]
        return min(gone, default=None)

    def _open(self, name: str, mark: FileMark | None, before: IndexFile | None) -> IndexFile | None:
        """Return the file, ready for use, or None if it must be rebuilt."""
        index = self._index
        path = f"{index.folder}/{name}"
        opened = self._env.open(path)
        try:
            if opened.size() != index.shape.file_bytes:
                return None
            found = opened.pread(HEADER_BYTES, 0)
        finally:
            opened.close()
        ours = mark is not None and found in mark.found
        if mark is not None and ours:
            header = mark.header
        else:
            self._vouched = False
            header = decode_header(found)
            if header.count <= 1 or not (self._stop.clean or header.end_timestamp <= self._stop.index_timestamp):
                return None
        if not self._fits(header, before):
            return None
        on_disk = mark.found if mark is not None and ours else (found,)
        file = IndexFile(self._env, path, index.shape, header, on_disk)
        if ours and file.is_settled:
            return file if file.is_full or file.load_slots() else None
        if mark is not None and not ours and not file.continues(mark.header):
            return None
        if not file.rebuild():
            return None
        if file.is_full and file.is_settled:
            file.forget_slots()
        return file

    def _fits(self, header: Header, before: IndexFile | None) -> bool:
        follows = before is None or (before.is_full and before.header.end_offset <= header.begin_offset)
        return self._index.shape.is_sane(header) and follows and header.end_offset < max(self._log.end, 1)

    def _first_missing(self, marks: IndexMarks | None, kept: list[IndexFile]) -> int:
        """Return the position; remove the last files from ``kept`` as long as their last entries cannot be read."""
        while True:
            try:
                return self._position(marks, kept)
            except OSError as error:
                _raise_without_descriptors(error, kept)
                file = kept.pop()
                file.close()
                _log_unreadable(file.path, error)

    def _position(self, marks: IndexMarks | None, kept: list[IndexFile]) -> int:
        start, end = self._log.min_offset, self._log.end
        if marks is not None and start <= marks.offset <= end:
            return marks.offset
        if not kept:
            return start
        last = kept[-1].header.end_offset
        if last < start:
            return start
        if kept[-1].is_full:
            # Its last message may have more keys, for the next file.
            self._index.keys_done = _keys_done(kept, last)
            return last
        try:
            return last + int.from_bytes(self._log.view(last, 4), "big")
        except CorruptRange:  # the unreadable part is skipped when the index is built from there
            self._index.keys_done = _keys_done(kept, last)
            return last


def _raise_without_descriptors(error: OSError, opened: list[IndexFile]) -> None:
    """A file that no descriptor is left to open is not damaged, and is not to be rebuilt."""
    if error.errno in NO_DESCRIPTORS:
        for file in opened:
            file.close()
        raise error


def _log_unreadable(path: str, error: OSError) -> None:
    log.warning("index_unreadable", path=path, error=str(error), reason=REBUILT)


def _keys_done(files: list[IndexFile], offset: int) -> int:
    done = 0
    for file in reversed(files):
        if file.header.end_offset != offset:
            break
        count, whole = file.last_keys()
        done += count
        if not whole:
            break
    return done

"""Compare the index files of a store with the keys of its records. Both are in the order of the log.

Source of the format: ``docs/format/index.md``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env, File
from gantrymq.kernel.stopped_store import FileFinding
from gantrymq.maintenance.store_files import read_small
from gantrymq.plugins.index.build import key_hash, message_keys
from gantrymq.plugins.index.indexfile import IndexFile
from gantrymq.plugins.index.layout import ENTRY, HEADER_BYTES, NAME, Header, Shape, decode_header
from gantrymq.plugins.index.marks import FileMark, decode_marks

_CHUNK: Final = 4096
_ROLLED_BACK: Final = 0xC


@attrs.frozen
class IndexProblem:
    """A damaged index file, and how many entries of it are wrong or missing as far as that can be counted."""

    path: str
    reason: str
    entries: int = 0


@attrs.define
class IndexCheck:
    """Takes the records in the order of the log, then :meth:`finish`.

    ``clean``: the last broker stopped cleanly. ``foreign``: RocketMQ's wrote last, so GantryMQ's marks are obsolete.
    ``log_start``: the log's first offset. Index files stay until all their entries lie before it.
    """

    env: Env
    root: str
    shape: Shape
    clean: bool
    foreign: bool = False
    log_start: int = 0
    entries: int = 0
    notes: list[FileFinding] = attrs.field(factory=list, init=False)
    """What the next start corrects by itself."""
    _problems: dict[str, IndexProblem] = attrs.field(factory=dict, init=False)
    _unmatched: dict[str, array[int]] = attrs.field(factory=dict, init=False)
    _cursor: Iterator[tuple[str, int, int]] = attrs.field(init=False)
    _next: tuple[str, int, int] | None = attrs.field(init=False)
    _first: int | None = attrs.field(default=None, init=False)
    """The log offset of the first entry, also of one before the log's start."""

    def __attrs_post_init__(self) -> None:
        self._cursor = self._all_entries()
        self._next = next(self._cursor, None)

    def _all_entries(self) -> Iterator[tuple[str, int, int]]:
        """Path, key hash and log offset of each entry of the files that are not damaged by themselves."""
        known = self._known()
        folder = f"{self.root}/index"
        if not (self.foreign or self._problems or self.env.exists(f"{self.root}/gantrymq.index")):
            self._note("gantrymq.index", "the store has no index")
        if not self.env.is_dir(folder):
            if self.env.exists(folder):
                self._add(folder, "is not a folder")
            return
        names = [name for name in self.env.listdir(folder) if NAME.fullmatch(name)]
        needed = [name for name, mark in known.items() if mark.header.end_offset >= self.log_start]
        for name in sorted({*names, *needed}):
            path = f"{folder}/{name}"
            if name not in names and name > max(names, default=""):
                self._note(f"index/{name}", "the file is missing")
                break
            if name not in names:
                self._add(path, "the file is missing")
                continue
            try:
                opened = self.env.open(path)
            except OSError as error:
                self._add(path, f"cannot be opened: {error.strerror}")
                continue
            try:
                if opened.size() != self.shape.file_bytes:
                    self._add(path, f"has {opened.size()} bytes instead of {self.shape.file_bytes}")
                    continue
                found = opened.pread(HEADER_BYTES, 0)
                mark = known.get(name)
                if mark is not None and found in mark.found:
                    header, is_settled = mark.header, mark.found == (mark.state,)
                else:
                    header, is_settled = decode_header(found), mark is None and self.clean
                    if mark is not None:
                        if self.clean:  # otherwise RocketMQ's broker may have been killed, and the next start builds it
                            self._add(path, "the header is not the one that was written")
                        continue
                    if not self.clean:
                        continue  # the next start builds it again
                if not self.shape.is_sane(header):
                    self._add(path, "the header contradicts itself")
                    continue
                if not self._chains_are_right(path, header, is_settled):
                    continue
                yield from self._entries_of(opened, header, path)
            finally:
                opened.close()

    def _known(self) -> dict[str, FileMark]:
        """The files that GantryMQ has written, by name."""
        path = f"{self.root}/gantrymq.index"
        if self.foreign or not self.env.exists(path):
            return {}
        try:
            return {mark.name: mark for mark in decode_marks(read_small(self.env, path)).files}
        except (ValueError, OSError, OverflowError, RecursionError) as error:
            self._add(path, f"is not what the broker writes: {error}")
            return {}

    def _chains_are_right(self, path: str, header: Header, is_settled: bool) -> bool:
        built = IndexFile(self.env, path, self.shape, header, (header.encode(),))
        stored = IndexFile(self.env, path, self.shape, header, (header.encode(),))
        try:
            if not built.rebuild():
                self._add(path, "entries contradict each other or the header")
                return False
            if is_settled and (not stored.load_slots() or built.slots != stored.slots):
                self._add(path, "hash slots do not match the entries")
                return False
            return True
        finally:
            built.close()
            stored.close()

    def _entries_of(self, file: File, header: Header, path: str) -> Iterator[tuple[str, int, int]]:
        for number in range(1, header.count, _CHUNK):
            count = min(_CHUNK, header.count - number)
            data = file.pread(count * ENTRY.size, self.shape.entries_at + number * ENTRY.size)
            for hashed, offset, _, _ in ENTRY.iter_unpack(data):
                if self._first is None:
                    self._first = offset
                if offset >= self.log_start:
                    yield path, hashed, offset

    def check(self, batch: DispatchBatch) -> None:
        """Compare the keys of the records of ``batch`` with the next entries."""
        for row, properties in enumerate(batch.properties):
            if self._next is None:
                return
            if b"KEY" not in properties or batch.sys_flags[row] & _ROLLED_BACK == _ROLLED_BACK:
                continue
            offset = batch.offsets[row]
            if self._first is None or offset < max(self._first, self.log_start):
                continue
            topic = batch.topics[row].encode()
            expected = [key_hash(topic + b"#" + key) for key in message_keys(properties)]
            self._compare(offset, expected)

    def _compare(self, offset: int, expected: Sequence[int]) -> None:
        while self._next is not None and self._next[2] < offset:
            self._unmatched.setdefault(self._next[0], array("q")).append(self._next[2])
            self._next = next(self._cursor, None)
        found: list[int] = []
        path = ""
        while self._next is not None and self._next[2] == offset:
            path = self._next[0]
            found.append(self._next[1])
            self.entries += 1
            self._next = next(self._cursor, None)
        if found == list(expected) or (offset == self._first and found == list(expected)[-len(found) :]):
            return
        if self.notes and self._next is None and found == list(expected)[: len(found)]:
            return  # the rest of its keys is in the missing file
        if found:
            self._add(path, "entries are not those of the messages' keys", 1)
        elif self._next is not None:
            self._add(self._next[0], "keys of messages are missing", 1)

    def finish(self, damage: Sequence[tuple[int, int]], log_end: int) -> list[IndexProblem]:
        """The problems. ``damage``: ranges of the log in ascending order, whose entries are right to be there."""
        while self._next is not None:
            self._unmatched.setdefault(self._next[0], array("q")).append(self._next[2])
            self._next = next(self._cursor, None)
        starts = [start for start, _ in damage]
        for path, offsets in self._unmatched.items():
            for offset in offsets:
                number = bisect_right(starts, offset) - 1
                is_damaged = number >= 0 and offset < damage[number][1]
                if not is_damaged and (self.clean or offset < log_end):
                    self._add(path, "entries name offsets at which no message with a key is", 1)
        return list(self._problems.values())

    def _note(self, path: str, problem: str) -> None:
        meaning = "the next start of gantrymq builds the index from the log, which RocketMQ's broker does not"
        self.notes.append(FileFinding(path, problem, meaning, is_damage=False))

    def _add(self, path: str, reason: str, entries: int = 0) -> None:
        known = self._problems.get(path)
        if known is None:
            self._problems[path] = IndexProblem(path, reason, entries)
        elif entries:
            self._problems[path] = attrs.evolve(known, entries=known.entries + entries)

"""Read the files of a store without a broker and without changing them: the log, the consume queues, the watermark.

Sizes of files are found from the files themselves, so no configuration is needed. Formats: ``docs/format``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from math import gcd
from typing import Final

import attrs

from gantrymq.kernel.env import Env, File
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.stopped_store import SMALL_BYTES
from gantrymq.kernel.store.log.record import TOPIC_PATTERN
from gantrymq.kernel.store.log.segments import Segment, Segments
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, LIGHT_TOPIC
from gantrymq.kernel.store.queues.deletions import read_deletion
from gantrymq.kernel.store.queues.search import first
from gantrymq.kernel.store.recovery.checkpoint import Checkpoint, Marks, decode_checkpoint, decode_marks, decode_start
from gantrymq.kernel.store.recovery.queue_ends import QueueEnd
from gantrymq.kernel.store.store import RESTORING, UNFINISHED_RESTORE

_NAME = re.compile(r"[0-9]{20}")
_QUEUE_ID = re.compile(r"[0-9]{1,10}")
UNIT: Final = ENTRY.size
_OPEN_FILES: Final = 256
_MARK_BYTES: Final = 4096
_OFFSET_MAX: Final = 2**63 - 1
_QUEUE_ID_MAX: Final = 2**31 - 1
MISSING_LISTED: Final = 100
"""The most missing files that are listed for one gap; one more entry has the rest of the gap."""
FOREIGN: Final = "does not belong in this folder"


@attrs.frozen
class FileProblem:
    """A file with a wrong offset or size. ``start``, ``end``: the range that it should hold."""

    path: str
    reason: str
    start: int = 0
    end: int = 0


class LogRun(Segments):
    """Log files that follow each other without a gap."""

    def __init__(self, env: Env, folder: str, file_bytes: int, bases: list[int]) -> None:
        super().__init__(env, folder, file_bytes, f"{folder}/../staging")
        self._segments = [Segment(env, f"{folder}/{base:020d}", base, file_bytes) for base in bases]


@attrs.frozen
class StoreState:
    """Contents of the small files. ``marks``: the valid slot of the watermark, None if RocketMQ wrote the store last.

    ``clean``: the last broker stopped cleanly, or no broker ever ran. ``log_start``: the log's first offset, if it is
    recorded.
    """

    checkpoint: Checkpoint
    marks: Marks | None
    log_start: int | None
    clean: bool


def read_state(env: Env, root: str) -> StoreState:
    """The store's state. :class:`StartError` if ``root`` is not a store, or a restore into it has not finished."""
    if not env.is_dir(f"{root}/commitlog"):
        raise StartError(f"{root} is not the folder of a store: it has no folder 'commitlog'; choose another (--data)")
    if env.exists(f"{root}/{RESTORING}"):
        raise StartError(UNFINISHED_RESTORE.format(root=root))
    checkpoint = decode_checkpoint(_head_of(env, f"{root}/checkpoint"))
    data = _head_of(env, f"{root}/gantrymq.watermark")
    marks, _ = decode_marks(data, checkpoint)
    clean = not env.exists(f"{root}/abort") and (marks is None or marks.clean)
    return StoreState(checkpoint, marks, decode_start(data), clean)


def _head_of(env: Env, path: str) -> bytes:
    if not env.exists(path):
        return b""
    try:
        file = env.open(path)
        try:
            return file.pread(_MARK_BYTES, 0)
        finally:
            file.close()
    except PermissionError:
        raise
    except OSError as error:  # a folder, a pipe, a symbolic link
        raise StartError(
            f"{path}: {error.strerror}, and no broker starts with it: move it away; "
            "the next start then reads the whole log"
        ) from None


def find_files(env: Env, folder: str, *, file_bytes: int | None = None) -> tuple[int, list[int], list[FileProblem]]:
    """The size of the files in ``folder``, the offsets at which files of that size begin, and the other files.

    ``file_bytes``: the size if it is known; otherwise, it is the one that most files have. An empty last file is what
    an interrupted broker leaves, and no problem.
    """
    sizes, problems = _sizes(env, folder)
    if file_bytes is None:
        file_bytes = _most_common(sizes.items())
    bases = []
    for name, size in sizes.items():
        base = int(name)
        if size == 0 and name == max(sizes):
            continue
        if size != file_bytes or not file_bytes:
            end = base + file_bytes if base <= _OFFSET_MAX - file_bytes else 0
            problems.append(
                FileProblem(f"{folder}/{name}", f"has {size} bytes instead of {file_bytes}", base if end else 0, end)
            )
        elif base % file_bytes or base > _OFFSET_MAX - file_bytes:
            problems.append(FileProblem(f"{folder}/{name}", f"begins where no file of {file_bytes} bytes can"))
        else:
            bases.append(base)
    return file_bytes, bases, problems


def _sizes(env: Env, folder: str) -> tuple[dict[str, int], list[FileProblem]]:
    """The sizes of the files in ``folder`` by name, and what is no such file or cannot be opened."""
    sizes: dict[str, int] = {}
    problems = []
    for name in env.listdir(folder):
        path = f"{folder}/{name}"
        if not _NAME.fullmatch(name) or env.is_dir(path):
            problems.append(FileProblem(path, FOREIGN))
            continue
        try:
            sizes[name] = size_of(env, path)
        except FileNotFoundError:
            continue  # a running broker has deleted it since the folder was listed
        except OSError as error:  # a symbolic link, a socket, another user's file
            problems.append(FileProblem(path, f"cannot be opened: {error.strerror}"))
    return sizes, problems


def _most_common(files: Iterable[tuple[str, int]], unit: int = 1) -> int:
    """The size that most of the ``files``, given by name and size, have; 0 if there is none.

    Among equals, it is one with which each file begins at a multiple of it, then the largest, because damage truncates.
    A size that is not a multiple of ``unit`` is never right.
    """
    counts: Counter[int] = Counter()
    step = 0
    for name, size in files:
        step = gcd(step, int(name))
        if size and size % unit == 0:
            counts[size] += 1
    return max(counts, key=lambda size: (counts[size], step % size == 0, size), default=0)


def queue_file_bytes(env: Env, root: str) -> int:
    """The size of the store's queue files, which all have the same; 0 if there is none."""

    def files() -> Iterator[tuple[str, int]]:
        for topic in env.listdir(f"{root}/consumequeue") if env.is_dir(f"{root}/consumequeue") else ():
            folder = f"{root}/consumequeue/{topic}"
            for name in env.listdir(folder) if env.is_dir(folder) else ():
                if is_queue_id(name) and env.is_dir(f"{folder}/{name}"):
                    yield from _sizes(env, f"{folder}/{name}")[0].items()

    return _most_common(files(), UNIT)


def size_of(env: Env, path: str) -> int:
    """The size of a file. :class:`OSError` if it is not a file, a symbolic link, or cannot be opened."""
    file = env.open(path)
    try:
        return file.size()
    finally:
        file.close()


def read_small(env: Env, path: str) -> bytes:
    """The content of a state file; empty if it is missing. :class:`ValueError` if it is too large to be one,
    :class:`OSError` if it is not a file, such as a pipe, or a symbolic link."""
    if not env.exists(path):
        return b""
    file = env.open(path)
    try:
        size = file.size()
        if size > SMALL_BYTES:
            raise ValueError(f"has {size} bytes; no broker writes more than {SMALL_BYTES}")
        return file.pread(size, 0)
    finally:
        file.close()


def _missing(folder: str, start: int, end: int, file_bytes: int, known: set[int]) -> Iterator[FileProblem]:
    """The files that are missing from ``start`` to ``end``, without those that begin at an offset in ``known``."""
    listed_end = min(end, start + MISSING_LISTED * file_bytes)
    for base in range(start, listed_end, file_bytes):
        if base not in known:
            yield FileProblem(f"{folder}/{base:020d}", "is missing", base, base + file_bytes)
    if listed_end < end:
        count = (end - listed_end) // file_bytes
        yield FileProblem(f"{folder}/{listed_end:020d}", f"and {count - 1} more are missing", listed_end, end)


def log_runs(env: Env, root: str) -> tuple[list[LogRun], list[FileProblem]]:
    """The log as runs of files without gaps, and the problems: wrong files and the ranges of missing ones."""
    folder = f"{root}/commitlog"
    file_bytes, bases, problems = find_files(env, folder)
    if not bases:
        return [], problems
    groups: list[list[int]] = [[bases[0]]]
    wrong = {problem.start for problem in problems if problem.end}
    for base in bases[1:]:
        end = groups[-1][-1] + file_bytes
        if base == end:
            groups[-1].append(base)
            continue
        problems += _missing(folder, end, base, file_bytes, wrong)
        groups.append([base])
    return [LogRun(env, folder, file_bytes, group) for group in groups], problems


def read_deletions(env: Env, root: str) -> dict[str, int]:
    """Topics and the log offsets before which their records are deleted; invalid lines are ignored."""
    ends: dict[str, int] = {}
    try:
        data = read_small(env, f"{root}/gantrymq.deleted")
    except (ValueError, OSError):
        return ends
    for line in data.rstrip(b"\0").splitlines():
        deletion = read_deletion(line)
        if deletion is not None:
            topic, end = deletion
            ends[topic] = max(end, ends.get(topic, 0))
    return ends


class OpenedFiles:
    """Files that stay open for reading and correcting, at most 256 of them."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """The open file."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._env.open(path)
        self._files[path] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class QueueFiles:
    """The files of one consume queue. Offsets count entries of 20 bytes.

    ``cut``: where files of a wrong size begin that only show where the queue ends.
    """

    def __init__(
        self,
        files: OpenedFiles,
        folder: str,
        topic: str,
        queue_id: int,
        file_bytes: int,
        bases: list[int],
        cut: Iterable[int] = (),
    ) -> None:
        self._files = files
        self.folder = folder
        self.topic = topic
        self.queue_id = queue_id
        self._file_bytes = file_bytes
        self._bases = frozenset(bases)
        self._all_bases = sorted({*bases, *cut}, reverse=True)
        self.right: list[tuple[int, int]] = []
        """Ranges of queue offsets whose entries match their records."""
        self._newest_right = 0
        self._is_ascending = True

    def read(self, first: int, count: int) -> bytes:
        """Up to ``count`` entries; fewer where no file is."""
        found = bytearray()
        at, end = first * UNIT, (first + count) * UNIT
        while at < end:
            base = at - at % self._file_bytes
            if base not in self._bases:
                break
            size = min(end, base + self._file_bytes) - at
            found += self._files.get(f"{self.folder}/{base:020d}").pread(size, at - base)
            at += size
        return bytes(found)

    def correct(self, place: int, entry: bytes) -> bool:
        """Overwrite the entry at a queue offset and flush it; False where no file is."""
        at = place * UNIT
        base = at - at % self._file_bytes
        if base not in self._bases:
            return False
        file = self._files.get(f"{self.folder}/{base:020d}")
        file.pwrite(entry, at - base)
        file.datasync()
        return True

    def add_right(self, first: int, end: int) -> None:
        """The entries from ``first`` to ``end`` match their records."""
        self._is_ascending = self._is_ascending and first >= self._newest_right
        self._newest_right = max(self._newest_right, end)
        if self.right and self.right[-1][1] == first:
            self.right[-1] = (self.right[-1][0], end)
        else:
            self.right.append((first, end))

    def is_right(self, place: int) -> bool:
        """Whether the entry at a queue offset matches a record that was compared before."""
        if place >= self._newest_right:
            return False
        if not self._is_ascending:
            return any(first <= place < end for first, end in self.right)
        at = bisect_right(self.right, place, key=lambda each: each[0]) - 1
        return at >= 0 and place < self.right[at][1]

    def end(self) -> int:
        """The queue offset behind the last entry that is not empty, or behind the last right one."""
        for base in sorted(self._bases, reverse=True):
            first = max(base // UNIT, self._newest_right)
            written = [place for place, *_ in self._written(base, first, (base + self._file_bytes) // UNIT)]
            if written:
                return written[-1] + 1
            if base // UNIT <= self._newest_right:
                break
        return self._newest_right

    def end_before(self, log_end: int) -> int:
        """The queue offset behind the last entry that a broker finds when it starts, without entries of records that
        the log has lost, from its end ``log_end`` on, and fillers behind them. :class:`OSError`."""
        end = None
        for place, at, size in self._from_last():
            end = place + 1 if end is None else end
            if size != FILLER_SIZE:
                if at < log_end:
                    break
                end = place
        return min(self._bases, default=0) // UNIT if end is None else end

    def _from_last(self) -> Iterator[tuple[int, int, int]]:
        """Queue offset, log offset and size of the entries, from the last one on."""
        for base in self._all_bases:
            file = self._files.get(f"{self.folder}/{base:020d}")
            for number in reversed(range(self._count_written(base))):
                at, size, _ = ENTRY.unpack(file.pread(UNIT, number * UNIT))
                yield base // UNIT + number, at, size

    def _count_written(self, base: int) -> int:
        file = self._files.get(f"{self.folder}/{base:020d}")

        def is_free(number: int) -> bool:
            found = file.pread(UNIT, number * UNIT)
            at, size, _ = ENTRY.unpack(found) if len(found) == UNIT else (-1, 0, 0)
            return bool(at < 0 or size <= 0)

        return first(0, self._file_bytes // UNIT, is_free)

    def others(self) -> Iterator[tuple[int, int, int, int]]:
        """Entries that are not among :attr:`right` and are not empty: queue offset, log offset, size, tag code."""
        right, at = sorted(self.right), 0
        for base in sorted(self._bases):
            start, end = base // UNIT, (base + self._file_bytes) // UNIT
            while at < len(right) and right[at][0] < end:
                low, high = right[at]
                if high > start:
                    yield from self._written(base, start, min(low, end))
                    start = max(start, high)
                if high > end:
                    break  # it goes on in the next file
                at += 1
            yield from self._written(base, start, end)

    def _written(self, base: int, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        if start >= end:
            return
        file = self._files.get(f"{self.folder}/{base:020d}")
        for low, high in file.data_ranges(start * UNIT - base):
            first = max((base + low) // UNIT, start)
            last = min(-(-(base + high) // UNIT), end)
            while first < last:
                data = self.read(first, min(4096, last - first))
                if data.strip(b"\0"):
                    for number, (at, size, code) in enumerate(ENTRY.iter_unpack(data)):
                        if at or size or code:
                            yield first + number, at, size, code
                first += max(len(data) // UNIT, 1)


def queue_ends(queues: Iterable[QueueFiles], log_end: int) -> list[QueueEnd]:
    """Where the queues end, without those that are empty, or that no broker of GantryMQ builds from the log. Entries of
    records at or behind the end of the log, ``log_end``, do not count.

    Also of a running broker, whose newest entries may be missing: they follow from the log.
    """
    ends: list[QueueEnd] = []
    for queue in queues:
        with suppress(OSError):  # deleted meanwhile or unreadable
            end = queue.end_before(log_end)
            if end and TOPIC_PATTERN.fullmatch(queue.topic) and not queue.topic.startswith(LIGHT_TOPIC):
                ends.append((queue.topic, queue.queue_id, end))
    return ends


def is_queue_id(name: str) -> bool:
    """Whether a folder of this name is a queue's: RocketMQ's number, without leading zeros."""
    return bool(_QUEUE_ID.fullmatch(name)) and str(int(name)) == name and int(name) <= _QUEUE_ID_MAX


def find_queues(env: Env, root: str, files: OpenedFiles) -> tuple[dict[tuple[str, int], QueueFiles], list[FileProblem]]:
    """All consume queues, and the files among them that are wrong."""
    found: dict[tuple[str, int], QueueFiles] = {}
    problems: list[FileProblem] = []
    if not env.is_dir(f"{root}/consumequeue"):
        if env.exists(f"{root}/consumequeue"):
            problems.append(FileProblem(f"{root}/consumequeue", "is not a folder"))
        return found, problems
    file_bytes = queue_file_bytes(env, root)
    for topic in env.listdir(f"{root}/consumequeue"):
        if not env.is_dir(f"{root}/consumequeue/{topic}"):
            problems.append(FileProblem(f"{root}/consumequeue/{topic}", FOREIGN))
            continue
        for name in env.listdir(f"{root}/consumequeue/{topic}"):
            folder = f"{root}/consumequeue/{topic}/{name}"
            if not is_queue_id(name) or not env.is_dir(folder):
                problems.append(FileProblem(folder, FOREIGN))
                continue
            _, bases, wrong = find_files(env, folder, file_bytes=file_bytes)
            problems += wrong
            for before, after in pairwise(bases):
                problems += _missing(folder, before + file_bytes, after, file_bytes, set())
            starts = [each.start for each in wrong if each.end > each.start and each.start % file_bytes == 0]
            cut = [start for start in starts if not bases or start == bases[-1] + file_bytes]
            found[topic, int(name)] = QueueFiles(files, folder, topic, int(name), file_bytes or UNIT, bases, cut)
    return found, problems

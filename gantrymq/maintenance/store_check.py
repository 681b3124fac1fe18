"""Check the files of a store that no broker uses: each record of the log, then queues and index against the log.

The check changes nothing. A record's CRC covers its body. Header, topic and properties have none (RocketMQ's format),
so the check compares their lengths and offsets, and the topic, queue, queue offset and tags with the queue entry. With
``deep``, it also compares keys with the index and looks for properties that are not text. Formats: ``docs/format``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.env import Env
from gantrymq.kernel.fast import QueueEntries, Stop, queue_entries
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.stopped_store import FileFinding, StoppedStore
from gantrymq.kernel.store.log.record import TOPIC_PATTERN
from gantrymq.kernel.store.log.scan import scan_block
from gantrymq.kernel.store.log.segments import Segments
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, LIGHT_TOPIC
from gantrymq.kernel.store.queues.extension import is_address
from gantrymq.kernel.store.queues.table import TagCodeRule
from gantrymq.kernel.store.recovery.queue_ends import QUEUE_ENDS
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.maintenance.index_check import IndexCheck, IndexProblem
from gantrymq.maintenance.state_check import check_kernel_files
from gantrymq.maintenance.store_files import (
    UNIT,
    FileProblem,
    LogRun,
    OpenedFiles,
    QueueFiles,
    StoreState,
    find_queues,
    log_runs,
    read_deletions,
    read_state,
)
from gantrymq.plugins.index.layout import Shape
from gantrymq.remoting.names import SCHEDULE_TOPIC

LISTED_MAX: Final = 10_000
"""The most messages, entries and properties that are listed, each; the counts are complete."""
UNFINISHED_REPAIR: Final = "is of a repair that has not finished: repair again, or start the broker"
OTHER_PLACE: Final = "the topic, queue or queue offset in the record is damaged"
OFFSET_AND_SIZE: Final = struct.Struct(">qi")
"""The first 12 bytes of a queue entry."""
_ROWS: Final = 4096


@attrs.frozen
class LostMessage:
    """A message that a queue entry names and that cannot be read. ``offset`` and ``size`` are bytes of the log."""

    topic: str
    queue: int
    queue_offset: int
    offset: int
    size: int


@attrs.define
class Damage:
    """A range of the log without readable records, and the messages whose records overlap it."""

    start: int
    end: int
    reason: str
    path: str = ""
    message_count: int = 0
    messages: list[LostMessage] = attrs.field(factory=list)


@attrs.frozen
class WrongEntry:
    """A queue entry that does not match its record. ``expected``: the right entry of 20 bytes; None: no record."""

    topic: str
    queue: int
    queue_offset: int
    reason: str
    expected: bytes | None


@attrs.frozen
class SuspectRecord:
    """A record that is damaged outside of its body, although its lengths are right; no repair changes its entry.

    ``topic``, ``queue`` and ``queue_offset`` are those of its queue entry if it has one, else its own.
    """

    topic: str
    queue: int
    queue_offset: int
    offset: int
    reason: str = "the properties are not text"


@attrs.define
class StoreReport:
    """The result of a check. Offsets are bytes of the log.

    ``tail_bytes``: bytes behind the log's end that are not zero: the next start saves them to ``lost+found`` and cuts
    them off. ``tail_records``: whether intact records are among them, which that start would cut off too.
    """

    store: str
    written_by: str
    stopped_cleanly: bool
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    tail_bytes: int = 0
    tail_records: bool = False
    queues: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    damage: list[Damage] = attrs.field(factory=list)
    files: list[FileProblem] = attrs.field(factory=list)
    wrong_entry_count: int = 0
    wrong_entries: list[WrongEntry] = attrs.field(factory=list)
    suspect_records: list[SuspectRecord] = attrs.field(factory=list)
    index: list[IndexProblem] = attrs.field(factory=list)
    state: list[FileFinding] = attrs.field(factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not (
            self.damage
            or self.files
            or self.wrong_entry_count
            or self.suspect_records
            or self.index
            or self.tail_records
            or any(finding.is_damage for finding in self.state)
        )


@attrs.define
class StoreCheck:
    """One check of the store in ``root``, whose lock the caller holds.

    ``rules``: the rules for tag codes by topic; ``shape``: that of the index files. ``progress`` gets the log offset
    and the log's size. ``check_files`` checks plugins' files, with ``deep``.
    """

    env: Env
    root: str
    shape: Shape
    rules: dict[str, TagCodeRule] = attrs.field(factory=dict)
    deep: bool = False
    progress: Callable[[int, int], None] = lambda done, total: None
    check_files: Callable[[StoppedStore], None] = lambda store: None
    _ends: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    _newest: int = attrs.field(default=0, init=False)
    _wrong: dict[tuple[str, int, int], WrongEntry] = attrs.field(factory=dict, init=False)
    _unlisted: int = attrs.field(default=0, init=False)
    _floor: int = attrs.field(default=0, init=False)
    _state: StoreState = attrs.field(init=False)
    _runs: list[LogRun] = attrs.field(factory=list, init=False)
    report: StoreReport = attrs.field(init=False)
    _deletions: dict[str, int] = attrs.field(init=False)
    _queues: dict[tuple[str, int], QueueFiles] = attrs.field(init=False)
    _index: IndexCheck | None = attrs.field(default=None, init=False)

    def run(self) -> StoreReport:
        """Check everything. :class:`StartError` if ``root`` is not a store; :class:`OSError`."""
        state = read_state(self.env, self.root)
        self._state = state
        self.report = report = StoreReport(
            self.root, "gantrymq" if state.marks is not None else "rocketmq", state.clean
        )
        if state.marks is None and not self.env.listdir(f"{self.root}/commitlog"):
            report.written_by = "none"
        runs, problems = log_runs(self.env, self.root)
        self._runs = runs
        report.files += problems
        self._deletions = read_deletions(self.env, self.root) if state.marks is not None else {}
        files = OpenedFiles(self.env)
        try:
            self._queues, wrong = find_queues(self.env, self.root, files)
            report.files += wrong
            if self.env.exists(f"{self.root}/{QUEUE_ENDS}"):
                report.files.append(FileProblem(f"{self.root}/{QUEUE_ENDS}", UNFINISHED_REPAIR))
            report.queues = len(self._queues)
            report.log_start = report.log_end = runs[0].start if runs else 0
            if self.deep:
                # A killed broker may have recorded a later start, and deleted index files, but not yet the log's files.
                recorded = state.log_start if state.marks is not None else None
                start = max(report.log_start, recorded or 0)
                self._index = IndexCheck(self.env, self.root, self.shape, state.clean, state.marks is None, start)
            self._check_ends(runs, state)
            for problem in problems:
                if problem.end:
                    report.damage.append(Damage(problem.start, problem.end, "file missing or wrong", problem.path))
            for number, run in enumerate(runs):
                self._check_run(run, is_last=number == len(runs) - 1)
            report.damage.sort(key=lambda each: each.start)
            for queue in self._queues.values():
                self._check_others(queue)
            if self._index is not None:
                report.index += self._index.finish([(each.start, each.end) for each in report.damage], report.log_end)
                report.index_entries = self._index.entries
                report.state += self._index.notes
            if self.deep:
                report.state += self._check_state()
        finally:
            files.close()
            for run in runs:
                run.close()
        report.wrong_entries = list(self._wrong.values())
        report.wrong_entry_count = len(self._wrong) + self._unlisted
        return report

    def _check_state(self) -> list[FileFinding]:
        """The small files, against the log and the queues."""
        report, state = self.report, self._state
        ends = dict(self._ends)
        for key, queue in self._queues.items():
            ends[key] = max(queue.end(), ends.get(key, 0))
        newest = 0 if report.damage else self._newest  # the last message may be unreadable
        store = StoppedStore(
            self.env, self.root, state.clean, state.marks is None, report.log_start, report.log_end, newest, ends
        )
        check_kernel_files(store)
        self.check_files(store)
        return store.findings

    # ---------------------------------------------------------------------------------------------------- the log

    def _check_ends(self, runs: list[LogRun], state: StoreState) -> None:
        """Missing files at the start and at the end of the log, and the offset below which all must be readable."""
        report = self.report
        self._floor = 0
        if state.marks is not None:
            self._floor = state.marks.durable
            start = state.log_start
            if runs and start is not None and start < runs[0].start:
                report.damage.append(Damage(start, runs[0].start, "the oldest files are missing"))
            end = runs[-1].end if runs else 0
            if state.marks.durable > end:
                report.damage.append(Damage(end, state.marks.durable, "the newest files are missing"))
        elif state.clean and runs:
            self._floor = max((self._believed_end(runs[-1], queue) for queue in self._queues.values()), default=0)

    def _believed_end(self, run: LogRun, queue: QueueFiles) -> int:
        """The end of the last record that a queue of RocketMQ's broker names."""
        ends = (at + size for _, at, size, _ in queue.others() if size != FILLER_SIZE and size > 0 and at >= 0)
        return min(max(ends, default=0), run.end)

    def _check_run(self, run: LogRun, *, is_last: bool) -> None:
        position, newest = run.start, 0
        while (segment := run.at(position)) is not None:
            self.progress(position, run.end)
            reason = "no valid record"
            try:
                batch, stop = scan_block(run, position, segment.end, _ROWS, check_body=True)
            except OSError as error:
                reason = error.strerror or "cannot be read"
            else:
                if len(batch):
                    newest = max(newest, batch.newest_timestamp)
                    self._newest = max(newest, self._newest)
                    self._check_batch(batch)
                position = segment.end if stop is Stop.BLANK else batch.end
                self.report.log_end = max(self.report.log_end, position)
                if stop in (Stop.ROWS, Stop.DATA, Stop.BLANK):
                    continue
            found = self._behind(run, position, newest, is_last)
            if found is None:
                self._check_tail(run, position)
                break
            self._add_damage(run, position, found, reason)
            position = found

    def _behind(self, run: LogRun, position: int, newest: int, is_last: bool) -> int | None:
        """The offset at which the log continues behind bytes that are not a record; None if it ends there."""
        if self._state.marks is not None and is_last and position >= self._floor:
            return None
        found = find_record(run, position + 1)
        floor = max(self._floor, position) if is_last else run.end
        if position < floor:
            return min(run.end, floor if found is None else found[0] if not is_last else min(found[0], floor))
        # Older than the records before it: a remainder of a tail that was cut off earlier.
        return None if found is None or found[1] < newest else found[0]

    def _check_tail(self, run: Segments, end: int) -> None:
        self.report.tail_bytes = run.last_nonzero(end) - end
        if self.report.tail_bytes:
            found = find_record(run, end + 1)
            self.report.tail_records = found is not None

    def _add_damage(self, run: Segments, start: int, end: int, reason: str) -> None:
        if end > start:
            segment = run.at(start)
            self.report.damage.append(Damage(start, end, reason, "" if segment is None else segment.path))
            self.report.log_end = max(self.report.log_end, end)

    # ------------------------------------------------------------------------------------------------- the queues

    def _check_batch(self, batch: DispatchBatch) -> None:
        self.report.records += len(batch)
        if self._index is not None:
            self._index.check(batch)
            self._check_properties(batch)
        for entries in queue_entries(batch, self.rules):
            self._check_entries(entries)

    def _check_properties(self, batch: DispatchBatch) -> None:
        for row, (topic, properties) in enumerate(zip(batch.topics, batch.properties, strict=True)):
            if _is_text(properties) and TOPIC_PATTERN.fullmatch(topic):
                continue
            place = batch.queue_ids[row], batch.queue_offsets[row], batch.offsets[row]
            self._suspect(topic, *place, "the properties are not text")

    def _suspect(self, topic: str, queue: int, queue_offset: int, offset: int, reason: str) -> None:
        if len(self.report.suspect_records) < LISTED_MAX:
            self.report.suspect_records.append(SuspectRecord(topic, queue, queue_offset, offset, reason))

    def _check_entries(self, each: QueueEntries) -> None:
        count = len(each.entries) // UNIT
        end = each.first + count if each.queue_offsets is None else max(each.queue_offsets, default=-1) + 1
        key = each.topic, each.queue_id
        self._ends[key] = max(end, self._ends.get(key, 0))
        queue = self._queues.get((each.topic, each.queue_id))
        dead = self._deletions.get(each.topic, 0)
        if queue is None:
            offset, size, _ = ENTRY.unpack_from(each.entries, len(each.entries) - UNIT) if count else (0, 0, 0)
            if count and self._must_be_there(offset, size) and offset >= dead and self._state.marks is not None:
                for place, entry in _places(each):
                    self._note_wrong(each, place, "the queue's files are missing", entry)
            return
        if each.queue_offsets is None and not self._wrong and queue.read(each.first, count) == each.entries:
            self.report.queue_entries += count
            queue.add_right(each.first, each.first + count)
            return
        for place, entry in _places(each):
            at, size, code = ENTRY.unpack(entry)
            found = queue.read(place, 1) if place >= 0 else b""
            if found[:12] == entry[:12]:
                self.report.queue_entries += 1
                queue.add_right(place, place + 1)
                self._wrong.pop((each.topic, each.queue_id, place), None)
                other = ENTRY.unpack(found)[2]
                # Codes of SCHEDULE_TOPIC are delivery times, which depend on the settings of the broker then.
                if other != code and not is_address(other) and each.topic not in {SCHEDULE_TOPIC, *self.rules}:
                    self._note_wrong(each, place, "the tag code is not that of the message's tags", entry)
            elif queue.is_right(place):
                # Another record has this place. No CRC covers the number, so this record's is damaged.
                self._suspect(each.topic, each.queue_id, place, at, OTHER_PLACE)
            elif at >= dead and self._must_be_there(at, size):
                empty = not found.strip(b"\0")
                self._note_wrong(each, place, "the entry is missing" if empty else "names another record", entry)

    def _must_be_there(self, at: int, size: int) -> bool:
        """Whether the next start would not add the entry by itself."""
        marks = self._state.marks
        return at + size <= marks.dispatched if marks is not None else self._state.clean

    def _note_wrong(self, each: QueueEntries, place: int, reason: str, entry: bytes | None) -> None:
        self._note(WrongEntry(each.topic, each.queue_id, place, reason, entry))

    def _note(self, wrong: WrongEntry) -> None:
        if len(self._wrong) < LISTED_MAX:
            self._wrong[wrong.topic, wrong.queue, wrong.queue_offset] = wrong
        else:
            self._unlisted += 1

    def _check_others(self, queue: QueueFiles) -> None:
        """Entries that no record has confirmed: expired, in a damaged range, or wrong."""
        if queue.topic.startswith(LIGHT_TOPIC):
            return
        start, end = self.report.log_start, self.report.log_end
        for place, at, size, _ in queue.others():
            if size == FILLER_SIZE or (queue.topic, queue.queue_id, place) in self._wrong:
                continue
            if at >= 0 and size > 0 and at + size <= start:
                continue  # the log's file has expired
            hit = self._damage_in(at, at + size) if size > 0 else None
            if hit is not None:
                hit.message_count += 1
                if len(hit.messages) < LISTED_MAX:
                    hit.messages.append(LostMessage(queue.topic, queue.queue_id, place, at, size))
            elif not self._is_expected(queue.topic, at, end) and not self._names_other_place(queue, place, at, size):
                self._note(WrongEntry(queue.topic, queue.queue_id, place, "there is no record for the entry", None))

    def _damage_in(self, start: int, end: int) -> Damage | None:
        """The last damaged range that overlaps this range of the log; the ranges are in ascending order."""
        damage = self.report.damage
        number = bisect_left(damage, end, key=lambda each: each.start) - 1
        return damage[number] if number >= 0 and damage[number].end > start else None

    def _names_other_place(self, queue: QueueFiles, place: int, at: int, size: int) -> bool:
        """Whether an intact record is there that names another place, at which its entry is not.

        Then the numbers in the record are damaged, and its entry is the only one that leads to the message.
        """
        run = next((each for each in self._runs if each.start <= at < each.end), None)
        if run is None or size <= 0:
            return False
        try:
            batch, _ = scan_block(run, at, run.end, 1, check_body=False)
        except OSError:
            return False
        if not len(batch) or batch.sizes[0] != size:
            return False
        topic, queue_id, queue_offset = batch.topics[0], batch.queue_ids[0], batch.queue_offsets[0]
        own = self._queues.get((topic, queue_id))
        if own is not None and queue_offset >= 0 and own.read(queue_offset, 1)[:12] == OFFSET_AND_SIZE.pack(at, size):
            return False
        noted = self._wrong.get((topic, queue_id, queue_offset))
        if noted is not None and noted.expected is not None and noted.expected[:12] == OFFSET_AND_SIZE.pack(at, size):
            del self._wrong[topic, queue_id, queue_offset]
        self._suspect(queue.topic, queue.queue_id, place, at, OTHER_PLACE)
        return True

    def _is_expected(self, topic: str, at: int, end: int) -> bool:
        """Whether the next start removes an entry without a record by itself."""
        if not self._state.clean and (at >= end or self._state.marks is None):
            return True
        return at < self._deletions.get(topic, 0)


def _places(each: QueueEntries) -> Iterator[tuple[int, bytes]]:
    """Queue offset and bytes of each entry."""
    count = len(each.entries) // UNIT
    for number, place in enumerate(each.queue_offsets or range(each.first, each.first + count)):
        yield place, each.entries[number * UNIT : (number + 1) * UNIT]


def _is_text(properties: bytes) -> bool:
    """Whether the properties are names and values in UTF-8 without other control characters."""
    try:
        text = properties.decode()
    except UnicodeDecodeError:
        return False
    return "\0" not in text and all("\x01" in pair for pair in text.split("\x02") if pair)

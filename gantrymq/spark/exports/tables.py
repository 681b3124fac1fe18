"""Exports to tables of Delta Lake and Apache Iceberg, which their own libraries write.

Each commit of the table has rows and, by the table's own means, the offsets up to which it then has each queue. So a
stopped run needs no plan: what was not committed is read again, and the files of it are nobody's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs
import msgspec

from gantrymq.spark.columns import COLUMNS, arrow_schema
from gantrymq.spark.errors import ExportDamaged
from gantrymq.spark.exports.manifest import QueueKey, Span, State
from gantrymq.spark.exports.measuring import ExportProgress, NewMessages, Progress
from gantrymq.spark.exports.planning import Sizes, make_plan
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.ranges import QueueRange, find_queues
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Queue, Wire, connect

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = ("topic", "date")
"""The columns that a table is partitioned by."""
DESCRIPTION = "messages, written by gantrymq export"
_DAY_MICROS = 86_400_000_000
_LAST_DAY = 2_932_896
"""9999-12-31, in days since 1970."""


@attrs.frozen
class QueueState:
    """What a table has of one queue: where it continues, the messages, and those that were gone before."""

    topic: str
    broker: str
    queue_id: int
    next_offset: int
    rows: int = 0
    lost: int = 0

    @property
    def key(self) -> QueueKey:
        """The queue."""
        return self.topic, self.broker, self.queue_id


@attrs.frozen
class TableState:
    """What a table has: its version (0 before it exists), when that was made, and its queues."""

    number: int = 0
    created: float = 0.0
    queues: Mapping[QueueKey, QueueState] = attrs.field(factory=dict)

    @property
    def ends(self) -> dict[QueueKey, int]:
        """Where each queue continues."""
        return {key: queue.next_offset for key, queue in self.queues.items()}


class Table(Protocol):
    """A table, which may not exist yet."""

    name: str | Path

    def read_state(self, wanted: Collection[QueueKey] = ()) -> TableState:
        """What it has now, of the queues ``wanted`` for certain. Raises :class:`SparkError` and its kinds."""

    def append(self, rows: pa.Table, queues: Mapping[QueueKey, QueueState]) -> tuple[int, int]:
        """Add ``rows`` and replace what it has of ``queues`` in one commit; the number and bytes of the new files.

        Makes the table first if needed. Raises :class:`ExportFenced`, without a change, if another writer has moved
        one of the queues since :meth:`read_state`.
        """


@attrs.define
class TableRun:
    """What a run has written so far, and the version of the table after it."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0
    number: int = 0


def write_table(
    options: SourceOptions, table: Table, sizes: Sizes, known: Sequence[Queue], progress: Progress | None
) -> TableRun:
    """Write what is new since the table's last commit, one commit for about as much as ``sizes`` say of a file.

    Messages that come after the start are for the next run. Raises what reading raises, and what ``table`` raises.
    """
    run = TableRun()
    with connect(options, known) as wire:
        queues = {(queue.topic, queue.broker, queue.queue_id): queue for queue in find_queues(options, wire)}
        state = table.read_state(queues)
        run.number = state.number
        plan = make_plan(options, State(state.number, ends=state.ends), wire, sizes, overwrite=False)
        if plan is None:
            return run
        planned = {span.key for span in (*plan.tasks, *plan.lost)}
        # They have nothing to write, but the next run must know where they started.
        idle = [span for span in plan.ends if span.end and span.key not in planned and span.key not in state.queues]
        if not (plan.tasks or plan.lost or idle):
            return run
        new_messages = NewMessages(wire, queues.values(), {span.key: span.end for span in plan.ends})
        reader = _Reader(wire, options, queues, plan.tasks, new_messages, progress)
        # Messages that are gone count with the first commit after them, of whatever queues. It moves their queues
        # beyond them, or the next run would count those of a queue without a new message again.
        moved, lost = [*plan.lost, *idle], _count(plan.lost)
        known_queues = dict(state.queues)
        for spans, rows, missing in reader.slices(sizes):
            _commit(run, table, known_queues, [*moved, *spans], rows, _add(missing, lost))
            del rows  # the next ones take as much memory
            reader.report(committed=run)
            moved, lost = [], {}
        if moved:
            _commit(run, table, known_queues, moved, _schema().empty_table(), lost)
        run.number = table.read_state().number
    return run


def _commit(
    run: TableRun,
    table: Table,
    queues: dict[QueueKey, QueueState],
    spans: Sequence[Span],
    rows: pa.Table,
    lost: Mapping[QueueKey, int],
) -> None:
    changed: dict[QueueKey, QueueState] = {}
    for span in spans:
        before = changed.get(span.key) or queues.get(span.key) or QueueState(*span.key, next_offset=0)
        changed[span.key] = attrs.evolve(before, next_offset=span.end)
    for key, found in _rows_of(rows).items():
        changed[key] = attrs.evolve(changed[key], rows=changed[key].rows + found)
    for key, count in lost.items():
        before = changed.get(key) or queues.get(key) or QueueState(*key, next_offset=0)
        changed[key] = attrs.evolve(before, lost=before.lost + count)
    files, size = table.append(rows, changed)
    queues |= changed
    run.rows, run.files, run.bytes = run.rows + rows.num_rows, run.files + files, run.bytes + size
    run.lost += sum(lost.values())


@attrs.define
class _Slice:
    """What the next commit has."""

    spans: list[Span] = attrs.field(factory=list)
    lost: dict[QueueKey, int] = attrs.field(factory=dict)
    _batches: list[pa.RecordBatch] = attrs.field(factory=list)
    _size: int = 0

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows, whose span comes later."""
        self._batches.append(batch)
        self._size += batch.nbytes

    def add_span(self, span: Span, found: int) -> int:
        """Add a span of which ``found`` messages were there; the number of the others."""
        self.spans.append(span)
        missing = span.rows - found
        if missing:
            self.lost[span.key] = self.lost.get(span.key, 0) + missing
        return missing

    def is_full(self, sizes: Sizes, more: int = 0) -> bool:
        """Whether it is enough for a commit, with ``more`` offsets than its spans have."""
        return sum(span.rows for span in self.spans) + more >= sizes.file_rows or self._size >= sizes.file_bytes

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        return pa.Table.from_batches(self._batches, _schema())


class _Reader:
    """Reads the spans of a plan, and reports how far it is."""

    def __init__(
        self,
        wire: Wire,
        options: SourceOptions,
        queues: Mapping[QueueKey, Queue],
        spans: Sequence[Span],
        new_messages: NewMessages,
        progress: Progress | None,
    ) -> None:
        self._wire, self._options, self._queues, self._spans = wire, options, queues, spans
        self._new_messages, self._progress = new_messages, progress
        self._total = sum(span.rows for span in spans)
        self._tasks = self._rows = self._bytes = 0

    def slices(self, sizes: Sizes) -> Iterator[tuple[list[Span], pa.Table, dict[QueueKey, int]]]:
        """Spans, their rows, and how many messages of each queue are gone, until a commit is full.

        The size of a span is an estimate, so a commit may end within one.
        """
        piece = _Slice()
        self.report()
        for span in self._spans:
            rest, found = span, 0
            for batch in self._read(span):
                piece.add_batch(batch)
                found += batch.num_rows
                self._rows += batch.num_rows
                self.report()
                end = batch.column("queueOffset")[-1].as_py() + 1
                if end < span.end and piece.is_full(sizes, end - rest.first):
                    self._rows += piece.add_span(attrs.evolve(rest, end=end), found)
                    yield piece.spans, piece.table(), piece.lost
                    piece, rest, found = _Slice(), attrs.evolve(rest, first=end), 0
            self._rows += piece.add_span(rest, found)
            self._tasks += 1
            if piece.is_full(sizes):
                yield piece.spans, piece.table(), piece.lost
                piece = _Slice()
        if piece.spans:
            yield piece.spans, piece.table(), piece.lost

    def report(self, committed: TableRun | None = None) -> None:
        """Tell how far it is."""
        if committed is not None:
            self._bytes = committed.bytes
        if self._progress is not None:
            left = self._total - self._rows + self._new_messages.count()
            self._progress(ExportProgress(self._tasks, len(self._spans), self._rows, self._total, self._bytes, left))

    def _read(self, span: Span) -> Iterator[pa.RecordBatch]:
        queue = self._queues[span.key]
        for batch in read_range(self._wire, QueueRange(queue, span.first, span.end), self._options, list(COLUMNS)):
            yield _with_date(batch)


def _with_date(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with the date (UTC) of storeTimestamp; null outside of the years 1970 to 9999."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = pc.divide(batch.column("storeTimestamp").cast(pa.int64()), _DAY_MICROS)
    known = pc.and_(pc.greater_equal(days, 0), pc.less_equal(days, _LAST_DAY))
    dates = pc.if_else(known, days, pa.scalar(None, pa.int64())).cast(pa.int32()).cast(pa.date32())
    columns = [batch.column(name).cast(_schema().field(name).type) for name in COLUMNS]
    return pa.RecordBatch.from_arrays([*columns, dates], schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    return arrow_schema(list(COLUMNS)).append(pa.field("date", pa.date32()))


def table_schema() -> pa.Schema:
    """The columns of a table: those of the data source, and ``date``."""
    return _schema()


def _rows_of(rows: pa.Table) -> dict[QueueKey, int]:
    if not rows.num_rows:
        return {}
    counted = rows.group_by(["topic", "broker", "queueId"]).aggregate([([], "count_all")]).to_pylist()
    return {(row["topic"], row["broker"], row["queueId"]): row["count_all"] for row in counted}


def _count(spans: Sequence[Span]) -> dict[QueueKey, int]:
    return {span.key: span.rows for span in spans}


def _add(one: Mapping[QueueKey, int], other: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}


def encode_queues(queues: Mapping[QueueKey, QueueState]) -> str:
    """The queues as JSON, for the table's own records."""
    return msgspec.json.encode(list(queues.values())).decode()


def decode_queues(text: str, source: object) -> dict[QueueKey, QueueState]:
    """The queues from JSON. Raises :class:`ExportDamaged`, which names ``source``."""
    try:
        return {queue.key: queue for queue in msgspec.json.decode(text, type=list[QueueState])}
    except (msgspec.MsgspecError, ValueError) as error:
        raise ExportDamaged(f"{source}: its record of exported queues cannot be read: {error}") from None

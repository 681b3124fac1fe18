"""One task of a run: the messages of a span into Parquet files in the work folder. Runs inside a Spark task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

import attrs

from gantrymq.spark.columns import COLUMNS, arrow_schema
from gantrymq.spark.errors import ExportDamaged
from gantrymq.spark.exports import disk
from gantrymq.spark.exports.folder import ExportFolder
from gantrymq.spark.exports.manifest import NULL_DATE, DataFile, Plan, Span, Written, encode, file_path
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.reader import read_range
from gantrymq.spark.security import NO_SECURITY, Security
from gantrymq.spark.wire import Queue, Wire

if TYPE_CHECKING:
    import pyarrow as pa

FILE_COLUMNS = [name for name in COLUMNS if name != "topic"]
"""The columns of a file; its topic and the date are in its path, as Hive has partitions."""
GROUP_ROWS = 100_000
GROUP_BYTES = 32 * 1024 * 1024
"""A row group is written when it has this many messages, or bytes of bodies: what one task keeps in memory."""
_DAY_MICROS = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()


@attrs.frozen
class Task:
    """What a worker needs to know; it pickles. ``address`` is where the queue of ``span`` is read now."""

    folder: Path
    plan: Plan
    index: int
    span: Span
    address: str
    fail_on_data_loss: bool
    security: Security = NO_SECURITY


def make_task(
    folder: Path, plan: Plan, index: int, address: str, fail_on_data_loss: bool, security: Security = NO_SECURITY
) -> Task:
    """Task ``index`` of ``plan``, with no more of the plan than it needs."""
    needed = attrs.evolve(plan, tasks=[], ends=[], lost=[])
    return Task(folder, needed, index, plan.tasks[index], address, fail_on_data_loss, security)


def run_task(task: Task, report: Callable[[int], None] | None = None) -> int:
    """Write the files of one task, then its result; the number of messages written.

    A task that runs twice, also at the same time, writes the same. ``report`` is called with the number of offsets
    that are done, after each batch. Raises what reading raises, and OSError.
    """
    folder = ExportFolder(task.folder)
    work = folder.work_path(task.plan.number)
    written = Written([], [])
    next_offset = task.span.first
    with Wire(security=task.security) as wire:
        file: _File | None = None
        try:
            for piece in _pieces(wire, task):
                if piece.first > next_offset:
                    written.lost.append(_part(task.span, next_offset, piece.first))
                if file is not None and not file.takes(piece):
                    written.files.append(file.close())
                    file = None
                file = file or _File(work, task, piece)
                file.add(piece)
                next_offset = piece.end
                if report is not None:
                    report(next_offset - task.span.first)
            if file is not None:
                written.files.append(file.close())
        except BaseException:
            if file is not None:
                file.abandon()
            raise
    if next_offset < task.span.end:
        written.lost.append(_part(task.span, next_offset, task.span.end))
    disk.write_durably(folder.result_path(task.plan.number, task.index), encode(written))
    return sum(item.span.rows for item in written.files)


def check_file(path: Path, file: DataFile) -> None:
    """Raise :class:`ExportDamaged` unless the footer of ``path`` has every offset of the span, each of them once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise ExportDamaged(f"{path} cannot be read: {error}") from None
    column = footer.schema.names.index("queueOffset") if "queueOffset" in footer.schema.names else None
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found = [group.column(column).statistics for group in groups] if column is not None else []
    bounds = [(item.min, item.max) for item in found if item is not None and item.has_min_max]
    expected = file.span.first
    for group, (lowest, highest) in zip(groups, bounds, strict=False):
        if lowest != expected or highest - lowest + 1 != group.num_rows:
            break
        expected = highest + 1
    if expected != file.span.end or footer.num_rows != file.span.rows or len(bounds) != len(groups):
        raise ExportDamaged(f"{path} has not exactly the offsets {file.span.first} to {file.span.end - 1}")


@attrs.frozen
class _Piece:
    """Messages with contiguous offsets and one date; ``size`` is the bytes of their bodies."""

    batch: pa.RecordBatch
    first: int
    date: str
    size: int

    @property
    def end(self) -> int:
        return self.first + int(self.batch.num_rows)


class ParquetOutput:
    """A Parquet file under a name of its own in ``work``, until it is complete and durable."""

    def __init__(self, work: Path, span: Span) -> None:
        import pyarrow.parquet as pq

        work.mkdir(parents=True, exist_ok=True)
        self._work = work
        self._temporary = work / f"{uuid4()}.partial"
        self._output: BinaryIO = self._temporary.open("wb")
        self._schema = arrow_schema(FILE_COLUMNS)
        self._writer = pq.ParquetWriter(self._output, self._schema, compression="zstd")
        about = {"gantrymq.topic": span.topic, "gantrymq.broker": span.broker, "gantrymq.queueId": str(span.queue_id)}
        self._writer.add_key_value_metadata(about)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        """Write a batch whose bodies have ``size`` bytes."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += size
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def close(self, path: str) -> int:
        """Make the file durable and give it its name, relative to the work folder; its size."""
        self._write_group()
        self._writer.close()
        self._output.flush()
        os.fsync(self._output.fileno())
        size = self._output.tell()
        self._output.close()
        disk.move(self._temporary, self._work / path)
        return size

    def abandon(self) -> None:
        """Remove what was written."""
        self._output.close()
        self._temporary.unlink(missing_ok=True)

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting).replace_schema_metadata(None)
            self._writer.write_table(table.cast(self._schema), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


class _File:
    """The file that a task writes."""

    def __init__(self, work: Path, task: Task, piece: _Piece) -> None:
        self._plan, self._span = task.plan, task.span
        self._first = self._end = piece.first
        self._date = piece.date
        self._size = 0
        self._output = ParquetOutput(work, task.span)

    def takes(self, piece: _Piece) -> bool:
        rows = piece.end - self._first
        fits = rows <= self._plan.file_rows and self._size + piece.size <= self._plan.file_bytes
        return fits and piece.first == self._end and piece.date == self._date

    def add(self, piece: _Piece) -> None:
        self._output.add(piece.batch, piece.size)
        self._end = piece.end
        self._size += piece.size

    def close(self) -> DataFile:
        span = _part(self._span, self._first, self._end)
        path = file_path(span, self._date, f"-r{self._plan.number}" if self._plan.replaced else "")
        return DataFile(path, span, self._output.close(path))

    def abandon(self) -> None:
        self._output.abandon()


def _pieces(wire: Wire, task: Task) -> Iterator[_Piece]:
    options = SourceOptions(
        (), (task.span.topic,), fail_on_data_loss=task.fail_on_data_loss, body_max_bytes=task.plan.body_max_bytes
    )
    queue = Queue(task.span.topic, task.span.broker, task.span.queue_id, task.address)
    for batch in read_range(wire, QueueRange(queue, task.span.first, task.span.end), options, FILE_COLUMNS):
        yield from _cut(batch, task.plan.file_bytes)


def _cut(batch: pa.RecordBatch, bytes_max: int) -> Iterator[_Piece]:
    import pyarrow.compute as pc

    offsets = batch.column("queueOffset").to_pylist()
    days = [None if stored is None else stored // _DAY_MICROS for stored in _micros(batch)]
    sizes = pc.binary_length(batch.column("body")).to_pylist()
    start, size = 0, 0
    for row in range(len(offsets) + 1):
        if row == len(offsets) or (
            row > start
            and (offsets[row] != offsets[row - 1] + 1 or days[row] != days[start] or size + sizes[row] > bytes_max)
        ):
            yield _Piece(batch.slice(start, row - start), offsets[start], _date(days[start]), size)
            start, size = row, 0
        if row < len(offsets):
            size += sizes[row]


def _micros(batch: pa.RecordBatch) -> list[int | None]:
    import pyarrow as pa

    found: list[int | None] = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
    return found


def _date(day: int | None) -> str:
    if day is None or not 1 <= _EPOCH + day <= date.max.toordinal():
        return NULL_DATE
    return date.fromordinal(_EPOCH + day).isoformat()


def _part(span: Span, first: int, end: int) -> Span:
    return attrs.evolve(span, first=first, end=end)

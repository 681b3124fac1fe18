"""One task of a run: the messages of a span into Parquet files in the work folder. Runs inside a Spark task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.destinations import find_destination
from gantrymq.spark.exports.manifest import NULL_DATE, DataFile, Plan, Span, Written, file_path
from gantrymq.spark.exports.parquet_output import FILE_COLUMNS
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.ranges import QueueRange
from gantrymq.spark.reader import read_range
from gantrymq.spark.wire import Queue, Wire, connect

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_MICROS = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()


@attrs.frozen
class Task:
    """What a worker needs to know; it pickles. ``queue`` is the one of ``span``, and says where it is read now."""

    to: Path | str
    plan: Plan
    index: int
    span: Span
    queue: Queue
    options: SourceOptions


def make_task(to: Path | str, plan: Plan, index: int, queue: Queue, options: SourceOptions) -> Task:
    """Task ``index`` of ``plan``, with no more of the plan than it needs."""
    needed = attrs.evolve(plan, tasks=[], ends=[], lost=[])
    return Task(to, needed, index, plan.tasks[index], queue, options)


def run_task(task: Task, report: Callable[[int], None] | None = None) -> int:
    """Write the files of one task, then its result; the number of messages written.

    A task that runs twice, also at the same time, writes the same. ``report`` is called with the number of offsets
    that are done, after each batch. Raises what reading raises, and OSError.
    """
    destination = find_destination(task.to)
    written = Written([], [])
    next_offset = task.span.first
    with connect(task.options) as wire:
        file: _File | None = None
        try:
            for piece in _pieces(wire, task):
                if piece.first > next_offset:
                    written.lost.append(_part(task.span, next_offset, piece.first))
                if file is not None and not file.takes(piece):
                    written.files.append(file.close())
                    file = None
                file = file or _File(destination, task, piece)
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
    destination.write_result(task.plan, task.index, written)
    return sum(item.span.rows for item in written.files)


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


class _File:
    """The file that a task writes."""

    def __init__(self, destination: Destination, task: Task, piece: _Piece) -> None:
        self._destination = destination
        self._plan, self._span = task.plan, task.span
        self._first = self._end = piece.first
        self._date = piece.date
        self._size = 0
        self._output = destination.open_output(task.plan.number, task.span)

    def takes(self, piece: _Piece) -> bool:
        rows = piece.end - self._first
        fits = rows <= self._plan.file_rows and self._size + piece.size <= self._plan.file_bytes
        return fits and piece.first == self._end and piece.date == self._date

    def add(self, piece: _Piece) -> None:
        self._output.add(piece.batch)
        self._end = piece.end
        self._size += piece.size

    def close(self) -> DataFile:
        span = _part(self._span, self._first, self._end)
        suffix = self._destination.suffix(self._plan.number, self._plan.id, "r" if self._plan.replaced else "")
        path = file_path(span, self._date, suffix)
        return DataFile(path, span, self._output.close(path))

    def abandon(self) -> None:
        self._output.abandon()


def _pieces(wire: Wire, task: Task) -> Iterator[_Piece]:
    options = attrs.evolve(task.options, topics=(task.span.topic,), body_max_bytes=task.plan.body_max_bytes)
    for batch in read_range(wire, QueueRange(task.queue, task.span.first, task.span.end), options, FILE_COLUMNS):
        yield from _cut(batch, task.plan.file_bytes)


def _cut(batch: pa.RecordBatch, bytes_max: int) -> Iterator[_Piece]:
    import pyarrow.compute as pc

    offsets = batch.column("queueOffset").to_pylist()
    days = [None if stored is None else stored // _DAY_MICROS for stored in _micros(batch)]
    sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_pylist()
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

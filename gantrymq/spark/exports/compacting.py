"""Compaction: many small files of a queue and day into few, published as one manifest that replaces them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import attrs

from gantrymq.spark.errors import SparkError, SparkMissing
from gantrymq.spark.exports.checking import check_file
from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.manifest import DataFile, State, count, file_path, folder_of
from gantrymq.spark.exports.parquet_output import read_batches
from gantrymq.spark.exports.planning import FILE_BYTES, FILE_ROWS
from gantrymq.spark.exports.reading import existing_export
from gantrymq.spark.local import arrow_status


@attrs.frozen
class CompactResult:
    """What a compaction did: files before and after it, messages and bytes of the new files, and how long it took."""

    before: int
    after: int
    rows: int
    bytes: int
    seconds: float


def compact_export(
    to: str | Path,
    *,
    file_rows: int = FILE_ROWS,
    file_bytes: int = FILE_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> CompactResult:
    """Merge files of one queue and day that follow each other, up to ``file_rows`` messages or ``file_bytes`` on disk.

    The messages stay the same. Finishes first what a stopped run or compaction left, except a run's plan: while there
    is one, nothing is compacted. ``progress`` is called with the files that are merged, and all of them. Raises
    :class:`SparkError` and its kinds.
    """
    started = time.monotonic()
    export = existing_export(to)
    status = arrow_status()
    if not status:
        raise SparkMissing(status.reason)
    try:
        with export.lock():
            export.finish()
            state = export.read_state()
            if export.read_plan(state.number + 1) is not None:
                raise SparkError(
                    f"a run of {export.name} is going on or was stopped: wait until it ends, or export again if it was "
                    "stopped, then compact"
                )
            groups = list(_groups(state, file_rows, file_bytes))
            before = len(state.files)
            merged: list[DataFile] = []
            number, run = state.number + 1, str(uuid4())
            for group in groups:
                if progress is not None:
                    progress(len(merged), len(groups))
                merged.append(_merge(export, number, run, group))
            if merged:
                removed = [file.path for group in groups for file in group]
                export.publish_compaction(state, run, merged, removed)
            export.remove_unreferenced()
            after = before - sum(map(len, groups)) + len(groups)
    except OSError as error:
        raise SparkError(f"cannot compact {export.name}: {error.strerror or error}") from None
    if progress is not None:
        progress(len(groups), len(groups))
    rows, size = count(file.span for file in merged), sum(file.bytes for file in merged)
    return CompactResult(before, after, rows, size, time.monotonic() - started)


def _groups(state: State, file_rows: int, file_bytes: int) -> Iterator[list[DataFile]]:
    def order(file: DataFile) -> tuple[str, tuple[str, str, int], int]:
        return folder_of(file), file.span.key, file.span.first

    group: list[DataFile] = []
    for file in sorted(state.files.values(), key=order):
        follows = group and order(group[-1])[:2] == order(file)[:2] and group[-1].span.end == file.span.first
        rows, size = count(item.span for item in group), sum(item.bytes for item in group)
        if not follows or rows + file.span.rows > file_rows or size + file.bytes > file_bytes:
            if len(group) > 1:
                yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def _merge(export: Destination, number: int, run: str, group: list[DataFile]) -> DataFile:
    import pyarrow.parquet as pq

    span = attrs.evolve(group[0].span, end=group[-1].span.end)
    date = folder_of(group[0]).rpartition("date=")[2]
    path = file_path(span, date, export.suffix(number, run, "c"))
    output = export.open_output(number, span)
    try:
        for file in group:
            source = export.open_file(file)
            check_file(source, file, f"{export.name}/{file.path}")
            with pq.ParquetFile(source) as opened:
                for batch in read_batches(opened):
                    output.add(batch)
        return DataFile(path, span, output.close(path))
    except BaseException:
        output.abandon()
        raise

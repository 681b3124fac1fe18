"""The checks of what tasks wrote, before a manifest names it: their results, and Parquet files by their footers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from gantrymq.spark.errors import ExportDamaged
from gantrymq.spark.exports.manifest import DataFile, Plan, Written


def check_results(plan: Plan, results: Sequence[Written]) -> None:
    """Raise :class:`ExportDamaged` unless each result has every offset of its task once, in a file or as lost."""
    for index, (task, result) in enumerate(zip(plan.tasks, results, strict=True)):
        spans = sorted([*(file.span for file in result.files), *result.lost], key=lambda span: span.first)
        expected = task.first
        for span in spans:
            if span.key != task.key or span.first != expected:
                break
            expected = span.end
        else:
            if expected == task.end:
                continue
        queue = f"{task.topic} {task.broker} queue {task.queue_id}"
        raise ExportDamaged(
            f"task {index} of the run has not exactly the offsets {task.first} to {task.end - 1} of {queue}: run the "
            "export again and discard the plan"
        )


def check_file(source: Path | BinaryIO, file: DataFile, name: str = "") -> None:
    """Raise :class:`ExportDamaged` unless the footer has every offset of the span, each of them once.

    ``name`` is what the error says instead of ``source``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = name or source
    try:
        footer = pq.read_metadata(source)
    except (OSError, pa.ArrowException) as error:
        raise ExportDamaged(f"{place} cannot be read: {error}") from None
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
        raise ExportDamaged(f"{place} has not exactly the offsets {file.span.first} to {file.span.end - 1}")

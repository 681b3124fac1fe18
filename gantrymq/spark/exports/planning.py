"""From what an export has and what the brokers have to the plan of a run."""

from __future__ import annotations

from uuid import uuid4

import attrs

from gantrymq.spark.errors import WrongOption
from gantrymq.spark.exports.manifest import FORMAT, Plan, QueueKey, Span, State
from gantrymq.spark.options import EARLIEST, LATEST, SourceOptions
from gantrymq.spark.ranges import (
    SAMPLE_ROWS,
    QueueRange,
    find_offset,
    find_queues,
    measure_messages,
    refuse_lagging_slave,
    refuse_shortened_slave,
    report_loss,
    settle_range,
    settle_times,
)
from gantrymq.spark.wire import Queue, Wire

FILE_ROWS = 500_000
"""Default for the messages of a file. A queue with more of them, or of bytes, is read by several tasks."""
FILE_BYTES = 256 * 1024 * 1024
"""Default for the bytes of the bodies in a file, before Parquet compresses them."""


@attrs.frozen
class Sizes:
    """When a file is full: its messages, or the bytes of their bodies."""

    file_rows: int = FILE_ROWS
    file_bytes: int = FILE_BYTES


def make_plan(options: SourceOptions, state: State, wire: Wire, sizes: Sizes, overwrite: bool) -> Plan | None:
    """What is new since ``state``, or None if nothing is. With ``overwrite`` the topics are exported from their start.

    A queue that the export does not have yet is new even if it has nothing to write: the next run must know where it
    started.

    A queue that the export has continues where it ended; starting offsets count for the others. Raises
    :class:`WrongOption` for offsets that do not fit, :class:`~gantrymq.spark.errors.DataLoss` for messages that
    expired before they were exported (``lost`` has their span if ``fail_on_data_loss`` is off),
    :class:`~gantrymq.spark.errors.Unreachable` for a slave that has not copied yet what is exported, or that begins
    behind it or where its master may have older messages to export, and what :class:`Wire` raises.
    """
    known = {} if overwrite else state.ends
    ranges: list[QueueRange] = []
    lost: list[Span] = []
    for queue in find_queues(options, wire):
        bounds = wire.find_bounds(queue)
        # Where a queue continues that the export has, no time says.
        asked = attrs.evolve(options, starting_millis=None) if _key(queue) in known else options
        settled = settle_times(asked, wire, queue, *bounds)
        item = _continue(settled, queue, known, *bounds) or settle_range(settled, queue, *bounds)
        start = known.get(_key(queue), find_offset(settled.starting, queue, EARLIEST))
        by_time = asked.starting_millis is not None and start == bounds[0]
        if (start == EARLIEST or by_time) and queue.is_slave and bounds[0] > 0:
            refuse_shortened_slave(queue, bounds[0])  # the next run would continue behind what the master has
        if 0 <= start < item.start:
            lost.append(_span(queue, start, item.start))
        ranges.append(item)
    nothing_new = not lost and not any(item.rows or (item.end and _key(item.queue) not in known) for item in ranges)
    if nothing_new and state.number and not (overwrite and _has(state, options.topics)):
        return None
    ends = [_span(item.queue, 0, item.end) for item in ranges]
    tasks = [span for item in ranges for span in _split(item, _rows_of_task(wire, item, sizes))]
    return Plan(
        FORMAT, state.number + 1, str(uuid4()), list(options.topics), tasks, ends, lost,
        list(options.topics) if overwrite else [], sizes.file_rows, sizes.file_bytes, options.body_max_bytes,
    )  # fmt: skip


def _continue(
    options: SourceOptions, queue: Queue, known: dict[QueueKey, int], lowest: int, highest: int
) -> QueueRange | None:
    position = known.get(_key(queue))
    if position is None:
        return None
    asked = find_offset(options.starting, queue, EARLIEST)
    if asked not in (EARLIEST, position):
        raise WrongOption(
            f"{queue} is exported up to offset {position}; it cannot start at {asked}: starting offsets are for queues "
            "that the export does not have yet"
        )
    if position > highest and queue.is_slave:
        refuse_lagging_slave(queue, highest)
    if position > highest:
        raise WrongOption(
            f"{queue} is exported up to offset {position}, but ends at {highest}: the topic was deleted "
            "and created again, or its broker lost messages. Overwrite the export, or name another folder"
        )
    end = find_offset(options.ending, queue, LATEST)
    if end > highest:
        raise WrongOption(f"endingOffsets: {queue} ends at offset {highest}, {end} lies behind its last message")
    end = max(highest if end == LATEST else end, position)
    start = min(max(position, lowest), end)
    if start > position:
        if queue.is_slave:
            refuse_shortened_slave(queue, lowest)
        report_loss(queue, position, lowest, start - position, options.fail_on_data_loss)
    return QueueRange(queue, start, end)


def _rows_of_task(wire: Wire, item: QueueRange, sizes: Sizes) -> int:
    """The messages of a task: at most those of a file, and by the size of the next ones about its bytes."""
    if item.rows <= SAMPLE_ROWS:
        return sizes.file_rows
    mean = measure_messages(wire, item.queue, item.start)
    if mean is None:
        return sizes.file_rows
    return max(min(sizes.file_rows, sizes.file_bytes // mean), 1)


def _split(item: QueueRange, rows: int) -> list[Span]:
    return [_span(item.queue, first, min(first + rows, item.end)) for first in range(item.start, item.end, rows)]


def _has(state: State, topics: tuple[str, ...]) -> bool:
    return any(topic in topics for topic, _, _ in state.ends)


def _key(queue: Queue) -> QueueKey:
    return queue.topic, queue.broker, queue.queue_id


def _span(queue: Queue, first: int, end: int) -> Span:
    return Span(queue.topic, queue.broker, queue.queue_id, first, end)

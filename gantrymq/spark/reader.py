"""Reads one queue range in a Spark task: pulls up to its end, and yields full batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gantrymq.remoting.codes import ResponseCode
from gantrymq.spark.columns import ColumnBuilder
from gantrymq.spark.errors import Refused
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.ranges import QueueRange, report_loss
from gantrymq.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024
"""A batch is yielded when it has this many rows, or this many bytes of bodies."""
EMPTY_ANSWERS_MAX = 16
"""The most responses without a message and without a new offset; after them, a queue counts as stuck."""


def read_range(
    wire: Wire, wanted: QueueRange, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages of one range in batches of the columns ``names``, in queue order, each exactly once.

    Raises :class:`~gantrymq.spark.errors.DataLoss` if the broker no longer has some of them (or logs their number if
    ``fail_on_data_loss`` is False), :class:`~gantrymq.spark.errors.BrokenRecord`, and the errors of :class:`Wire`.
    """
    builder = ColumnBuilder(wanted.queue, names, options.body_max_bytes)
    offset = wanted.start
    empty_answers = 0
    while offset < wanted.end:
        answer = wire.pull(wanted.queue, offset)
        taken = builder.add(answer.records, offset, wanted.end)
        next_offset = min(answer.next_offset, wanted.end)
        if next_offset <= offset:
            ended = answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
            if ended and answer.max_offset <= offset:
                next_offset = wanted.end  # the queue is shorter than it was when the range was planned
            elif empty_answers < EMPTY_ANSWERS_MAX:
                empty_answers += 1
                continue
            else:
                what = f"a pull of {wanted.queue} at {offset} leads nowhere"
                raise Refused(wanted.queue.address, what, answer.code, f"next offset {answer.next_offset}")
        lost = next_offset - offset - taken
        if lost > 0:
            report_loss(wanted.queue, offset, answer.min_offset, lost, options.fail_on_data_loss)
        offset = next_offset
        if builder.rows >= BATCH_ROWS or builder.size >= BATCH_BYTES:
            yield builder.build()
    if builder.rows:
        yield builder.build()

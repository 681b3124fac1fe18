"""Reads one queue range in a Spark task: pulls up to its end, and yields full batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gantrymq.remoting.codes import ResponseCode
from gantrymq.spark.columns import BadBody, make_builder
from gantrymq.spark.errors import Refused, UnknownTopic, Unreachable
from gantrymq.spark.events import log
from gantrymq.spark.options import SourceOptions
from gantrymq.spark.ranges import QueueRange, refuse_lagging_slave, refuse_shortened_slave, report_loss
from gantrymq.spark.wire import ALL_MESSAGES, Pulled, Queue, Wire

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024
"""A batch is yielded when it has this many rows, or this many bytes of bodies and properties."""
BAD_BODIES_LOGGED = 10
"""The most messages of a range with unreadable bodies that are logged, except the 100th, the 1000th and so on."""
RETRY_PAUSE_SECONDS = 0.5
"""The pause before a broker that does not answer is asked again."""
EMPTY_RESPONSES_MAX = 16
"""The most responses without a message and without a new offset; after them, a queue counts as stuck."""


def read_range(
    wire: Wire, wanted: QueueRange, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages of one range in batches of the columns ``names``, in queue order, each exactly once.

    Raises :class:`~gantrymq.spark.errors.DataLoss` if the broker no longer has some of them (or logs their number if
    ``fail_on_data_loss`` is False), :class:`~gantrymq.spark.errors.BrokenRecord`, and the errors of :class:`Wire`.
    While the broker does not answer, it is asked again for ``retry_seconds``, wherever the nameservers say that it is
    now, and its slaves are asked too.

    With a ``subscription`` only its messages are read. A gap may then be a message that it excludes, so only messages
    below the queue's min offset count as lost.
    """
    tags = None if options.subscription is None else options.subscription.tags_set or None
    columns = (*names, "tags") if tags is not None and "tags" not in names else names
    log_bad_body = _log_bad_bodies(wanted.queue) if options.null_bad_bodies else None
    builder = make_builder(wanted.queue, columns, options.body_max_bytes, BATCH_BYTES, log_bad_body)
    source = _RetryingSource(wire, wanted, options)
    offset = wanted.start
    empty_responses = 0
    while offset < wanted.end:
        answer = source.pull(offset)
        asked = offset
        taken, read = builder.add(answer.records, offset, wanted.end)
        while read < len(answer.records):  # decompressed bodies may be a thousand times as large as the answer
            _check_loss(wanted.queue, options, answer, offset, builder.next_offset, taken)
            offset = builder.next_offset
            yield _only(builder.build(), tags, names)
            taken, read = builder.add(answer.records, offset, wanted.end, read)
        next_offset = max(min(answer.next_offset, wanted.end), offset)
        if next_offset == asked:
            ended = answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
            if ended and answer.max_offset <= offset:
                next_offset = wanted.end  # the queue is shorter than it was when the range was planned
            elif empty_responses < EMPTY_RESPONSES_MAX:
                empty_responses += 1
                continue
            else:
                what = f"a pull of {wanted.queue} at {offset} returns neither messages nor a new offset"
                raise Refused(wanted.queue.address, what, answer.code, f"next offset {answer.next_offset}")
        _check_loss(wanted.queue, options, answer, offset, next_offset, taken)
        offset = next_offset
        if builder.rows >= BATCH_ROWS or builder.size >= BATCH_BYTES:
            yield _only(builder.build(), tags, names)
    if builder.rows:
        yield _only(builder.build(), tags, names)


def _check_loss(queue: Queue, options: SourceOptions, answer: Pulled, first: int, end: int, taken: int) -> None:
    """Report the messages ``first <= offset < end`` that are not among the ``taken`` ones of ``answer``."""
    lost = end - first - taken
    if options.subscription is not None:
        lost = 0 if taken else min(answer.min_offset, end) - first
    if lost > 0:
        report_loss(queue, first, answer.min_offset, lost, options.fail_on_data_loss)


def _log_bad_bodies(queue: Queue) -> BadBody:
    numbers = itertools.count(1)

    def log_bad_body(queue_offset: int, reason: str) -> None:
        number = next(numbers)
        if number <= BAD_BODIES_LOGGED or str(number).strip("0") == "1":
            log.warning(
                "body_not_readable", topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id,
                queue_offset=queue_offset, reason=reason, number=number,
            )  # fmt: skip

    return log_bad_body


def _only(batch: pa.RecordBatch, tags: Collection[str] | None, names: Sequence[str]) -> pa.RecordBatch:
    """The rows of ``batch`` with exactly one of ``tags`` (all if None): a broker compares hashes only."""
    if tags is None:
        return batch
    import pyarrow as pa
    import pyarrow.compute as pc

    return batch.filter(pc.is_in(batch["tags"], value_set=pa.array(sorted(tags), pa.string()))).select(list(names))


class _RetryingSource:
    """Pulls a range from its broker, or from where the broker has gone, or from its slaves."""

    def __init__(self, wire: Wire, wanted: QueueRange, options: SourceOptions) -> None:
        self._wire = wire
        self._wanted = wanted
        self._options = options
        self._queue = wanted.queue

    def pull(self, offset: int) -> Pulled:
        try:
            return self._pull(self._queue, offset)
        except Unreachable:
            if not self._options.retry_seconds:
                raise
        deadline = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                return self._pull_anywhere(offset)
            except Unreachable:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    def _pull_anywhere(self, offset: int) -> Pulled:
        failures: list[str] = []
        for queue in self._find_master().everywhere():
            try:
                answer = self._pull(queue, offset)
            except Unreachable as error:
                failures.append(str(error))
                continue
            self._queue = queue
            return answer
        raise Unreachable("; ".join(failures))

    def _pull(self, queue: Queue, offset: int) -> Pulled:
        subscription = self._options.subscription or ALL_MESSAGES
        answer = self._wire.pull(queue, offset, subscription=subscription, until=self._wanted.end)
        if queue.is_slave and answer.max_offset <= offset:
            refuse_lagging_slave(queue, answer.max_offset)  # the range was planned from the master's offsets
        if queue.is_slave and offset < answer.min_offset:
            refuse_shortened_slave(queue, answer.min_offset)
        return answer

    def _find_master(self) -> Queue:
        wanted = self._wanted.queue
        try:
            queues = self._wire.find_queues(self._options.nameservers, wanted.topic)
        except (Unreachable, UnknownTopic, Refused):
            return wanted
        found = [queue for queue in queues if (queue.broker, queue.queue_id) == (wanted.broker, wanted.queue_id)]
        return found[0] if found else wanted

"""Determines the queue ranges of a batch read from its options, once, before the read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NoReturn

import attrs

from gantrymq.remoting.names import is_dlq_topic, is_retry_topic, is_system_topic, reply_topic
from gantrymq.spark.errors import DataLoss, UnknownTopic, Unreachable, WrongOption
from gantrymq.spark.events import log
from gantrymq.spark.options import EARLIEST, LATEST, Assignment, Offsets, SourceOptions
from gantrymq.spark.times import find_first_since
from gantrymq.spark.wire import Queue, Wire

QueueKey = tuple[str, str, int]
"""Topic, broker name and queue id."""
SAMPLE_ROWS = 32
"""The messages whose stored size stands for that of others, where something is bounded by bytes."""


@attrs.frozen
class QueueRange:
    """The messages ``start <= offset < end`` of one queue, for one Spark task."""

    queue: Queue
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of messages in the range."""
        return self.end - self.start


def plan_ranges(
    options: SourceOptions, wire: Wire, cut: Callable[[QueueRange], QueueRange] = lambda item: item
) -> list[QueueRange]:
    """What ``cut`` leaves of the ranges of :func:`settle_ranges`, split as the options say."""
    ranges = [item for item in map(cut, settle_ranges(options, wire)) if item.rows]
    return split_for_tasks(ranges, options, wire)


def settle_ranges(options: SourceOptions, wire: Wire) -> list[QueueRange]:
    """One range, possibly empty, for every queue of the topics, with the offsets of ``options`` as numbers.

    For a queue without offsets in the options, the range has all messages. Raises :class:`WrongOption` for a broker,
    queue or offset that does not exist, :class:`UnknownTopic` if no topic matches, :class:`DataLoss` for a start below
    the first existing message, and the errors of :class:`Wire`.
    """
    ranges: list[QueueRange] = []
    queues = find_queues(options, wire)
    if not queues:
        raise UnknownTopic(f"topicPattern: no topic with a readable queue matches {options.topic_pattern!r}")
    for queue in queues:
        bounds = wire.find_bounds(queue)
        ranges.append(settle_range(settle_times(options, wire, queue, *bounds), queue, *bounds))
    return ranges


def settle_times(options: SourceOptions, wire: Wire, queue: Queue, lowest: int, highest: int) -> SourceOptions:
    """``options`` with the offsets of ``queue`` in place of the times that they have for it. Raises
    :class:`WrongOption`."""
    start = find_start_by_time(options, wire, queue, lowest, highest)
    end = find_end_by_time(options, wire, queue, lowest, highest)
    if start is not None:
        options = attrs.evolve(options, starting=start)
    if end is not None:
        asked = find_offset(options.starting, queue, EARLIEST)
        options = attrs.evolve(options, ending=max(end, min(asked, highest)))
    return options


def find_queues(options: SourceOptions, wire: Wire) -> list[Queue]:
    """Every queue to read; none if ``topic_pattern`` matches no topic now. Raises as :func:`settle_ranges`, if the
    offsets or the assignment name another one."""
    queues = find_present_queues(options, wire, recorded=())
    _check_names("startingOffsets", options.starting, queues)
    _check_names("endingOffsets", options.ending, queues)
    _check_names("startingOffsetsByTimestamp", options.starting_millis, queues)
    _check_names("endingOffsetsByTimestamp", options.ending_millis, queues)
    return queues


def find_present_queues(
    options: SourceOptions, wire: Wire, recorded: Collection[QueueKey] | None = None
) -> list[Queue]:
    """Every queue to read that the route lists now, whatever queues the offsets of ``options`` name.

    Queues in ``recorded`` and their topics may be missing; with None, any. Raises :class:`UnknownTopic` for another
    topic, or if no topic is left, :class:`WrongOption` for another queue of the assignment, and the errors of
    :class:`Wire`.
    """
    if options.topic_pattern is not None:
        return _find_matching(options, wire, options.topic_pattern)
    queues: list[Queue] = []
    missing: UnknownTopic | None = None
    for topic in options.topics:
        try:
            queues += wire.find_queues(options.nameservers, topic)
        except UnknownTopic as error:
            if recorded is not None and not any(topic == name for name, _, _ in recorded):
                raise
            missing = error
    if missing is not None and not queues:
        raise missing
    return queues if options.assigned is None else _choose_assigned(options.assigned, queues, recorded)


def _find_matching(options: SourceOptions, wire: Wire, pattern: str) -> list[Queue]:
    queues: list[Queue] = []
    has_namespace = bool(options.security.namespace)  # brokers' own topics have none
    for topic in wire.find_topics(options.nameservers):
        is_own = is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)
        if is_own or re.fullmatch(pattern, topic) is None:
            continue
        with suppress(UnknownTopic):  # it was deleted just now, or must not be read
            found = wire.find_queues(options.nameservers, topic)
            if has_namespace or not any(_is_named_after(queue) for queue in found):
                queues += found
    return queues


def _is_named_after(queue: Queue) -> bool:
    """Whether the topic is one that each broker makes for itself, under the name of its cluster or its own."""
    return queue.topic in (queue.broker, queue.cluster, reply_topic(queue.cluster))


def _choose_assigned(assigned: Assignment, queues: list[Queue], recorded: Collection[QueueKey] | None) -> list[Queue]:
    if recorded is not None:
        needed = {
            topic: {
                broker: {queue_id: 0 for queue_id in ids if (topic, broker, queue_id) not in recorded}
                for broker, ids in brokers.items()
            }
            for topic, brokers in assigned.items()
        }
        _check_names("assign", needed, queues)
    return [queue for queue in queues if queue.queue_id in assigned[queue.topic].get(queue.broker, ())]


def find_start_by_time(options: SourceOptions, wire: Wire, queue: Queue, lowest: int, highest: int) -> int | None:
    """The start of a queue by ``starting_millis``; None without it. Raises :class:`WrongOption`, as the option says."""
    millis = _time_of(options.starting_millis, queue)
    if millis is None:
        return None
    found = find_first_since(wire, queue, millis, lowest, highest)
    if found is None and not options.latest_without_match:
        raise WrongOption(
            f"startingTimestamp: {queue} has no message since {millis}. Set "
            "startingOffsetsByTimestampStrategy to latest to start at the end of such queues"
        )
    return highest if found is None else found


def find_end_by_time(options: SourceOptions, wire: Wire, queue: Queue, lowest: int, highest: int) -> int | None:
    """The end of a queue by ``ending_millis``; None without a time for it."""
    millis = _time_of(options.ending_millis, queue)
    if millis is None:
        return None
    found = find_first_since(wire, queue, millis, lowest, highest)
    return highest if found is None else found


def _time_of(times: int | Offsets | None, queue: Queue) -> int | None:
    if times is None or isinstance(times, int):
        return times
    return times.get(queue.topic, {}).get(queue.broker, {}).get(queue.queue_id)


def settle_range(options: SourceOptions, queue: Queue, lowest: int, highest: int) -> QueueRange:
    """The range of one queue that has the offsets ``lowest <= offset < highest``."""
    start = find_offset(options.starting, queue, EARLIEST)
    end = find_offset(options.ending, queue, LATEST)
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset > highest:
            raise WrongOption(f"{name}: {queue} ends at offset {highest}, {offset} lies behind its last message")
    if start > end >= 0:
        raise WrongOption(f"{queue}: startingOffsets ({start}) lies behind endingOffsets ({end})")
    end = highest if end == LATEST else end
    if 0 <= start < min(lowest, end):
        if queue.is_slave:
            refuse_shortened_slave(queue, lowest)
        report_loss(queue, start, lowest, min(lowest, end) - start, options.fail_on_data_loss)
    start = max(start, lowest)
    return QueueRange(queue, start, max(start, end))


def split_for_tasks(ranges: list[QueueRange], options: SourceOptions, wire: Wire) -> list[QueueRange]:
    """Split the ranges as ``options`` say. With ``max_partition_bytes``, samples of messages tell how many are enough.

    The same messages are split in the same way again, because the keys of ``dedupKeys`` depend on the parts. Raises the
    errors of :class:`Wire`.
    """
    if options.max_partition_bytes is not None:
        limit = options.max_partition_bytes
        ranges = [
            part
            for item in ranges
            for part in _parts(item, -(-item.rows // max(limit // (_mean_bytes(wire, item) or 1), 1)) or 1)
        ]
    return split_ranges(ranges, options.min_partitions, options.max_partition_rows)


def measure_messages(wire: Wire, queue: Queue, offset: int) -> int | None:
    """The mean stored bytes of the messages that one pull returns, at most the next :data:`SAMPLE_ROWS` from ``offset``
    on; None if there are none."""
    answer = wire.pull(queue, offset, SAMPLE_ROWS)
    if not answer.records or answer.next_offset <= offset:
        return None
    return max(len(answer.records) // (answer.next_offset - offset), 1)


def _mean_bytes(wire: Wire, item: QueueRange) -> int | None:
    """The largest of the means at the start, in the middle and at the end of a range; None if they are gone.

    While its master does not answer, a slave is asked that has the whole range, where the means are the same.
    """
    samples = sorted({item.start, (item.start + item.end) // 2, max(item.end - SAMPLE_ROWS, item.start)})
    failures: list[str] = []
    for queue in item.queue.everywhere():
        try:
            if queue.is_slave:
                _check_slave(wire, queue, item)
            means = [_measure_exactly(wire, queue, offset, item.end) for offset in samples]
        except Unreachable as error:
            failures.append(str(error))
            continue
        return max((mean for mean in means if mean is not None), default=None)
    raise Unreachable("; ".join(failures))


def _check_slave(wire: Wire, queue: Queue, item: QueueRange) -> None:
    lowest, highest = wire.find_bounds(queue)
    if highest < item.end:
        refuse_lagging_slave(queue, highest)
    if lowest > item.start:
        refuse_shortened_slave(queue, lowest)


def _measure_exactly(wire: Wire, queue: Queue, offset: int, end: int) -> int | None:
    """The mean stored bytes of the next :data:`SAMPLE_ROWS` messages before ``end``, in as many pulls as they take:
    brokers decide how many messages a pull returns."""
    until = min(offset + SAMPLE_ROWS, end)
    size, position = 0, offset
    while position < until:
        answer = wire.pull(queue, position, until - position)
        if not answer.records or answer.next_offset <= position:
            break
        size += len(answer.records)
        position = answer.next_offset
    return max(size // (position - offset), 1) if position > offset else None


def split_ranges(ranges: list[QueueRange], at_least: int, rows_max: int | None = None) -> list[QueueRange]:
    """Split the ranges into about ``at_least`` ones, of at most ``rows_max`` messages each.

    The number of parts of a range is proportional to its share of all messages. Parts have equal size and are never
    empty.
    """
    if rows_max is not None:
        ranges = [part for item in ranges for part in _parts(item, max(-(-item.rows // rows_max), 1))]
    total = sum(item.rows for item in ranges)
    if len(ranges) >= at_least or total == 0:
        return ranges
    pieces: list[QueueRange] = []
    for item in ranges:
        count = min(max(1, round(at_least * item.rows / total)), item.rows)
        pieces += _parts(item, count)
    return pieces


def _parts(item: QueueRange, count: int) -> list[QueueRange]:
    edges = [item.start + item.rows * number // count for number in range(count + 1)]
    return [QueueRange(item.queue, start, end) for start, end in itertools.pairwise(edges)]


def report_loss(queue: Queue, wanted: int, lowest: int, count: int, fail: bool) -> None:
    """Messages from ``wanted`` on no longer exist: raise :class:`DataLoss`, or log their number if ``fail`` is
    False."""
    if fail:
        raise DataLoss(
            f"{queue}: offset {wanted} is wanted, but messages from there on are gone ({count} of them; the queue's "
            f"min offset is {lowest}). Set failOnDataLoss to false to read what is left"
        )
    log.warning(
        "messages_lost", topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id, wanted=wanted,
        min_offset=lowest, lost=count,
    )  # fmt: skip


def refuse_lagging_slave(queue: Queue, end: int) -> NoReturn:
    """Raise :class:`Unreachable` because the slave that serves ``queue`` ends at ``end``, and only the master has the
    messages from there on: they are not lost."""
    raise Unreachable(f"{queue.address}, a slave, has {queue} up to offset {end} only")


def refuse_shortened_slave(queue: Queue, lowest: int) -> NoReturn:
    """Raise :class:`Unreachable` because the slave that serves ``queue`` begins at ``lowest``, and the master may have
    the messages before: only the master knows whether they are lost."""
    raise Unreachable(f"{queue.address}, a slave, has {queue} from offset {lowest} on only")


def find_offset(offsets: int | Offsets, queue: Queue, otherwise: int) -> int:
    """What ``offsets`` say about ``queue``, or ``otherwise``."""
    if isinstance(offsets, int):
        return offsets
    return offsets.get(queue.topic, {}).get(queue.broker, {}).get(queue.queue_id, otherwise)


def _check_names(name: str, offsets: int | Offsets | None, queues: list[Queue]) -> None:
    if offsets is None or isinstance(offsets, int):
        return
    known = {(queue.topic, queue.broker, queue.queue_id) for queue in queues}
    for topic, brokers in offsets.items():
        for broker, ids in brokers.items():
            for queue_id in ids:
                if (topic, broker, queue_id) not in known:
                    there = ", ".join(sorted({queue.broker for queue in queues if queue.topic == topic}))
                    raise WrongOption(f"{name}: {topic} has no queue {queue_id} on {broker!r}; its brokers: {there}")

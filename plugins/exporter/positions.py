"""The topics that match the configuration, the lag of their export, and the part of the log that it still needs."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.kernel.errors import CorruptRange, OutOfLog, UnreadableRange
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.codes import PERM_READ
from gantrymq.remoting.names import DLQ_PREFIX, is_retry_topic, is_system_topic, reply_topic

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.plugins.exporter.state import Starts

_MAGIC: Final = frozenset("*?[")

Ends = Mapping[str, Mapping[int, int]]
"""By topic and queue: up to which queue offset the export has it."""


def find_topics(broker: Broker, patterns: list[str]) -> dict[str, int]:
    """Return the readable topics of this broker that match ``patterns``, with the number of their read queues."""
    table = broker.registry.get(TopicTable)
    found: dict[str, int] = {}
    for name in _matching(broker, patterns):
        config = table.get(name)
        if config is not None and config.perm & PERM_READ and config.read_queue_nums:
            found[name] = config.read_queue_nums
    return found


def _matching(broker: Broker, patterns: list[str]) -> Iterator[str]:
    exact = {pattern for pattern in patterns if not _MAGIC & set(pattern)}
    named_after = {broker.name, broker.cluster, reply_topic(broker.cluster)}
    for name in sorted(broker.registry.get(TopicTable).names()):
        is_own = name in named_after or is_system_topic(name) or is_retry_topic(name) or name.startswith(DLQ_PREFIX)
        if name in exact or (not is_own and any(fnmatchcase(name, pattern) for pattern in patterns)):
            yield name


def lowest_ends(broker: Broker, patterns: list[str], before: Starts | None) -> dict[str, dict[int, int]]:
    """Return the ends of the queues of all topics that match ``patterns``; those in ``before`` where they are lower."""
    topics = set(_matching(broker, patterns))
    earlier = {} if before is None else before.ends
    unchecked = set() if before is None else set(_matching(broker, before.patterns)).difference(before.checked)
    found: dict[str, dict[int, int]] = {}
    for queue in broker.queues:
        if queue.topic in topics:
            end = queue.max_offset
            if queue.topic in unchecked:
                end = min(end, earlier.get(queue.topic, {}).get(queue.queue_id, 0))
            found.setdefault(queue.topic, {})[queue.queue_id] = end
    return found


def lag_of(broker: Broker, topics: Mapping[str, int], ends: Ends) -> dict[str, int]:
    """Return, by topic, the number of messages that are in the queues but not in the export.

    All messages of a queue that ends before its export count: the next run then fails, and says so.
    """
    return {
        topic: sum(queue.high - queue.position for queue in _queues(broker, {topic: count}, ends))
        for topic, count in topics.items()
    }


def ends_before(broker: Broker, topic: str, ends: Mapping[int, int]) -> bool:
    """Return whether a queue of the topic ends before ``ends``; a missing one ends at 0."""
    for queue_id, end in ends.items():
        queue = broker.queues.get(topic, queue_id)
        if end > (0 if queue is None else queue.max_offset):
            return True
    return False


def floor_of(broker: Broker, topics: Mapping[str, int], ends: Ends, hold_bytes: int, oldest_ms: int) -> int:
    """Return the lowest log offset that the export needs; the log's end if it needs nothing.

    At most ``hold_bytes`` before the log's end, and no message that was stored before ``oldest_ms``.
    """
    end = broker.log.end
    if not hold_bytes:
        return end
    waiting = [(queue.log_offset(queue.position), number, queue) for number, queue in _numbered(broker, topics, ends)]
    heapq.heapify(waiting)
    while waiting:
        offset, number, queue = waiting[0]
        if offset <= end - hold_bytes:
            return end - hold_bytes
        if queue.stored_ms(queue.position) >= oldest_ms:
            return offset
        # Only the queue with the lowest offset is searched; the loop then compares its new offset with the others.
        behind = bisect_left(range(queue.position, queue.high), oldest_ms, key=queue.stored_ms)
        queue = attrs.evolve(queue, position=queue.position + behind)
        if queue.position < queue.high:
            heapq.heapreplace(waiting, (queue.log_offset(queue.position), number, queue))
        else:
            heapq.heappop(waiting)
    return end


@attrs.frozen
class _Waiting:
    """A queue whose messages ``position <= offset < high`` are not exported."""

    broker: Broker
    topic: str
    queue_id: int
    position: int
    high: int

    def log_offset(self, offset: int) -> int:
        """Return the log offset of the message, or of the next one that has an entry."""
        queue = self.broker.queues.get(self.topic, self.queue_id)
        if queue is None:
            return self.broker.log.end
        real = queue.next_real(offset, self.high)
        return int(queue.entry(real)[0]) if real < self.high else self.broker.log.end

    def stored_ms(self, offset: int) -> int:
        """Return when the message was stored; 0 if it cannot be read, since the export cannot wait for it. ``OSError``
        if the process has no file descriptor left to read it now."""
        try:
            return self.broker.log.read_record(self.log_offset(offset)).store_timestamp
        except UnreadableRange as error:
            error.raise_if_temporary()
            return 0
        except (OutOfLog, CorruptRange, BadRecord):
            return 0


def _queues(broker: Broker, topics: Mapping[str, int], ends: Ends) -> Iterator[_Waiting]:
    for topic, count in topics.items():
        for queue_id in range(count):
            queue = broker.queues.get(topic, queue_id)
            if queue is None:
                continue
            low, high = queue.min_offset, queue.max_offset
            exported = ends.get(topic, {}).get(queue_id, 0)
            # A queue that ends before its export has other messages: its topic was created again, or the log lost its
            # tail.
            position = low if exported > high else max(exported, low)
            if position < high:
                yield _Waiting(broker, topic, queue_id, position, high)


def _numbered(broker: Broker, topics: Mapping[str, int], ends: Ends) -> Iterator[tuple[int, _Waiting]]:
    """With numbers, so that a heap never compares two queues."""
    yield from enumerate(_queues(broker, topics, ends))

"""All counters by statistic and key. Pulls are counted when they are answered, puts from the consume queues.

Nothing is counted when messages arrive: a consume queue has the number of its messages, and its entries have their
sizes. Every second the difference since the last check is counted; the entries are summed in bulk. As in RocketMQ, a
slave counts replicated messages as stored (``messages_put``, ``bytes_put``), and not as sent to it.

Source of names and keys: RocketMQ 4.9.7 ``Stats``, ``BrokerStatsManager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from gantrymq.plugins.stats.config import StatsConfig
from gantrymq.plugins.stats.items import Item
from gantrymq.plugins.stats.sizes import WORDS, Sizes, sizes_of
from gantrymq.remoting.names import is_retry_topic
from gantrymq.remoting.outages import Outages

if TYPE_CHECKING:
    from array import array

    from gantrymq.kernel.api import Broker

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS, QUEUE_PUT_SIZE = "QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
QUEUE_GET_NUMS, QUEUE_GET_SIZE = "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
SNDBCK_PUT_NUMS, GROUP_GET_LATENCY = "SNDBCK_PUT_NUMS", "GROUP_GET_LATENCY"
STATISTICS = (
    TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, QUEUE_PUT_NUMS, QUEUE_PUT_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE, QUEUE_GET_NUMS,
    QUEUE_GET_SIZE, BROKER_PUT_NUMS, BROKER_GET_NUMS, SNDBCK_PUT_NUMS, GROUP_GET_LATENCY,
)  # fmt: skip
"""The statistics. RocketMQ counts nothing under its other names (disk reads, commercial ones), or does not show it (lag
of groups)."""

ENTRIES_AT_ONCE = 16_384
KEY_MAX_CHARACTERS = 512
"""Characters of a key: more than the longest topic, group and queue id have together."""

log = structlog.get_logger("gantrymq.stats")


class _Pulled:
    """Pulls of one group from one queue since the last check."""

    __slots__ = ("messages", "next_offset", "size", "times", "waited_ms")

    def __init__(self) -> None:
        self.messages = self.size = self.times = self.waited_ms = 0
        self.next_offset = -1


class Table:
    """Provides ``Statistics``."""

    def __init__(self, broker: Broker, config: StatsConfig) -> None:
        self._broker = broker
        self._config = config
        self._items: dict[str, dict[str, Item]] = {name: {} for name in STATISTICS}
        self._count = 0
        self._warned = False
        self._outages = Outages(log, broker.env.monotonic)
        self._units = 0
        self._seen: dict[tuple[str, int], int] = {}
        self._pulled: dict[tuple[str, str, int], _Pulled] = {}
        self._pulled_to: dict[tuple[str, str, int], int] = {}
        self.pulls_found = 0
        self.pulls_missed = 0
        self.messages_pulled = 0
        self.bytes_put = 0
        self.messages_put = 0
        self.sizes: Sizes | None = None
        """Message sizes, from the first request for them on."""
        self._is_master = not broker.broker_id

    # ------------------------------------------------------------------------------------------------- interface

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """See ``Statistics``. An unknown statistic is a ValueError."""
        items = self._items.get(name)
        if items is None:
            raise ValueError(f"there is no statistic {name!r}")
        item = items.get(key)
        if item is None:
            if self._count >= self._config.max_items or len(key) > KEY_MAX_CHARACTERS:
                if not self._warned:
                    self._warned = True
                    log.warning("statistics_limit_reached", statistic=name, key=key[:300], limit=self._config.max_items)
                return
            item = items[key] = Item()
            self._count += 1
        item.add(value, times)

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size: int, next_offset: int = -1) -> None:
        """See ``Statistics``."""
        if not messages:
            self.pulls_missed += 1
            return
        key = (group, topic, queue_id)
        pulled = self._pulled.get(key)
        if pulled is None:
            pulled = self._begin(key)
            if pulled is None:
                return
        pulled.times += 1
        pulled.messages += messages
        pulled.size += size
        if next_offset >= 0:
            pulled.next_offset = next_offset
        self.pulls_found += 1
        self.messages_pulled += messages

    def pulled_to(self, group: str, topic: str, queue_id: int) -> int | None:
        """See ``Statistics``."""
        key = (group, topic, queue_id)
        pulled = self._pulled.get(key)
        return self._pulled_to.get(key) if pulled is None or pulled.next_offset < 0 else pulled.next_offset

    def waited(self, group: str, topic: str, queue_id: int, seconds: float) -> None:
        """See ``Statistics``. All other pulls are answered in the turn in which they arrive: in 0 ms."""
        key = (group, topic, queue_id)
        pulled = self._pulled.get(key) or self._begin(key)
        if pulled is not None:
            pulled.waited_ms += int(seconds * 1000)

    def consume_tps(self, group: str, topic: str) -> float:
        """See ``Statistics``."""
        item = self.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if item is None else item.tps

    # --------------------------------------------------------------------------------------------------- sampling

    def find(self, name: str, key: str) -> Item | None:
        """Return the counter, or None when nothing was counted under this key, or the statistic is unknown."""
        return self._items.get(name, {}).get(key)

    def items(self, name: str) -> list[tuple[str, Item]]:
        """Return all counters of a statistic, by key."""
        return list(self._items[name].items())

    def begin(self) -> None:
        """Count only messages that arrive from now on."""
        self._units = self._broker.queues.units
        self._seen = {(queue.topic, queue.queue_id): queue.max_offset for queue in self._broker.queues}

    def update(self) -> Iterator[None]:
        """Count messages since the last check; yields periodically, so that others are served.

        Messages whose queue entries cannot be read are left out.
        """
        for key, pulled in self._take_pulled().items():
            self._count_pulled(key, pulled)
        units = self._broker.queues.units
        if units == self._units:
            return
        self._units = units
        for queue in list(self._broker.queues):
            seen = self._seen.get((queue.topic, queue.queue_id), 0)
            end = queue.max_offset
            if end != seen:
                self._seen[queue.topic, queue.queue_id] = end
                if end > seen:
                    yield from self._count_puts(queue, max(seen, queue.min_offset), end)
        for gone in [place for place in self._seen if self._broker.queues.get(*place) is None]:
            del self._seen[gone]

    def sample(self, now: int, period: int, due: bool) -> None:
        """Take snapshots of all counters for the period of this number if ``due``; else of those that have none yet.

        Counters without events for a day are deleted.
        """
        for items in self._items.values():
            for key, item in list(items.items()):
                if due or item.is_new(period):
                    item.sample(now, period)
                if item.is_idle:
                    del items[key]
                    self._count -= 1

    def _begin(self, key: tuple[str, str, int]) -> _Pulled | None:
        if len(self._pulled) >= self._config.max_items:
            return None
        pulled = self._pulled[key] = _Pulled()
        return pulled

    def _take_pulled(self) -> dict[tuple[str, str, int], _Pulled]:
        taken, self._pulled = self._pulled, {}
        return taken

    def _count_pulled(self, key: tuple[str, str, int], pulled: _Pulled) -> None:
        group, topic, queue_id = key
        if pulled.next_offset >= 0:
            if len(self._pulled_to) >= self._config.max_items:
                self._pulled_to.clear()  # those that are in use come back with their next pull
            self._pulled_to[key] = pulled.next_offset
        place = f"{queue_id}@{topic}@{group}" if self._config.by_queue else f"{topic}@{group}"
        self.add(GROUP_GET_LATENCY, place, pulled.waited_ms, pulled.times)
        self.add(GROUP_GET_NUMS, f"{topic}@{group}", pulled.messages, pulled.times)
        self.add(GROUP_GET_SIZE, f"{topic}@{group}", pulled.size, pulled.times)
        self.add(BROKER_GET_NUMS, self._broker.cluster, pulled.messages, pulled.times)
        if self._config.by_queue:
            self.add(QUEUE_GET_NUMS, f"{topic}@{queue_id}@{group}", pulled.messages, pulled.times)
            self.add(QUEUE_GET_SIZE, f"{topic}@{queue_id}@{group}", pulled.size, pulled.times)

    def _count_puts(self, queue: ConsumeQueue, start: int, end: int) -> Iterator[None]:
        topic, messages, size = queue.topic, 0, 0
        while start < end:
            try:
                data = queue.entries(start, min(ENTRIES_AT_ONCE, end - start))
            except OSError as error:
                if self._broker.queues.get(topic, queue.queue_id) is not queue:
                    break  # the topic has been deleted
                # They are not read again: a bad block of the disk can delay each attempt for seconds.
                self._outages.warning(
                    "messages_not_counted",
                    topic=topic, queue_id=queue.queue_id, messages=end - start, reason=str(error),
                )  # fmt: skip
                break
            if not data:
                break
            sizes = sizes_of(data)
            count, total = measure(sizes)
            if self.sizes is not None and self._is_master:
                self.sizes.add(topic, sizes)
            messages += count
            size += total
            start += len(data) // (4 * WORDS)
            yield
        self.messages_put += messages
        self.bytes_put += size
        if not self._is_master:
            return
        self.add(TOPIC_PUT_NUMS, topic, messages, messages)
        self.add(TOPIC_PUT_SIZE, topic, size, messages)
        self.add(BROKER_PUT_NUMS, self._broker.cluster, messages, messages)
        if self._config.by_queue and not is_retry_topic(topic):
            self.add(QUEUE_PUT_NUMS, f"{topic}@{queue.queue_id}", messages, messages)
            self.add(QUEUE_PUT_SIZE, f"{topic}@{queue.queue_id}", size, messages)


def measure(sizes: array[int]) -> tuple[int, int]:
    """Return the number of messages with these ``sizes``, and their bytes, summed in bulk."""
    fillers = sizes.count(FILLER_SIZE)
    return len(sizes) - fillers, sum(sizes) - fillers * FILLER_SIZE

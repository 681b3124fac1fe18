"""Subscriptions other than by tag: ``config/consumerFilter.json``, maintained for a RocketMQ broker that uses the store
later.

Such a broker compiles its bit maps from it (``enableConsumeQueueExt``, ``enableCalcFilterBitMap``). Source: RocketMQ
4.9.7 ``ConsumerFilterManager``, ``ConsumerFilterData``, ``BloomFilterData``, ``BloomFilter``. Fields are in the order
in which fastjson writes them, by name.
"""

# ruff: noqa: RUF012 - msgspec copies an empty default for each new struct
from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from gantrymq.kernel.store.state_file import load_state
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import Int32, Int64
from gantrymq.remoting.steps import run_steps

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.remoting.bodies.clients import SubscriptionData

log = structlog.get_logger("gantrymq.filter")

BLOOM_HASHES: Final = 3
BLOOM_BITS: Final = 112
"""The size of ``BloomFilter`` for ``maxErrorRateOfBloomFilter`` 20 (%) and ``expectConsumerNumUseFilter`` 32:
log(0.2) / log(0.5) hashes, rounded up, and 32 * log2(5) * log2(e) bits, rounded up to whole bytes."""
KEPT_MS: Final = 24 * 3600 * 1000
"""How long an entry of a dead group is kept, in ms (``filterDataCleanTimeSpan``)."""
DIED_BEFORE_MS: Final = 30_000
"""A group that is alive in the file counts as dead since this many ms before the file was read."""
PATH: Final = "config/consumerFilter.json"
ENTRIES_MAX: Final = 10_000
"""The most entries, because groups with random names must not fill the memory. Beyond it, the entries that have been
dead for longest are deleted."""
CHECKED_AT_ONCE: Final = 16_384
"""The most characters of new expressions that one update reads, apart from the rest of the last expression, because
reading takes processor time."""
STEP_ENTRIES: Final = 16
"""Entries per step, which takes some hundred microseconds."""


def bloom_positions(text: str) -> list[int]:
    """Return the bits of ``text`` in a filter of :data:`BLOOM_BITS`."""
    import mmh3  # a separate library, which is loaded only when SQL92 is used

    hashed = mmh3.hash64(text.encode())[0] & 0xFFFF_FFFF_FFFF_FFFF
    low, high = hashed & 0xFFFF_FFFF, hashed >> 32
    positions = []
    for number in range(1, BLOOM_HASHES + 1):
        combined = (low + number * high) & 0xFFFF_FFFF
        # as Java does with a negative int: flip all its bits
        positions.append((combined ^ 0xFFFF_FFFF if combined >> 31 else combined) % BLOOM_BITS)
    return positions


class BloomFilterData(Body):
    """The bits of a group in a filter."""

    bit_num: Int32 = 0
    bit_pos: list[Int32] = []


class ConsumerFilterData(Body):
    """The present or last subscription of a group to a topic. Times are ms since 1970; ``dead_time`` 0: the group is
    alive."""

    bloom_filter_data: BloomFilterData = msgspec.field(default_factory=BloomFilterData)
    born_time: Int64 = 0
    client_version: Int64 = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: Int64 = 0
    expression: str = ""
    expression_type: str = ""
    topic: str = ""


class FilterDataByTopic(Body):
    """The groups that filter a topic."""

    group_filter_data: dict[str, ConsumerFilterData] = {}
    topic: str = ""


class ConsumerFilterFile(Body):
    """The file."""

    filter_data_by_topic: dict[str, FilterDataByTopic] = {}


class ConsumerFilters:
    """The table behind the file: for each topic and group, the last subscription other than by tag."""

    def __init__(self, env: Env, path: str, check: Callable[[str, str], object]) -> None:
        """Read the file. :class:`StartError` if it is not readable.

        ``check`` takes an expression type and an expression, and raises ``RemoteFault`` for an invalid expression. For
        a long one it returns a generator, which yields where other work can run.
        """
        self.path = path
        self._env = env
        self._check = check
        self._entries: dict[tuple[str, str], ConsumerFilterData] = {}
        self._refused: set[tuple[str, str, str, str]] = set()
        self._unchecked = CHECKED_AT_ONCE
        self._changed = False
        stored = load_state(env, path, ConsumerFilterFile.from_bytes)
        if stored is not None:
            self._take(stored)

    def get(self, group: str, topic: str) -> ConsumerFilterData | None:
        """Return the entry of the group for ``topic``. Do not change it."""
        return self._entries.get((topic, group))

    @property
    def is_behind(self) -> bool:
        """Whether the last update left expressions for the next one."""
        return self._unchecked <= 0

    def update(self, live: Iterable[tuple[str, SubscriptionData]]) -> None:
        """Update the table; ``live`` has all subscriptions of live groups. Groups that are missing become dead now."""
        run_steps(self.update_in_steps(live))

    def update_in_steps(self, live: Iterable[tuple[str, SubscriptionData]]) -> Generator[None, None, None]:
        """As :meth:`update`, in steps between which other work can run; only one at a time."""
        now = self._env.wall_ms()
        wanted: dict[tuple[str, str], SubscriptionData] = {}
        for number, (group, subscription) in enumerate(live):
            if subscription.expression_type not in ("", "TAG") and subscription.sub_string:
                wanted[subscription.topic, group] = subscription
            if number % STEP_ENTRIES == 0:
                yield
        refused, self._refused = self._refused, set()
        self._unchecked = CHECKED_AT_ONCE
        for number, (key, subscription) in enumerate(wanted.items()):
            yield from self._register(key, subscription, now, refused)
            if number % STEP_ENTRIES == 0:
                yield
        for number, (key, entry) in enumerate(list(self._entries.items())):
            if key not in wanted and not entry.dead:
                self._bury(entry, now)
            if entry.dead and now - entry.dead_time >= KEPT_MS:
                self._remove(key)
            if number % STEP_ENTRIES == 0:
                yield
        if len(self._entries) > ENTRIES_MAX:
            dead = sorted((entry.dead_time, key) for key, entry in self._entries.items() if entry.dead)
            for _, key in dead[: len(self._entries) - ENTRIES_MAX]:
                self._remove(key)

    def changes(self) -> dict[str, bytes | bytearray] | None:
        """Return the file by its path if anything changed since the last call, else None."""
        return run_steps(self.changes_in_steps())

    def changes_in_steps(self) -> Generator[None, None, dict[str, bytes | bytearray] | None]:
        """As :meth:`changes`, in steps between which other work can run. The table must not change meanwhile."""
        if not self._changed:
            return None
        topics: dict[str, list[ConsumerFilterData]] = {}
        for number, ((topic, _), entry) in enumerate(self._entries.items()):
            topics.setdefault(topic, []).append(entry)
            if number % STEP_ENTRIES == 0:
                yield
        # The text grows step by step: joining a hundred megabytes at the end would take too long for one step.
        text = bytearray(b'{"filterDataByTopic":{')
        number = 0
        for topic, entries in topics.items():
            name = fastjson.dumps(topic)
            text += name + b':{"groupFilterData":{'
            for entry in entries:
                text += fastjson.dumps(entry.consumer_group) + b":" + entry.to_bytes() + b","
                number += 1
                if number % STEP_ENTRIES == 0:
                    yield
            text[-1:] = b'},"topic":' + name + b"},"
        text[-1 if topics else len(text) :] = b"}}"
        self._changed = False
        return {self.path: text}

    def _register(
        self, key: tuple[str, str], subscription: SubscriptionData, now: int, refused: set[tuple[str, str, str, str]]
    ) -> Generator[None, None, None]:
        entry = self._entries.get(key)
        expression = (subscription.expression_type, subscription.sub_string)
        if entry is not None and (
            subscription.sub_version <= entry.client_version or expression == _expression_of(entry)
        ):
            if subscription.sub_version > entry.client_version or (
                subscription.sub_version == entry.client_version and entry.dead
            ):
                entry.client_version, entry.dead, entry.dead_time = subscription.sub_version, False, 0
                self._changed = True
            return
        if (*key, *expression) not in refused:
            if self._unchecked <= 0:
                return  # the next update continues
            self._unchecked -= len(subscription.sub_string)
        is_refused = (*key, *expression) in refused
        if is_refused or not (yield from self._is_readable(*expression)):
            # The client gets the error when it pulls. Its previous subscription no longer applies.
            self._refused.add((*key, *expression))
            if entry is not None:
                self._remove(key)
            return
        topic, group = key
        bloom = BloomFilterData(BLOOM_BITS, bloom_positions(f"{group}#{topic}"))
        self._entries[key] = ConsumerFilterData(
            bloom,
            now,
            subscription.sub_version,
            group,
            False,
            0,
            subscription.sub_string,
            subscription.expression_type,
            topic,
        )
        self._changed = True

    def _is_readable(self, expression_type: str, expression: str) -> Generator[None, None, bool]:
        try:
            steps = self._check(expression_type, expression)
            if isinstance(steps, Generator):
                yield from steps
        except RemoteFault:
            return False
        return True

    def _bury(self, entry: ConsumerFilterData, when: int) -> None:
        entry.dead, entry.dead_time = True, max(when, entry.born_time)
        self._changed = True

    def _remove(self, key: tuple[str, str]) -> None:
        del self._entries[key]
        self._changed = True

    def _take(self, stored: ConsumerFilterFile) -> None:
        died = self._env.wall_ms() - DIED_BEFORE_MS
        for topic, groups in stored.filter_data_by_topic.items():
            for group, entry in groups.group_filter_data.items():
                entry.topic, entry.consumer_group = topic, group
                # A broker with another error rate has other bits, and would ignore a file with only some of ours.
                entry.bloom_filter_data = BloomFilterData(BLOOM_BITS, bloom_positions(f"{group}#{topic}"))
                entry.dead = entry.dead_time >= entry.born_time
                if not entry.dead:
                    self._bury(entry, died)
                self._entries[topic, group] = entry
        log.info("consumer_filters_loaded", entries=len(self._entries))


def _expression_of(entry: ConsumerFilterData) -> tuple[str, str]:
    return entry.expression_type, entry.expression

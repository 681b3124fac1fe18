"""Reports consumer groups in trouble: those that make no progress, have lost all members, or get dead letters.

Slot: none. Hooks: config_section, configure, register_tasks, offsets_committed, groups_changed, dead_lettered,
collect_metrics.
Config ``[plugin.group_health]``: ``groups``, names, or the beginnings of names with a ``*`` behind, all groups without
it; ``stalled_after``, the time without a commit after which a group with waiting messages is reported; ``check_every``.
Files: none: the times begin again at the start of the broker.

The log gets ``group_stalled`` and ``group_resumed`` for a group and topic, ``group_without_members``, and
``group_dead_letters``. The metrics ``group_health_stalled_seconds`` and ``group_health_dead_letters_total`` are for
alerts. A slave sees the offsets of its master, and no members and dead letters: enable the plugin on masters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import duration
from gantrymq.kernel.store.reading import read_messages
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import ConsumerGroups, ConsumerOffsets, TopicTable
from gantrymq.remoting.names import is_system_group

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.changes import DeadLettersBatch, GroupsBatch, OffsetsBatch
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics

log = structlog.get_logger("gantrymq.group_health")

GroupTopic = tuple[str, str]


@attrs.frozen
class GroupHealthConfig:
    """``[plugin.group_health]``."""

    groups: tuple[str, ...] = ()
    stalled_after: float = duration("5m", minimum="10ms", maximum="24h")
    check_every: float = duration("30s", minimum="10ms", maximum="1h")


class GroupHealthPlugin:
    """One object per broker."""

    name = "group_health"
    version = "1.0.0"

    def __init__(self) -> None:
        self.stalled: dict[GroupTopic, float] = {}
        """Since when each stalled group has made no progress in a topic, on the broker's monotonic clock."""
        self.dead_letters: Counter[str] = Counter()
        self._progress: dict[GroupTopic, float] = {}
        self._with_members: set[str] = set()

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "group_health", GroupHealthConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the section."""
        self._broker = broker
        self._config = section = config.section(GroupHealthConfig)
        self._names = frozenset(group for group in section.groups if not group.endswith("*"))
        self._prefixes = tuple(group[:-1] for group in section.groups if group.endswith("*"))

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Begin with the offsets of the last run; a task then checks all groups again and again."""
        self._offsets = broker.registry.get(ConsumerOffsets)
        self._consumers = broker.registry.get(ConsumerGroups)
        now = broker.env.monotonic()
        for topic in broker.registry.get(TopicTable).names():
            for group in self._offsets.groups_of(topic):
                if self._is_watched(group):
                    self._progress[group, topic] = now
        return [BackgroundTask("group_health", self._run)]

    @hookimpl
    def offsets_committed(self, batch: OffsetsBatch) -> None:
        """Note the time of the last commit."""
        now = self._broker.env.monotonic()
        for group, topic in zip(batch.groups, batch.topics, strict=True):
            if self._is_watched(group):
                self._progress[group, topic] = now

    @hookimpl
    def groups_changed(self, batch: GroupsBatch) -> None:
        """Report a group whose last member has left."""
        for group in filter(self._is_watched, batch.groups):
            if self._consumers.client_ids(group):
                self._with_members.add(group)
            elif group in self._with_members:
                self._with_members.remove(group)
                log.warning("group_without_members", group=group)

    @hookimpl
    def dead_lettered(self, batch: DeadLettersBatch) -> None:
        """Count dead letters, and report them, one line for each group."""
        for group, count in Counter(filter(self._is_watched, batch.groups)).items():
            self.dead_letters[group] += count
            row = batch.groups.index(group)
            log.warning(
                "group_dead_letters", group=group, count=count, topic=batch.topics[row],
                message_id=batch.message_ids[row],
            )  # fmt: skip

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """For how long groups make no progress, and their dead letters since the start."""
        now = broker.env.monotonic()
        text = "Seconds since the last commit of a stalled group, else 0"
        for group, topic in self._progress:
            since = self.stalled.get((group, topic), now)
            metrics.gauge("group_health_stalled_seconds", text, now - since, consumer_group=group, topic=topic)
        for group, count in self.dead_letters.items():
            metrics.counter("group_health_dead_letters_total", "Dead letters", count, consumer_group=group)

    def check(self, now: float) -> None:
        """Compare each group's offsets with the ends of the queues."""
        for (group, topic), since in list(self._progress.items()):
            offsets = self._offsets.queues_of(group, topic)
            if not offsets:  # the group or the topic was deleted
                del self._progress[group, topic]
                self.stalled.pop((group, topic), None)
                continue
            waiting = sum(max(0, self._end_of(topic, queue_id) - offset) for queue_id, offset in offsets.items())
            if not waiting:
                self._progress[group, topic] = since = now
            if now - since < self._config.stalled_after:
                if self.stalled.pop((group, topic), None) is not None:
                    log.info("group_resumed", group=group, topic=topic, waiting=waiting)
            elif (group, topic) not in self.stalled:
                self.stalled[group, topic] = since
                members = self._consumers.client_ids(group)
                first = self._first_waiting(topic, offsets)
                log.warning("group_stalled", group=group, topic=topic, waiting=waiting, members=members, first=first)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._broker.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def _first_waiting(self, topic: str, offsets: Mapping[int, int]) -> str | None:
        """Return the id of a message at which the group stands."""
        for queue_id, offset in offsets.items():
            for record in read_messages(self._broker.store, topic, queue_id, offset, 1).records:
                return record.message_id
        return None

    def _is_watched(self, group: str) -> bool:
        if not self._config.groups:
            return not is_system_group(group)
        return group in self._names or group.startswith(self._prefixes)

    async def _run(self) -> None:
        while True:
            await trio.sleep(self._config.check_every)
            self.check(self._broker.env.monotonic())

"""Topics and consumer groups: their names, queues, permissions and settings.

Slot: none; essential.
Hooks: config_section, configure, recovered, register_processors, register_tasks, started, before_append, advertise,
collect_metrics, persist, check_files.
Config ``[plugin.topics]``: auto_create, default_queues, max_topics, max_queues, auto_create_groups, max_groups,
trace_topic, trace_topic_name, broker_permission.
Files: ``config/topics.json``, ``config/subscriptionGroup.json`` (``.bak``: the previous one, ``.bad``: damaged).
Provides: TopicTable, GroupTable.
Replaces RocketMQ's TopicConfigManager, SubscriptionGroupManager, TopicValidator and the part of AdminBrokerProcessor
for them: codes 17, 21, 200, 201, 207, 215, 351, 352.

A topic that is created by its first message is written to the disk before the message is appended, so that acknowledged
messages can be consumed after a crash. A change by a request is written by a worker thread before the response; a
message that arrives meanwhile does not wait for it. If the broker ended before the write, if the write failed (a full
disk), or if both files are lost, the next start creates the topic again from the queues of its messages. The plugin
calls the hook ``topics_changed``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.observers import observe
from gantrymq.kernel.processors import Processor
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, LiveSettings, TopicTable
from gantrymq.plugins.topics.admin import TopicAdmin
from gantrymq.plugins.topics.changes import TopicChanges
from gantrymq.plugins.topics.config import TopicsConfig
from gantrymq.plugins.topics.file_check import check_groups, check_topics
from gantrymq.plugins.topics.groups import Groups
from gantrymq.plugins.topics.recovery import topics_of_queues
from gantrymq.plugins.topics.table import Topics
from gantrymq.remoting.bodies.topics import TopicConfigSerializeWrapper

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.stopped_store import StoppedStore

LIVE_KEYS = (
    "auto_create", "auto_create_groups", "broker_permission", "default_queues", "max_groups", "max_queues",
    "max_topics",
)  # fmt: skip
"""What administrators may change while the broker runs."""

log = structlog.get_logger("gantrymq.topics")


class TopicsPlugin:
    """Manages the two tables, offers them to other plugins and writes them."""

    name = "topics"
    essential = True
    sources = Source.ALL

    def __init__(self) -> None:
        self._topics: Topics | None = None
        self._groups: Groups | None = None
        self._config = TopicsConfig()
        self._failing = False
        self._changes: TopicChanges | None = None
        self._admin: TopicAdmin | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.topics]``."""
        return "topics", TopicsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read both files; a damaged one without a valid ``.bak`` stops the start."""
        self._config = config.section(TopicsConfig)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)
        groups = Groups(broker.env, f"{folder}/subscriptionGroup.json", self._config)
        topics = Topics(broker.env, f"{folder}/topics.json", self._config, groups, broker.cluster, broker.name)
        broker.registry.provide(GroupTable, groups)
        topics.forget = partial(_forget, broker)
        broker.registry.provide(TopicTable, topics)
        self._groups = groups
        self._topics = topics

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """Create topics that have messages but are missing in the file.

        Not a deleted topic whose only messages were delayed, or half messages, when it was deleted. Not on a slave,
        which takes the topics from its master. Not if RocketMQ's broker wrote to the store last, because its recovery
        restores the queues of deleted topics.
        """
        assert self._topics is not None
        report = broker.store.recovered
        if broker.broker_id == 0:
            seen = topics_of_queues(broker, self._topics.table.entries)
            self._topics.restore(seen, create=report is not None and not report.foreign)
            self._save_topics()

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the requests of administrators."""
        assert self._topics is not None  # configure has run
        assert self._groups is not None
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.topics", self._config, LIVE_KEYS, self._reconfigure)
        self._admin = admin = TopicAdmin(broker, self._topics, self._groups)
        return dict(admin.processors())

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """What calls the hook ``topics_changed``, if a plugin has it."""
        assert self._topics is not None
        observers = observe(broker.manager, "topics_changed")
        if observers is None:
            return []
        self._changes = TopicChanges(self._topics.table.entries, observers)
        return [BackgroundTask("topics.changes", self._changes.run)]

    @hookimpl(trylast=True)
    def started(self) -> None:
        """From here on changes are reported: not the topics that plugins create at the start."""
        if self._topics is not None and self._changes is not None:
            self._topics.changed = self._changes.add

    @hookimpl(trylast=True)
    def before_append(self, batch: AppendBatch) -> None:
        """Write topics that messages of this turn created, before the messages are appended."""
        self._save_topics()

    def _save_topics(self) -> None:
        assert self._topics is not None
        if self._topics.table.needs_save:
            try:
                self._topics.table.save()
                self._failing = False
            except OSError as error:
                if not self._failing:
                    log.error("topics_not_written", path=self._topics.table.path, reason=error.strerror)
                self._failing = True

    @hookimpl
    def advertise(self, broker: Broker) -> dict[str, Any]:
        """Return the topics of this broker and their data version."""
        assert self._topics is not None
        topics = self._topics.advertised()
        return {"topic_config_serialize_wrapper": TopicConfigSerializeWrapper(topics, self._topics.table.version)}

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the numbers of topics and groups, and the broker's permission
        (``BrokerMetricsManager.initStatsMetrics``)."""
        if self._topics is not None and self._groups is not None:
            metrics.gauge("rocketmq_topic_number", "Number of topics", len(self._topics.table.entries))
            metrics.gauge("rocketmq_consumer_group_number", "Number of consumer groups", len(self._groups.names()))
            metrics.gauge(
                "rocketmq_broker_permission", "What clients may do: 4 read, 2 write, 6 both", self._topics.broker_perm
            )
        if self._admin is not None:
            self._admin.times.report(metrics)

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        """Check both files, and the queues with messages against the topics."""
        check_topics(store)
        check_groups(store)

    @hookimpl
    def persist(self, broker: Broker) -> None:
        """Retry failed writes. This hook writes the tables itself, because a text returned earlier could be
        outdated."""
        if self._topics is not None and self._groups is not None:
            for table in (self._topics.table, self._groups.table):
                if table.needs_save:
                    table.save()

    def _reconfigure(self, config: TopicsConfig) -> None:
        assert self._topics is not None
        assert self._groups is not None
        self._config = config
        self._topics.reconfigure(config)
        self._groups.reconfigure(config)


def _forget(broker: Broker, topic: str, log_end: int) -> None:
    """See :attr:`Topics.forget`."""
    broker.store.delete_topic(topic, log_end)
    offsets = broker.registry.find(ConsumerOffsets)
    if offsets is not None:
        offsets.forget_topic(topic)

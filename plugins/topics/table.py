"""The topics of this broker: ``topics.json``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from gantrymq.kernel.store.state_file import load_state
from gantrymq.plugins.topics.autocreate import UNIT_SUBSCRIPTION, boot_topics, inherited, topic_config
from gantrymq.plugins.topics.config import TopicsConfig
from gantrymq.plugins.topics.groups import Groups
from gantrymq.plugins.topics.statetable import StateTable, Unknown
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from gantrymq.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    UNSENDABLE_TOPICS,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    refuse_system_topic,
    validate_topic,
)
from gantrymq.remoting.rare_warnings import RareWarnings

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

TABLE_KEY = "topicConfigTable"

log = structlog.get_logger("gantrymq.topics")


class Topics:
    """Provides ``TopicTable``. ``changed(topic, existed)`` is called after each change; ``existed``: before it."""

    def __init__(self, env: Env, path: str, config: TopicsConfig, groups: Groups, cluster: str, broker: str) -> None:
        """:class:`StartError` when neither the file nor its ``.bak`` can be read."""
        self.config = config
        self.broker_perm = config.broker_perm
        self._groups = groups
        self._warnings = RareWarnings(env.monotonic)
        self.changed: Callable[[str, bool], None] = _ignore_change
        self._created: Callable[[TopicConfig], None] = lambda config: None
        self.forget: Callable[[str, int], None] = lambda topic, log_end: None
        """Deletes a topic's messages before an offset of the log, and the groups' offsets in it. ``OSError``: the
        deletion cannot be recorded, and nothing was deleted."""
        self.table: StateTable[TopicConfig] = StateTable(env, path, TABLE_KEY)
        found = load_state(env, path, read_topics)
        if found is not None:
            stored, unknown = found
            self.table.take(stored.topic_config_table, stored.data_version, validate_topic, unknown)
        boot = {topic.topic_name: topic for topic in boot_topics(config, cluster, broker)}
        self._own = frozenset(boot)
        self._reserved: set[str] = set()
        for name, topic in boot.items():
            # manual changes stay; TBW102 follows the configuration
            if name == AUTO_CREATE_TOPIC or name not in self.table.entries:
                self.table.put(name, topic)
        if not config.auto_create:
            self.table.remove(AUTO_CREATE_TOPIC)
        self._counted = sum(map(self._counts, self.table.entries))

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic's configuration, or None."""
        return self.table.entries.get(topic)

    def for_send(
        self, topic: str, default_topic: str, default_queues: int, unit_mode: bool = False
    ) -> TopicConfig | None:
        """As :meth:`get`, but created on first use if ``default_topic`` allows it.

        A retry topic needs its group, and gets as many queues as that has, at least one. :class:`RemoteFault` for an
        illegal name (1), an unknown group (26), and beyond the limit (1).
        """
        config = self.table.entries.get(topic)
        return config if config is not None else self._create(topic, default_topic, default_queues, unit_mode)

    def ensure(self, config: TopicConfig) -> TopicConfig:
        """Create the topic unless it exists; returns its configuration. :class:`RemoteFault` as :meth:`for_send`."""
        existing = self.table.entries.get(config.topic_name)
        if existing is not None:
            return existing
        self.set(config)
        return config

    def ensure_queues(self, config: TopicConfig) -> TopicConfig:
        """As :meth:`ensure`; an existing topic with fewer queues gets those that it lacks, and keeps everything else.

        RocketMQ 5.3.3 (``TopicConfigManager.createTopicInSendMessageBackMethod``) leaves such a topic as it is, and
        stores messages in queues that no consumer reads.
        """
        existing = self.table.entries.get(config.topic_name)
        if existing is None:
            return self.ensure(config)
        reads = max(existing.read_queue_nums, config.read_queue_nums)
        writes = max(existing.write_queue_nums, config.write_queue_nums)
        if (reads, writes) == (existing.read_queue_nums, existing.write_queue_nums):
            return existing
        extended = msgspec.structs.replace(existing, read_queue_nums=reads, write_queue_nums=writes)
        self.set(extended)
        return extended

    def watch_created(self, listener: Callable[[TopicConfig], None]) -> None:
        """See :class:`gantrymq.plugins.interfaces.TopicTable`; one listener, the last one."""
        self._created = listener

    def refuses_sends(self, topic: str) -> bool:
        """Return whether clients may not send to this topic."""
        return topic in UNSENDABLE_TOPICS or topic in self._reserved

    def reserve(self, topic: str) -> None:
        """Refuse messages of clients for this topic from now on."""
        self._reserved.add(topic)

    def reconfigure(self, config: TopicsConfig) -> None:
        """Apply other settings from now on; TBW102 is created, deleted or changed accordingly."""
        self.config = config
        if self.broker_perm != config.broker_perm:
            self.broker_perm = config.broker_perm
            self.table.touch()
            for name in self.table.entries:
                self.changed(name, True)
        existed = AUTO_CREATE_TOPIC in self.table.entries
        default = next((topic for topic in boot_topics(config, "", "") if topic.topic_name == AUTO_CREATE_TOPIC), None)
        if default is None:
            self.table.remove(AUTO_CREATE_TOPIC)
        else:
            self.table.put(AUTO_CREATE_TOPIC, default)
        self.changed(AUTO_CREATE_TOPIC, existed)

    def set_ordered(self, topics: Collection[str]) -> None:
        """Set the ordered topics; all others are not ordered."""
        for name, config in list(self.table.entries.items()):
            if config.order != (name in topics):
                self.set(msgspec.structs.replace(config, order=name in topics))

    def advertised(self) -> dict[str, TopicConfig]:
        """Return the topics for the registration, with this broker's permission applied."""
        allowed = self.broker_perm
        if allowed == PERM_READ | PERM_WRITE:
            return dict(self.table.entries)
        return {
            name: msgspec.structs.replace(config, perm=config.perm & (allowed | PERM_INHERIT))
            for name, config in self.table.entries.items()
        }

    def names(self) -> list[str]:
        """Return all topics."""
        return list(self.table.entries)

    def refuse_reserved(self, topic: str) -> None:
        """:class:`RemoteFault` (code 1) for an illegal name and for a topic that belongs to the broker."""
        validate_topic(topic)
        refuse_system_topic(topic)
        if topic in self._own:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"The topic[{topic}] is conflict with system topic.")

    def refuse_deletion(self, topic: str) -> None:
        """As :meth:`refuse_reserved`, and for a topic to which only a plugin writes: it would go on, and nobody could
        read it."""
        self.refuse_reserved(topic)
        if topic in self._reserved:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"topic {topic} belongs to a plugin of this broker and cannot be deleted"
            )

    def set(self, config: TopicConfig) -> None:
        """Create or change a topic; :class:`RemoteFault` (code 1) for an illegal name or beyond the limit."""
        name = config.topic_name
        validate_topic(name)
        existed = name in self.table.entries
        if not existed and self._counts(name):
            if self._counted >= self.config.max_topics and not self._is_dlq_of_group(name):
                reason = (
                    f"the topic {name} is not created: {self.config.max_topics} topics are the limit "
                    "(plugin.topics.max_topics)"
                )
                if self._warnings.is_due("max_topics"):
                    log.warning("topic_not_created", topic=name, reason=reason)
                raise RemoteFault(ResponseCode.SYSTEM_ERROR, reason)
            self._counted += 1
        if self.table.put(name, config):
            log.info(
                "topic_set",
                topic=name,
                read_queues=config.read_queue_nums,
                write_queues=config.write_queue_nums,
                perm=config.perm,
            )
            self.changed(name, existed)

    def restore(self, seen: Mapping[str, int], *, create: bool) -> None:
        """Create the unknown topics of ``seen`` (name to number of queues); without ``create``, only log them.

        The limit of topics does not apply, because their messages were acknowledged. System topics belong to their
        plugins.
        """
        for name, queues in sorted(seen.items()):
            if name in self.table.entries or is_system_topic(name):
                continue
            try:
                validate_topic(name)
            except RemoteFault as fault:
                log.warning("messages_without_topic", topic=name, reason=fault.remark)
                continue
            if not create:
                log.warning("messages_without_topic", topic=name, reason="another broker wrote to this store last")
                continue
            count = min(queues, self.config.max_queues)
            self.table.put(name, topic_config(name, count))
            self._counted += self._counts(name)
            log.warning("topic_restored_from_queues", topic=name, queues=count, queues_seen=queues)
            self.changed(name, False)

    def adopt(self, body: bytes, log_end: int = 0) -> bool:
        """Adopt the topics of a master from its response to code 21, in addition to those of every broker.

        False if their data version is known already. :class:`RemoteFault` for an invalid body. Topics that the master
        has deleted lose their messages before ``log_end`` and the groups' offsets here too, or these would be back
        after a promotion of this broker. A table that is older than the known one deletes nothing, because the master
        may have lost its table.
        """
        told, unknown = read_topics(body)
        # A 5.x master also returns its queues of static topics; a slave has none of its own.
        entries = Unknown(entries=unknown.entries)
        is_newer = told.data_version.counter > self.table.version.counter
        before = dict(self.table.entries)
        known = list(before) if is_newer and log_end else []
        if not self.table.adopt(
            told.topic_config_table, told.data_version, self._own.__contains__, validate_topic, entries
        ):
            return False
        self._counted = sum(map(self._counts, self.table.entries))
        log.info("topics_adopted", topics=len(self.table.entries))
        for name in known:
            if name not in self.table.entries and not is_system_topic(name):
                self._forget(name, log_end)
        for name in before.keys() | self.table.entries.keys():
            if before.get(name) != self.table.entries.get(name):
                self.changed(name, name in before)
        return True

    def remove(self, topic: str) -> bool:
        """Remove the topic; returns whether it existed."""
        if not self.table.remove(topic):
            return False
        self._counted -= self._counts(topic)
        log.info("topic_removed", topic=topic)
        self.changed(topic, True)
        return True

    def _counts(self, topic: str) -> bool:
        """Return whether ``topic`` counts for the limit. Topics that the broker needs do not, because it could not
        start without them.

        Other names with the prefix of system topics do, because clients can create such topics.
        """
        return not (is_retry_topic(topic) or topic in SYSTEM_TOPICS or topic == TIMER_TOPIC or topic in self._own)

    def _is_dlq_of_group(self, topic: str) -> bool:
        """Return whether ``topic`` is for the dead letters of a known group. Without it, the group would get a message
        that it cannot consume without end."""
        return is_dlq_topic(topic) and topic.removeprefix(DLQ_PREFIX) in self._groups.table.entries

    def _forget(self, topic: str, log_end: int) -> None:
        try:
            self.forget(topic, log_end)
        except OSError as error:
            log.warning("deleted_topic_kept", topic=topic, reason=str(error))
        else:
            log.info("topic_deleted_by_master", topic=topic)

    def _create(self, topic: str, default_topic: str, default_queues: int, unit_mode: bool) -> TopicConfig | None:
        validate_topic(topic)
        if is_retry_topic(topic):
            group = topic.removeprefix(RETRY_PREFIX)
            found = self._groups.find(group)
            if found is None:
                raise RemoteFault(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
            config: TopicConfig | None = topic_config(
                topic, max(1, found.retry_queue_nums), sys_flag=UNIT_SUBSCRIPTION if unit_mode else 0
            )
        else:
            config = inherited(topic, self.table.entries.get(default_topic), default_queues, unit_mode)
        if config is not None:
            self.set(config)
            if not is_retry_topic(topic):
                self._created(config)
        return config


def _ignore_change(_topic: str, _existed: bool) -> None:
    """Ignore the change."""


def read_topics(data: bytes) -> tuple[TopicConfigSerializeWrapper, Unknown]:
    """Decode the file, with the keys that this version does not know. :class:`RemoteFault`."""
    return TopicConfigSerializeWrapper.from_bytes(data), Unknown.of(data, TABLE_KEY, TopicConfig)

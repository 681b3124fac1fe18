"""The topics that a broker creates when it starts, and the settings of a topic that its first message creates.

Source: RocketMQ 4.9.7 ``TopicConfigManager``. Topics of features that this broker does not have are not created.
"""

from __future__ import annotations

from gantrymq.plugins.topics.config import TopicsConfig
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from gantrymq.remoting.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    SELF_TEST_TOPIC,
    reply_topic,
)

PERM_ALL = PERM_READ | PERM_WRITE | PERM_INHERIT
UNIT = 1
UNIT_SUBSCRIPTION = 2
"""Bits of a topic's system flag (``TopicSysFlag``): it belongs to a unit, it has unit subscriptions."""
CLUSTER_TOPIC_QUEUES = 16
BENCHMARK_TOPIC_QUEUES = 1024


def topic_config(name: str, queues: int, perm: int = PERM_READ | PERM_WRITE, sys_flag: int = 0) -> TopicConfig:
    """Return a topic with the same number of queues for reading and for writing."""
    return TopicConfig(name, queues, queues, perm, topic_sys_flag=sys_flag)


def boot_topics(config: TopicsConfig, cluster: str, broker: str) -> list[TopicConfig]:
    """Return the topics of every broker; of equal names the later one is used, as in RocketMQ."""
    topics = [
        topic_config(SELF_TEST_TOPIC, 1),
        topic_config(BENCHMARK_TOPIC, BENCHMARK_TOPIC_QUEUES),
        topic_config(cluster, CLUSTER_TOPIC_QUEUES, PERM_ALL),
        topic_config(broker, 1, PERM_ALL),
        topic_config(OFFSET_MOVED_TOPIC, 1),
        topic_config(reply_topic(cluster), 1),
    ]
    if config.trace_topic:
        topics.append(topic_config(config.trace_topic_name, 1))
    if config.auto_create:
        topics.append(topic_config(AUTO_CREATE_TOPIC, config.default_queues, PERM_ALL))
    return topics


def inherited(name: str, default: TopicConfig | None, queues: int, unit_mode: bool) -> TopicConfig | None:
    """Return the topic that a first message creates from ``default``, or None if ``default`` does not allow it.

    ``queues`` and ``unit_mode`` are requested by the client. The topic has at least one queue; RocketMQ creates a topic
    without queues on request, which no client could use.
    """
    if default is None or not default.perm & PERM_INHERIT:
        return None
    count = max(1, min(queues, default.write_queue_nums))
    flag = UNIT if unit_mode else 0
    return TopicConfig(name, count, count, default.perm & ~PERM_INHERIT, default.topic_filter_type, flag)

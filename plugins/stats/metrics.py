"""Metrics of the statistics.

Names and labels are those that RocketMQ 5.3.3 shows to Prometheus (``BrokerMetricsManager``). There are two
differences. RocketMQ counts a message when it is sent; GantryMQ counts it when consumers can read it, including
delivered delayed messages and committed half messages. The label ``message_type`` is missing, because it is unknown
then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.plugins.stats.latency import CLASSES
from gantrymq.plugins.stats.sizes import BOUNDS, Sizes
from gantrymq.plugins.stats.table import GROUP_GET_NUMS, GROUP_GET_SIZE, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from gantrymq.remoting.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)

if TYPE_CHECKING:
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.stats.measuring import Measuring
    from gantrymq.plugins.stats.table import Table

LATENCY_BOUNDS: Final = tuple((high + 1) / 1000 for high, _ in CLASSES)
"""Seconds; a class of whole milliseconds ends before the next one begins."""


def report(metrics: Metrics, table: Table, measuring: Measuring) -> None:
    """Report all values up to now. From the first call on, sizes are counted too."""
    for _ in table.update():
        pass  # count up to now
    if table.sizes is None:
        table.sizes = Sizes()
    _report_topics(metrics, table, table.sizes)
    _report_groups(metrics, table)
    metrics.counter("gantrymq_pulls_found_total", "Pulls that were answered with messages", table.pulls_found)
    metrics.counter("gantrymq_pulls_missed_total", "Pulls that found nothing", table.pulls_missed)
    metrics.counter("gantrymq_sends_refused_total", "Messages that were refused", measuring.failed)
    metrics.histogram(
        "gantrymq_put_latency_seconds", "How long messages took from their request to their last status",
        LATENCY_BOUNDS, measuring.latency.counts(), measuring.latency.seconds,
    )  # fmt: skip


def _report_topics(metrics: Metrics, table: Table, sizes: Sizes) -> None:
    for topic, item in table.items(TOPIC_PUT_NUMS):
        if is_dlq_topic(topic):
            group = topic.removeprefix(DLQ_PREFIX)
            metrics.counter(
                "rocketmq_send_to_dlq_messages_total", "Messages that became dead letters", item.value,
                consumer_group=group, is_system=is_system_group(group),
            )  # fmt: skip
        elif is_retry_topic(topic):
            group = topic.removeprefix(RETRY_PREFIX)
            metrics.counter(
                "gantrymq_messages_retried_total", "Messages that a group gets again after a failure", item.value,
                consumer_group=group, is_system=is_system_group(group),
            )  # fmt: skip
        else:
            metrics.counter(
                "rocketmq_messages_in_total", "Messages that came in", item.value,
                topic=topic, is_system=is_system_topic(topic),
            )  # fmt: skip
    for topic, item in table.items(TOPIC_PUT_SIZE):
        if not is_dlq_topic(topic) and not is_retry_topic(topic):
            metrics.counter(
                "rocketmq_throughput_in_total", "Bytes of messages that came in", item.value,
                topic=topic, is_system=is_system_topic(topic),
            )  # fmt: skip
    for topic, counts in list(sizes.counts.items()):
        if table.find(TOPIC_PUT_NUMS, topic) is None:
            sizes.forget(topic)
        elif not is_dlq_topic(topic) and not is_retry_topic(topic):
            metrics.histogram(
                "rocketmq_message_size", "Sizes of messages that came in, in bytes as stored", BOUNDS, counts,
                sizes.totals[topic], topic=topic, is_system=is_system_topic(topic),
            )  # fmt: skip


def _report_groups(metrics: Metrics, table: Table) -> None:
    for name, text, statistic in (
        ("rocketmq_messages_out_total", "Messages that went out", GROUP_GET_NUMS),
        ("rocketmq_throughput_out_total", "Bytes of messages that went out", GROUP_GET_SIZE),
    ):
        for key, item in table.items(statistic):
            topic, _, group = key.partition("@")
            if not is_retry_topic(topic) and not is_dlq_topic(topic):
                metrics.counter(
                    name, text, item.value,
                    topic=topic, consumer_group=group, is_system=is_system_topic(topic) or is_system_group(group),
                )  # fmt: skip

"""Metrics of the broker itself: its store, its connections, and waiting requests.

Names and labels are RocketMQ 5.3.3's (``DefaultStoreMetricsManager``, ``BrokerMetricsManager.initStatsMetrics``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.fast.durations import BOUNDS_S
from gantrymq.kernel.store.reading import first_stored_at

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics

_STORE: Final[dict[str, str | bool]] = {"storage_type": "local", "storage_medium": "disk"}


def report(metrics: Metrics, broker: Broker) -> None:
    """Report all values; those that need the disk are postponed to a worker thread."""
    log = broker.log
    metrics.gauge(
        "rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not certainly on the disk",
        log.end - log.durable, **_STORE,
    )  # fmt: skip
    metrics.gauge(
        "rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that consumers cannot have yet",
        log.end - broker.store.dispatched, **_STORE,
    )  # fmt: skip
    metrics.gauge(
        "rocketmq_processor_watermark", "Requests that wait for their turn or for the disk",
        broker.unacknowledged, processor="send",
    )  # fmt: skip
    metrics.gauge("gantrymq_connections", "Open connections", len(broker.connections))
    metrics.gauge("gantrymq_log_begin_bytes", "The offset of the log's first byte", log.min_offset)
    metrics.gauge("gantrymq_log_end_bytes", "The offset behind the log's last byte", log.end)
    metrics.gauge(
        "gantrymq_unacknowledged_seconds", "How long the oldest message has waited to be acknowledged",
        broker.unacknowledged_for(),
    )  # fmt: skip
    metrics.gauge(
        "gantrymq_log_damaged_bytes", "Bytes of the log that are damaged and cannot be read",
        sum(end - start for start, end in log.quarantine),
    )  # fmt: skip
    counts, seconds = log.sync_times
    metrics.histogram(
        "gantrymq_flush_latency_seconds", "How long flushes of log files to the disk (fdatasync) take, in seconds",
        BOUNDS_S, counts, seconds,
    )  # fmt: skip
    for (plugin, source), count in broker.refusal_counts.refused.items():
        metrics.counter(
            "gantrymq_plugin_refused_kept_messages_total",
            "How often a plugin refused a message that the broker keeps and tries again", count,
            plugin=plugin, source=source,
        )  # fmt: skip
    metrics.later(partial(_report_disk, metrics, broker))


def _report_disk(metrics: Metrics, broker: Broker) -> None:
    usage, log = broker.env.disk_usage(broker.root), broker.log
    metrics.gauge(
        "rocketmq_storage_size_bytes", "Bytes in use on the store's disk, by others too", usage.total - usage.free,
        **_STORE,
    )  # fmt: skip
    metrics.gauge("gantrymq_storage_free_bytes", "Bytes that are free on the store's disk", usage.free)
    earliest = first_stored_at(log)
    if earliest is not None:
        metrics.gauge(
            "rocketmq_storage_message_reserve_time_milliseconds", "The age of the oldest message",
            max(broker.env.wall_ms() - earliest, 0), **_STORE,
        )  # fmt: skip

"""Metrics of waiting messages.

``rocketmq_timer_*`` have the names and labels of RocketMQ 5.3.3's ``DefaultStoreMetricsManager``; as there, they appear
after the first timed message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.delay.timer.counts import TimerCounts
    from gantrymq.plugins.delay.timer.files import TimerFiles

_STORE: Final[dict[str, str | bool]] = {"storage_type": "local", "storage_medium": "disk"}


def report_levels(metrics: Metrics, broker: Broker, delivered: Mapping[int, int]) -> None:
    """``delivered``: the queue offset before which everything is delivered, by level."""
    for level, offset in delivered.items():
        queue = broker.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            metrics.gauge(
                "gantrymq_delayed_messages", "Messages that wait, by their delay level",
                max(queue.max_offset - offset, 0), level=str(level),
            )  # fmt: skip


def report_timer(metrics: Metrics, broker: Broker, files: TimerFiles, counts: TimerCounts) -> None:
    """Report the lag of the timing wheel behind arrived messages and behind the clock, and its messages by topic."""
    queue = broker.queues.get(TIMER_TOPIC, 0)
    behind = 0 if queue is None else max(queue.max_offset - files.queue_offset, 0)
    metrics.gauge("rocketmq_timer_enqueue_lag", "Messages with a time that are not in the wheel yet", behind, **_STORE)
    now = broker.log.clock.now_ms()
    metrics.gauge(
        "rocketmq_timer_enqueue_latency_milliseconds", "How long the newest message waited to come into the wheel",
        counts.behind_ms(now), **_STORE,
    )  # fmt: skip
    for name, what, messages in (
        ("rocketmq_timer_enqueue_total", "Messages with a time that came into the wheel", counts.enqueued),
        ("rocketmq_timer_dequeue_total", "Messages with a time that were delivered to their topics", counts.dequeued),
    ):
        for topic, count in messages.items():
            metrics.counter(name, what, count, topic=topic, **_STORE)
    for topic, delays in counts.delays.items():
        metrics.histogram(
            "rocketmq_delay_message_latency_seconds", "The delays that producers of timed messages asked for",
            delays.bounds, delays.counts, delays.total, topic=topic, **_STORE,
        )  # fmt: skip
    late = max(now - files.read_ms, 0) if files.read_ms else 0
    metrics.gauge(
        "rocketmq_timer_dequeue_latency_milliseconds", "How long ago the wheel's next second was due", late, **_STORE
    )

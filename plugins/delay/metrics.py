"""Metrics of waiting messages.

``rocketmq_timer_*`` have the names and labels of RocketMQ 5.3.3's ``DefaultStoreMetricsManager``; as there, they appear
after the first timed message.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.remoting.timer_times import floor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.plugins.delay.timer.counts import TimerCounts
    from gantrymq.plugins.delay.timer.files import TimerFiles

_STORE: Final[dict[str, str | bool]] = {"storage_type": "local", "storage_medium": "disk"}


SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""RocketMQ 5.3.3's ranges (``TimerMetrics.timerDist``)."""


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
    metrics.later(partial(_report_waiting, metrics, files, now))


def _report_waiting(metrics: Metrics, files: TimerFiles, now: int) -> None:
    wheel, since = files.wheel, floor(now)
    if not wheel.is_open:
        return  # the broker stops, or rebuilds it
    bounds = [since + seconds * 1000 for seconds in SNAPSHOT_BOUNDS_S]
    waiting, counts = wheel.count(files.read_ms, [since, *bounds])
    metrics.gauge("rocketmq_timer_dequeue_lag", "Messages that wait in the wheel", waiting, **_STORE)
    for seconds, count in zip(SNAPSHOT_BOUNDS_S, counts[1:], strict=True):
        metrics.gauge(
            "rocketmq_timer_message_snapshot",
            "Messages of the wheel that are due in up to so many seconds, and later than the next lower bound",
            count, timer_bound_s=str(seconds), **_STORE,
        )  # fmt: skip

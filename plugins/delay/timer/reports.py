"""What a slave asks its master's timer: GET_TIMER_CHECK_POINT (60) and GET_TIMER_METRICS (61).

Source: RocketMQ 5.3.3 ``AdminBrokerProcessor.getTimerCheckPoint``, ``getTimerMetrics``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.delay.timer.counts import OTHERS
from gantrymq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from gantrymq.plugins.delay.timer.check import TimerCheck
    from gantrymq.plugins.delay.timer.counts import TimerCounts
    from gantrymq.remoting.command import Command

NO_CHECK: Final = "The checkpoint is null"
NO_TIMER: Final = "The timer message store is null"


def answer_check(command: Command, check: TimerCheck | None) -> Command:
    """Answer 60; without a checkpoint as RocketMQ's broker whose timer is off."""
    if check is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, NO_CHECK)
    return command.answer(ResponseCode.SUCCESS, body=check.to_body())


def answer_metrics(command: Command, counts: TimerCounts | None, now_ms: int) -> Command:
    """Answer 61 (``TimerMetrics.TimerMetricsSerializeWrapper``): by topic, how many messages have come into the wheel
    and not left it since the start of this broker, which does not store these numbers."""
    if counts is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, NO_TIMER)
    waiting = {
        topic: {"count": max(count - counts.dequeued[topic], 0), "timeStamp": now_ms}
        for topic, count in counts.enqueued.items()
        if topic != OTHERS
    }
    version = {"counter": counts.enqueued.total() + counts.dequeued.total(), "stateVersion": 0, "timestamp": now_ms}
    table = {"dataVersion": version, "timingCount": waiting}
    return command.answer(ResponseCode.SUCCESS, body=json.dumps(table, separators=(",", ":")).encode())

"""Measure appends, record totals every second, and report both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.stats.latency import Latency
from gantrymq.plugins.stats.rates import Rates, Totals
from gantrymq.plugins.stats.table import Table

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckedBatch
    from gantrymq.kernel.api import Broker


class Measuring:
    """Call ``acked`` for each batch and ``take_second`` each second."""

    def __init__(self, broker: Broker, table: Table) -> None:
        self._broker = broker
        self._table = table
        self.failed = 0
        """The number of refused messages."""
        self._booted = self.now()
        self._rates = Rates(Totals(self._booted, 0, 0, 0, 0))
        self.latency = Latency()

    def now(self) -> int:
        """Return the wall clock's time in milliseconds."""
        return self._broker.env.wall_ms()

    def acked(self, batch: AckedBatch) -> None:
        """Measure the rows of ``batch``, which have their final status."""
        failed = batch.messages.refused - len(batch.messages.settled)
        self.latency.add(batch.seconds, len(batch) - failed)
        self.failed += failed

    def take_second(self) -> None:
        """Record the current totals."""
        table = self._table
        self._rates.take(
            Totals(self.now(), table.messages_put, table.pulls_found, table.pulls_missed, table.messages_pulled)
        )

    def runtime_info(self) -> dict[str, str]:
        """Return all values under RocketMQ's names (``StoreStatsService.getRuntimeInfo``, ``prepareRuntimeInfo``)."""
        for _ in self._table.update():
            pass  # count up to now
        table, rates, latency = self._table, self._rates, self.latency
        return {
            "bootTimestamp": str(self._booted),
            "runtime": _duration(self.now() - self._booted),
            "putMessageEntireTimeMax": str(latency.longest),
            "putMessageTimesTotal": str(max(table.messages_put, 1)),  # 1 for none, as in RocketMQ
            "putMessageFailedTimes": str(self.failed),
            "putMessageSizeTotal": str(table.bytes_put),
            "putMessageDistributeTime": latency.distribution(),
            "putMessageAverageSize": str(table.bytes_put / max(table.messages_put, 1)),
            "putLatency99": f"{latency.percentile(0.99):.2f}",
            "putLatency999": f"{latency.percentile(0.999):.2f}",
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": "0",
            "msgPutTotalYesterdayMorning": str(rates.puts_yesterday),
            "msgPutTotalTodayMorning": str(rates.puts_today),
            "msgPutTotalTodayNow": str(table.messages_put),
            "msgGetTotalYesterdayMorning": str(rates.gets_yesterday),
            "msgGetTotalTodayMorning": str(rates.gets_today),
            "msgGetTotalTodayNow": str(table.messages_pulled),
            **rates.runtime_info(),
        }


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"

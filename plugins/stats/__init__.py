"""Statistics: messages stored and pulled by topic, queue and group, rates, and latencies.

Slot: none.
Hooks: acked, collect_metrics, config_section, configure, recovered, register_processors, register_tasks,
runtime_info.
Config ``[plugin.stats]``: by_queue, max_items.
Files: none: all counters begin at 0 at the start, as in RocketMQ.
Provides: Statistics.
Replaces RocketMQ's BrokerStatsManager, StoreStatsService and BrokerStats: code 315, and a part of code 28.

The hot path only reads the clock when a batch is done. Messages are counted once a second, from the growth of the
consume queues (``table``). The plugin that answers a pull reports it (``Statistics.pulled``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.processors import Processor, Request
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import Statistics
from gantrymq.plugins.stats.config import StatsConfig
from gantrymq.plugins.stats.items import PERIODS
from gantrymq.plugins.stats.measuring import Measuring
from gantrymq.plugins.stats.metrics import report
from gantrymq.plugins.stats.table import Table
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.brokers import StatsHeader
from gantrymq.remoting.headers.header import read_header

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckedBatch
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics

SECONDS = 1.0
LOOK_TICKS = PERIODS[0].every // 1000
MINUTE_TICKS = 60


class StatsPlugin:
    """Counts, takes snapshots, and reports."""

    name = "stats"
    _table: Table  # this and the following are set by configure
    _measuring: Measuring

    def __init__(self) -> None:
        self._config = StatsConfig()

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.stats]``."""
        return "stats", StatsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Offer the counters to other plugins."""
        self._config = config.section(StatsConfig)
        self._table = Table(broker, self._config)
        self._measuring = Measuring(broker, self._table)
        broker.registry.provide(Statistics, self._table)

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """Count only messages that arrive from now on: the tasks run, and metrics are read, before the broker listens,
        for which a slave waits until it has settled with its master."""
        self._table.begin()

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 315."""
        return {RequestCode.VIEW_BROKER_STATS_DATA: self._view}

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the task that counts and takes snapshots."""
        return [BackgroundTask("stats.sample", self._sample)]

    @hookimpl
    def acked(self, batch: AckedBatch) -> None:
        """Measure how long it took until all rows of the batch had their final status."""
        self._measuring.acked(batch)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Totals, rates and times."""
        return self._measuring.runtime_info()

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report messages and bytes stored and pulled, by topic and group, and latencies."""
        report(metrics, self._table, self._measuring)

    def _view(self, request: Request) -> Command:
        header = read_header(StatsHeader, request.command.ext)
        for _ in self._table.update():
            pass  # count up to now
        item = self._table.find(header.stats_name, header.stats_key)
        if item is None:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return request.command.answer(ResponseCode.SUCCESS, body=item.data().to_bytes())

    async def _sample(self) -> None:
        ticks = 0
        while True:
            await trio.sleep(SECONDS)
            ticks += 1
            for _ in self._table.update():
                await trio.lowlevel.checkpoint()
            self._measuring.take_second()
            if ticks % MINUTE_TICKS == 0:
                self._measuring.latency.turn()
            for number, period in enumerate(PERIODS):
                # A counter without a snapshot gets its first one at the next check: its hour and day begin there.
                if ticks % LOOK_TICKS == 0:
                    self._table.sample(self._measuring.now(), number, due=ticks % (period.every // 1000) == 0)

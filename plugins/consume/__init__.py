"""Serve pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

Slot: none; essential.
Hooks: collect_metrics, config_section, configure, register_processors, register_tasks, stopping.
Config ``[plugin.consume]``: ``memory_messages``, ``memory_bytes``, ``disk_messages``, ``disk_bytes`` (RocketMQ's limits
of one answer), ``max_messages`` and ``max_bytes`` (the limits for clients that accept more), ``scan_entries`` (queue
entries examined for one response when a filter drops most), ``memory_percent`` (the part of the log that counts as in
memory) and ``slave_read_enable``.
Files: none.
Replaces RocketMQ's ``PullMessageProcessor`` and ``DefaultMessageStore.getMessage``.

A pull is answered in the turn in which it arrives, unless other pulls have used up its budget, or its messages are
only on the disk: a worker thread reads those, so that readers of old messages do not delay senders.

A pull that finds nothing and may wait goes to the hook ``hold_pulls``; if no plugin holds it, the response is "not
found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.consume.config import LIVE_KEYS, ConsumeConfig
from gantrymq.plugins.consume.limits import TransferLimits
from gantrymq.plugins.consume.pull import PullProcessor
from gantrymq.plugins.consume.suggest import Suggestions
from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor


class ConsumePlugin:
    """Answers pulls."""

    name = "consume"
    essential = True

    @hookimpl
    def config_section(self) -> tuple[str, type[ConsumeConfig]]:
        return "consume", ConsumeConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._config = config.section(ConsumeConfig)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        config = self._config
        self._suggestions = Suggestions(broker, config.slave_read_enable, config.memory_percent)
        self._limits = TransferLimits(config, self._suggestions)
        self._processor = processor = PullProcessor(broker, config, self._limits, self._suggestions)
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.consume", config, LIVE_KEYS, self._reconfigure)
        return {RequestCode.PULL_MESSAGE: processor, RequestCode.LITE_PULL_MESSAGE: processor}

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        return [BackgroundTask("consume", self._processor.postponed.run)]

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the task for pulls that were not answered in the turn in which they arrived."""
        metrics.gauge(
            "rocketmq_processor_watermark", "Requests that wait for their turn or for the disk",
            len(self._processor.postponed), processor="pull",
        )  # fmt: skip

    @hookimpl
    def stopping(self) -> None:
        """Stop waiting for the disk: clients whose pulls wait for it pull again."""
        self._processor.postponed.stop()

    def _reconfigure(self, config: ConsumeConfig) -> None:
        self._suggestions.configure(config.slave_read_enable, config.memory_percent)
        self._limits.configure(config)

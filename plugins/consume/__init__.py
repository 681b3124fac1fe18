"""Give messages: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

Slot: none; essential.
Hooks: collect_metrics, config_section, configure, register_processors, register_services, stopping.
Config ``[plugin.consume]``: ``max_messages`` and ``max_bytes`` of one answer, ``scan_entries`` (queue entries looked at
for one answer when a filter drops most), ``slave_read_enable`` and ``memory_percent`` (who is sent to which broker).
Files: none. Answers for RocketMQ's ``PullMessageProcessor`` and ``DefaultMessageStore.getMessage``.

A pull is answered in the sweep in which it came, unless others have had much in it already, or its messages are on the
disk only: those are fetched by a worker thread, so that who reads old messages holds up nobody who sends.

A pull that finds nothing and may wait goes to the hook ``hold_pulls``; without a holder it is answered "not found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config import number, size
from gantrymq.kernel.services import LiveSettings, Service
from gantrymq.plugins.consume.pull import PullProcessor
from gantrymq.plugins.consume.suggest import Suggestions
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor


@attrs.frozen
class ConsumeConfig:
    """``[plugin.consume]``."""

    max_messages: int = number(1024, 1, 65536)
    max_bytes: int = size(default="1 MiB")
    scan_entries: int = number(4096, 32, 300_000)
    slave_read_enable: bool = False
    """Readers are sent to the broker that their group's configuration names (RocketMQ's slaveReadEnable)."""
    memory_percent: int = number(40, 1, 100)
    """Who is behind by more of the machine's memory reads from the disk (accessMessageInMemoryMaxRatio)."""


LIVE_KEYS = ("slave_read_enable", "memory_percent")
"""What administrators may change while the broker runs."""


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
        self._processor = processor = PullProcessor(
            broker, config.max_messages, config.max_bytes, config.scan_entries, self._suggestions
        )
        live = broker.services.find(LiveSettings)
        if live is not None:
            live.allow("plugin.consume", config, LIVE_KEYS, self._reconfigure)
        return {RequestCode.PULL_MESSAGE: processor, RequestCode.LITE_PULL_MESSAGE: processor}

    @hookimpl
    def register_services(self, broker: Broker) -> list[Service]:
        return [Service("consume", self._processor.postponed.run)]

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """The pulls that were not answered in the sweep in which they came."""
        metrics.gauge(
            "rocketmq_processor_watermark", "Requests that wait for their turn or for the disk",
            len(self._processor.postponed), processor="pull",
        )  # fmt: skip

    @hookimpl
    def stopping(self) -> None:
        """Nobody waits for the disk any more: who does is told to ask again."""
        self._processor.postponed.stop()

    def _reconfigure(self, config: ConsumeConfig) -> None:
        self._suggestions.configure(config.slave_read_enable, config.memory_percent)

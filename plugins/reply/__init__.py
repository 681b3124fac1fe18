"""Request and reply: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325), pushed to the requester with 326.

Slot: none.
Hooks: collect_metrics, config_section, configure, register_processors, register_tasks.
Config ``[plugin.reply]``: ``store`` (also store replies), ``push_timeout``, ``max_waiting``, ``max_waiting_bytes``.
Files: none.
Replaces RocketMQ's ``ReplyMessageProcessor``.

A request is an ordinary message with the properties ``CORRELATION_ID`` and ``REPLY_TO_CLIENT``. Its consumer sends the
reply to ``<cluster>_REPLY_TOPIC`` of the request's broker, which pushes it to the producer of that client id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.plugins.reply.config import ReplyConfig
from gantrymq.plugins.reply.push import Pusher
from gantrymq.plugins.reply.replies import ReplyProcessor
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor


class ReplyPlugin:
    """Answers 324 and 325."""

    name = "reply"
    _pusher: Pusher  # from configure on
    _processor: ReplyProcessor  # from register_processors on

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.reply]``."""
        return "reply", ReplyConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Store the plugin's section."""
        self._config = config.section(ReplyConfig)
        self._pusher = Pusher(self._config)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Register both codes for one processor, so that the replies of a turn are one batch."""
        self._processor = ReplyProcessor(broker, self._config, self._pusher)
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.reply", self._config, ("store",), self._reconfigure)
        return dict.fromkeys((RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2), self._processor)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the task that pushes the replies."""
        return [BackgroundTask("reply.push", self._pusher.run)]

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report waiting, pushed and failed replies."""
        pusher = self._pusher
        metrics.gauge(
            "rocketmq_processor_watermark", "Requests that wait for their turn or for the disk",
            pusher.waiting, processor="reply",
        )  # fmt: skip
        text = "Replies that the requester acknowledged, and those that it did not"
        metrics.counter("gantrymq_replies_pushed_total", text, pusher.pushed, outcome="acknowledged")
        metrics.counter("gantrymq_replies_pushed_total", text, pusher.failed, outcome="failed")

    def _reconfigure(self, config: ReplyConfig) -> None:
        self._processor.store = config.store

"""Refuse messages while the disk or a replica does not keep up, instead of letting senders run into their time-outs.

A sender that gets SYSTEM_BUSY at once can use another broker; one that waits for its own time-out cannot. Memory
is bounded without this plugin: past ``limits.unacknowledged_bytes`` the broker stops reading from its sockets.

Slot: none.
Hooks: before_append, config_section, configure, started.
Config ``[plugin.flowcontrol]``: ``busy_after`` (how long the oldest message may wait for its acknowledgment).
Files: none.
Replaces RocketMQ's ``BrokerFastFailure`` and ``isOSPageCacheBusy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source
from gantrymq.kernel.config.fields import duration
from gantrymq.plugins.interfaces import LiveSettings
from gantrymq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config

log = structlog.get_logger("gantrymq.flowcontrol")


@attrs.frozen
class FlowControlConfig:
    """Section ``[plugin.flowcontrol]``; RocketMQ's default is a second as well."""

    busy_after: float = duration("1s", minimum="10ms", maximum="1h", rocketmq="osPageCacheBusyTimeOutMills")


class FlowControlPlugin:
    """Compares the age of the oldest unacknowledged message with the limit, once per batch."""

    name = "flowcontrol"
    sources = Source.ALL

    def __init__(self) -> None:
        self._busy = False

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "flowcontrol", FlowControlConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._broker = broker
        self._config = config.section(FlowControlConfig)
        self._limit_s = self._config.busy_after

    @hookimpl
    def started(self, broker: Broker) -> None:
        """Allow administrators to change the limit while the broker runs."""
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.flowcontrol", self._config, ("busy_after",), self._reconfigure)

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        waited = self._broker.unacknowledged_for()
        if waited <= self._limit_s:
            if self._busy:
                self._busy = False
                log.info("messages_accepted_again")
            return
        if not self._busy:
            self._busy = True
            log.warning("acknowledgments_late", waited_s=round(waited, 1))
        reason = (
            f"broker busy, start flow control for a while: the oldest message has waited {waited * 1000:.0f} ms for "
            f"its acknowledgment; the limit is {self._limit_s * 1000:.0f} ms (plugin.flowcontrol.busy_after)"
        )
        for row in batch.live:
            batch.refuse(row, ResponseCode.SYSTEM_BUSY, reason)

    def _reconfigure(self, config: FlowControlConfig) -> None:
        self._limit_s = config.busy_after

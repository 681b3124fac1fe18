"""The state of the broker: the reasons for which it does not work, or for which clients cannot work with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from gantrymq.kernel.errors import LogPoisoned

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.http")

LATE_S: Final = 10.0
"""A broker whose oldest message has waited so long, in seconds, to be acknowledged is not ready: senders time out."""


class BrokerHealth:
    """What the kernel knows, and the conditions that plugins add (``interfaces.Health``)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._conditions: dict[str, Callable[[], str]] = {}
        self._begun = broker.env.monotonic()
        self.is_serving = False
        """Whether the broker accepts clients."""

    def add(self, name: str, condition: Callable[[], str]) -> None:
        """See :class:`gantrymq.plugins.interfaces.Health`."""
        self._conditions[name] = condition

    def not_alive(self) -> dict[str, str]:
        """The reasons, by name, that only a restart removes."""
        reasons = {}
        try:
            self._broker.log.check()
        except LogPoisoned as error:
            reasons["log"] = str(error)
        return reasons

    def degraded(self) -> dict[str, str]:
        """What does not work although clients can work with this broker, by name: tasks of plugins whose error policy
        lets the broker continue."""
        return {
            f"task:{plugin}": f"failed tasks of the plugin {plugin!r}: {', '.join(map(repr, names))}; see the log"
            for plugin, names in self._broker.manager.activity.failed_tasks().items()
        }

    def not_ready(self) -> dict[str, str]:
        """The reasons, by name, for which clients cannot work with this broker; those of :meth:`not_alive` too."""
        reasons = self.not_alive()
        if not self.is_serving:
            reasons["serving"] = "the broker starts or stops"
        waited = self._broker.unacknowledged_for()
        if waited > LATE_S:
            reasons["acknowledgments"] = (
                f"the oldest message has waited {waited:.0f} s for its acknowledgment: the disk or a slave is slow"
            )
        for name, condition in self._conditions.items():
            try:
                reason = condition()
            except Exception as error:
                log.exception("health_condition_failed", condition=name)
                reason = f"the state is unknown: {error!r}"
            if reason:
                reasons[name] = reason
        return reasons

    def status(self) -> dict[str, Any]:
        """The state of the broker for people and programs; sizes and offsets in bytes, times in seconds."""
        broker = self._broker
        not_alive, not_ready = self.not_alive(), self.not_ready()
        return {
            "alive": not not_alive,
            "ready": not not_ready,
            "reasons": not_ready,
            "degraded": self.degraded(),
            "broker": {
                "name": broker.name,
                "cluster": broker.cluster,
                "id": broker.broker_id,
                "address": broker.address,
                "role": "slave" if broker.broker_id else "master",
                "version": next((each.version for each in broker.manager.plugins if each.name == "http"), ""),
                "uptime_seconds": round(broker.env.monotonic() - self._begun, 3),
            },
            "log": {
                "begin": broker.log.min_offset,
                "end": broker.log.end,
                "durable": broker.log.durable,
                "readable": broker.store.dispatched,
            },
            "connections": len(broker.connections),
            "unacknowledged_seconds": round(broker.unacknowledged_for(), 3),
            "plugins": [info.name for info in broker.manager.plugins],
        }

"""Hold pulls that found nothing, and answer them when a message arrives or their time is up.

Slot: none.
Hooks: collect_metrics, config_section, configure, connections_changed, dispatch, hold_pulls, register_tasks, stopping.
Config ``[plugin.longpoll]``: ``max_held`` (the most held pulls; beyond it pulls are answered "not found" at once, those
of the address with the most first), ``max_held_per_address`` (of one address; 0: no such limit), ``max_wait`` (the
longest time for which a pull is held).
Files: none.
Replaces RocketMQ's ``PullRequestHoldService``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import DispatchBatch, PullBatch
from gantrymq.kernel.config.fields import duration, number
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.longpoll.hold import HeldPulls

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.network.connection import ConnectionsBatch

SCAN_S = 0.2
"""The longest delay of a response after a pull's time-out, in seconds; RocketMQ checks every 5 s."""


@attrs.frozen
class LongPollConfig:
    """Section ``[plugin.longpoll]``."""

    max_held: int = number(100_000, 0, 10_000_000)
    max_held_per_address: int = number(0, 0, 10_000_000)
    max_wait: float = duration(default="60s")


class LongPollPlugin:
    """Holds pulls and answers them."""

    name = "longpoll"

    @hookimpl
    def config_section(self) -> tuple[str, type[LongPollConfig]]:
        return "longpoll", LongPollConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        section = config.section(LongPollConfig)
        self._broker = broker
        self._held = HeldPulls(section.max_held, section.max_wait, section.max_held_per_address)
        self._stopping = False

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        return [BackgroundTask("longpoll", self._answer_expired)]

    @hookimpl
    def hold_pulls(self, batch: PullBatch) -> bool | None:
        if self._stopping:
            return None
        refused = self._held.hold(batch, self._broker.env.monotonic())
        if refused:
            batch.resume(refused)
        return True

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        if len(self._held) and not batch.replay:
            self._held.resume_arrived(batch)

    @hookimpl
    def connections_changed(self, batch: ConnectionsBatch) -> None:
        if len(self._held) and batch.closed:
            self._held.forget(batch.closed)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the number of held pulls."""
        metrics.gauge("gantrymq_held_pulls", "Pulls that wait for messages", len(self._held))

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        self._stopping = True
        self._held.resume_all()

    async def _answer_expired(self) -> None:
        while True:
            await trio.sleep(SCAN_S)
            self._held.resume_expired(self._broker.env.monotonic())

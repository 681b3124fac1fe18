"""Deliver messages later: a message with a delay level (property DELAY) waits in the queue of its level.

Slot: none.
Hooks: before_append, configure, config_section, persist, register_services, retention_floor,
runtime_info, stopping.
Config ``[plugin.delay]``: ``levels`` (the delays, level 1 first), ``delivery`` (``pipelined`` or ``synchronous``).
Files: ``config/delayOffset.json``, every ``broker.persist_interval`` and at the stop (``.bak``: the one before).
Answers for RocketMQ's ``ScheduleMessageService`` and the part of ``CommitLog`` that puts messages there.

One strategy so far, by level: ``levels`` knows the delays, ``rewrite`` moves a message to SCHEDULE_TOPIC_XXXX,
``delivery`` brings it back, ``positions`` keeps how far that went. ``docs/howto/delay-and-retry.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.services import Service, TopicTable
from gantrymq.plugins.delay.config import DelayConfig
from gantrymq.plugins.delay.delivery import Delivery
from gantrymq.plugins.delay.levels import Levels
from gantrymq.plugins.delay.positions import Positions
from gantrymq.plugins.delay.rewrite import move_to_levels
from gantrymq.remoting.bodies import TopicConfig
from gantrymq.remoting.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config import Config

QUEUES = 18
"""Queues that RocketMQ says the topic has, however many levels there are."""


class DelayPlugin:
    """Takes charge of the trait DELAY."""

    name = "delay"

    def __init__(self) -> None:
        self._delivery: Delivery | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.delay]``."""
        return "delay", DelayConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the levels and how far they are; entries of the topic get the time when they are due."""
        section = config.section(DelayConfig)
        self._levels = Levels.parse(section.levels)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)
        self._positions = Positions(broker.env, f"{folder}/delayOffset.json")
        self._pipelined = section.delivery == "pipelined"
        broker.queues.tag_code_rules[SCHEDULE_TOPIC] = self._levels.due_code

    @hookimpl
    def register_services(self, broker: Broker) -> list[Service]:
        """The delivery of what is due."""
        queues = max(QUEUES, len(self._levels))
        broker.services.get(TopicTable).ensure(TopicConfig(SCHEDULE_TOPIC, queues, queues))

        def append(batch: AppendBatch) -> None:
            broker.append(batch)
            broker.wake()

        self._delivery = Delivery(broker.store, self._levels, self._positions, append, pipelined=self._pipelined)
        return [Service("delay", self._delivery.run)]

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Move the rows with a delay level to the queue of the level."""
        if batch.traits & Trait.DELAY:
            move_to_levels(batch, self._levels)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Bring nothing more back; what is on its way arrives while the broker drains."""
        if self._delivery is not None:
            self._delivery.stop()

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """The file, if a level went on."""
        return None if self._delivery is None else self._positions.changes(self._delivery.safe())

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """What waits is needed, however full the disk is."""
        return broker.log.end if self._delivery is None else self._delivery.floor()

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Of each level, how far it is delivered and how far it reaches (``RunningStats.scheduleMessageOffset``)."""
        told = {} if self._delivery is None else self._delivery.safe()
        ends = {level: broker.queues.get(SCHEDULE_TOPIC, level - 1) for level in told}
        return {
            f"scheduleMessageOffset_{level}": f"{told[level]},{queue.max_offset}"
            for level, queue in ends.items()
            if queue is not None
        }

"""Deliver messages later: after the delay of a level (property DELAY), or at a given time (TIMER_DELIVER_MS).

Slot: none.
Hooks: before_append, collect_metrics, configure, config_section, persist, register_processors, register_tasks,
retention_floor, runtime_info, stopping.
Config ``[plugin.delay]``: ``levels`` (the delays, level 1 first), ``delivery`` (``pipelined`` or ``synchronous``),
``max_delay`` (of timed messages).
Files: ``config/delayOffset.json``, every ``broker.persist_interval`` and at the stop (``.bak``: the one before);
``timerwheel``, ``timerlog/`` and ``config/timercheck`` (``.bak``), each second, once a message named a time.
Answers for RocketMQ's ``ScheduleMessageService``, ``TimerMessageStore``, ``RecallMessageProcessor`` (370, and 45 for
slaves; provides LevelPositions) and the part of ``CommitLog`` or ``HookUtils`` that puts messages there.

Two strategies side by side. By level: ``levels`` knows the delays, ``delivery`` brings back what lies in
SCHEDULE_TOPIC_XXXX, ``level`` and ``positions`` keep how far that went. By time: ``times`` reads when a message is due,
``enqueue`` takes it from rmq_sys_wheel_timer into ``timerlog`` and ``wheel``, ``dequeue`` delivers each open one of
the ``slots``, ``timerfiles`` and ``timercheck`` keep how far that went, ``timer`` drives it; ``recall`` and ``handles``
take a message back. ``rewrite`` moves messages of both kinds. ``docs/howto/delay-and-retry.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.delay.config import DelayConfig
from gantrymq.plugins.delay.levels.delivery import Delivery
from gantrymq.plugins.delay.levels.levels import Levels
from gantrymq.plugins.delay.levels.positions import Positions, encode_positions
from gantrymq.plugins.delay.metrics import report_levels, report_timer
from gantrymq.plugins.delay.recall import Recalls
from gantrymq.plugins.delay.rewrite import TimerTerms, move_delayed
from gantrymq.plugins.delay.timer.timer import Timer
from gantrymq.plugins.interfaces import LevelPositions, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor, Request

QUEUES = 18
"""Queues that RocketMQ says the topic has, however many levels there are."""


class DelayPlugin:
    """Takes charge of the trait DELAY."""

    name = "delay"
    sources = Source.ALL

    def __init__(self) -> None:
        self._delivery: Delivery | None = None
        self._timer: Timer | None = None
        self._make_delivery: Callable[[], Delivery] | None = None

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
        self._longest_ms = int(section.max_delay * 1000)
        self._topics: TopicTable | None = None
        broker.registry.provide(LevelPositions, self)
        broker.queues.tag_code_rules[SCHEDULE_TOPIC] = self._levels.due_code

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """370, and 45 for slaves."""
        topics = broker.registry.get(TopicTable)
        recalls = Recalls(broker, topics, broker.log.clock.now_ms, self._longest_ms)
        return {RequestCode.RECALL_MESSAGE: recalls, RequestCode.GET_ALL_DELAY_OFFSET: self._tell_positions}

    def _tell_positions(self, request: Request) -> Command:
        """45: how far each level is delivered, as the file would say it now."""
        told = {} if self._delivery is None else self._delivery.safe()
        return request.command.answer(ResponseCode.SUCCESS, body=encode_positions(told))

    def adopt(self, body: bytes) -> None:
        """A slave's levels are where its master's are: it delivers nothing itself (``LevelPositions``)."""
        self._positions.adopt(body)
        if self._make_delivery is not None:
            self._delivery = self._make_delivery()

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The delivery of what is due, by level and by time."""
        queues = max(QUEUES, len(self._levels))
        self._topics = broker.registry.get(TopicTable)
        self._topics.ensure(TopicConfig(SCHEDULE_TOPIC, queues, queues))

        def append(batch: AppendBatch) -> None:
            batch.traits |= Trait.FREES_SPACE  # what waits keeps the log from its first message on
            broker.append(batch)

        self._make_delivery = partial(
            Delivery, broker.store, self._levels, self._positions, append, pipelined=self._pipelined
        )
        self._delivery = self._make_delivery()
        self._timer = timer = Timer(broker.store, broker.env, append)
        self._terms = TimerTerms(
            broker.log.clock.now_ms, broker.log.clock.at_wall, self._longest_ms, broker.name, self._moved
        )
        return [BackgroundTask("delay", self._delivery.run, "masters"), BackgroundTask("timer", timer.run, "masters")]

    def _moved(self, slot: int, recalls: bytes | None) -> None:
        if self._topics is not None and self._topics.get(TIMER_TOPIC) is None:
            self._topics.ensure(TopicConfig(TIMER_TOPIC, 1, 1))
        if self._timer is not None:
            self._timer.moved(slot, recalls)

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Move the rows with a delay level, or with a time to come, to where they wait."""
        if batch.traits & Trait.DELAY:
            move_delayed(batch, self._levels, self._terms)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Bring nothing more back; what is on its way arrives while the broker drains."""
        if self._delivery is not None:
            self._delivery.stop()
        if self._timer is not None:
            self._timer.stop()

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """The file of the levels, if one went on. The timer writes its own, the last time when it has ended."""
        if self._timer is not None and self._timer.ended:
            self._timer.close()
        if self._delivery is None:
            return None
        return self._positions.changes({} if broker.broker_id else self._delivery.safe())

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """What waits is needed, however full the disk is."""
        if self._delivery is None or self._timer is None:
            return broker.log.end
        if broker.broker_id:  # a slave delivers nothing: it keeps what its master keeps
            return self._delivery.floor()
        return min(self._delivery.floor(), self._timer.floor())

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """What waits, and how late it is."""
        if self._delivery is not None:
            report_levels(metrics, broker, self._delivery.safe())
        if self._timer is not None and self._timer.is_open:
            report_timer(metrics, broker, self._timer.files)

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

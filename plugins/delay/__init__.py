"""Deliver messages later: after the delay of a level (property DELAY), or at a given time (TIMER_DELIVER_MS).

Slot: none.
Hooks: before_append, check_files, collect_metrics, configure, config_section, persist, register_processors,
register_tasks, retention_floor, runtime_info, stopping.
Config ``[plugin.delay]``: ``levels`` (the delays, level 1 first), ``delivery`` (``pipelined`` or ``synchronous``),
``max_delay`` (of timed messages).
Files: ``config/delayOffset.json``, every ``broker.persist_interval`` and at the stop (``.bak``: the one before);
``timerwheel``, ``timerlog/`` and ``config/timercheck`` (``.bak``), each second, once a message named a time; a slave
has only ``config/timercheck``, written as the positions are.
Provides: LevelPositions; on slaves TimerProgress.
Replaces RocketMQ's ``ScheduleMessageService``, ``TimerMessageStore``, ``RecallMessageProcessor`` (codes 370, and 45,
60 and 61 for slaves) and the part of ``CommitLog`` or ``HookUtils`` that diverts delayed messages.

``prefetch`` reads due messages that are only on the disk. The modules of ``levels/``: ``levels`` has the delays,
``delivery`` delivers due messages of SCHEDULE_TOPIC_XXXX, ``level`` and ``positions`` keep the progress. The modules of
``timer/``: ``times`` finds the due time of a message, ``enqueue`` moves it from rmq_sys_wheel_timer into ``log`` and
``wheel``, ``dequeue`` delivers the messages of open ``slots``, ``pending_recalls`` has recalls that the wheel lacks,
``files`` and ``check`` keep the progress, ``timer`` is the task, ``reports`` answers slaves, and ``master_progress`` is
a slave's. ``rewrite`` diverts messages of both kinds, ``recall`` cancels timed messages.
``docs/howto/delay-and-retry.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.delay.config import DelayConfig
from gantrymq.plugins.delay.levels.delivery import Delivery
from gantrymq.plugins.delay.levels.file_check import check_positions
from gantrymq.plugins.delay.levels.levels import Levels
from gantrymq.plugins.delay.levels.positions import Positions, encode_positions
from gantrymq.plugins.delay.metrics import report_levels, report_timer
from gantrymq.plugins.delay.recall import Recalls
from gantrymq.plugins.delay.rewrite import TimerTerms, move_delayed
from gantrymq.plugins.delay.timer.file_check import check_timer
from gantrymq.plugins.delay.timer.files import TimerFiles
from gantrymq.plugins.delay.timer.master_progress import MasterProgress
from gantrymq.plugins.delay.timer.reports import answer_check, answer_metrics
from gantrymq.plugins.delay.timer.timer import Timer
from gantrymq.plugins.interfaces import LevelPositions, TimerProgress, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor, Request
    from gantrymq.kernel.stopped_store import StoppedStore

QUEUES = 18
"""The number of queues of the topic in RocketMQ, which does not depend on the number of levels."""


class DelayPlugin:
    """Handles messages with the trait DELAY."""

    name = "delay"
    sources = Source.ALL

    def __init__(self) -> None:
        self._delivery: Delivery | None = None
        self._timer: Timer | None = None
        self._master_progress: MasterProgress | None = None
        self._make_delivery: Callable[[], Delivery] | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.delay]``."""
        return "delay", DelayConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the levels and their positions; queue entries of the topic get the due time as their tag code."""
        section = config.section(DelayConfig)
        self._levels = Levels.parse(section.levels)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)
        self._positions = Positions(broker.env, f"{folder}/delayOffset.json")
        self._pipelined = section.delivery == "pipelined"
        self._longest_ms = int(section.max_delay * 1000)
        self._topics: TopicTable | None = None
        broker.registry.provide(LevelPositions, self)
        if broker.broker_id:
            broker.registry.provide(TimerProgress, self)
        broker.queues.tag_code_rules[SCHEDULE_TOPIC] = self._levels.due_code

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 370, and 45, 60 and 61 for slaves."""
        topics = broker.registry.get(TopicTable)
        recalls = Recalls(broker, topics, broker.log.clock.now_ms, self._longest_ms)
        return {
            RequestCode.RECALL_MESSAGE: recalls,
            RequestCode.GET_ALL_DELAY_OFFSET: self._report_positions,
            RequestCode.GET_TIMER_CHECK_POINT: self._report_check,
            RequestCode.GET_TIMER_METRICS: partial(self._report_metrics, broker.log.clock.now_ms),
        }

    def _report_positions(self, request: Request) -> Command:
        """Answer 45: the current positions of the levels, in the form of the file."""
        return request.command.answer(ResponseCode.SUCCESS, body=self.report())

    def report(self) -> bytes:
        """Return the current positions of the levels, in the form of the file (``LevelPositions``)."""
        return encode_positions({} if self._delivery is None else self._delivery.safe())

    def set_back(self, table: Mapping[int, int]) -> None:
        """Lower the positions before the deliveries begin (``LevelPositions``)."""
        self._positions.set_back(table)

    def _report_check(self, request: Request) -> Command:
        """Answer 60: what the timer has delivered; on a slave, what the master has."""
        if self._master_progress is not None:
            return answer_check(request.command, self._master_progress.reported())
        return answer_check(request.command, None if self._timer is None else self._timer.progress())

    def _report_metrics(self, now: Callable[[], int], request: Request) -> Command:
        """Answer 61."""
        return answer_metrics(request.command, None if self._timer is None else self._timer.counts, now())

    def adopt_timer(self, body: bytes, log_end: int) -> None:
        """Adopt the timer's checkpoint of a slave's master (``TimerProgress``)."""
        if self._master_progress is not None:
            self._master_progress.adopt(body, log_end)

    def adopt(self, body: bytes) -> None:
        """Adopt the positions of a slave's master; the slave itself delivers nothing (``LevelPositions``)."""
        self._positions.adopt(body)
        if self._make_delivery is not None:
            self._delivery = self._make_delivery()

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the tasks that deliver due messages, by level and by time."""
        queues = max(QUEUES, len(self._levels))
        self._topics = broker.registry.get(TopicTable)
        self._topics.ensure(TopicConfig(SCHEDULE_TOPIC, queues, queues))

        def append(batch: AppendBatch) -> None:
            batch.traits |= Trait.FREES_SPACE  # the log is kept from the first waiting message on
            broker.append(batch)

        self._make_delivery = partial(
            Delivery, broker.store, self._levels, self._positions, append, pipelined=self._pipelined
        )
        self._delivery = self._make_delivery()
        self._timer = timer = Timer(broker.store, broker.env, append)
        self._terms = TimerTerms(
            broker.log.clock.now_ms, broker.log.clock.at_wall, self._longest_ms, broker.name, self._moved
        )
        if broker.broker_id:
            files = TimerFiles(broker.env, broker.root)
            self._master_progress = MasterProgress(broker.store, broker.env, files)
            return [BackgroundTask("timer", self._master_progress.run)]
        return [BackgroundTask("delay", self._delivery.run, "masters"), BackgroundTask("timer", timer.run, "masters")]

    def _moved(self, batch: AppendBatch, row: int, slot: int, recalls: bytes | None) -> None:
        if self._topics is not None and self._topics.get(TIMER_TOPIC) is None:
            self._topics.ensure(TopicConfig(TIMER_TOPIC, 1, 1))
        if self._timer is not None and self._master_progress is None:  # a slave refuses the row later
            self._timer.moved(batch, row, slot, recalls)

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Divert rows with a delay level or a future time to the queues in which they wait."""
        if batch.traits & Trait.DELAY:
            move_delayed(batch, self._levels, self._terms)

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Start no more deliveries; those in flight complete while the broker drains."""
        if self._delivery is not None:
            self._delivery.stop()
        if self._timer is not None:
            self._timer.stop()

    @hookimpl
    def check_files(self, store: StoppedStore, config: Config) -> None:
        """Check the positions of the levels, and the timer's files."""
        check_positions(store, is_slave=config.broker.id > 0)
        check_timer(store)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """Return the file of the levels' positions, and on a slave that of the timer's, if they changed. A master's
        timer writes its own files, last when it has ended."""
        if self._timer is not None and self._timer.ended:
            self._timer.close()
        if self._delivery is None:
            return None
        files = self._positions.changes({} if broker.broker_id else self._delivery.safe()) or {}
        if self._master_progress is not None:
            files |= self._master_progress.changes() or {}
        return files or None

    @hookimpl
    def retention_floor(self, broker: Broker) -> int:
        """Return the first waiting message; waiting messages are kept however full the disk is."""
        if self._delivery is None or self._timer is None:
            return broker.log.end
        if self._master_progress is not None:  # a slave has its master's positions
            return min(self._delivery.floor(), self._master_progress.floor())
        return min(self._delivery.floor(), self._timer.floor())

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the number of waiting messages and the lag of their delivery."""
        if self._delivery is not None:
            report_levels(metrics, broker, self._delivery.safe())
        if self._timer is not None and self._timer.is_open:
            report_timer(metrics, broker, self._timer.files, self._timer.counts)

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """For each level, the delivered offset and the end of the queue (``RunningStats.scheduleMessageOffset``)."""
        told = {} if self._delivery is None else self._delivery.safe()
        ends = {level: broker.queues.get(SCHEDULE_TOPIC, level - 1) for level in told}
        return {
            f"scheduleMessageOffset_{level}": f"{told[level]},{queue.max_offset}"
            for level, queue in ends.items()
            if queue is not None
        }

"""Pull requests: checks in RocketMQ's order, one read each, then a response or a held pull."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs
import structlog

from gantrymq.kernel.batch import Pull, PullBatch
from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.errors import LogPoisoned, PluginError, UnreadableRange
from gantrymq.kernel.filters import CodeFilter
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.windows import LogWindows, NotCached
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.plugins.consume.fast import READERS, PullResponses, read_pull_header
from gantrymq.plugins.consume.limits import TransferLimits
from gantrymq.plugins.consume.plain import PullContext, PullForm, PullLimits, PullPolicy, pull_form
from gantrymq.plugins.consume.postponed import TURN_BYTES, Postponed
from gantrymq.plugins.consume.read import CODES, PullResult, PullStatus, QueueDisagrees, read_queue
from gantrymq.plugins.consume.subscriptions import RELEASED, SUBSCRIPTION, NotCompiled, Subscriptions
from gantrymq.plugins.consume.suggest import MASTER_ID, Suggestions
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, Statistics, TopicTable
from gantrymq.remoting.codes import PERM_READ, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.rare_warnings import RareWarnings

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.network.connection import Connection
    from gantrymq.plugins.consume.config import ConsumeConfig
    from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig

log = structlog.get_logger("gantrymq.consume")

_COMMIT_OFFSET = 1
_MAY_SUSPEND = 2

SUGGESTED = "suggestWhichBrokerId"


class PullProcessor:
    """Batch processor of the pull codes."""

    readers = READERS

    def __init__(self, broker: Broker, config: ConsumeConfig, limits: TransferLimits, suggestions: Suggestions) -> None:
        self._broker = broker
        self._suggestions = suggestions
        self._is_slave = broker.broker_id != MASTER_ID
        self._limits = limits
        self._scan_entries = config.scan_entries
        self._clock = broker.env.monotonic
        self._outages = Outages(log, broker.env.monotonic)
        self._moved = RareWarnings(broker.env.monotonic)
        self._turn_s = broker.config.limits.turn_budget
        self._until = math.inf
        self._uncompiled: list[Request] = []
        """Pulls of this turn whose expressions are not compiled yet."""
        self._topics = broker.registry.get(TopicTable)
        self._groups = broker.registry.get(GroupTable)
        self._offsets = broker.registry.get(ConsumerOffsets)
        self._hold = broker.manager.hook.hold_pulls
        self._statistics = broker.registry.find(Statistics)
        self._subscriptions = Subscriptions(broker)
        self._windows = LogWindows(broker.env, broker.log)
        self.postponed = Postponed(
            self._again, self._send_back, None if self._statistics is None else self._record_wait
        )
        """The pulls that wait for their turn or for the disk. Run it as a task."""
        self._deliveries = broker.registry.find(Deliveries)
        self._responses = PullResponses(
            PullContext(
                policy=self._policy,
                find_queue=broker.queues.get,
                commit=_ignore_commit if self._is_slave else self._offsets.commit,
                pulled=None if self._statistics is None else self._statistics.pulled,
                deliver=None if self._deliveries is None else self._deliver,
                windows=self._windows,
                limits=limits,
                log=broker.log,
                max_messages=config.max_messages,
                max_bytes=config.max_bytes,
                scan_entries=config.scan_entries,
                forms=_forms,
            )
        )

    def handle(self, requests: list[Request]) -> list[Request]:
        """Answer each pull, or offer it to the hook ``hold_pulls``; return those to repeat in one of the next turns.

        A pull is repeated if the turn's time is over or its expression is not compiled yet. Other pulls go first.
        """
        waiting: list[Pull] = []
        self._uncompiled = []
        done = 0
        self._until = self._clock() + self._turn_s
        while done < len(requests) and (not done or not self._is_late()):
            done = self._responses.answer(requests, done, TURN_BYTES, partial(self._take, waiting, self._run))
            while done < len(requests) and not self.postponed.is_full and not self._is_late():
                # Commit its offset now, before later commits; only the messages are read later.
                self._take(waiting, self._postpone, requests[done])
                done += 1
        self._offer(waiting)
        if self._uncompiled:
            self._subscriptions.work(self._until)
        return self._uncompiled + requests[done:]

    def _is_late(self) -> bool:
        """Return whether this turn's time is over, because expressions take long to compile or to evaluate."""
        return self._clock() >= self._until

    def _offer(self, waiting: list[Pull]) -> None:
        if not waiting:
            return
        try:
            held = self._hold(batch=PullBatch(waiting, self._resume))
        except (LogPoisoned, PluginError):
            raise
        except Exception as error:
            self._hold_failed(error)
            held = None
        if held is None:
            self._resume(waiting)

    def _hold_failed(self, error: Exception) -> None:
        failing = self._broker.manager.failing_plugin("hold_pulls", error)
        name = "?" if failing is None else failing.name
        self._broker.manager.activity.failed(name, "hold_pulls", error)
        # Not at each turn: clients whose pulls are not held pull again at once.
        self._outages.error("plugin_failed", name, plugin=name, hook="hold_pulls", exc_info=error)

    def _take(self, waiting: list[Pull], run: Callable[[Pull], int | None], request: Request) -> int:
        """Let ``run`` answer one pull; return the bytes of its body. A pull that may be held is added to
        ``waiting``."""
        try:
            pull = self._parse(request)
        except RemoteFault as fault:
            request.answer(fault.code, fault.remark)
            return TURN_BYTES if self._is_late() else 0
        except NotCompiled:
            self._uncompiled.append(request)
            return TURN_BYTES if self._is_late() else 0
        given = run(pull)
        if given is None:
            # Free the decoded request: a hundred thousand pulls may be held for a minute.
            request.forget()
            waiting.append(pull)
        return TURN_BYTES if self._is_late() else given or 0

    def _record_wait(self, pull: Pull, seconds: float) -> None:
        if self._statistics is not None:
            self._statistics.waited(pull.group, pull.topic, pull.queue_id, seconds)

    def _postpone(self, pull: Pull) -> int:
        pull.request.forget()
        self.postponed.until_next_turn(pull)
        return 0

    def _again(self, pull: Pull, wait: bool) -> int:
        """Answer or hold a pull that waited; return the bytes of its body, or a whole turn's bytes if it took long."""
        self._until = self._clock() + self._turn_s
        try:
            self._find_group(pull.group, pull.topic, pull.queue_id)
        except RemoteFault as fault:  # settings have changed while it waited
            pull.request.answer(fault.code, fault.remark)
            return 0
        if pull.from_group and not self._has_groups_filter(pull):
            self._send_back(pull)
            return 0
        wanted = pull.filter
        given = -1
        if isinstance(wanted, CodeFilter):
            group = self._groups.find(pull.group) if self._suggestions.enabled else None
            given = self._responses.resume(pull, wanted.codes, None if group is None else self._suggestions.of(group))
        if given >= 0:
            self._outages.over("consume_queue_unreadable", pull.topic, str(pull.queue_id))
            return given
        left = self._run(pull, wait)
        if left is None:
            self._offer([pull])
        return TURN_BYTES if self._is_late() else left or 0

    def _has_groups_filter(self, pull: Pull) -> bool:
        """Return whether the filter of ``pull`` is still its group's. With the one from before a heartbeat, the pull
        would skip messages that the new subscription wants."""
        group = self._groups.find(pull.group)
        if group is None:
            return False
        try:
            return self._subscriptions.filter_of(pull.group, group, pull.topic, None, None, 0, 0) is pull.filter
        except (RemoteFault, NotCompiled):
            return False

    def _send_back(self, pull: Pull) -> None:
        """Let the client pull again from the same offset."""
        queue = self._broker.queues.get(pull.topic, pull.queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        later = PullResult(PullStatus.NO_MATCHED_MESSAGE, pull.offset, low, high)
        self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, later)

    def _resume(self, pulls: list[Pull]) -> None:
        until = self._clock() + self._turn_s
        for pull in pulls:
            pull.may_hold = False
            if pull.request.connection.closed or pull.filter is RELEASED:  # by a plugin that raised afterwards
                continue
            if self._clock() >= until and not self.postponed.is_full:
                self.postponed.until_next_turn(pull)
            else:
                self._again(pull, wait=False)
                if pull.request.answered:
                    pull.filter = RELEASED  # the holder may keep the pull until its time is up

    def _parse(self, request: Request) -> Pull:
        header = read_pull_header(request)
        group = self._find_group(header.consumer_group, header.topic, header.queue_id)
        wanted = self._subscriptions.filter_of(
            header.consumer_group,
            group,
            header.topic,
            header.subscription,
            header.expression_type,
            header.sub_version,
            header.sys_flag,
            request.connection,
        )
        if header.sys_flag & _COMMIT_OFFSET and not self._is_slave:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        wait_s = header.suspend_timeout_millis / 1000
        return Pull(
            request,
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            wanted,
            bool(header.sys_flag & _MAY_SUSPEND) and wait_s > 0 and self._subscriptions.may_hold(wanted),
            self._broker.env.monotonic() + wait_s,
            header.gantrymq_max_bytes or 0,
            from_group=not header.sys_flag & SUBSCRIPTION,
        )

    def _policy(
        self, group: str, topic: str, expression: str | None, kind: str | None, version: int, sys_flag: int
    ) -> PullPolicy | None:
        """See :class:`PullContext`: the policy that :meth:`_parse` derives from the group, the topic and the filter."""
        consumers, config = self._groups.find(group), self._topics.get(topic)
        if consumers is None or not consumers.consume_enable or config is None:
            return None
        if not config.perm & self._topics.broker_perm & PERM_READ:
            return None
        try:
            wanted = self._subscriptions.filter_of(group, consumers, topic, expression, kind, version, sys_flag)
        except (RemoteFault, NotCompiled):
            return None
        if not isinstance(wanted, CodeFilter):
            return None
        return config.read_queue_nums, wanted.codes, self._suggestions.of(consumers)

    def _find_group(self, name: str, topic: str, queue_id: int) -> SubscriptionGroupConfig:
        """Return the group, or raise ``RemoteFault`` if it may not read this queue now."""
        if not self._topics.broker_perm & PERM_READ:
            raise RemoteFault(
                ResponseCode.NO_PERMISSION, f"the broker[{self._broker.name}] pulling message is forbidden"
            )
        group = self._groups.find(name)
        if group is None:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
        if not group.consume_enable:
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
        config = self._topics.get(topic)
        if config is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        if not config.perm & PERM_READ:
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < config.read_queue_nums:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        return group

    def _run(self, pull: Pull, wait: bool = False) -> int | None:
        """Answer ``pull``; return the bytes of the body, or None if it found nothing and may be held.

        A pull whose messages are only on the disk is postponed, unless it may ``wait`` for them.
        """
        broker = self._broker
        queue = broker.queues.get(pull.topic, pull.queue_id)
        if queue is not None and pull.offset < queue.max_offset and pull.request.connection.is_congested():
            # The connection has many responses to read; the client pulls again after them.
            self._send_back(pull)
            return 0
        try:
            result = self._read(pull, queue, self._limits.of(pull.limit, pull.max_bytes), wait=wait)
        except NotCached as absent:
            pull.request.forget()
            self.postponed.until_fetched(pull, absent.fetch)
            return 0
        except QueueDisagrees as error:
            pull.request.answer(ResponseCode.SYSTEM_ERROR, str(error))
            return 0
        except RemoteFault as fault:
            pull.request.answer(fault.code, fault.remark)
            return 0
        except UnreadableRange as error:  # it was logged already
            pull.request.answer(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}")
            return 0
        except OSError as error:
            names = {"topic": pull.topic, "queue_id": pull.queue_id}
            self._outages.error("consume_queue_unreadable", *map(str, names.values()), **names, reason=str(error))
            pull.request.answer(ResponseCode.SYSTEM_ERROR, f"the queue cannot be read: {error.strerror}")
            return 0
        self._outages.over("consume_queue_unreadable", pull.topic, str(pull.queue_id))
        code = result.code(pull.offset)
        if code == ResponseCode.PULL_NOT_FOUND and pull.may_hold:
            return None
        self._answer(pull, code, result)
        return len(result.body)

    def _read(self, pull: Pull, queue: ConsumeQueue | None, limits: PullLimits, *, wait: bool) -> PullResult:
        """As :func:`read_queue`, with the messages that plugins let through.

        ``RemoteFault`` if the first message cannot be delivered, so that the consumer does not skip it.
        """
        wait = wait or self.postponed.is_full
        while True:
            result = read_queue(self._windows, queue, pull.offset, limits, self._scan_entries, pull.filter, wait=wait)
            if self._deliveries is None or not result.messages:
                return result
            given = self._deliveries.deliver(result.body, "pull", pull.request.connection, pull.group)
            if given.decided == result.messages:
                status = PullStatus.FOUND if given.messages else PullStatus.NO_MATCHED_MESSAGE
                return attrs.evolve(result, status=status, body=given.data, messages=given.messages)
            if not given.decided and given.fault is not None:
                raise given.fault
            # Read again up to there, which also determines the offset of the next pull.
            limits = limits._replace(messages=given.decided, disk_messages=given.decided)

    def _deliver(self, records: bytes, count: int, connection: Connection, group: str) -> tuple[bytes, int] | None:
        """See :class:`PullContext`: what plugins deliver of ``count`` records, unless they fail at one or it does not
        fit."""
        assert self._deliveries is not None
        given = self._deliveries.deliver(records, "pull", connection, group)
        return (given.data, given.messages) if given.decided == count and given.fault is None else None

    def _answer(self, pull: Pull, code: int, result: PullResult) -> None:
        if self._statistics is not None:
            self._statistics.pulled(
                pull.group, pull.topic, pull.queue_id, result.messages, len(result.body), result.next_offset
            )
        next_offset, suggested = result.next_offset, self._suggested(pull, result)
        if self._is_slave and result.looked_at is None:
            # This slave may lag behind: the offset may be valid, and the master can decide.
            next_offset = pull.offset
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if code == ResponseCode.PULL_OFFSET_MOVED and self._moved.is_due(f"{pull.group} {pull.topic} {pull.queue_id}"):
            log.warning(
                "offset_moved", group=pull.group, topic=pull.topic, queue_id=pull.queue_id, asked=pull.offset,
                next=next_offset, status=result.status.name,
            )  # fmt: skip
        fields = {
            SUGGESTED: str(suggested),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        pull.request.answer(code, result.status.name, fields, result.body)

    def _suggested(self, pull: Pull, result: PullResult) -> int:
        """Return the id of the broker for the reader's next pull."""
        if not self._suggestions.enabled and not self._is_slave:
            return MASTER_ID
        group = self._groups.find(pull.group)
        suggest = None if group is None else self._suggestions.of(group)
        if suggest is not None and result.looked_at is not None:
            return suggest(result.looked_at)
        if self._is_slave and group is not None and result.code(pull.offset) == ResponseCode.PULL_OFFSET_MOVED:
            return group.broker_id
        return self._suggestions.nothing_read(group)


def _ignore_commit(group: str, topic: str, queue_id: int, offset: int) -> None:
    """Ignore the commit: on a slave, the master stores the offsets."""


def _forms(broker_id: int) -> tuple[PullForm, PullForm]:
    found, unmatched = (
        pull_form(CODES[status], status.name, {SUGGESTED: str(broker_id)})
        for status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)
    )
    return found, unmatched

"""Pull requests: checks in RocketMQ's order, one read each, an answer now or a place among the held ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.batch import Pull, PullBatch
from gantrymq.kernel.fast import read_pull_header
from gantrymq.kernel.filters import MessageFilter
from gantrymq.kernel.processors import Request
from gantrymq.kernel.services import ConsumerGroups, ConsumerOffsets, GroupTable, Statistics, TopicTable
from gantrymq.plugins.consume.read import PullResult, PullStatus, read_queue
from gantrymq.remoting.codes import PERM_READ, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers import PullMessageHeader

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker

log = structlog.get_logger("gantrymq.consume")

_COMMIT_OFFSET = 1
_MAY_SUSPEND = 2
_SUBSCRIPTION = 4
_CLASS_FILTER = 8

FILTERS_KEPT = 1024
EXPRESSION_KEPT_CHARACTERS = 512
"""Compiled expressions that are kept, and how long such a one may be: a client may send another one with every pull."""


class PullProcessor:
    """Batch processor of the pull codes."""

    def __init__(self, broker: Broker, max_messages: int, max_bytes: int, scan_entries: int) -> None:
        self._broker = broker
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._scan_entries = scan_entries
        self._topics = broker.services.get(TopicTable)
        self._groups = broker.services.get(GroupTable)
        self._consumers = broker.services.get(ConsumerGroups)
        self._offsets = broker.services.get(ConsumerOffsets)
        self._hold = broker.manager.hook.hold_pulls
        self._statistics = broker.services.find(Statistics)
        self._compiled: OrderedDict[tuple[str, str], MessageFilter] = OrderedDict()

    def handle(self, requests: list[Request]) -> None:
        """Answer each pull, or offer it to the holders."""
        waiting: list[Pull] = []
        for request in requests:
            try:
                pull = self._parse(request)
            except RemoteFault as fault:
                request.answer(fault.code, fault.remark)
                continue
            if not self._run(pull):
                # What it came with was read; it may wait for a minute, and a hundred thousand like it.
                request.forget()
                waiting.append(pull)
        if waiting and self._hold(batch=PullBatch(waiting, self._resume)) is None:
            self._resume(waiting)

    def _resume(self, pulls: list[Pull]) -> None:
        for pull in pulls:
            pull.may_hold = False
            if not pull.request.connection.closed:
                self._run(pull)

    def _parse(self, request: Request) -> Pull:
        header = read_pull_header(request)
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise RemoteFault(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")
        self._check_queue(header)
        wanted = self._filter(header, group.consume_broadcast_enable)
        if header.sys_flag & _COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        wait_s = header.suspend_timeout_millis / 1000
        return Pull(
            request,
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(1, min(header.max_msg_nums, self._max_messages)),
            wanted,
            bool(header.sys_flag & _MAY_SUSPEND) and wait_s > 0,
            self._broker.env.monotonic() + wait_s,
        )

    def _check_queue(self, header: PullMessageHeader) -> None:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            raise RemoteFault(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )

    def _filter(self, header: PullMessageHeader, broadcast_enabled: bool) -> MessageFilter:
        if header.sys_flag & _CLASS_FILTER:
            return self._compile("TAG", "*")
        if header.sys_flag & _SUBSCRIPTION:
            return self._compile(header.expression_type or "TAG", header.subscription or "*")
        group = header.consumer_group
        model = self._consumers.message_model(group)
        if model is None:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if model == "BROADCASTING" and not broadcast_enabled:
            raise RemoteFault(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
            )
        subscription = self._consumers.subscription(group, header.topic)
        if subscription is None:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < header.sub_version:
            raise RemoteFault(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.class_filter_mode:
            return self._compile("TAG", "*")
        return self._compile(subscription.expression_type or "TAG", subscription.sub_string or "*")

    def _compile(self, kind: str, expression: str) -> MessageFilter:
        key = (kind, expression)
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            return found
        compiler = self._broker.filters.get(kind)
        if compiler is None:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        found = compiler(expression)
        if len(expression) > EXPRESSION_KEPT_CHARACTERS:
            return found
        self._compiled[key] = found
        if len(self._compiled) > FILTERS_KEPT:
            self._compiled.popitem(last=False)
        return found

    def _run(self, pull: Pull) -> bool:
        """Answer ``pull``; False when it found nothing and may be held."""
        broker = self._broker
        queue = broker.queues.get(pull.topic, pull.queue_id)
        if queue is not None and pull.offset < queue.max_offset and pull.request.connection.is_congested():
            # Asked for much at once: it comes back for this part when it has taken the others.
            later = PullResult(PullStatus.NO_MATCHED_MESSAGE, pull.offset, queue.min_offset, queue.max_offset)
            self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, later)
            return True
        try:
            result = read_queue(
                broker.log, queue, pull.offset, pull.limit, self._max_bytes, self._scan_entries, pull.filter
            )
        except OSError as error:
            log.error("queue cannot be read", topic=pull.topic, queue_id=pull.queue_id, error=str(error))
            pull.request.answer(ResponseCode.SYSTEM_ERROR, f"the queue cannot be read: {error.strerror}")
            return True
        code = result.code(pull.offset)
        if code == ResponseCode.PULL_NOT_FOUND and pull.may_hold:
            return False
        self._answer(pull, code, result)
        return True

    def _answer(self, pull: Pull, code: int, result: PullResult) -> None:
        if self._statistics is not None:
            self._statistics.pulled(pull.group, pull.topic, pull.queue_id, result.messages, len(result.body))
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        pull.request.answer(code, result.status.name, fields, result.body)

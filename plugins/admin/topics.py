"""Requests about topics: offsets (202), consumer groups (300), times (303), queue entries (321), cleaning (306, 316).

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``, including the error texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.processors import Handler, Heavy, Request
from gantrymq.kernel.store.queues.consume_queue import LIGHT_TOPIC
from gantrymq.kernel.store.reading import message_stored_at
from gantrymq.plugins.admin.config import AdminConfig
from gantrymq.plugins.interfaces import ConsumerGroups, ConsumerOffsets, TopicTable
from gantrymq.remoting.bodies.clients import GroupList
from gantrymq.remoting.bodies.offsets import ConsumeTimeSpans, QueueTimeSpan
from gantrymq.remoting.bodies.queues import (
    ConsumeQueueBody,
    ConsumeQueueEntry,
    MessageQueue,
    TopicOffset,
    TopicStatsTable,
)
from gantrymq.remoting.bodies.topics import TopicConfig, TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import TopicOfGroupHeader
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import ConsumeQueueHeader
from gantrymq.remoting.headers.topics import TopicHeader
from gantrymq.remoting.names import SYSTEM_TOPICS, is_system_topic, reply_topic

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.admin")


class TopicAdmin:
    """Handlers of the seven codes."""

    def __init__(self, broker: Broker, config: AdminConfig) -> None:
        self._broker = broker
        self._config = config
        self._topics = broker.registry.get(TopicTable)
        self._offsets = broker.registry.get(ConsumerOffsets)
        self._groups = broker.registry.get(ConsumerGroups)

    def processors(self) -> dict[int, Handler | Heavy]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: Heavy(self.stats),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.readers,
            RequestCode.QUERY_CONSUME_TIME_SPAN: Heavy(self.time_spans),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
        }

    async def stats(self, request: Request) -> Command:
        """Answer 202: the lowest and highest offset of each writable queue."""
        topic = read_header(TopicHeader, request.command.ext).topic
        config = self._existing(topic)
        table = {}
        pace = self._broker.pace()
        for queue_id in range(config.write_queue_nums):
            await pace.checkpoint()
            queue = self._broker.queues.get(topic, queue_id)
            offset = TopicOffset()
            if queue is not None:
                last = message_stored_at(self._broker.log, queue, queue.max_offset - 1)
                offset = TopicOffset(queue.min_offset, queue.max_offset, max(last, 0))
            table[self._queue(topic, queue_id)] = offset
        return request.command.answer(ResponseCode.SUCCESS, body=TopicStatsTable(table).to_bytes())

    def readers(self, request: Request) -> Command:
        """Answer 300: the groups that subscribe to the topic, and those that have committed offsets in it."""
        topic = read_header(TopicHeader, request.command.ext).topic
        groups = {*self._groups.groups_of(topic), *self._offsets.groups_of(topic)}
        return request.command.answer(ResponseCode.SUCCESS, body=GroupList(sorted(groups)).to_bytes())

    async def time_spans(self, request: Request) -> Command:
        """Answer 303: for each queue the store times of its first and last message, and the lag of the group."""
        header = read_header(TopicOfGroupHeader, request.command.ext)
        config = self._existing(header.topic)
        consumed = self._offsets.queues_of(header.group, header.topic)
        spans = []
        pace = self._broker.pace()
        for queue_id in range(config.write_queue_nums):
            await pace.checkpoint()
            spans.append(self._time_span(header.topic, queue_id, consumed.get(queue_id, -1)))
        return request.command.answer(ResponseCode.SUCCESS, body=ConsumeTimeSpans(spans).to_bytes())

    def system_topics(self, request: Request) -> Command:
        """Answer 305."""
        own = {self._broker.cluster, self._broker.name, reply_topic(self._broker.cluster)}
        return request.command.answer(ResponseCode.SUCCESS, body=TopicList(sorted(SYSTEM_TOPICS | own)).to_bytes())

    def clean_expired(self, request: Request) -> Command:
        """Answer 306: let each queue begin with the first message that is still in the log. RocketMQ deletes whole
        queues, whose offsets then start over."""
        self._broker.queues.correct_min(self._broker.log.min_offset)
        return request.command.answer(ResponseCode.SUCCESS)

    def clean_unused(self, request: Request) -> Command:
        """Answer 316: delete the queues of topics that no longer exist. A slave deletes none: its table of topics may
        be behind its log, and the deletions of its master reach it with the table."""
        if self._broker.broker_id:
            return request.command.answer(ResponseCode.SUCCESS)
        for topic in sorted(self._unused_topics()):
            log.info("unused_queues_deleted", topic=topic)
            try:
                self._broker.store.delete_topic(topic)
            except OSError as error:
                raise _fault(f"the queues of {topic} are not deleted, that cannot be noted: {error}") from error
        return request.command.answer(ResponseCode.SUCCESS)

    def entries(self, request: Request) -> Command:
        """Answer 321: stored entries, at most ``max_entries``. Code 1 for a missing queue."""
        header = read_header(ConsumeQueueHeader, request.command.ext)
        queue = self._broker.queues.get(header.topic, header.queue_id)
        if queue is None:
            raise _fault(f"{header.queue_id}@{header.topic} is not exist!")
        body = ConsumeQueueBody(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
        if header.consumer_group is not None:
            body.subscription_data = self._groups.subscription(header.consumer_group, header.topic)
            # RocketMQ's text for a subscription by tag, for which it has no filter data
            body.filter_data = "null"
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
        if not queue.min_offset <= header.index < queue.max_offset:
            missing = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
            return request.command.answer(ResponseCode.SUCCESS, missing, body=body.to_bytes())
        count = max(0, min(header.count, self._config.max_entries))
        data = queue.entries(header.index, count)
        body.queue_data = [ConsumeQueueEntry(*entry) for entry in ENTRY.iter_unpack(data)]
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

    def _unused_topics(self) -> set[str]:
        """Topics with queues and without a configuration. Light queues need none; system topics are the broker's."""
        known = set(self._topics.names())
        return {
            queue.topic
            for queue in self._broker.queues
            if queue.topic not in known and not is_system_topic(queue.topic) and not queue.topic.startswith(LIGHT_TOPIC)
        }

    def _time_span(self, topic: str, queue_id: int, consumed: int) -> QueueTimeSpan:
        broker = self._broker
        span = QueueTimeSpan(self._queue(topic, queue_id), -1, -1)
        queue = broker.queues.get(topic, queue_id)
        if queue is not None:
            span.min_time_stamp = message_stored_at(broker.log, queue, queue.min_offset)
            span.max_time_stamp = message_stored_at(broker.log, queue, queue.max_offset - 1)
        span.consume_time_stamp = span.min_time_stamp
        if consumed > 0:
            span.consume_time_stamp = message_stored_at(broker.log, queue, consumed - 1)
        if queue is not None and consumed < queue.max_offset:
            waiting = message_stored_at(broker.log, queue, max(consumed, queue.min_offset))
            span.delay_time = 0 if waiting < 0 else max(0, broker.env.wall_ms() - waiting)
        return span

    def _existing(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.name, queue_id)


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)

"""Administrators' requests about offsets: all offsets (43), first store time (32), compare (308), clone (314), topics
of a group (343).

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``, ``ConsumerOffsetManager``; 5.3.3 for 343 and the data version of 43.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.processors import Processor, Request
from gantrymq.kernel.store.reading import message_stored_at
from gantrymq.plugins.interfaces import ConsumerGroups, GroupTable, TopicTable
from gantrymq.plugins.offsets.table import Offsets
from gantrymq.remoting.bodies.offsets import CorrectionOffsets
from gantrymq.remoting.bodies.topics import TopicList
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.groups import GroupHeader
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import CloneGroupHeader, CorrectionOffsetHeader, QueueHeader, TimestampResponse

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

LARGEST = 2**63 - 1
"""RocketMQ's value for a queue in which the compared group lags behind the others."""

DATA_VERSION_SINCE = 413
"""The first version (5.0.0, ``MQVersion``) that expects a data version with all offsets."""

log = structlog.get_logger("gantrymq.offsets")


class OffsetAdmin:
    """Handlers of the five codes."""

    def __init__(self, broker: Broker, offsets: Offsets) -> None:
        self._broker = broker
        self._offsets = offsets
        self._topics = broker.registry.get(TopicTable)
        self._groups = broker.registry.get(GroupTable)
        self._live = broker.registry.find(ConsumerGroups)

    def processors(self) -> dict[int, Processor]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics,
        }

    def earliest(self, request: Request) -> Command:
        """Answer 32: the store time (ms) of the queue's first message; -1 for a queue without messages."""
        header = read_header(QueueHeader, request.command.ext)
        queue = self._broker.queues.get(header.topic, header.queue_id)
        first = -1 if queue is None else message_stored_at(self._broker.log, queue, queue.min_offset)
        return request.command.answer(ResponseCode.SUCCESS, ext=TimestampResponse(timestamp=first).to_ext())

    def all_offsets(self, request: Request) -> Command:
        """Answer 43: the text of ``consumerOffset.json``, for RocketMQ 5 with a data version.

        The version only tells responses apart. Without one, a slave of 5.x fails after it has adopted the offsets, and
        does not write them.
        """
        body = self._offsets.encode()
        if request.command.version >= DATA_VERSION_SINCE:
            version = b'"dataVersion":{"counter":0,"stateVersion":0,"timestamp":%d}' % self._broker.env.wall_ms()
            body = b"{%s,%s" % (version, body[1:])
        return request.command.answer(ResponseCode.SUCCESS, body=body)

    def corrections(self, request: Request) -> Command:
        """Answer 308: for each queue the lowest offset of all groups but the excluded ones; 2^63-1 if the compared
        group lags behind it.

        As in RocketMQ, a group whose offset is before the first message of the queue does not count."""
        header = read_header(CorrectionOffsetHeader, request.command.ext)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group not in left_out:
                for queue_id, offset in self._offsets.queues_of(group, header.topic).items():
                    queue = self._broker.queues.get(header.topic, queue_id)
                    if queue is None or offset >= queue.min_offset:
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues_of(header.compare_group, header.topic).items():
            if lowest.get(queue_id, LARGEST) > offset:
                lowest[queue_id] = LARGEST
        return request.command.answer(ResponseCode.SUCCESS, body=CorrectionOffsets(lowest).to_bytes())

    def clone(self, request: Request) -> Command:
        """Answer 314: copy another group's offsets, for one topic or for all of its topics.

        Unless ``offline`` is set, topics to which the source's live members do not subscribe are skipped.
        """
        header = read_header(CloneGroupHeader, request.command.ext)
        source, target = header.src_group, header.dest_group
        if self._groups.find(target) is None:
            raise RemoteFault(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {target[:255]}"
            )
        subscriptions = {} if header.offline or self._live is None else self._live.subscriptions_of(source)
        topics = [header.topic] if header.topic and header.topic.strip() else self._offsets.topics_of(source)
        for topic in topics:
            if self._topics.get(topic) is None or (subscriptions and topic not in subscriptions):
                log.warning("offsets_not_cloned", topic=topic[:127], source=source[:255], target=target)
                continue
            self._offsets.check_room(target, topic)
            for queue_id, offset in dict(self._offsets.queues_of(source, topic)).items():
                self._offsets.commit(target, topic, queue_id, offset)
            log.info("offsets_cloned", topic=topic, source=source, target=target)
        return request.command.answer(ResponseCode.SUCCESS)

    def topics(self, request: Request) -> Command:
        """Answer 343: the topics in which a group has committed offsets."""
        group = read_header(GroupHeader, request.command.ext).group
        body = TopicList(sorted(self._offsets.topics_of(group)))
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

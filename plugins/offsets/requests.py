"""Requests about offsets: those of a consumer group (14, 15), and the lowest and highest of a queue (29, 30, 31).

Source: RocketMQ 4.9.7 ``ConsumerManageProcessor``, ``AdminBrokerProcessor``, ``DefaultMessageStore``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from gantrymq.kernel.processors import Processor, Request
from gantrymq.kernel.store.queues.search import TimeBound
from gantrymq.kernel.store.reading import stored_at
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.offsets.config import OffsetsConfig
from gantrymq.plugins.offsets.table import Offsets
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import read_header
from gantrymq.remoting.headers.offsets import (
    OffsetResponse,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

SEARCHES_MAX = 4
"""The most searches by time at once."""
LOG_OFFSET_BYTES = 8
"""A consume queue entry begins with the log offset of its message."""


class OffsetRequests:
    """Handlers of the five codes."""

    def __init__(self, broker: Broker, offsets: Offsets, config: OffsetsConfig) -> None:
        self._broker = broker
        self._offsets = offsets
        self._config = config
        self._topics = broker.registry.get(TopicTable)
        self._groups = broker.registry.get(GroupTable)
        self._searching = trio.CapacityLimiter(SEARCHES_MAX)

    def processors(self) -> dict[int, Processor]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
        }

    def query(self, request: Request) -> Command:
        """Answer 14. A group that never committed gets the queue's start, or code 22: then its client decides.

        No other code is used: a 4.9.7 client treats every error as "never committed" and skips messages.
        """
        header = read_header(QueryConsumerOffsetHeader, request.command.ext)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            offset = self._start_of_new_group(header)
        if offset is None:
            raise RemoteFault(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {header.consumer_group} has no offset in queue {header.queue_id} of topic {header.topic}",
            )
        return _answer(request, offset)

    def update(self, request: Request) -> Command:
        """Answer 15. Code 17 for an unknown topic and 26 for an unknown group, as in 5.x; 4.9.7 stores everything."""
        header = read_header(UpdateConsumerOffsetHeader, request.command.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RemoteFault(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        if self._groups.find(header.consumer_group) is None:
            raise RemoteFault(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.consumer_group}"
            )
        self._check_update(header, max(topic.read_queue_nums, topic.write_queue_nums))
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.command.answer(ResponseCode.SUCCESS)

    async def search(self, request: Request) -> Command | None:
        """Answer 29: the offset of the message with the nearest store time; 0 for a queue without messages.

        Clients of RocketMQ 5 ask for the first message since the time (the end of the queue if there is none), or the
        last one until it.
        """
        header = read_header(SearchOffsetHeader, request.command.ext)
        bound: TimeBound = "nearest"
        if header.boundary_type is not None:  # RocketMQ takes anything but UPPER for LOWER
            bound = "last_until" if header.boundary_type.upper() == "UPPER" else "first_since"
        search = self._broker.queues.offset_by_time
        time_of = partial(stored_at, self._broker.log)
        async with self._searching:
            if request.connection.closed or request.connection.peer_left:
                return None  # the client gave up while the request waited
            try:
                offset = await trio.to_thread.run_sync(
                    search, header.topic, header.queue_id, header.timestamp, time_of, bound
                )
            except OSError as error:
                raise _fault(f"the queue cannot be searched: {error.strerror}") from error
        return _answer(request, offset)

    def max_offset(self, request: Request) -> Command:
        """Answer 30: the offset of the next readable message; 0 for a missing queue."""
        header = read_header(QueueHeader, request.command.ext)
        return _answer(request, end_of_queue(self._broker, header.topic, header.queue_id))

    def min_offset(self, request: Request) -> Command:
        """Answer 31: the offset of the first message; 0 for a missing queue, which RocketMQ creates for this
        request."""
        header = read_header(QueueHeader, request.command.ext)
        queue = self._broker.queues.get(header.topic, header.queue_id)
        return _answer(request, 0 if queue is None else queue.min_offset)

    def _start_of_new_group(self, header: QueryConsumerOffsetHeader) -> int | None:
        """Return the queue's start if it still has all messages since its topic was created, and its start is near
        enough or cannot be read. None: the client decides where a new group begins."""
        if header.set_zero_if_not_found is False:
            return None
        queues, log = self._broker.queues, self._broker.log
        queue = queues.get(header.topic, header.queue_id)
        if queue is None:
            return 0
        start = queue.min_offset
        # The queue offsets of a topic that was deleted and created again continue.
        if start > 0 and not queues.is_whole_since_deletion(header.topic, log.min_offset):
            return None
        try:
            entry = queue.entries(start, 1)
        except OSError:
            # After an error the client would skip all messages.
            return start
        at = int.from_bytes(entry[:LOG_OFFSET_BYTES], "big")
        return start if not entry or log.end - at <= self._config.from_start_within else None

    def _check_update(self, header: UpdateConsumerOffsetHeader, queues: int) -> None:
        known = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        # a topic may have fewer queues now, and a consumer still reads the others
        if known is None and not 0 <= header.queue_id < queues:
            raise _fault(f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {queues} queues")
        if header.commit_offset < 0:
            raise _fault(f"commitOffset is {header.commit_offset}, an offset is not negative")
        self._offsets.check_room(header.consumer_group, header.topic)


def end_of_queue(broker: Broker, topic: str, queue_id: int) -> int:
    """Return the offset behind the queue's last readable message, 0 for a missing queue."""
    queue = broker.queues.get(topic, queue_id)
    return 0 if queue is None else queue.max_offset


def _answer(request: Request, offset: int) -> Command:
    return request.command.answer(ResponseCode.SUCCESS, ext=OffsetResponse(offset=offset).to_ext())


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)

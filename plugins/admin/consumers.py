"""Progress of consumer groups: one group (208), and all groups (317).

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``; 5.3.3 for ``pullOffset`` and ``topicList``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gantrymq.kernel.processors import Heavy, Request
from gantrymq.kernel.store.reading import message_stored_at
from gantrymq.plugins.interfaces import ConsumerGroups, ConsumerOffsets, GroupTable, Statistics, TopicTable
from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.bodies.offsets import ConsumeStats, ConsumeStatsList, OffsetWrapper
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.brokers import BrokerConsumeStatsHeader
from gantrymq.remoting.headers.groups import ConsumeStatsHeader
from gantrymq.remoting.headers.header import read_header

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.network.time_slices import Pace


ROWS_MAX = 65_536
"""The most queues in one response, which must fit into a frame."""


class ConsumerAdmin:
    """Handlers of the two codes. Other requests are served between two queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.registry.get(TopicTable)
        self._group_table = broker.registry.get(GroupTable)
        self._groups = broker.registry.get(ConsumerGroups)
        self._offsets = broker.registry.get(ConsumerOffsets)
        self._statistics = broker.registry.find(Statistics)

    def processors(self) -> dict[int, Heavy]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_CONSUME_STATS: Heavy(self.group_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: Heavy(self.all_stats),
        }

    async def group_stats(self, request: Request) -> Command:
        """Answer 208: all topics in which the group has committed offsets, one, or a list. Topics to which its members
        no longer subscribe are only shown if they are in the list."""
        header = read_header(ConsumeStatsHeader, request.command.ext)
        group = header.consumer_group
        listed = list(dict.fromkeys(filter(None, (header.topic_list or "").split(";"))))
        topics = [header.topic] if header.topic and header.topic.strip() else self._offsets.topics_of(group)
        whole = ConsumeStats({})
        pace = self._broker.pace()
        for topic in listed or topics:
            await pace.checkpoint()
            if not listed and not self._is_subscribed(group, topic):
                continue
            part = await self._stats(group, topic, pace, by_write_queues=False)
            if part is not None:
                whole.offset_table.update(part.offset_table)
                whole.consume_tps += part.consume_tps
                _check_rows(len(whole.offset_table))
        return request.command.answer(ResponseCode.SUCCESS, body=await _encoded(whole))

    async def all_stats(self, request: Request) -> Command:
        """Answer 317: every group; with ``isOrder`` only for ordered topics."""
        ordered = read_header(BrokerConsumeStatsHeader, request.command.ext).is_order
        table: list[dict[str, list[ConsumeStats]]] = []
        behind = rows = 0
        pace = self._broker.pace()
        for group in self._group_table.names():
            found = []
            for topic in self._offsets.topics_of(group):
                await pace.checkpoint()
                config = self._topics.get(topic)
                if config is None or (ordered and not config.order) or not self._is_subscribed(group, topic):
                    continue
                stats = await self._stats(group, topic, pace, by_write_queues=True)
                if stats is not None:
                    found.append(stats)
                    behind += stats.behind
                    rows += len(stats.offset_table)
                    _check_rows(rows)
            table.append({group: found})
        body = ConsumeStatsList(table, self._broker.address, behind)
        return request.command.answer(ResponseCode.SUCCESS, body=await _encoded(body))

    def _is_subscribed(self, group: str, topic: str) -> bool:
        """Return whether the members of the group subscribe to the topic, or there are none."""
        subscriptions = self._groups.subscriptions_of(group)
        return not subscriptions or topic in subscriptions

    async def _stats(self, group: str, topic: str, pace: Pace, *, by_write_queues: bool) -> ConsumeStats | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        consumed, statistics = self._offsets.queues_of(group, topic), self._statistics
        queues = config.write_queue_nums if by_write_queues else config.read_queue_nums
        table = {}
        for queue_id in range(queues):
            await pace.checkpoint()
            queue = self._broker.queues.get(topic, queue_id)
            offset = consumed.get(queue_id, 0)
            last = message_stored_at(self._broker.log, queue, offset - 1)
            end = 0 if queue is None else queue.max_offset
            pulled = None if statistics is None else statistics.pulled_to(group, topic, queue_id)
            table[MessageQueue(topic, self._broker.name, queue_id)] = OffsetWrapper(
                end, offset, max(last, 0), max(min(pulled or 0, end), offset)
            )
        tps = 0.0 if statistics is None else statistics.consume_tps(group, topic)
        return ConsumeStats(table, tps)


def _check_rows(rows: int) -> None:
    if rows > ROWS_MAX:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"the response would have more than {ROWS_MAX} queues: request one group and one topic",
        )


async def _encoded(body: Body) -> bytes:
    return await trio.to_thread.run_sync(body.to_bytes)

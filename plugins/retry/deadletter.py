"""Dead letters: messages that failed too often go to ``%DLQ%group``.

Source: RocketMQ 4.9.7 ``SendMessageProcessor.handleRetryAndDLQ``, ``DLQ_NUMS_PER_GROUP``.
"""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import RETRY_PREFIX, dlq_topic
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import DELAY

QUEUES = 1


class DeadLetters:
    """The dead-letter topics of the groups."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups

    def topic(self, group: str) -> TopicConfig:
        """Return the group's topic, created on first use with one readable queue.

        ``RemoteFault`` (code 1) if it cannot be created.
        """
        return self._topics.ensure(TopicConfig(dlq_topic(group), QUEUES, QUEUES, PERM_READ | PERM_WRITE))

    def redirect(self, batch: AppendBatch) -> None:
        """Turn live rows for a retry topic that have used up their attempts into dead letters, without a further delay.

        The limit is the sender's, or else the group's. Unlike this, RocketMQ keeps the client's delay level on such a
        message, so it becomes a dead letter hours later.
        """
        for row in batch.live:
            topic = batch.topics[row]
            if not topic.startswith(RETRY_PREFIX):
                continue
            group = topic.removeprefix(RETRY_PREFIX)
            limit = batch.attempts_max.get(row)
            if limit is None:
                config = self._groups.find(group)
                limit = None if config is None else config.retry_max_times
            if limit is None or batch.reconsume_times[row] < limit:
                continue
            try:
                target = self.topic(group)
            except RemoteFault as fault:
                batch.refuse(row, fault.code, fault.remark)
                continue
            batch.topics[row], batch.queue_ids[row] = target.topic_name, 0
            batch.properties[row] = replace_properties(batch.properties[row], {DELAY: b"0"})

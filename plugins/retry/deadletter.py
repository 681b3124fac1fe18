"""Dead letters: messages that failed too often go to ``%DLQ%group``.

Source: RocketMQ 4.9.7 ``SendMessageProcessor.handleRetryAndDLQ``, ``DLQ_NUMS_PER_GROUP``.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.changes import DeadLettersBatch
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.codes import PERM_READ, PERM_WRITE
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, is_dlq_topic
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC

QUEUES = 1


class DeadLetters:
    """The dead-letter topics of the groups."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, observers: Callable[[DeadLettersBatch], object] | None
    ) -> None:
        """``observers``: the plugins with the hook ``dead_lettered``, if there are any."""
        self._topics = topics
        self._groups = groups
        self._observers = observers

    def topic(self, group: str) -> TopicConfig:
        """Return the group's topic, created on first use with one readable queue. Dead letters go to queue 0.

        ``RemoteFault`` (code 1) if it cannot be created.
        """
        return self._topics.ensure_queues(TopicConfig(dlq_topic(group), QUEUES, QUEUES, PERM_READ | PERM_WRITE))

    def redirect(self, batch: AppendBatch) -> None:
        """Turn live rows for a retry topic that have used up their attempts into dead letters, without a further delay.

        The limit is the sender's, or else the group's. Unlike this, RocketMQ keeps the client's delay level on such a
        message, so it becomes a dead letter hours later.
        """
        redirected = False
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
            redirected = True
        if redirected and self._observers is not None:
            batch.done = self._reporting(batch.done)

    def report(self, batch: AppendBatch) -> None:
        """Call the hook ``dead_lettered`` for the dead letters of ``batch``, whose rows have their final status."""
        if self._observers is None:
            return
        found = DeadLettersBatch()
        for row, topic in enumerate(batch.topics):
            offset, queue_offset = batch.place_of(row)
            if offset < 0 or not is_dlq_topic(topic):
                continue
            found.groups.append(topic.removeprefix(DLQ_PREFIX))
            found.topics.append((batch.property_of(row, RETRY_TOPIC) or b"").decode("utf-8", "replace"))
            found.message_ids.append((batch.property_of(row, ORIGIN_MESSAGE_ID) or b"").decode("utf-8", "replace"))
            found.reconsume_times.append(batch.reconsume_times[row])
            found.offsets.append(offset)
            found.queue_offsets.append(queue_offset)
        if len(found):
            self._observers(found)

    def _reporting(self, done: Callable[[AppendBatch], None] | None) -> Callable[[AppendBatch], None]:
        def finish(batch: AppendBatch) -> None:
            if done is not None:
                done(batch)
            self.report(batch)

        return finish

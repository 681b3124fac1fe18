"""Which topics a start finds in the queues, for the table of topics that may lack some."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.errors import CorruptRange, OutOfLog
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import BadRecord
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.property_bytes import REAL_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker, QueueReader

log = structlog.get_logger("gantrymq.topics")


def topics_of_queues(broker: Broker, known: Container[str]) -> dict[str, int]:
    """Return the topics that have messages, each with the number of its queues.

    Without deleted topics that are not ``known`` and got messages later only because these had waited, delayed or as
    half messages, while the topic was deleted.
    """
    found: dict[str, int] = {}
    sent: set[str] = set()
    for queue in broker.queues:
        if queue.max_offset > queue.min_offset:
            topic = queue.topic
            found[topic] = max(queue.queue_id + 1, found.get(topic, 0))
            exists = topic in sent or topic in known or not broker.queues.deleted(topic)
            if exists or _was_sent_to(broker, queue):
                sent.add(topic)
    for topic in found.keys() - sent:
        del found[topic]
        log.warning("messages_without_topic", topic=topic, reason="it was deleted while they waited for their delivery")
    return found


def _was_sent_to(broker: Broker, queue: QueueReader) -> bool:
    """Return whether the oldest or the newest message of the queue was sent to it, so that the topic existed.

    True as well if neither can be read.
    """
    waited = False
    for offset in (queue.min_offset, queue.max_offset - 1):
        for log_offset, _, _ in ENTRY.iter_unpack(queue.entries(offset, 1)):
            try:
                record = broker.log.read_record(log_offset)
            except (OutOfLog, CorruptRange, BadRecord):
                continue
            committed = record.sys_flag & TransactionState.ROLLBACK == TransactionState.COMMIT
            if not committed and record.property_of(REAL_TOPIC) != queue.topic.encode():
                return True
            waited = True
    return not waited

"""What a forced deletion costs: messages younger than ``keep``, and the groups that had not consumed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.plugins.interfaces import ConsumerOffsets

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

GROUPS_NAMED: Final = 20

Begins = Mapping[tuple[str, int], int]
"""Topic and queue to the queue offset of the first message."""


@attrs.frozen
class Loss:
    """``groups``: the first 20, sorted, of those that had committed an offset before the end of the deleted range."""

    messages: int
    groups: list[str]


def begins_of(broker: Broker) -> Begins:
    """Return where each queue begins now."""
    return {(queue.topic, queue.queue_id): queue.min_offset for queue in broker.queues}


def loss_since(broker: Broker, before: Begins) -> Loss:
    """Return what the queues have lost since ``before``."""
    offsets = broker.registry.find(ConsumerOffsets)
    messages = 0
    groups: set[str] = set()
    for (topic, queue_id), now in begins_of(broker).items():
        first = before.get((topic, queue_id), now)
        if now <= first:
            continue
        messages += now - first
        for group in offsets.groups_of(topic) if offsets is not None else ():
            committed = offsets.query(group, topic, queue_id) if offsets is not None else None
            if committed is not None and committed < now:
                groups.add(group)
    return Loss(messages, sorted(groups)[:GROUPS_NAMED])

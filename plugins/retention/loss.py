"""What a forced deletion costs: messages younger than ``keep``, and the groups that had not consumed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from gantrymq.plugins.interfaces import ConsumerOffsets

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

GROUPS_NAMED: Final = 20
AT_ONCE: Final = 500
"""How many queues, or pairs of topic and group, are compared before other tasks run."""

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


async def loss_since(broker: Broker, before: Begins) -> Loss:
    """Return what the queues have lost since ``before``. Other tasks run meanwhile."""
    messages = 0
    lost: dict[str, dict[int, int]] = {}
    for number, ((topic, queue_id), now) in enumerate(begins_of(broker).items(), start=1):
        first = before.get((topic, queue_id), now)
        if now > first:
            messages += now - first
            lost.setdefault(topic, {})[queue_id] = now
        if number % AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    offsets = broker.registry.find(ConsumerOffsets)
    if offsets is None:
        return Loss(messages, [])
    groups: set[str] = set()
    for number, (topic, group) in enumerate(offsets.pairs(), start=1):
        if topic in lost and group not in groups:
            ends = lost[topic]
            if any(offset < ends.get(queue_id, 0) for queue_id, offset in offsets.queues_of(group, topic).items()):
                groups.add(group)
        if number % AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return Loss(messages, sorted(groups)[:GROUPS_NAMED])

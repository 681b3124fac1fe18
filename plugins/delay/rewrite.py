"""Move messages to the queue of their delay level.

Source: RocketMQ 4.9.7 ``CommitLog.asyncPutMessage``: the level clamped to the last one, the real topic and queue kept
in the properties REAL_TOPIC and REAL_QID.
"""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.record import PREPARED_BIT
from gantrymq.plugins.delay.levels import Levels, read_level
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import SCHEDULE_TOPIC
from gantrymq.remoting.properties import replace_properties

_DELAY, _REAL_TOPIC, _REAL_QID = b"DELAY", b"REAL_TOPIC", b"REAL_QID"


def move_to_levels(batch: AppendBatch, levels: Levels) -> None:
    """Give every live row with a level above 0 the topic SCHEDULE_TOPIC_XXXX and the queue ``level - 1``.

    Prepared and rolled back messages stay: they enter no queue. A level that is no number is refused.
    """
    for row in batch.live:
        properties = batch.properties[row]
        level = read_level(properties)
        if level is None:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "the delay level (property DELAY) is no number")
        elif level > 0 and not batch.sys_flags[row] & PREPARED_BIT:
            changes: dict[bytes, bytes | None] = {
                _REAL_TOPIC: batch.topics[row].encode(),
                _REAL_QID: b"%d" % batch.queue_ids[row],
            }
            if level > len(levels):
                level = len(levels)
                changes[_DELAY] = b"%d" % level
            batch.properties[row] = replace_properties(properties, changes)
            batch.topics[row] = SCHEDULE_TOPIC
            batch.queue_ids[row] = level - 1
    batch.traits &= ~Trait.DELAY

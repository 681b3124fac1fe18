"""Divert delayed messages to the queue of a delay level or to the timer topic.

Source: RocketMQ 5.3.3 ``HookUtils.handleScheduleMessage``, and 4.9.7 ``CommitLog.asyncPutMessage``: the level clamped
to the last one, the real topic and queue kept in the properties REAL_TOPIC and REAL_QID.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from gantrymq.kernel.batch import AppendBatch, Trait
from gantrymq.kernel.store.log.record import PREPARED_BIT, PROPERTIES_LIMIT
from gantrymq.plugins.delay.levels.levels import Levels, read_level
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from gantrymq.remoting.properties import find_property, replace_properties
from gantrymq.remoting.property_bytes import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_PREFIX,
    UNIQ_KEY,
    WAIT,
)
from gantrymq.remoting.recall_handles import encode_handle
from gantrymq.remoting.timer_times import slot_of, wanted

_NO_TIMES: dict[bytes, bytes | None] = {TIMER_DELAY_SEC: None, TIMER_DELAY_MS: None, TIMER_DELIVER_MS: None}
_ORDINARY: dict[bytes, bytes | None] = {WAIT: None}
"""As in RocketMQ, a message that goes directly to its topic is stored without WAIT, a delayed one with it."""
_ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
TIMED_PROPERTIES_MAX: Final = PROPERTIES_LIMIT - 160
"""The most bytes of properties of a timed message as stored: later properties need room, 62 bytes when it is delivered
and about 40 if it is enqueued again on the way."""


@attrs.frozen
class TimerTerms:
    """The settings for timed messages.

    ``now`` is the store's clock, and ``at_wall`` converts a time of the machine's clock to it. ``moved`` is called for
    each with its batch, its row, its slot, and the message that it recalls (``topic+unique key``), if any. The row may
    still be refused after that.
    """

    now: Callable[[], int]
    at_wall: Callable[[int], int]
    longest_ms: int
    broker: str
    moved: Callable[[AppendBatch, int, int, bytes | None], None]


def move_delayed(batch: AppendBatch, levels: Levels, timer: TimerTerms) -> None:
    """Give every live row with a level above 0, or with a future time, the topic and queue where it waits.

    Prepared and rolled back messages are not changed, because they enter no queue. Invalid numbers, times that
    are too late, and properties without room for those of the delivery are refused.
    """
    for row in batch.live:
        properties = batch.properties[row]
        level = read_level(properties)
        if level is None:
            batch.refuse(row, _ILLEGAL, "the delay level (property DELAY) is not a number")
        elif batch.sys_flags[row] & PREPARED_BIT:
            continue
        elif level > 0:
            _move_to_level(batch, row, level, levels)
        elif TIMER_PREFIX in properties:
            _move_to_timer(batch, row, timer)
    batch.traits &= ~Trait.DELAY


def _move_to_level(batch: AppendBatch, row: int, level: int, levels: Levels) -> None:
    properties = batch.properties[row]
    changes: dict[bytes, bytes | None] = {
        REAL_TOPIC: batch.topics[row].encode(),
        REAL_QID: b"%d" % batch.queue_ids[row],
    }
    if level > len(levels):
        level = len(levels)
        changes[DELAY] = b"%d" % level
    if TIMER_PREFIX in properties:
        changes |= _NO_TIMES
    batch.properties[row] = replace_properties(properties, changes)
    batch.topics[row] = SCHEDULE_TOPIC
    batch.queue_ids[row] = level - 1


def _move_to_timer(batch: AppendBatch, row: int, timer: TimerTerms) -> None:
    properties, topic = batch.properties[row], batch.topics[row]
    if topic in (TIMER_TOPIC, TRANS_HALF_TOPIC):
        return
    if find_property(properties, TIMER_OUT_MS) is not None:
        batch.properties[row] = replace_properties(properties, _ORDINARY)
        return  # as in RocketMQ, a message that was delayed once is not delayed again
    now = timer.now()
    recalls = find_property(properties, TIMER_DEL_UNIQKEY)
    if recalls is not None and b"+" in recalls and not recalls.startswith(topic.encode() + b"+"):
        # Who may send to one topic must not delete messages of another one.
        batch.refuse(row, _ILLEGAL, "timer message illegal: the message to recall is of another topic")
        return
    try:
        # The time in a recall is from the sender's handle, which names a slot on the store's clock.
        due = wanted(partial(find_property, properties), now, None if recalls is not None else timer.at_wall)
    except ValueError as error:
        batch.refuse(row, _ILLEGAL, f"timer message illegal: {error}")
        return
    if due is None:
        return
    if due <= now:
        if recalls is not None:
            batch.refuse(row, _ILLEGAL, "timer message illegal: the message to recall was due already")
        else:
            batch.properties[row] = replace_properties(properties, _ORDINARY)
        return
    if due - now > timer.longest_ms:
        batch.refuse(
            row,
            _ILLEGAL,
            f"timer message illegal: due in {due - now} ms, at most {timer.longest_ms} ms are allowed "
            "(plugin.delay.max_delay)",
        )
        return
    out = slot_of(due)
    moved = replace_properties(
        properties, {TIMER_OUT_MS: b"%d" % out, REAL_TOPIC: topic.encode(), REAL_QID: b"%d" % batch.queue_ids[row]}
    )
    if len(moved) > TIMED_PROPERTIES_MAX:
        batch.refuse(
            row,
            _ILLEGAL,
            f"timer message illegal: the properties have {len(moved)} bytes as stored, more than the "
            f"{TIMED_PROPERTIES_MAX} allowed",
        )
        return
    batch.properties[row] = moved
    batch.topics[row] = TIMER_TOPIC
    batch.queue_ids[row] = 0
    timer.moved(batch, row, out, recalls)
    unique = find_property(properties, UNIQ_KEY)
    if unique is not None and not topic.startswith(RETRY_PREFIX):
        handle = encode_handle(topic, timer.broker, out + 1, unique.decode("utf-8", "replace"))
        batch.response_fields[row] = {"recallHandle": handle}

"""Decode the messages of an answer to a pull."""

from __future__ import annotations

from typing import TypeVar

from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.records import decode_pulled, sort_damaged

R = TypeVar("R", bound=DeliveredRecord)

log: LibraryLog = LibraryLog()


def decode_intact(data: bytes, make: type[R], queue: MessageQueue, delivery: object = None) -> list[R]:
    """The messages of ``queue`` in ``data``, with their ``delivery``, except for those whose body is damaged.

    These are logged. Raises :class:`FatalRemoteFault` if the bytes are not a whole number of records.
    """
    try:
        return decode_pulled(data, make, queue.broker_name, delivery)
    except FatalRemoteFault:
        # RocketMQ's brokers do not check bodies when they read them, so each further pull would bring the same bytes
        # and the queue would stop here.
        intact, damaged = sort_damaged(data, make, queue.broker_name, delivery)
    for record in damaged:
        log.error(
            "damaged_message_skipped", topic=queue.topic, queue=queue.queue_id, offset=record.queue_offset,
            broker=queue.broker_name,
        )  # fmt: skip
    return intact

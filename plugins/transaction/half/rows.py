"""The rows that the strategy ``half`` writes, and how it interprets stored ones.

Source: RocketMQ 4.9.7 ``TransactionalMessageBridge``, ``EndTransactionProcessor.endMessageTransaction``,
``DefaultTransactionalMessageCheckListener``. Unlike there, a copy keeps the flag of its half message.
"""

from __future__ import annotations

from functools import lru_cache

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.store.log.record import BLANK_BYTES, PROPERTIES_LIMIT, Record
from gantrymq.kernel.store.store import StoreConfig
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import (
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    WAIT,
)
from gantrymq.remoting.records import HEADS

QUEUE_ID = 0
"""Half messages and op messages have one queue each."""
GROUP = TRANS_GROUP
"""The group with which the broker itself consumes both."""
END_TAG = "d"

STATE_BITS = int(TransactionState.ROLLBACK)
_COMMIT_BIT = int(TransactionState.COMMIT)
END_PROPERTIES = WAIT + b"\x01true\x02" + TAGS + b"\x01" + END_TAG.encode()
"""WAIT has no effect here; RocketMQ's op messages have it, in this order."""
_OPS_SEPARATOR = b","


KEPT_PLACES = 1024
"""The most queues whose property changes are cached; they are equal for all messages of a queue."""
LONGEST_HEAD = max(head.size for head in HEADS.values()) + 3
MORE_PROPERTIES = 160
"""At least as many bytes as the properties that come with a copy: REAL_QID, the number of checks, and so on."""


def check_size(topic: str, body: int, properties: int, config: StoreConfig) -> None:
    """:class:`RemoteFault` (code 13) for a message that the log would refuse, as it is or as a copy of its half
    message.

    ``body`` and ``properties`` in bytes.

    The log refuses large rows one by one, when it is too late for the following row. It applies
    ``store.max_message_bytes``, and only to messages from clients: the limit may be lower than it was when the half
    message was stored.
    """
    properties += MORE_PROPERTIES
    size = LONGEST_HEAD + body + max(len(topic), len(TRANS_HALF_TOPIC)) + properties
    if size > config.commit_log_file_bytes - BLANK_BYTES or properties > PROPERTIES_LIMIT:
        raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "the half message is too large to be stored again")


def fitting_size(config: StoreConfig) -> int:
    """With no more bytes of body and properties together, :func:`check_size` has nothing against any half message."""
    room = config.commit_log_file_bytes - BLANK_BYTES - LONGEST_HEAD - len(TRANS_HALF_TOPIC) - MORE_PROPERTIES
    return min(room, PROPERTIES_LIMIT - MORE_PROPERTIES)


@lru_cache(KEPT_PLACES)
def half_message_changes(topic: str, queue_id: int) -> dict[bytes, bytes | None]:
    """Return the property changes that turn a message for this queue into a half message.

    They record the queue, and remove properties that only the broker may set on a half message.
    """
    return {
        TRAN_PREPARED_QUEUE_OFFSET: None,
        TRANSACTION_CHECK_TIMES: None,
        REAL_TOPIC: topic.encode(),
        REAL_QID: b"%d" % queue_id,
    }


def real_place(record: Record) -> tuple[str, int]:
    """Return the topic and the queue of the message itself; :class:`RemoteFault` (code 1) if they are missing."""
    return _place(record.property_of(REAL_TOPIC) or b"", record.property_of(REAL_QID) or b"")


@lru_cache(KEPT_PLACES)
def _place(topic_name: bytes, queue_id: bytes) -> tuple[str, int]:
    topic = topic_name.decode("utf-8", "replace")
    if not topic or topic == TRANS_HALF_TOPIC or not queue_id.isdigit() or len(queue_id) > 10:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR, f"the half message belongs to queue {queue_id!r} of {topic!r}: nowhere"
        )
    return topic, int(queue_id)


def number_in(record: Record, name: bytes) -> int | None:
    """Return a property that is an integer of at most 18 digits; None if it is missing or invalid."""
    value = record.property_of(name)
    return int(value) if value is not None and value.isdigit() and len(value) <= 18 else None


def first_offset(record: Record) -> int:
    """Return the queue offset with which the transaction began."""
    if record.property_of(TRAN_PREPARED_QUEUE_OFFSET) is None:  # it is not a copy
        return record.queue_offset
    first = number_in(record, TRAN_PREPARED_QUEUE_OFFSET)
    return record.queue_offset if first is None else first


def copy_key(record: Record) -> bytes | None:
    """Return the common key of a half message and RocketMQ's copies of it; None if they cannot be distinguished from
    others.

    It is the unique key with the group: producers choose their keys, and one group must not end another's transactions.
    """
    key = record.property_of(UNIQ_KEY)
    return None if not key else (record.property_of(PGROUP) or b"") + b"\x01" + key


def add_real(batch: AppendBatch, record: Record, prepared_offset: int, *, wait: bool, origin: object) -> None:
    """Add the message itself. It keeps all properties, as in RocketMQ.

    ``prepared_offset``: the log offset of the half message that the producer named.
    """
    topic, queue_id = real_place(record)
    batch.add_stored(
        record,
        topic,
        queue_id,
        sys_flag=record.sys_flag & ~STATE_BITS | _COMMIT_BIT,
        prepared_offset=prepared_offset,
        wait=wait,
        origin=origin,
    )


def add_end(
    batch: AppendBatch, half_offset: int, now_ms: int, host: bytes, *, wait: bool = False, origin: object = None
) -> None:
    """Add the op message that ends the half message at ``half_offset``; ``host``: this broker, as stored."""
    batch.add(
        TRANS_OP_HALF_TOPIC,
        QUEUE_ID,
        b"%d" % half_offset,
        END_PROPERTIES,
        born_timestamp=now_ms,
        born_host=host,
        wait=wait,
        origin=origin,
    )


def add_copy(batch: AppendBatch, record: Record, checks: int, *, wait: bool) -> None:
    """Add the half message again, checked ``checks`` times; it knows the offset with which it began."""
    changes: dict[bytes, bytes | None] = {TRAN_PREPARED_QUEUE_OFFSET: b"%d" % first_offset(record)}
    if checks:
        changes[TRANSACTION_CHECK_TIMES] = b"%d" % checks
    properties = replace_properties(record.properties, changes)
    batch.add_stored(record, TRANS_HALF_TOPIC, QUEUE_ID, properties=properties, wait=wait)


def add_discarded(batch: AppendBatch, record: Record) -> None:
    """Add the half message to the topic of discarded ones."""
    batch.add_stored(record, TRANS_CHECK_MAX_TIME_TOPIC, QUEUE_ID, wait=False)


def is_written(batch: AppendBatch, row: int) -> bool:
    """Return whether the log stored the row; for a batch that was refused completely, the log was not called."""
    return batch.place_of(row)[0] >= 0


def ended_in(body: bytes) -> list[int]:
    """Return the half offsets in an op message: one number (4.x), or numbers that are each followed by a comma
    (5.x)."""
    return [int(piece) for piece in body.split(_OPS_SEPARATOR) if piece.isdigit() and len(piece) <= 18]

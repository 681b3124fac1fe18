"""The rows that the strategy ``half`` writes, and what it reads out of stored ones.

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
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from gantrymq.remoting.properties import java_hash, replace_properties
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
"""Half messages and their ends have one queue each."""
GROUP = "CID_RMQ_SYS_TRANS"
"""As this group the broker itself consumes both."""
END_TAG = "d"
END_CODE = java_hash(END_TAG)

STATE_BITS = int(TransactionState.ROLLBACK)
_COMMIT_BIT = int(TransactionState.COMMIT)
END_PROPERTIES = WAIT + b"\x01true\x02" + TAGS + b"\x01" + END_TAG.encode()
"""WAIT means nothing here; RocketMQ's note has it, in this order."""
_OPS_SEPARATOR = b","


KEPT_PLACES = 1024
"""So many queues are known by what the properties say of them; each message of a queue says the same."""
LONGEST_HEAD = max(head.size for head in HEADS.values()) + 3
MORE_PROPERTIES = 160
"""At least as many bytes as the properties that come with a copy: REAL_QID, the number of checks, and so on."""


def check_size(topic: str, body: int, properties: int, config: StoreConfig) -> None:
    """:class:`RemoteFault` (code 13) for a message that the log would not take, as it is or as a copy of its half.

    ``body`` and ``properties`` in bytes.

    The log refuses what is too large row by row, when it is too late for a row that follows.
    """
    properties += MORE_PROPERTIES
    size = LONGEST_HEAD + body + max(len(topic), len(TRANS_HALF_TOPIC)) + properties
    if (
        body > config.max_message_bytes
        or size > config.commit_log_file_bytes - BLANK_BYTES
        or properties > PROPERTIES_LIMIT
    ):
        raise RemoteFault(ResponseCode.MESSAGE_ILLEGAL, "the half message is too large to be stored again")


def fitting_size(config: StoreConfig) -> int:
    """With no more bytes of body and properties together, :func:`check_size` has nothing against any half message."""
    room = config.commit_log_file_bytes - BLANK_BYTES - LONGEST_HEAD - len(TRANS_HALF_TOPIC) - MORE_PROPERTIES
    return min(config.max_message_bytes, room, PROPERTIES_LIMIT - MORE_PROPERTIES)


@lru_cache(KEPT_PLACES)
def half_message_changes(topic: str, queue_id: int) -> dict[bytes, bytes | None]:
    """What changes of the properties of a message for this queue when it becomes a half message.

    They keep the queue; what only the broker says of a half message is taken out of what the producer sent.
    """
    return {
        TRAN_PREPARED_QUEUE_OFFSET: None,
        TRANSACTION_CHECK_TIMES: None,
        REAL_TOPIC: topic.encode(),
        REAL_QID: b"%d" % queue_id,
    }


def real_place(record: Record) -> tuple[str, int]:
    """The topic and the queue that the message is meant for; :class:`RemoteFault` (code 1) when it does not say."""
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
    """A property that is a whole number of at most 18 digits; None when it is missing or something else."""
    value = record.property_of(name)
    return int(value) if value is not None and value.isdigit() and len(value) <= 18 else None


def first_offset(record: Record) -> int:
    """The queue offset with which the transaction began."""
    if record.property_of(TRAN_PREPARED_QUEUE_OFFSET) is None:  # it is not a copy
        return record.queue_offset
    first = number_in(record, TRAN_PREPARED_QUEUE_OFFSET)
    return record.queue_offset if first is None else first


def copy_key(record: Record) -> bytes | None:
    """What a half message and RocketMQ's copies of it have in common; None when they cannot be told from others.

    That is the unique key with the group: producers choose their keys, and one group must not end another's.
    """
    key = record.property_of(UNIQ_KEY)
    return None if not key else (record.property_of(PGROUP) or b"") + b"\x01" + key


def add_real(batch: AppendBatch, record: Record, prepared_offset: int, *, wait: bool, origin: object) -> None:
    """Add the message as it was meant. Its properties stay whole, as RocketMQ leaves them.

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
    """Add the note that the half message at ``half_offset`` has ended; ``host``: this broker, as stored."""
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


def add_aside(batch: AppendBatch, record: Record) -> None:
    """Add the half message to the topic of those that nobody ended."""
    batch.add_stored(record, TRANS_CHECK_MAX_TIME_TOPIC, QUEUE_ID, wait=False)


def is_written(batch: AppendBatch, row: int) -> bool:
    """Whether the log took the row; of a batch that was refused as a whole it was never asked."""
    return batch.place_of(row)[0] >= 0


def ended_in(body: bytes) -> list[int]:
    """The half offsets in a note of ends: one number (4.x), or numbers each followed by a comma (5.x)."""
    return [int(piece) for piece in body.split(_OPS_SEPARATOR) if piece.isdigit() and len(piece) <= 18]

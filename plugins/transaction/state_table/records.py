"""The records that the strategy ``state_table`` writes when a transaction ends.

Source: RocketMQ 3.2 ``EndTransactionProcessor.endMessageTransaction``. As there, all properties are kept.
"""

from __future__ import annotations

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.store.log.record import Record
from gantrymq.plugins.transaction.state_table.rows import STATE_BITS
from gantrymq.remoting.headers.transactions import TransactionState
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import REAL_QID, REAL_TOPIC


def add_end(batch: AppendBatch, record: Record, *, is_commit: bool, wait: bool, origin: object = None) -> None:
    """Add the end of the transaction of ``record``: the message itself, or a record without a body in no queue."""
    if not is_commit:
        batch.own_queue_offsets[len(batch)] = record.queue_offset
    state = TransactionState.COMMIT if is_commit else TransactionState.ROLLBACK
    batch.add(
        record.topic,
        record.queue_id,
        record.body if is_commit else b"",
        record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag & ~STATE_BITS | int(state),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.offset,
        wait=wait,
        origin=origin,
    )


def add_discarded(batch: AppendBatch, record: Record) -> None:
    """Add the message to the topic of discarded ones; its properties have its own topic and queue."""
    place: dict[bytes, bytes | None] = {
        REAL_TOPIC: record.topic.encode(),
        REAL_QID: b"%d" % record.queue_id,
    }
    properties = replace_properties(record.properties, place)
    sys_flag = record.sys_flag & ~STATE_BITS
    batch.add_stored(record, TRANS_CHECK_MAX_TIME_TOPIC, 0, properties=properties, sys_flag=sys_flag, wait=False)


def is_written(batch: AppendBatch, row: int) -> bool:
    """Return whether the log stored the row; for a batch that was refused completely, the log was not called."""
    return bool(batch.offsets) and batch.offsets[row] >= 0

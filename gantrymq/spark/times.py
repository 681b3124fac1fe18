"""Finds the offset of the first message that was stored at or after a time."""

from __future__ import annotations

from gantrymq.remoting.errors import FatalRemoteFault
from gantrymq.remoting.records import decode_records
from gantrymq.spark.errors import BrokenRecord
from gantrymq.spark.wire import Queue, Wire


def find_first_since(wire: Wire, queue: Queue, millis: int, lowest: int, highest: int) -> int | None:
    """The first of ``lowest <= offset < highest`` that was stored at ``millis`` or later; None if all are older.

    The broker's own search is a hint only: RocketMQ 4 returns the nearest message, which may be older, and any of
    several messages of one millisecond. A hint that is not exact costs a binary search by pulls of one message.
    """
    if lowest >= highest:
        return None
    hint = min(max(wire.search_offset(queue, millis), lowest), highest)
    low, high = lowest, highest  # every offset below low is older than millis, none from high on is
    if hint < highest:
        if _stored_at(wire, queue, hint, highest) >= millis:
            high = hint
        else:
            low = hint + 1
    if low < high and high > lowest:
        if _stored_at(wire, queue, high - 1, highest) < millis:
            low = high
        else:
            high -= 1
    while low < high:
        middle = (low + high) // 2
        if _stored_at(wire, queue, middle, highest) >= millis:
            high = middle
        else:
            low = middle + 1
    return low if low < highest else None


def _stored_at(wire: Wire, queue: Queue, offset: int, highest: int) -> int:
    """The store time of the first message at or behind ``offset``, in milliseconds."""
    while offset < highest:
        answer = wire.pull(queue, offset, 1)
        try:
            records = decode_records(answer.records)
        except FatalRemoteFault as error:
            raise BrokenRecord(f"{queue} on {queue.address}: a pull at offset {offset} answers with {error}") from None
        for record in records:
            if record.queue_offset >= offset:
                return record.store_timestamp
        if answer.next_offset <= offset:
            break
        offset = answer.next_offset
    return 2**63 - 1

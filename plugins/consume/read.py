"""Read one queue from an offset: the messages or the reason for none, and the next offset.

The statuses and their order are those of ``DefaultMessageStore.getMessage`` of RocketMQ 4.9.7; their names are the
remark of the response.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial

import attrs
import structlog

from gantrymq.kernel.errors import CorruptRange, UnreadableRange
from gantrymq.kernel.filters import CodeFilter, MessageFilter, RecordFilter
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.windows import FETCH_BYTES, LogWindows, NotCached
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE, LIGHT_TOPIC, ConsumeQueue
from gantrymq.plugins.consume.fast import gather
from gantrymq.plugins.consume.plain import PullLimits, QueuePart
from gantrymq.plugins.consume.select import SCAN_ENTRIES, select_records
from gantrymq.remoting.codes import ResponseCode

log = structlog.get_logger("gantrymq.consume")


class PullStatus(Enum):
    """The outcome of a read; ``CODES`` has its response code."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_TOO_SMALL = auto()


CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


@attrs.frozen
class PullResult:
    """``body`` has complete stored records; ``next_offset`` is the offset of the next pull."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    messages: int = 0
    looked_at: int | None = None
    """The log offset of the last examined entry; None if there was none."""

    def code(self, asked: int) -> int:
        """Return the response code. In a queue without messages only offset 0 is valid; for any other one the offset
        has moved."""
        if self.status in (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE) and asked != 0:
            return ResponseCode.PULL_OFFSET_MOVED
        return CODES[self.status]


def read_queue(
    windows: LogWindows,
    queue: ConsumeQueue | None,
    offset: int,
    limits: PullLimits,
    scan_entries: int,
    wanted: MessageFilter,
    *,
    wait: bool = True,
) -> PullResult:
    """Return the records of ``queue`` from ``offset`` on, within ``limits``.

    :class:`NotCached` for records that are only on the disk. With ``wait``, the caller waits for the queue's entries
    and the first record, so that each read makes progress; further records that are only on the disk are left for the
    next read. ``UnreadableRange`` if the first record cannot be read, :class:`QueueDisagrees` if its entry is wrong,
    :class:`OSError` if the queue's entries cannot be read.
    """
    if queue is None:
        return PullResult(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return PullResult(PullStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return PullResult(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    if isinstance(wanted, RecordFilter):
        scan_entries = min(scan_entries, SCAN_ENTRIES)
    count = limits.most if wanted.matches_all else max(limits.most, scan_entries)
    entries = queue.entries(offset, count) if wait else queue.peek(offset, count)
    if entries is None:
        raise NotCached(partial(_fetch, windows, queue, offset, count, wanted))
    if not entries:
        return PullResult(PullStatus.OFFSET_FOUND_NULL, high, low, high)
    return _gather(windows, queue, entries, offset, (low, high), limits, wanted, wait=wait)


def _fetch(windows: LogWindows, queue: ConsumeQueue, offset: int, count: int, wanted: MessageFilter) -> None:
    """Read entries of ``queue`` into memory, and the record that a read needs first; for a worker thread."""
    for at, size, code in ENTRY.iter_unpack(queue.entries(offset, count)):
        if size == FILLER_SIZE or (isinstance(wanted, CodeFilter) and not wanted.matches(code)):
            continue
        windows.fetch(at, min(max(size, 0), FETCH_BYTES))
        return


class QueueDisagrees(Exception):
    """An entry points to another record than its own: the queue is repaired from the log, and the client pulls
    again."""


class _Stop(Exception):
    """The response must end before the entry with this ``number``, because of the exception's cause if it has one."""

    def __init__(self, number: int) -> None:
        self.number = number


def _gather(
    windows: LogWindows,
    queue: ConsumeQueue,
    entries: bytes,
    offset: int,
    bounds: tuple[int, int],
    limits: PullLimits,
    wanted: MessageFilter,
    *,
    wait: bool,
) -> PullResult:
    waits = wait

    def window(number: int, at: int, size: int) -> memoryview | bytes | None:
        nonlocal waits
        waits_now, waits = waits, False
        try:
            return windows.record(at, size, wait=waits_now)
        except NotCached:
            if not wait:
                raise
            raise _Stop(number) from None  # all other clients would wait for this record, too
        except UnreadableRange as error:
            raise _Stop(number) from error  # it may be readable next time: the consumer must not skip it
        except CorruptRange as error:
            # Only this record is unreadable: the log has the damaged range, and the consumer continues behind it.
            log.error("record_unreadable", offset=at, size=size, error=str(error))
            return None
        except ValueError:
            wrong(number)
            return None

    def wrong(number: int) -> None:
        at, size, _ = ENTRY.unpack_from(entries, number * ENTRY.size)
        where = offset + number
        if windows.holds_damaged(at, size, (queue.topic, queue.queue_id, where)):
            # The record names this entry, so its body is damaged and the queue is correct.
            windows.quarantine_range(at, at + size)
        elif queue.is_wrong(where, at, size):
            raise _Stop(number) from QueueDisagrees(f"the queue's entry {where} is being corrected from the log")
        log.error("record_damaged", queue_offset=where, offset=at, size=size)

    oldest = windows.min_offset
    parts: list[bytes | memoryview]
    part = None
    if not queue.topic.startswith(LIGHT_TOPIC):
        part = QueuePart(queue.topic.encode(), queue.queue_id, offset, queue.corrected_for >= oldest)
    try:
        if isinstance(wanted, RecordFilter):
            parts, scanned, removed = select_records(entries, limits, oldest, wanted, window, wrong, part)
            messages = len(parts)
        else:
            matches = None if wanted.matches_all else wanted.matches
            parts, scanned, removed, messages = gather(entries, limits, oldest, matches, window, wrong, part)
    except _Stop as stop:
        if not stop.number and stop.__cause__ is not None:
            raise stop.__cause__ from None
        before = entries[: stop.number * ENTRY.size]
        return _gather(windows, queue, before, offset, bounds, limits, wanted, wait=wait)
    low, high = bounds
    looked_at, _, _ = ENTRY.unpack_from(entries, ENTRY.size * (scanned - 1))
    if parts:
        return PullResult(PullStatus.FOUND, offset + scanned, low, high, b"".join(parts), messages, looked_at)
    status = PullStatus.MESSAGE_WAS_REMOVING if removed else PullStatus.NO_MATCHED_MESSAGE
    return PullResult(status, offset + scanned, low, high, looked_at=looked_at)

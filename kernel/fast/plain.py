"""The store's inner loops as plain functions: encode rows, scan records, queue entries, tag hashes.

They are written for speed; :mod:`gantrymq.kernel.store.log.record` has a readable version of the record. All state is
in the arguments, so that a compiled twin can replace them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Source
from gantrymq.kernel.layouts import ENTRY, SIZE_AND_MAGIC
from gantrymq.kernel.store.log.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    HOST_V6_BITS,
    LEAST_BYTES,
    PREPARED_BIT,
    PROPERTIES_LIMIT,
    TOPIC_MAX_BYTES,
    TOPIC_PATTERN,
)
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.records import BORN_HOST_V6, HEADS, MAGIC_V1, MAGIC_V2, STORE_HOST_V6

KIND: Final = "plain"

_CACHE_LIMIT: Final = 10_000
_U16 = struct.Struct(">H")
_TAGS: Final = b"TAGS\x01"
_FROM_LOG: Final = (Source.RETRY, Source.DELAY, Source.TIMER, Source.TRANSACTION)
"""Rows of messages in the log already: a lower ``store.max_message_bytes`` must not lose them."""

_make_batch: Callable[..., DispatchBatch] = DispatchBatch

_topic_parts: dict[str, bytes] = {}
_topics: dict[bytes, str] = {}
_tag_codes: dict[bytes, int] = {}
_lengths: Final = tuple(_U16.pack(length) for length in range(1024))


class Stop(Enum):
    """Why a scan ended."""

    ROWS = "rows"
    """As many records as were asked for."""
    DATA = "data"
    """The data ended where a record ended."""
    BLANK = "blank"
    """A blank: the rest of the file is unused."""
    ZERO = "zero"
    """Zeros where a record would begin: nothing was written here."""
    CUT = "cut"
    """The data ends within something that begins like a record or a blank."""
    BAD = "bad"
    """Bytes that are not a record."""


class Layout(NamedTuple):
    """Constants of all records of a log: the broker's address and the limits in bytes."""

    store_host: bytes
    max_body_bytes: int
    max_record_bytes: int


def encode_rows(
    batch: AppendBatch,
    rows: Sequence[int],
    first: int,
    offset: int,
    room: int,
    next_offsets: dict[tuple[str, int], int],
    layout: Layout,
) -> tuple[list[bytes], int, int]:
    """Encode ``rows[first:]`` of ``batch`` for the log at ``offset``, as long as they fit into ``room`` bytes.

    A record fits if 8 bytes remain behind it for a blank. Fills the columns ``offsets``, ``sizes`` and
    ``queue_offsets`` (which already have a value for every row), increases ``next_offsets``, and refuses rows that are
    too large for the limits or the format; ``max_body_bytes`` applies to messages that are new to the log. Returns the
    pieces to write, the index of the first row that was not encoded, and the log offset behind the last one.
    """
    store_host, max_body, max_record = layout
    if batch.source in _FROM_LOG:
        max_body = max_record
    bits = STORE_HOST_V6 if len(store_host) == 20 else 0
    pack, fixed_size = HEADS[bits].pack, HEADS[bits].size + 2
    offsets, sizes, queue_offsets, stored = batch.offsets, batch.sizes, batch.queue_offsets, batch.store_timestamp
    crc32, lengths, topic_parts, own = zlib.crc32, _lengths, _topic_parts, batch.own_queue_offsets
    limit = offset + room - BLANK_BYTES
    parts: list[bytes] = []
    index = first - 1
    for row, topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, prepared in _rows(
        batch, rows, first
    ):
        index += 1
        topic_part = topic_parts.get(topic) or _topic_part(topic)
        body_size = len(body)
        properties_size = len(properties)
        size = fixed_size + body_size + len(topic_part) + properties_size
        row_pack = pack
        if sys_flag & HOST_V6_BITS != bits or len(born_host) != 8:
            batch.sys_flags[row] = sys_flag = _sys_flag(sys_flag & ~HOST_V6_BITS | bits, born_host)
            row_pack = HEADS[sys_flag & HOST_V6_BITS].pack
            size += len(born_host) - 8
        if body_size > max_body or size > max_record or not topic_part or properties_size > PROPERTIES_LIMIT:
            _refuse(batch, row, max_body)
            continue
        if b"\0" in properties:
            _refuse(batch, row, max_body)
            continue
        end = offset + size
        if end > limit:
            return parts, index, offset
        key = (topic, queue_id)
        queue_offset = own.get(row, 0) if sys_flag & PREPARED_BIT else next_offsets.get(key, 0)
        try:
            head = row_pack(
                size, MAGIC_V1, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, sys_flag, born,
                born_host, stored, store_host, times, prepared, body_size,
            )  # fmt: skip
        except struct.error as error:
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, f"a field is out of its range: {error}")
            continue
        if not sys_flag & PREPARED_BIT:
            next_offsets[key] = queue_offset + 1
        length = lengths[properties_size] if properties_size < 1024 else _U16.pack(properties_size)
        parts += (head, body, topic_part, length, properties)
        offsets[row] = offset
        sizes[row] = size
        queue_offsets[row] = queue_offset
        offset = end
    return parts, index + 1, offset


def _sys_flag(sys_flag: int, born_host: bytes) -> int:
    if len(born_host) not in (8, 20):
        raise ValueError(f"a stored host has 8 or 20 bytes, this has {len(born_host)}")
    return sys_flag | BORN_HOST_V6 if len(born_host) == 20 else sys_flag


def _rows(
    batch: AppendBatch, rows: Sequence[int], first: int
) -> Iterable[tuple[int, str, int, bytes, bytes, int, int, int, bytes, int, int]]:
    columns = (
        batch.topics, batch.queue_ids, batch.bodies, batch.properties, batch.flags, batch.sys_flags,
        batch.born_timestamps, batch.born_hosts, batch.reconsume_times, batch.prepared_offsets,
    )  # fmt: skip
    if first == 0 and isinstance(rows, range):
        return zip(rows, *columns, strict=True)
    return _some_rows(columns, rows[first:])


def _some_rows(columns: tuple[list[Any], ...], rows: Sequence[int]) -> Iterator[Any]:
    for row in rows:
        yield (row, *[column[row] for column in columns])


def _topic_part(topic: str) -> bytes:
    """Length byte and name; empty when it cannot be stored."""
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        return b""
    if len(raw) > TOPIC_MAX_BYTES or not TOPIC_PATTERN.fullmatch(topic):
        return b""
    if len(_topic_parts) >= _CACHE_LIMIT:
        _topic_parts.clear()
    part = _topic_parts[topic] = bytes((len(raw),)) + raw
    return part


def _refuse(batch: AppendBatch, row: int, max_body_bytes: int) -> None:
    body, properties = len(batch.bodies[row]), len(batch.properties[row])
    if body > max_body_bytes:
        reason = f"the body has {body} bytes, more than the {max_body_bytes} allowed"
    elif properties > PROPERTIES_LIMIT:
        reason = f"the properties have {properties} bytes, more than the {PROPERTIES_LIMIT} allowed"
    elif not _topic_part(batch.topics[row]):
        reason = f"the topic's name has characters that are not allowed, or more than {TOPIC_MAX_BYTES}"
    elif b"\0" in batch.properties[row]:
        reason = "there is a zero byte in the properties"
    else:
        reason = "the message is larger than a file of the log"
    batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, reason)


class QueueEntries(NamedTuple):
    """The entries that a batch adds to one queue: its rows that are not prepared or rolled back, in order."""

    topic: str
    queue_id: int
    first: int
    """The queue offset of the first one."""
    begin: int
    """The log offset of the first record."""
    end: int
    """The end of the last record in the log."""
    entries: bytes
    """20 bytes each: log offset, record size, tag code."""
    queue_offsets: list[int] | None
    """Their queue offsets, if these are not consecutive from ``first``."""


def queue_entries(batch: DispatchBatch, rules: dict[str, Callable[[int, bytes, int], int]]) -> list[QueueEntries]:
    """Return the entries for each queue, in the order in which the queues occur, including records without an entry.

    ``rules`` give the tag codes of some topics, by queue id, properties and store timestamp; they replace those in the
    batch.
    """
    offsets, sizes, codes, queue_offsets = batch.offsets, batch.sizes, batch.tag_codes, batch.queue_offsets
    found = []
    for (topic, queue_id), rows in _rows_by_queue(batch).items():
        if not rows:
            continue
        if (rule := rules.get(topic)) is not None:
            for row in rows:
                codes[row] = rule(queue_id, batch.properties[row], batch.store_timestamps[row])
        first, last = rows[0], rows[-1]
        places = [queue_offsets[row] for row in rows]
        in_order = places == list(range(places[0], places[0] + len(rows)))
        entries = b"".join([ENTRY.pack(offsets[row], sizes[row], codes[row]) for row in rows])
        found.append(
            QueueEntries(
                topic, queue_id, places[0], offsets[first], offsets[last] + sizes[last], entries,
                None if in_order else places,
            )
        )  # fmt: skip
    return found


def _rows_by_queue(batch: DispatchBatch) -> dict[tuple[str, int], list[int]]:
    groups: dict[tuple[str, int], list[int]] = {}
    find = groups.get
    row = -1
    for topic, queue_id, sys_flag in zip(batch.topics, batch.queue_ids, batch.sys_flags, strict=True):
        row += 1
        key = (topic, queue_id)
        rows = find(key)
        if sys_flag & PREPARED_BIT:
            groups.setdefault(key, [])
        elif rows is None:
            groups[key] = [row]
        else:
            rows.append(row)
    return groups


def dispatch_batch(batches: list[AppendBatch]) -> DispatchBatch:
    """Return the written rows of these appended batches as one batch; each batch begins where the previous one
    ended."""
    start, end = batches[0].start, batches[-1].end
    result = DispatchBatch(start, end, [], [], [], [], [], [], [], [], [], [])
    for batch in batches:
        _extend(result, batch)
    result.tag_codes = tag_codes(result.properties)
    return result


def _extend(target: DispatchBatch, batch: AppendBatch) -> None:
    # Statuses do not show which rows were written: an acknowledgment may have changed them.
    columns: tuple[tuple[list[Any], list[Any]], ...] = (
        (target.offsets, batch.offsets), (target.sizes, batch.sizes), (target.topics, batch.topics),
        (target.queue_ids, batch.queue_ids), (target.queue_offsets, batch.queue_offsets),
        (target.sys_flags, batch.sys_flags), (target.prepared_offsets, batch.prepared_offsets),
        (target.properties, batch.properties),
    )  # fmt: skip
    if -1 in batch.offsets:
        rows = [row for row, offset in enumerate(batch.offsets) if offset >= 0]
        for into, column in columns:
            into.extend([column[row] for row in rows])
    else:
        for into, column in columns:
            into.extend(column)
    target.store_timestamps.extend([batch.store_timestamp] * (len(target.offsets) - len(target.store_timestamps)))


def tag_code(properties: bytes) -> int:
    """Return the tag code for the queue entry of a message with these properties: the Java hash of its tag, 0 without
    one."""
    at = properties.find(_TAGS)
    if at < 0:
        return 0
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(_TAGS, at + 1)
    if at < 0:
        return 0
    end = properties.find(b"\x02", at)
    tag = properties[at + 5 :] if end < 0 else properties[at + 5 : end]
    code = _tag_codes.get(tag)
    if code is None:
        if len(_tag_codes) >= _CACHE_LIMIT:
            _tag_codes.clear()
        code = _tag_codes[tag] = java_hash(tag.decode("utf-8", "replace"))
    return code


def tag_codes(properties: Iterable[bytes]) -> list[int]:
    """:func:`tag_code` of each."""
    return [tag_code(one) if _TAGS in one else 0 for one in properties]


def scan(
    data: memoryview | bytes, start: int, rows: int, *, check_body: bool, replay: bool = False, copied: bool = False
) -> tuple[DispatchBatch, Stop]:
    """Read up to ``rows`` records from ``data``, the log's bytes from offset ``start`` on, within one file.

    A record is valid if its sizes agree, its offset field matches its position, and, with ``check_body``, its body
    matches the CRC. The batch ends where the scan stopped. ``data`` must not change while the batch exists, unless
    ``copied`` is set (this twin always copies).
    """
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [], [], [], [])
    add_offset, add_size, add_topic, add_queue, add_queue_offset, add_time, add_flag, add_prepared, add_properties = (
        column.append for column in columns
    )
    crc32, topics, heads, length = zlib.crc32, _topics, HEADS, len(data)
    v4_head = heads[0]
    position = 0
    stop = Stop.ROWS
    while rows > 0:
        left = length - position
        if left < LEAST_BYTES:
            stop = _stop(data, position)
            break
        (
            size, magic, crc, queue_id, _, queue_offset, offset, sys_flag, _, _, stored, _, _, prepared, body_size,
        ) = v4_head.unpack_from(data, position)  # fmt: skip
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            stop = _stop(data, position)
            break
        stop = Stop.BAD if offset != start + position or size <= left else Stop.CUT
        head = v4_head
        if sys_flag & HOST_V6_BITS:
            head = heads[sys_flag & HOST_V6_BITS]
            if left < head.size:
                break
            *_, stored, _, _, prepared, body_size = head.unpack_from(data, position)
        end = position + size
        body_start = position + head.size
        body_end = body_start + body_size
        if offset != start + position or size > left or body_size < 0 or body_end + 3 > end:
            break
        stop = Stop.BAD
        topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
        topic_end = topic_start + (data[body_end] if magic == MAGIC_V1 else data[body_end] << 8 | data[body_end + 1])
        if topic_end + 2 > end or topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) != end:
            break
        if check_body and body_size and crc32(data[body_start:body_end]) & CRC_MASK != crc:
            break
        raw_topic = bytes(data[topic_start:topic_end])
        topic = topics.get(raw_topic) or _topic(raw_topic)
        if topic is None:
            break
        stop = Stop.ROWS
        add_offset(offset)
        add_size(size)
        add_topic(topic)
        add_queue(queue_id)
        add_queue_offset(queue_offset)
        add_time(stored)
        add_flag(sys_flag)
        add_prepared(prepared)
        add_properties(bytes(data[topic_end + 2 : end]))
        position = end
        rows -= 1
    codes = [tag_code(properties) for properties in columns[8]]
    return _make_batch(start, start + position, *columns, codes, replay), stop


def _stop(data: memoryview | bytes, position: int) -> Stop:
    """Classify the bytes at ``position``, which are not a record."""
    if position == len(data):
        return Stop.DATA
    left = len(data) - position
    if left < BLANK_BYTES:
        return Stop.CUT
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic == BLANK_MAGIC and size == left:
        return Stop.BLANK
    if size == 0 and magic == 0:
        return Stop.ZERO
    return Stop.CUT if size > left and magic in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC) else Stop.BAD


def _topic(raw: bytes) -> str | None:
    topic = raw.decode("utf-8", "replace")
    if not TOPIC_PATTERN.fullmatch(topic):
        # No CRC covers the topic: only its characters distinguish it from the zeros of a torn write.
        return None
    if len(_topics) >= _CACHE_LIMIT:
        _topics.clear()
    _topics[raw] = topic
    return topic

"""Encode and decode the record of one message in the commit log; pure functions. ``docs/format/record.md`` has the
grammar.

Source: RocketMQ 4.9.7 ``CommitLog``, ``MessageDecoder``. :mod:`gantrymq.kernel.fast` has the same for many records at
once; this module is for one, with every check and a reason for each refusal.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

import attrs

from gantrymq.kernel.layouts import PROOF, SIZE_AND_MAGIC
from gantrymq.remoting.message_ids import offset_message_id
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES, find_property
from gantrymq.remoting.records import BORN_HOST_V6, HEADS, MAGIC_V1, MAGIC_V2, STORE_HOST_V6

BLANK_MAGIC: Final = 0xCBD43194
"""Magic of a blank, the unused rest of a file; the next record begins the next file."""
BLANK_BYTES: Final = 8
BODY_MAX_BYTES: Final = 4 * 1024 * 1024
"""``maxMessageSize`` of RocketMQ."""
TOPIC_MAX_BYTES: Final = 127
CRC_MASK: Final = 0x7FFFFFFF
PREPARED_BIT: Final = 0x4
"""Set in the types prepared (4) and rollback (12), which get no queue entry and no queue offset."""
HOST_V6_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
TOPIC_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
"""``TopicValidator`` of RocketMQ; 255 characters as 5.x allows. Such a name is safe as part of a path."""
PROPERTIES_LIMIT: Final = PROPERTIES_MAX_BYTES

SYS_FLAG_AT: Final = 36
LEAST_BYTES: Final = HEADS[0].size + 3
"""The size of a record without body, topic and properties."""
_U16 = struct.Struct(">H")


class BadRecord(Exception):
    """These bytes are not a record; the text names the contradiction."""


@attrs.frozen
class Record:
    """One stored message. Hosts are as stored: 4 or 16 bytes of address, 4 of port. Times are ms since 1970.

    Other classes, without attrs, have the same attributes and create their parts on first use.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    queue_offset: int = 0
    offset: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\x7f\0\0\x01\0\0\0\0"
    store_timestamp: int = 0
    store_host: bytes = b"\x7f\0\0\x01\0\0\0\0"
    reconsume_times: int = 0
    prepared_offset: int = 0

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id."""
        return offset_message_id(self.store_host, self.offset)

    @property
    def body_size(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    @property
    def properties_size(self) -> int:
        """Bytes of the encoded properties."""
        return len(self.properties)

    def property_of(self, name: bytes) -> bytes | None:
        """See :func:`find_property`."""
        return find_property(self.properties, name)


def encode(record: Record) -> bytes:
    """The record's bytes. :class:`ValueError` if a part is too long for the format."""
    topic = record.topic.encode()
    if len(topic) > TOPIC_MAX_BYTES:
        raise ValueError(f"the topic has {len(topic)} bytes, at most {TOPIC_MAX_BYTES} fit")
    if len(record.properties) > PROPERTIES_LIMIT:
        raise ValueError(f"the properties have {len(record.properties)} bytes, at most {PROPERTIES_LIMIT} fit")
    bits = _host_bits(record.born_host, record.store_host)
    head = HEADS[bits]
    size = head.size + len(record.body) + 1 + len(topic) + 2 + len(record.properties)
    try:
        start = head.pack(
            size, MAGIC_V1, zlib.crc32(record.body) & CRC_MASK, record.queue_id, record.flag, record.queue_offset,
            record.offset, record.sys_flag & ~HOST_V6_BITS | bits, record.born_timestamp, record.born_host,
            record.store_timestamp, record.store_host, record.reconsume_times, record.prepared_offset, len(record.body),
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a field is out of its range: {error}") from None
    return b"".join(
        (start, record.body, bytes((len(topic),)), topic, _U16.pack(len(record.properties)), record.properties)
    )


def is_intact(data: bytes | memoryview, offset: int) -> bool:
    """Return whether ``data`` is a complete record that belongs to ``offset``, with an intact body.

    A cheap check for readers of many records: it detects flipped bits in the body, and bytes of another position.
    """
    try:
        size, magic, crc, place, bits = PROOF.unpack_from(data)
        length_at = HEADS[bits & HOST_V6_BITS].size - 4
        body_at = length_at + 4
        end = body_at + int.from_bytes(data[length_at:body_at], "big")
    except struct.error:
        return False
    return bool(
        size == len(data)
        and end < size
        and place == offset
        and magic in (MAGIC_V1, MAGIC_V2)
        and zlib.crc32(data[body_at:end]) & CRC_MASK == crc
    )


def owner_of(
    head: bytes | memoryview, names: bytes | memoryview, offset: int, size: int
) -> tuple[str, int, int] | None:
    """Topic, queue id and queue offset of the record of ``size`` bytes at ``offset``; None if it is not a record.

    ``head`` has at least its fixed fields, ``names`` the bytes behind its body: the topic and the properties' length.
    All lengths must agree. The body is not checked.
    """
    try:
        stored_size, magic, _, place, bits = PROOF.unpack_from(head)
        fixed = HEADS[bits & HOST_V6_BITS].size
        width = 1 if magic == MAGIC_V1 else 2
        topic_end = width + int.from_bytes(names[:width], "big")
        (properties,) = _U16.unpack_from(names, topic_end)
    except struct.error:
        return None
    body = int.from_bytes(head[fixed - 4 : fixed], "big")
    if stored_size != size or place != offset or magic not in (MAGIC_V1, MAGIC_V2) or len(head) < fixed:
        return None
    if fixed + body + topic_end + 2 + properties != size:
        return None
    topic = bytes(names[width:topic_end]).decode("utf-8", "replace")
    return topic, int.from_bytes(head[12:16], "big", signed=True), int.from_bytes(head[20:28], "big", signed=True)


def body_end_in(record: bytes | memoryview) -> int:
    """Return where the body of a record that :func:`is_intact` ends."""
    head = HEADS[int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & HOST_V6_BITS].size
    return head + int.from_bytes(record[head - 4 : head], "big")


def record_owner(data: bytes | memoryview, offset: int) -> tuple[str, int, int] | None:
    """As :func:`owner_of`, for a complete record."""
    if len(data) < LEAST_BYTES:
        return None
    body_end = body_end_in(data)
    return owner_of(data[: HEADS[HOST_V6_BITS].size], data[body_end : body_end + 260], offset, len(data))


def properties_in(record: bytes | memoryview) -> bytes:
    """Return the encoded properties of a record that :func:`is_intact`; empty when they do not fit into it."""
    head = HEADS[int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & HOST_V6_BITS].size
    body_end = head + int.from_bytes(record[head - 4 : head], "big")
    topic_at = body_end + (1 if int.from_bytes(record[4:8], "big") == MAGIC_V1 else 2)
    topic_end = topic_at + int.from_bytes(record[body_end:topic_at], "big")
    return bytes(record[topic_end + 2 : topic_end + 2 + int.from_bytes(record[topic_end : topic_end + 2], "big")])


def store_timestamp_in(record: bytes | memoryview) -> int:
    """When a record that :func:`is_intact` was stored, ms since 1970."""
    at = 68 if record[SYS_FLAG_AT + 3] & BORN_HOST_V6 else 56
    return int.from_bytes(record[at : at + 8], "big", signed=True)


def decode(data: bytes | bytearray | memoryview, start: int = 0, *, check_body: bool = True) -> tuple[Record, int]:
    """Return the record at ``start`` of ``data`` and its end; bytes behind it are ignored.

    Raises :class:`BadRecord` for everything that is not a complete record.
    """
    size, magic, bits = _frame(data, start)
    head = HEADS[bits]
    body_start = start + head.size
    end = start + size
    if end > len(data):
        raise BadRecord(f"cut short: the record says {size} bytes, {len(data) - start} are there")
    (
        _, _, crc, queue_id, flag, queue_offset, offset, sys_flag, born, born_host, stored, store_host, reconsume_times,
        prepared_offset, body_size,
    ) = head.unpack_from(data, start)  # fmt: skip
    topic_size_bytes = 1 if magic == MAGIC_V1 else 2
    body_end = body_start + body_size
    topic_start = body_end + topic_size_bytes
    if body_size < 0 or topic_start + 2 > end:
        raise BadRecord(f"a body of {body_size} bytes does not fit into a record of {size}")
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    if topic_end + 2 > end:
        raise BadRecord(f"a topic of {topic_end - topic_start} bytes does not fit into a record of {size}")
    (properties_size,) = _U16.unpack_from(data, topic_end)
    if topic_end + 2 + properties_size != end:
        raise BadRecord(f"the parts make {topic_end + 2 + properties_size - start} bytes, the record says {size}")
    body = bytes(data[body_start:body_end])
    if check_body and body and zlib.crc32(body) & CRC_MASK != crc:
        raise BadRecord("the body does not match its CRC")
    try:
        topic = bytes(data[topic_start:topic_end]).decode()
    except UnicodeDecodeError:
        raise BadRecord("the topic is not UTF-8") from None
    record = Record(
        topic, queue_id, body, bytes(data[topic_end + 2 : end]), flag, sys_flag, queue_offset, offset, born, born_host,
        stored, store_host, reconsume_times, prepared_offset,
    )  # fmt: skip
    return record, end


def decode_at(data: bytes | memoryview, offset: int) -> Record:
    """Return the record at the start of ``data``, the log's bytes from ``offset`` on; :class:`BadRecord` otherwise."""
    record, _ = decode(data)
    if record.offset != offset:
        raise BadRecord(f"the record at {offset} says that it lies at {record.offset}")
    return record


def check_begun(data: bytes | bytearray | memoryview, room: int | None = None) -> None:
    """Check the start of an incomplete record: :class:`BadRecord` if its lengths contradict each other.

    Otherwise a receiver would wait for a wrong size. Too few bytes are no error. ``room``: the bytes left in the
    record's log file, if known; a blank fills them.
    """
    if len(data) < SIZE_AND_MAGIC.size:
        return
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    if room is not None and (size > room or (magic == BLANK_MAGIC and size != room)):
        raise BadRecord(f"it says {size} bytes, and {room} are left in its log file")
    if len(data) < LEAST_BYTES or magic == BLANK_MAGIC:
        return
    size, magic, bits = _frame(data, 0)
    body_start = HEADS[bits].size
    if len(data) < body_start:
        return
    body_size = int.from_bytes(data[body_start - 4 : body_start], "big", signed=True)
    topic_start = body_start + body_size + (1 if magic == MAGIC_V1 else 2)
    if body_size < 0 or topic_start + 2 > size:
        raise BadRecord(f"a body of {body_size} bytes does not fit into a record of {size}")
    if len(data) < topic_start:
        return
    topic_end = topic_start + int.from_bytes(data[body_start + body_size : topic_start], "big")
    if topic_end + 2 > size:
        raise BadRecord(f"a topic of {topic_end - topic_start} bytes does not fit into a record of {size}")
    if len(data) < topic_end + 2:
        return
    end = topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big")
    if end != size:
        raise BadRecord(f"the parts make {end} bytes, the record says {size}")


def _frame(data: bytes | bytearray | memoryview, start: int) -> tuple[int, int, int]:
    """Size, magic and kinds of hosts of the record at ``start``."""
    if len(data) - start < LEAST_BYTES:
        raise BadRecord(f"cut short: {len(data) - start} bytes, a record has at least {LEAST_BYTES}")
    size, magic = SIZE_AND_MAGIC.unpack_from(data, start)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecord(f"no record: magic {magic:08X}")
    bits = int.from_bytes(data[start + SYS_FLAG_AT : start + SYS_FLAG_AT + 4], "big") & HOST_V6_BITS
    if size < HEADS[bits].size + (3 if magic == MAGIC_V1 else 4):
        raise BadRecord(f"the record says {size} bytes, its fixed fields alone are more")
    return size, magic, bits


def blank(size: int) -> bytes:
    """Return the head of a blank of ``size`` bytes at the end of a file; the bytes behind it do not change."""
    return SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def _host_bits(born_host: bytes, store_host: bytes) -> int:
    bits = 0
    for host, bit in ((born_host, BORN_HOST_V6), (store_host, STORE_HOST_V6)):
        if len(host) == 20:
            bits |= bit
        elif len(host) != 8:
            raise ValueError(f"a stored host has 8 or 20 bytes, this has {len(host)}")
    return bits

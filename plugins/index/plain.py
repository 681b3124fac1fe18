"""The index's inner loops as plain functions: the reference, also used without a C compiler.

All state is passed as arguments, so that the compiled twin (``_build``) can replace the functions.
"""

from __future__ import annotations

import struct
from operator import mul
from typing import Final

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.plugins.index.layout import ENTRY, SLOT_BYTES, Header
from gantrymq.remoting.properties import java_hash
from gantrymq.remoting.property_bytes import KEYS, UNIQ_KEY

KIND: Final = "plain"

KEYS_MAX: Final = 128
"""The most keys of one message that are indexed. RocketMQ has no limit: 32 KiB of KEYS give 16,000 entries."""
_ROLLED_BACK: Final = 0xC
"""``MessageSysFlag.TRANSACTION_ROLLBACK_TYPE``: both bits; such a record is not indexed."""
_UNIQUE: Final = b"\x02" + UNIQ_KEY + b"\x01"
_KEYS: Final = b"\x02" + KEYS + b"\x01"
_INT_MAX: Final = 0x7FFFFFFF
_SLOT = struct.Struct(">i")
_POWERS: Final = tuple(pow(31, power, 1 << 32) for power in range(1024))[::-1]


def key_hash(text: bytes) -> int:
    """Return the hash of ``topic#key``: the absolute value of Java's ``String.hashCode``; 0 for its lowest value."""
    if text.isascii() and len(text) <= len(_POWERS):
        value = sum(map(mul, text, _POWERS[len(_POWERS) - len(text) :])) & 0xFFFFFFFF
        value = value - 0x100000000 if value & 0x80000000 else value
    else:
        value = java_hash(text.decode("utf-8", "replace"))
    return abs(value) if value != -0x80000000 else 0


def message_keys(properties: bytes) -> list[bytes]:
    """Return the keys of a message, at most :data:`KEYS_MAX`: the client's unique id, then each word of KEYS,
    duplicates included.

    If a property occurs several times, the last one counts, as in ``MessageDecoder.string2messageProperties``.
    """
    if b"KEY" not in properties:
        return []
    text = b"\x02" + properties
    unique = _last_value(text, _UNIQUE)
    words = [word for word in _last_value(text, _KEYS).split(b" ") if word]
    return ([unique, *words] if unique else words)[:KEYS_MAX]


def _last_value(text: bytes, needle: bytes) -> bytes:
    at = text.rfind(needle)
    while at >= 0:
        start = at + len(needle)
        end = text.find(b"\x02", start)
        value = text[start:] if end < 0 else text[start:end]
        if value:
            return value
        at = text.rfind(needle, 0, at)
    return b""


def first_with_keys(batch: DispatchBatch) -> int:
    """Return the first row that has a key, -1 if none has. Batches without keys must cost almost nothing."""
    properties = batch.properties
    if any(properties):
        for row, text in enumerate(properties):
            if b"KEY" in text and message_keys(text):
                return row
    return -1


def put_rows(
    batch: DispatchBatch, row: int, key: int, slots: bytearray, header: Header, entries: int
) -> tuple[bytes, int, int]:
    """Add the keys of ``batch`` to ``slots`` and ``header``, beginning with key ``key`` of row ``row``.

    Returns the bytes of the new entries, and the row and key at which to continue: behind the last row, or where the
    file of ``entries`` is full. Source of the numbers: ``IndexFile.putKey``.
    """
    out = []
    count, used = header.count, header.slots_used
    number = len(slots) // SLOT_BYTES
    topics, offsets, timestamps = batch.topics, batch.offsets, batch.store_timestamps
    properties, sys_flags = batch.properties, batch.sys_flags
    pack, read, write = ENTRY.pack, _SLOT.unpack_from, _SLOT.pack_into
    begin = header.begin_timestamp
    last = None
    rows = len(properties)
    full = False
    while row < rows and not full:
        text = properties[row]
        keys = message_keys(text) if text else ()
        if keys and sys_flags[row] & _ROLLED_BACK != _ROLLED_BACK:
            prefix = topics[row].encode() + b"#"
            while key < len(keys):
                if count >= entries:
                    full = True
                    break
                hashed = key_hash(prefix + keys[key])
                place = hashed % number * SLOT_BYTES
                before: int = read(slots, place)[0]
                if not 0 < before < count:
                    before = 0
                    used += 1
                # The first entry of a file counts from the end of the previous file.
                seconds = (timestamps[row] - begin) // 1000 if 0 < begin <= timestamps[row] else 0
                out.append(pack(hashed, offsets[row], min(seconds, _INT_MAX), before))
                write(slots, place, count)
                if count <= 1:
                    header.begin_offset = offsets[row]
                    header.begin_timestamp = begin = timestamps[row]
                count += 1
                last = row
                key += 1
            if full:
                break
        key = 0
        row += 1
    if last is not None:
        header.end_offset, header.end_timestamp = offsets[last], timestamps[last]
    header.count, header.slots_used = count, used
    return b"".join(out), row, key


def rebuild_slots(data: bytes, first: int, offset: int, slots: bytearray) -> tuple[int, int, int]:
    """Restore ``slots`` from the entries in ``data``, which are numbered from ``first``.

    Returns the number of valid entries, the number of used slots, and the log offset of the last valid entry (or
    ``offset``, that of the entry before ``data``). An entry is valid if its chain leads to the previous value of its
    slot, and its log offset is not below that of the entry before it.
    """
    number = len(slots) // SLOT_BYTES
    used = 0
    read, write = _SLOT.unpack_from, _SLOT.pack_into
    entry = first
    for hashed, place, seconds, before in ENTRY.iter_unpack(data):
        if hashed < 0 or place < offset or seconds < 0:
            break
        at = hashed % number * SLOT_BYTES
        if read(slots, at)[0] != before:
            break
        used += before == 0
        write(slots, at, entry)
        offset = place
        entry += 1
    return entry - first, used, offset

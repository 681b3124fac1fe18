# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.index.plain`.

This module hashes keys of ASCII letters. It passes others to the plain twin, so that both twins hash them alike.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp

include "../../kernel/fast/_bytes.pxi"

from gantrymq.kernel.fast._requests cimport DispatchRows, Stored

from gantrymq.plugins.index import plain

KIND = "compiled"

cdef Py_ssize_t KEYS = plain.KEYS_MAX

cdef enum:
    ENTRY = 20
    ROLLED_BACK = 0xC


cdef struct Span:
    const uint8_t* at
    Py_ssize_t size


cdef inline int find_keys(const uint8_t* at, Py_ssize_t size, Span* unique, Span* words) noexcept nogil:
    """Find the unique id and KEYS in encoded properties; the last property of a name counts. Whether there is
    either."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    unique.at = words.at = at
    unique.size = words.size = 0
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:
            unique.at, unique.size = at + 9, stop - at - 9
        elif stop - at > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            words.at, words.size = at + 5, stop - at - 5
        at = stop + 1
    return unique.size > 0 or words.size > 0


cdef inline int next_word(Span* words, Span* word) noexcept nogil:
    """Remove the first word from ``words``; 0 if there is none."""
    cdef const uint8_t* stop
    while words.size > 0 and words.at[0] == 32:
        words.at += 1
        words.size -= 1
    if words.size == 0:
        return 0
    stop = <const uint8_t*>memchr(words.at, 32, words.size)
    word.at = words.at
    word.size = words.size if stop == NULL else stop - words.at
    words.at += word.size
    words.size -= word.size
    return 1


cdef inline int hash_on(uint32_t* value, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Continue Java's hash with these letters; 0 if one is not ASCII."""
    cdef uint32_t hashed = value[0]
    cdef uint8_t seen = 0
    cdef Py_ssize_t index
    for index in range(size):
        hashed = hashed * 31 + at[index]
        seen |= at[index]
    value[0] = hashed
    return seen < 128


cdef inline bint has_keys(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef Span unique, words, word
    return size and find_keys(at, size, &unique, &words) and (unique.size or next_word(&words, &word))


def first_with_keys(batch):
    """See the plain twin."""
    cdef Py_ssize_t row = 0
    cdef DispatchRows rows
    cdef bytes text
    if type(batch) is DispatchRows:
        rows = <DispatchRows>batch
        for row in range(rows.count):
            if has_keys(rows.rows[row].properties, rows.rows[row].properties_size):
                return row
        return -1
    for text in batch.properties:
        if has_keys(<const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
            return row
        row += 1
    return -1


# Where entries are written: the slots, the fields of the file's header, the buffer.
cdef struct Target:
    uint8_t* slots
    uint32_t slots_number
    int64_t begin
    int64_t count
    int64_t used
    uint8_t* out
    Py_ssize_t filled
    Py_ssize_t room


cdef int put_entry(Target* target, uint32_t value, int64_t offset, int64_t timestamp) except -1:
    cdef uint32_t hashed = value if value < 0x80000000u else (0 if value == 0x80000000u else 0 - value)
    cdef uint8_t* slot = target.slots + <int64_t>(hashed % target.slots_number) * 4
    cdef int64_t before = <int32_t>get32(slot)
    cdef int64_t seconds = 0
    cdef uint8_t* at
    if target.room - target.filled < ENTRY:
        at = <uint8_t*>realloc(target.out, target.room * 2)
        if at == NULL:
            raise MemoryError
        target.out = at
        target.room *= 2
    if not 0 < before < target.count:
        before = 0
        target.used += 1
    if 0 < target.begin <= timestamp:
        seconds = (timestamp - target.begin) // 1000
        if seconds > 0x7FFFFFFF:
            seconds = 0x7FFFFFFF
    at = target.out + target.filled
    put32(at, hashed)
    put64(at + 4, <uint64_t>offset)
    put32(at + 12, <uint32_t>seconds)
    put32(at + 16, <uint32_t>before)
    put32(slot, <uint32_t>target.count)
    target.filled += ENTRY
    target.count += 1
    return 0


def put_rows(batch, Py_ssize_t row, Py_ssize_t key, bytearray slots not None, header, int64_t entries):
    """See the plain twin."""
    cdef list topics, properties, offsets, timestamps, sys_flags
    cdef DispatchRows stored_rows = <DispatchRows>batch if type(batch) is DispatchRows else None
    cdef Stored* stored
    cdef const uint8_t* at
    cdef Py_ssize_t rows = len(batch), size
    cdef Py_ssize_t number
    cdef int64_t flags = 0
    cdef Span unique, words, word
    cdef bytes text, prefix
    cdef object topic = None, its_topic
    cdef uint32_t start = 0, value
    cdef bint full = False
    cdef int64_t offset = 0, timestamp = 0, last_offset = -1, last_timestamp = 0
    cdef Target target
    if stored_rows is None:
        topics, properties = list(batch.topics), list(batch.properties)
        offsets, timestamps, sys_flags = batch.offsets, batch.store_timestamps, batch.sys_flags
    target.slots = <uint8_t*>PyByteArray_AS_STRING(slots)
    target.slots_number = <uint32_t>(PyByteArray_GET_SIZE(slots) // 4)
    target.begin = header.begin_timestamp
    target.count = header.count
    target.used = header.slots_used
    target.filled = 0
    target.room = max(rows - row, 8) * ENTRY
    target.out = <uint8_t*>malloc(target.room)
    if target.out == NULL:
        raise MemoryError
    try:
        while row < rows:
            if stored_rows is not None:
                stored = &stored_rows.rows[row]
                at, size = stored.properties, stored.properties_size
                flags, offset, timestamp = stored.sys_flag, stored.offset, stored.stored
            else:
                text = properties[row]
                at, size = <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
                flags, offset, timestamp = sys_flags[row], offsets[row], timestamps[row]
            if size and find_keys(at, size, &unique, &words) and (flags & ROLLED_BACK) != ROLLED_BACK:
                if stored_rows is not None:
                    its_topic = stored_rows.groups.names[stored_rows.groups.groups[stored.group].topic]
                else:
                    its_topic = topics[row]
                if its_topic is not topic:
                    topic = its_topic
                    prefix = topic.encode() + b"#"
                    start = 0
                    hash_on(&start, <const uint8_t*>PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
                number = 0
                while True:
                    if unique.size:
                        word = unique
                        unique.size = 0
                    elif not next_word(&words, &word):
                        break
                    number += 1
                    if number > KEYS:
                        break
                    if number <= key:
                        continue
                    if target.count >= entries:
                        full = True
                        break
                    value = start
                    if not hash_on(&value, word.at, word.size):
                        value = plain.key_hash(prefix + PyBytes_FromStringAndSize(<const char*>word.at, word.size))
                    put_entry(&target, value, offset, timestamp)
                    if target.count == 2:
                        header.begin_offset = offset
                        header.begin_timestamp = target.begin = timestamp
                    last_offset, last_timestamp = offset, timestamp
                    key = number
                if full:
                    break
            key = 0
            row += 1
        if last_offset >= 0:
            header.end_offset, header.end_timestamp = last_offset, last_timestamp
        header.count, header.slots_used = target.count, target.used
        return PyBytes_FromStringAndSize(<const char*>target.out, target.filled), row, key
    finally:
        free(target.out)


def rebuild_slots(bytes data not None, int64_t first, int64_t offset, bytearray slots not None):
    """See the plain twin."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(data) // ENTRY * ENTRY
    cdef uint8_t* base = <uint8_t*>PyByteArray_AS_STRING(slots)
    cdef uint32_t number = <uint32_t>(PyByteArray_GET_SIZE(slots) // 4)
    cdef int64_t entry = first, used = 0, place
    cdef uint8_t* slot
    while at < end:
        place = <int64_t>get64(at + 4)
        if get32(at) >= 0x80000000u or place < offset or get32(at + 12) >= 0x80000000u:
            break
        slot = base + <int64_t>(get32(at) % number) * 4
        if get32(slot) != get32(at + 16):
            break
        used += get32(slot) == 0
        put32(slot, <uint32_t>entry)
        offset = place
        entry += 1
        at += ENTRY
    return entry - first, used, offset

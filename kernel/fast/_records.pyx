# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain`: records, queue entries, tag codes.

This module handles the usual rows. It passes others (a field out of its range, an IPv6 host, bytes that are not a
record) to the plain twin row by row, so that both twins refuse alike, with the same texts.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

include "_bytes.pxi"

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.fast import plain
from gantrymq.kernel.fast.plain import Stop

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyLong_CheckExact(object thing)
    PyObject* PyBytes_FromStringAndSizeRaw "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t size) except NULL

prepare_crc()

KIND = "compiled"

cdef enum:
    HEAD = 88
    BLANK = 8
    LEAST = 91
    HOST_V6 = 0x30
    STORE_V6 = 0x20
    PREPARED = 4
    PROPERTIES_MAX = 32767

cdef uint32_t MAGIC_1 = 0xDAA320A7
cdef uint32_t MAGIC_2 = 0xDAA320AB

cdef dict _topic_parts = plain._topic_parts
cdef dict _topics = plain._topics


cdef inline int as_int64(object number, int64_t* value) except -1:
    """Set ``value`` and return 1, or return 0 if ``number`` is not an ``int`` of at most 64 bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return 0
    value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return 0 if overflow else 1


cdef inline int as_int32(object number, int64_t* value) except -1:
    """Set ``value`` and return 1, or return 0 if ``number`` is not an ``int`` of at most 32 bits."""
    if not as_int64(number, value):
        return 0
    return 1 if -0x80000000LL <= value[0] <= 0x7FFFFFFFLL else 0


cdef Py_ssize_t most_bytes(list bodies, list properties, object rows, Py_ssize_t first) except -2:
    """An upper bound for the size of the rows' records without IPv6 hosts; -1 if a value is not ``bytes``."""
    cdef Py_ssize_t total = 0, index, row, count = len(bodies)
    cdef object body, own
    for index in range(first, len(rows)):
        row = rows[index]
        if row < 0 or row >= count:
            return -1
        body, own = bodies[row], properties[row]
        if not PyBytes_CheckExact(body) or not PyBytes_CheckExact(own):
            return -1
        total += PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(own) + HEAD + 3 + 128 + 12
    return total


cdef bytes shrink(PyObject* text, Py_ssize_t size):
    """The first ``size`` bytes of ``text``; takes ownership of the reference."""
    _PyBytes_Resize(&text, size)
    cdef bytes result = <bytes>text
    # The cast to <bytes> added a reference; release the one that came with ``text``.
    Py_DECREF_RAW(text)
    return result


cdef extern from "Python.h":
    void Py_DECREF_RAW "Py_DECREF"(PyObject* thing)


def encode_rows(batch, rows, Py_ssize_t first, int64_t offset, int64_t room, dict next_offsets, layout):
    """See :func:`gantrymq.kernel.fast.plain.encode_rows`."""
    cdef list topics = batch.topics, queue_ids = batch.queue_ids, bodies = batch.bodies, properties = batch.properties
    cdef list flags = batch.flags, sys_flags = batch.sys_flags, born_timestamps = batch.born_timestamps
    cdef list born_hosts = batch.born_hosts, times = batch.reconsume_times, prepared_offsets = batch.prepared_offsets
    cdef list offsets = batch.offsets, sizes = batch.sizes, queue_offsets = batch.queue_offsets
    cdef bytes store_host = layout[0]
    cdef int64_t max_body = layout[1], max_record = layout[2], limit = offset + room - BLANK, stored, size, end
    cdef Py_ssize_t index, row, host_size = len(store_host), count = len(topics), used = 0, most
    cdef Py_ssize_t body_size, own_size, topic_size
    cdef int64_t bits = STORE_V6 if host_size == 20 else 0
    cdef int64_t queue_id, flag, sys_flag, born, tries, prepared, queue_offset, crc
    cdef bytes body, own, topic_part
    cdef object topic, host, key, given
    cdef PyObject* found
    cdef PyObject* room_for
    cdef uint8_t* start
    cdef uint8_t* at
    cdef list parts = []
    cdef dict own_offsets = batch.own_queue_offsets

    if not (count == len(queue_ids) == len(bodies) == len(properties) == len(flags) == len(sys_flags)
            == len(born_timestamps) == len(born_hosts) == len(times) == len(prepared_offsets) == len(offsets)
            == len(sizes) == len(queue_offsets)) or host_size not in (8, 20):
        return plain.encode_rows(batch, rows, first, offset, room, next_offsets, layout)
    most = most_bytes(bodies, properties, rows, first)
    given = batch.store_timestamp
    if most < 0 or not as_int64(given, &stored):
        return plain.encode_rows(batch, rows, first, offset, room, next_offsets, layout)
    room_for = PyBytes_FromStringAndSizeRaw(NULL, min(most, room))
    start = <uint8_t*>PyBytes_AS_STRING(<object>room_for)
    try:
        for index in range(first, len(rows)):
            row = rows[index]
            topic, body, own, host = topics[row], bodies[row], properties[row], born_hosts[row]
            found = PyDict_GetItem(_topic_parts, topic)
            topic_part = <bytes>found if found != NULL else plain._topic_part(topic)
            body_size, own_size, topic_size = PyBytes_GET_SIZE(body), PyBytes_GET_SIZE(own), len(topic_part)
            size = HEAD + host_size - 8 + 2 + body_size + topic_size + own_size
            if (
                not topic_size or body_size > max_body or size > max_record or own_size > PROPERTIES_MAX
                or not PyBytes_CheckExact(host) or PyBytes_GET_SIZE(host) != 8
                or memchr(PyBytes_AS_STRING(own), 0, own_size) != NULL
                or not as_int32(queue_ids[row], &queue_id) or not as_int32(flags[row], &flag)
                or not as_int32(sys_flags[row], &sys_flag) or not as_int64(born_timestamps[row], &born)
                or not as_int32(times[row], &tries) or not as_int64(prepared_offsets[row], &prepared)
            ):
                if used:
                    parts.append(PyBytes_FromStringAndSize(<char*>start, used))
                    start += used
                    used = 0
                some, following, end = plain.encode_rows(
                    batch, [row], 0, offset, limit + BLANK - offset, next_offsets, layout
                )
                parts.extend(some)
                if not following:
                    return parts, index, offset
                offset = end
                continue
            if sys_flag & HOST_V6 != bits:
                sys_flag = sys_flag & ~HOST_V6 | bits
                sys_flags[row] = sys_flag
            end = offset + size
            if end > limit:
                break
            queue_offset = 0
            if sys_flag & PREPARED:
                queue_offset = own_offsets.get(row, 0)
            else:
                key = (topic, queue_ids[row])
                found = PyDict_GetItem(next_offsets, key)
                if found != NULL:
                    queue_offset = <object>found
                next_offsets[key] = queue_offset + 1
            crc = crc32(<const uint8_t*>PyBytes_AS_STRING(body), body_size) & 0x7FFFFFFF
            at = start + used
            put32(at, <uint32_t>size)
            put32(at + 4, MAGIC_1)
            put32(at + 8, <uint32_t>crc)
            put32(at + 12, <uint32_t>queue_id)
            put32(at + 16, <uint32_t>flag)
            put64(at + 20, <uint64_t>queue_offset)
            put64(at + 28, <uint64_t>offset)
            put32(at + 36, <uint32_t>sys_flag)
            put64(at + 40, <uint64_t>born)
            memcpy(at + 48, PyBytes_AS_STRING(host), 8)
            put64(at + 56, <uint64_t>stored)
            memcpy(at + 64, PyBytes_AS_STRING(store_host), host_size)
            at += 64 + host_size
            put32(at, <uint32_t>tries)
            put64(at + 4, <uint64_t>prepared)
            put32(at + 12, <uint32_t>body_size)
            at += 16
            memcpy(at, PyBytes_AS_STRING(body), body_size)
            at += body_size
            memcpy(at, PyBytes_AS_STRING(topic_part), topic_size)
            at += topic_size
            put16(at, <uint16_t>own_size)
            memcpy(at + 2, PyBytes_AS_STRING(own), own_size)
            used += size
            offsets[row] = offset
            sizes[row] = size
            queue_offsets[row] = queue_offset
            offset = end
        else:
            index = len(rows)
        if used:
            if parts:
                parts.append(PyBytes_FromStringAndSize(<char*>start, used))
            else:
                found, room_for = room_for, NULL
                parts.append(shrink(found, used))
        return parts, index, offset
    finally:
        if room_for != NULL:
            Py_DECREF_RAW(room_for)


cdef int64_t simple_tag_code(bytes properties, bint* simple) except? -1:
    """The tag code; sets ``simple`` to False for a tag that is not ASCII or may not be the first one."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(properties)
    cdef const uint8_t* end = text + PyBytes_GET_SIZE(properties)
    cdef const uint8_t* at = text
    cdef uint32_t code = 0
    while end - at >= 5:
        if memcmp(at, b"TAGS\x01", 5) == 0:
            at += 5
            while at < end and at[0] != 2:
                if at[0] >= 0x80:
                    simple[0] = False
                    return 0
                code = code * 31 + at[0]
                at += 1
            return <int32_t>code
        at = <const uint8_t*>memchr(at, 2, end - at)
        if at == NULL:
            return 0
        at += 1
    return 0


def tag_code(bytes properties not None):
    """See :func:`gantrymq.kernel.fast.plain.tag_code`."""
    cdef bint simple = True
    cdef int64_t code = simple_tag_code(properties, &simple)
    return code if simple else plain.tag_code(properties)


def tag_codes(properties):
    """See :func:`gantrymq.kernel.fast.plain.tag_codes`."""
    return [tag_code(one) for one in properties]


FOLDS = crc_folds
"""Whether this processor has carry-less multiplication, which computes the CRC of a body."""


def body_crc(const uint8_t[::1] data, bint folds=crc_folds):
    """The CRC-32 of ``data``, by carry-less multiplication if ``folds`` is set and the processor has it, else by
    tables."""
    return crc32_by(folds and crc_folds, &data[0] if data.shape[0] else NULL, data.shape[0])

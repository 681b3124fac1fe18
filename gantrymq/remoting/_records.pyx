# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled twin of ``records._cut_records``. It builds what is in order, and leaves what is not to the plain twin,
which knows what to say of it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from zlib import crc32

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)
    int PyType_Check(object)

DEF HOST_V6_MORE = 12
DEF SHORTEST_HEAD = 88
DEF SYS_FLAG_AT = 36

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef int32_t COMPRESSED = 0x1
cdef int32_t BORN_HOST_V6 = 0x10
cdef int32_t STORE_HOST_V6 = 0x20
cdef tuple NOTHING = ()


cdef inline uint32_t get32(const uint8_t* at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t get64(const uint8_t* at) noexcept:
    return <int64_t>((<unsigned long long>get32(at) << 32) | get32(at + 4))


cdef inline int get16(const uint8_t* at) noexcept:
    return (<int>at[0] << 8) | at[1]


def cut_records(bytes data not None, make, bint check_crc, broker_name, delivery):
    """The records from the start of ``data`` on that are intact, and where the first one begins that is not.

    ``broker_name`` and ``delivery`` are those of each record, unless ``broker_name`` is None.
    """
    cdef bint is_pulled = broker_name is not None
    if not PyType_Check(make):
        raise TypeError("make is a class")
    cdef PyTypeObject* kind = <PyTypeObject*>make
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* at
    cdef Py_ssize_t whole = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t start = 0, room, head
    cdef int64_t size, body_size, topic_at, topic_start, topic_size, end
    cdef const uint8_t* last_topic = NULL
    cdef int64_t last_topic_size = -1
    cdef int32_t sys_flag
    cdef uint32_t magic
    cdef list records = []
    cdef object topic = None, record
    cdef bytes body
    while start < whole:
        at = begin + start
        room = whole - start
        if room < SHORTEST_HEAD:
            break
        magic = get32(at + 4)
        sys_flag = <int32_t>get32(at + SYS_FLAG_AT)
        head = SHORTEST_HEAD
        if sys_flag & BORN_HOST_V6:
            head += HOST_V6_MORE
        if sys_flag & STORE_HOST_V6:
            head += HOST_V6_MORE
        if room < head or (magic != MAGIC_V1 and magic != MAGIC_V2):
            break
        size = <int32_t>get32(at)
        body_size = <int32_t>get32(at + head - 4)
        topic_at = head + body_size
        if not head < size <= room or not head <= topic_at < size:
            break
        if magic == MAGIC_V1:
            topic_start = topic_at + 1
            topic_size = at[topic_at]
        else:
            topic_start = topic_at + 2
            if topic_start > size:
                break
            topic_size = get16(at + topic_at)
        end = topic_start + topic_size
        if end + 2 > size or end + 2 + get16(at + end) != size:
            break
        body = PyBytes_FromStringAndSize(<const char*>at + head, body_size)
        if check_crc and (<uint32_t>crc32(body)) & 0x7FFFFFFF != get32(at + 8):
            break
        if topic_size != last_topic_size or memcmp(at + topic_start, last_topic, <size_t>topic_size) != 0:
            topic = (<bytes>PyBytes_FromStringAndSize(<const char*>at + topic_start, topic_size)).decode("utf-8", "replace")
            last_topic = at + topic_start
            last_topic_size = topic_size
        record = kind.tp_new(kind, NOTHING, NULL)
        record.topic = topic
        record.queue_offset = get64(at + 20)
        record.stored_size = size
        record.stored_body = body
        if not sys_flag & COMPRESSED:
            record.body = body
        record.raw_properties = PyBytes_FromStringAndSize(<const char*>at + end + 2, size - end - 2)
        record._head = PyBytes_FromStringAndSize(<const char*>at, head)
        if is_pulled:
            record.broker_name = broker_name
            record.delivery = delivery
        records.append(record)
        start += size
    return records, start

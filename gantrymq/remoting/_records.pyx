# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""The compiled twins of ``records.PlainFields`` and ``records.cut_records``.

:func:`cut_records` builds the records that are intact, and leaves the first one that is not to the plain twin, which
raises the error for it. A record here is a structure in C: no dictionary, and no object for each number.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

include "_crc.pxi"

from gantrymq.remoting.properties import decode_properties

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)
    int PyType_Check(object)

prepare_crc()

DEF HOST_V6_MORE = 12
DEF SHORTEST_HEAD = 88
DEF HOST_MAX = 20
DEF SYS_FLAG_AT = 36

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef int32_t DECODED = 0x81
cdef int32_t BORN_HOST_V6 = 0x10
cdef int32_t STORE_HOST_V6 = 0x20
cdef tuple NOTHING = ()
cdef str NO_NAME = ""


cdef inline uint32_t get32(const uint8_t* at) noexcept:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t get64(const uint8_t* at) noexcept:
    return <int64_t>((<unsigned long long>get32(at) << 32) | get32(at + 4))


cdef inline int get16(const uint8_t* at) noexcept:
    return (<int>at[0] << 8) | at[1]


cdef class Fields:
    """The fields of a record, and of one that a consumer was given. See ``records.PlainFields``."""

    cdef object __weakref__
    cdef public str topic
    cdef public int32_t queue_id
    cdef public int32_t flag
    cdef public int64_t queue_offset
    cdef public int64_t commit_log_offset
    cdef public int32_t sys_flag
    cdef public int64_t born_timestamp
    cdef public int64_t store_timestamp
    cdef public int32_t reconsume_times
    cdef public int64_t prepared_offset
    cdef public bytes stored_body
    cdef public bytes raw_properties
    cdef public int64_t stored_size
    cdef public str broker_name
    cdef public object delivery
    cdef public object retry_topic
    cdef public object decoded
    cdef object _body
    cdef object _properties
    cdef uint8_t born_host_bytes[HOST_MAX]
    cdef uint8_t store_host_bytes[HOST_MAX]
    cdef uint8_t born_host_size
    cdef uint8_t store_host_size

    def __init__(
        self, str topic not None, int32_t queue_id, int32_t flag, int64_t queue_offset, int64_t commit_log_offset,
        int32_t sys_flag, int64_t born_timestamp, bytes raw_born_host not None, int64_t store_timestamp,
        bytes raw_store_host not None, int32_t reconsume_times, int64_t prepared_offset, bytes stored_body not None,
        bytes raw_properties not None, int64_t stored_size,
    ):
        if len(raw_born_host) > HOST_MAX or len(raw_store_host) > HOST_MAX:
            raise ValueError(f"a host has at most {HOST_MAX} bytes")
        self.topic = topic
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.store_timestamp = store_timestamp
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.stored_body = stored_body
        self.raw_properties = raw_properties
        self.stored_size = stored_size
        self.broker_name = NO_NAME
        self.born_host_size = <uint8_t>len(raw_born_host)
        memcpy(self.born_host_bytes, PyBytes_AS_STRING(raw_born_host), self.born_host_size)
        self.store_host_size = <uint8_t>len(raw_store_host)
        memcpy(self.store_host_bytes, PyBytes_AS_STRING(raw_store_host), self.store_host_size)

    def _fill(
        self, bytes head not None, str topic not None, int64_t size, bytes body not None, bytes raw_properties not None,
        str broker_name, delivery,
    ):
        """Set all fields, those of the ``head`` from its bytes, which are checked. For records that no constructor made."""
        read_head(self, <const uint8_t*>PyBytes_AS_STRING(head))
        self.topic = topic
        self.stored_size = size
        self.stored_body = body
        self.raw_properties = raw_properties
        self.broker_name = NO_NAME if broker_name is None else broker_name
        self.delivery = delivery

    @property
    def raw_born_host(self):
        return PyBytes_FromStringAndSize(<const char*>self.born_host_bytes, self.born_host_size)

    @property
    def raw_store_host(self):
        return PyBytes_FromStringAndSize(<const char*>self.store_host_bytes, self.store_host_size)

    @property
    def body(self):
        """The decompressed body; :class:`BodyError` if it cannot be decoded."""
        if not self.sys_flag & DECODED:
            return self.stored_body
        if self._body is None:
            from gantrymq.remoting.records import decode_body

            self._body = decode_body(self.stored_body, self.sys_flag)
        return self._body

    @property
    def properties(self):
        """All properties, including the reserved ones (TAGS, KEYS, UNIQ_KEY, ...)."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties.decode("utf-8", "replace"))
        return self._properties


cdef inline void read_head(Fields record, const uint8_t* at) noexcept:
    """Set the fields of the head at ``at``, which is as long as its sys flag says."""
    record.queue_id = <int32_t>get32(at + 12)
    record.flag = <int32_t>get32(at + 16)
    record.queue_offset = get64(at + 20)
    record.commit_log_offset = get64(at + 28)
    record.sys_flag = <int32_t>get32(at + SYS_FLAG_AT)
    record.born_timestamp = get64(at + 40)
    record.born_host_size = 20 if record.sys_flag & BORN_HOST_V6 else 8
    record.store_host_size = 20 if record.sys_flag & STORE_HOST_V6 else 8
    at += 48
    memcpy(record.born_host_bytes, at, record.born_host_size)
    at += record.born_host_size
    record.store_timestamp = get64(at)
    memcpy(record.store_host_bytes, at + 8, record.store_host_size)
    at += 8 + record.store_host_size
    record.reconsume_times = <int32_t>get32(at)
    record.prepared_offset = get64(at + 4)


def stored_sizes(list records not None):
    """The ``stored_size`` of each record."""
    cdef list sizes = []
    for record in records:
        sizes.append((<Fields?>record).stored_size)
    return sizes


def cut_records(bytes data not None, make, bint check_crc, broker_name, delivery):
    """The records from the start of ``data`` on that are intact, and where the first one begins that is not.

    ``broker_name`` and ``delivery`` are those of each record, unless ``broker_name`` is None.
    """
    cdef bint is_pulled = broker_name is not None
    if not PyType_Check(make) or not issubclass(make, Fields):
        raise TypeError("make is a subclass of Fields")
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
    cdef str topic = None, name = broker_name if is_pulled else NO_NAME
    cdef Fields record
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
        if check_crc and crc32(at + head, body_size) & 0x7FFFFFFF != get32(at + 8):
            break
        body = PyBytes_FromStringAndSize(<const char*>at + head, body_size)
        if topic_size != last_topic_size or memcmp(at + topic_start, last_topic, <size_t>topic_size) != 0:
            topic = (<bytes>PyBytes_FromStringAndSize(<const char*>at + topic_start, topic_size)).decode("utf-8", "replace")
            last_topic = at + topic_start
            last_topic_size = topic_size
        record = <Fields>kind.tp_new(kind, NOTHING, NULL)
        read_head(record, at)
        record.topic = topic
        record.stored_size = size
        record.stored_body = body
        record.raw_properties = PyBytes_FromStringAndSize(<const char*>at + end + 2, size - end - 2)
        record.broker_name = name
        record.delivery = delivery
        records.append(record)
        start += size
    return records, start

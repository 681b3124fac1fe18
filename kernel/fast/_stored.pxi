# A record of the log whose fields become objects on access. A part of _requests.pyx.

cdef bytes NO_RECORD = bytes(HEAD)


cdef class StoredRecord:
    """The compiled form of :class:`gantrymq.kernel.store.log.record.Record`. It has its own copy of the bytes."""

    def __cinit__(self):
        # Before it is filled, it is a record of zeros.
        self.data = NO_RECORD
        self.body_at = HEAD

    cdef const uint8_t* at(self, Py_ssize_t place) noexcept:
        return <const uint8_t*>PyBytes_AS_STRING(self.data) + place

    cdef Py_ssize_t more(self) noexcept:
        """The size of the born host beyond that of an IPv4 host, in bytes."""
        return 12 if get32(self.at(36)) & BORN_HOST_V6 else 0

    @property
    def body(self):
        return PyBytes_FromStringAndSize(<const char*>self.at(self.body_at), self.body_size)

    @property
    def properties(self):
        return PyBytes_FromStringAndSize(<const char*>self.at(self.properties_at), self.properties_size)

    @property
    def queue_id(self):
        return <int32_t>get32(self.at(12))

    @property
    def flag(self):
        return <int32_t>get32(self.at(16))

    cdef int64_t in_queue(self) noexcept:
        """The queue offset."""
        return <int64_t>get64(self.at(20))

    @property
    def queue_offset(self):
        return self.in_queue()

    @property
    def offset(self):
        return <int64_t>get64(self.at(28))

    @property
    def sys_flag(self):
        return <int32_t>get32(self.at(36))

    @property
    def born_timestamp(self):
        return <int64_t>get64(self.at(40))

    @property
    def born_host(self):
        return PyBytes_FromStringAndSize(<const char*>self.at(48), 8 + self.more())

    @property
    def store_timestamp(self):
        return <int64_t>get64(self.at(56 + self.more()))

    @property
    def store_host(self):
        cdef Py_ssize_t start = 64 + self.more()
        return PyBytes_FromStringAndSize(<const char*>self.at(start), self.body_at - 16 - start)

    @property
    def reconsume_times(self):
        return <int32_t>get32(self.at(self.body_at - 16))

    @property
    def prepared_offset(self):
        return <int64_t>get64(self.at(self.body_at - 12))

    @property
    def message_id(self):
        return offset_message_id(self.store_host, self.offset)

    def property_of(self, bytes name not None):
        """See :meth:`gantrymq.kernel.store.log.record.Record.property_of`."""
        cdef Part value
        if not find_value(self.at(self.properties_at), self.properties_size, name, &value) or not value.size:
            return None
        return PyBytes_FromStringAndSize(<const char*>value.at, value.size)

    cdef int fill(self, Row* row) noexcept:
        """Set the fields of a row that stores this message again, except its queue and its sender."""
        row.body, row.body_size = self.at(self.body_at), <int32_t>self.body_size
        row.own, row.own_size = self.at(self.properties_at), <int32_t>self.properties_size
        row.common, row.common_size = row.own, 0
        row.flag = <int32_t>get32(self.at(16))
        row.sys_flag = <int32_t>get32(self.at(36))
        row.born = <int64_t>get64(self.at(40))
        row.host, row.host_size = self.at(48), <int32_t>(8 + self.more())
        row.times = <int32_t>get32(self.at(self.body_at - 16))
        return 0


def read_records(data, int64_t start, offsets):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_records`."""
    cdef Py_buffer buffer
    cdef int64_t offset
    cdef list records = []
    cdef StoredRecord record
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        for offset in offsets:
            record = None
            if start <= offset and <uint64_t>offset - <uint64_t>start <= <uint64_t>buffer.len:
                record = find_record(
                    <const uint8_t*>buffer.buf + (offset - start), buffer.len - (offset - start), offset
                )
            records.append(plain.read_records(data, start, (offset,))[0] if record is None else record)
    finally:
        PyBuffer_Release(&buffer)
    return records


cdef StoredRecord find_record(const uint8_t* at, Py_ssize_t length, int64_t offset):
    """The record at ``at``, or None if the plain decoder has to decide what these bytes are."""
    cdef Py_ssize_t size, head, body_size, body_end, topic_start, topic_end
    cdef uint32_t magic, bits
    cdef StoredRecord record
    if length < LEAST:
        return None
    size = <int32_t>get32(at)
    magic = get32(at + 4)
    bits = get32(at + 36)
    head = HEAD + (12 if bits & BORN_HOST_V6 else 0) + (12 if bits & STORE_V6 else 0)
    if (
        (magic != MAGIC_1 and magic != MAGIC_2) or <int64_t>get64(at + 28) != offset
        or not head + 4 <= size <= length
    ):
        return None
    body_size = <int32_t>get32(at + head - 4)
    body_end = head + body_size
    if body_size < 0 or body_end + 4 > size:
        return None
    topic_start = body_end + (1 if magic == MAGIC_1 else 2)
    topic_end = topic_start + (at[body_end] if magic == MAGIC_1 else get16(at + body_end))
    if topic_end + 2 > size or topic_end + 2 + get16(at + topic_end) != size:
        return None
    if body_size and crc32(at + head, body_size) & 0x7FFFFFFF != get32(at + 8):
        return None
    topic = known_topic(PyBytes_FromStringAndSize(<const char*>at + topic_start, topic_end - topic_start))
    if topic is None:
        return None
    record = StoredRecord.__new__(StoredRecord)
    record.topic = topic
    record.data = PyBytes_FromStringAndSize(<const char*>at, size)
    record.body_at = head
    record.body_size = body_size
    record.properties_at = topic_end + 2
    record.properties_size = size - topic_end - 2
    return record

# The columns of records on their way to a peer. A part of _requests.pyx.


def delivery_columns(bytes records not None):
    """See :func:`gantrymq.kernel.fast.plain_requests.delivery_columns`."""
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(records)
    cdef const uint8_t* at
    cdef Py_ssize_t start = 0, end = PyBytes_GET_SIZE(records)
    cdef Py_ssize_t size, head, body_size, body_end, topic_start, topic_end
    cdef const uint8_t* known = NULL  # the last topic
    cdef Py_ssize_t known_size = 0
    cdef uint32_t magic, bits
    cdef list starts = [], topics = [], queue_ids = [], queue_offsets = [], offsets = [], timestamps = []
    cdef list bodies = [], properties = []
    topic = None
    while start < end:
        at = data + start
        size = <int32_t>get32(at) if end - start >= LEAST else 0
        if not LEAST <= size <= end - start:
            return plain.delivery_columns(records)
        magic = get32(at + 4)
        bits = get32(at + 36)
        head = HEAD + (12 if bits & BORN_HOST_V6 else 0) + (12 if bits & STORE_V6 else 0)
        if (magic != MAGIC_1 and magic != MAGIC_2) or head + 4 > size:
            return plain.delivery_columns(records)
        body_size = <int32_t>get32(at + head - 4)
        body_end = head + body_size
        if body_size < 0 or body_end + 4 > size:
            return plain.delivery_columns(records)
        topic_start = body_end + (1 if magic == MAGIC_1 else 2)
        topic_end = topic_start + (at[body_end] if magic == MAGIC_1 else get16(at + body_end))
        if topic_end + 2 > size or topic_end + 2 + get16(at + topic_end) != size:
            return plain.delivery_columns(records)
        if topic is None or topic_end - topic_start != known_size or memcmp(at + topic_start, known, known_size):
            known, known_size = at + topic_start, topic_end - topic_start
            topic = known_topic(PyBytes_FromStringAndSize(<const char*>known, known_size))
            if topic is None:
                return plain.delivery_columns(records)
        starts.append(start)
        topics.append(topic)
        queue_ids.append(<int32_t>get32(at + 12))
        queue_offsets.append(<int64_t>get64(at + 20))
        offsets.append(<int64_t>get64(at + 28))
        timestamps.append(<int64_t>get64(at + (68 if bits & BORN_HOST_V6 else 56)))
        bodies.append(PyBytes_FromStringAndSize(<const char*>at + head, body_size))
        properties.append(PyBytes_FromStringAndSize(<const char*>at + topic_end + 2, size - topic_end - 2))
        start += size
    starts.append(start)
    return starts, topics, queue_ids, queue_offsets, offsets, timestamps, bodies, properties

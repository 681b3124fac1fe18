# Requests to send, and the rows of a batch made of them. A part of _requests.pyx.


@cython.no_gc
@cython.final
cdef class SendRequest(HotRequest):
    """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE."""

    cdef object topic
    cdef bytes properties
    cdef int queue_id
    cdef int sys_flag
    cdef int message_flag
    cdef int reconsume_times
    cdef int64_t born_timestamp
    cdef bint batch


cdef SendRequest read_send(Field* fields, int count):
    """The request of these fields, or None when the plain decoder must look at them."""
    cdef Text* texts[13]
    cdef int64_t numbers[13]
    cdef int number, place, truth
    cdef SendRequest send
    cdef bytes properties = b""
    for place in range(13):
        texts[place] = NULL
        numbers[place] = 0
    for number in range(count):
        if fields[number].name.size == 1 and c'a' <= fields[number].name.at[0] <= c'm':
            place = fields[number].name.at[0] - c'a'
            if texts[place] != NULL:
                return None
            texts[place] = &fields[number].value
            if place == 8:
                continue
        if fields[number].value.escaped or fields[number].value.wide:
            return None
    for place in range(8):
        if texts[place] == NULL:
            return None
    for place in (3, 4, 5, 6, 7, 9, 11):
        if texts[place] != NULL and not is_number(texts[place], &numbers[place], place == 6):
            return None
    for place in (10, 12):
        if texts[place] != NULL:
            truth = read_bool(texts[place])
            if truth < 0:
                return None
            numbers[place] = truth
    if texts[8] != NULL:
        properties = utf8_of(texts[8])
        if properties is None:
            return None
    send = SendRequest.__new__(SendRequest)
    send.topic = name_of(texts[1])
    send.properties = properties
    send.queue_id = <int>numbers[4]
    send.sys_flag = <int>numbers[5]
    send.born_timestamp = numbers[6]
    send.message_flag = <int>numbers[7]
    send.reconsume_times = <int>numbers[9]
    send.batch = numbers[12]
    return send


cdef bytes stored(bytes given, bytes mark, bint* waits):
    """``given`` without WAIT, with ``mark``; None when a plugin may have to look at them, or they are too long."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(given)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(given)
    cdef const uint8_t* stop
    cdef uint8_t* to = scratch
    cdef Py_ssize_t size, mark_size = PyBytes_GET_SIZE(mark)
    cdef bint first = True
    waits[0] = True
    if end - at + mark_size + 1 > PROPERTIES_MAX:
        return None
    while True:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        size = stop - at
        if size >= 5 and memcmp(at, b"WAIT\x01", 5) == 0:
            if is_word(at, size, b"WAIT\x01false", 10):
                waits[0] = False
        elif (
            (size >= 6 and memcmp(at, b"DELAY\x01", 6) == 0)
            or (size >= 8 and memcmp(at, b"CLUSTER\x01", 8) == 0)
            or (size >= 9 and memcmp(at, b"TRAN_MSG\x01", 9) == 0)
        ):
            return None
        else:
            if not first:
                to[0] = 2
                to += 1
            first = False
            memcpy(to, at, size)
            to += size
        if stop == end:
            break
        at = stop + 1
    while to > scratch and (to - 1)[0] == 2:
        to -= 1
    if to > scratch:
        to[0] = 2
        to += 1
    memcpy(to, PyBytes_AS_STRING(mark), mark_size)
    return PyBytes_FromStringAndSize(<const char*>scratch, to - scratch + mark_size)


cdef bint wants_more(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Whether there is a property for which a plugin may have to do something: a delay, a half message."""
    cdef const uint8_t* end = at + size
    while True:
        if end - at >= 6 and memcmp(at, b"DELAY\x01", 6) == 0:
            return True
        if end - at >= 9 and memcmp(at, b"TRAN_MSG\x01", 9) == 0:
            return True
        at = <const uint8_t*>memchr(at, 2, end - at)
        if at == NULL:
            return False
        at += 1


cdef Py_ssize_t without_end(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """How long the properties are without the separators at their end."""
    while size and at[size - 1] == 2:
        size -= 1
    return size


cdef Py_ssize_t count_messages(const uint8_t* at, Py_ssize_t size, Py_ssize_t common) noexcept nogil:
    """How many messages a batch body holds; -1 when one is not as it must be, or wants more than to be stored."""
    cdef Py_ssize_t count = 0, length, body, own
    while size:
        if size < 22:
            return -1
        length, body = <int32_t>get32(at), <int32_t>get32(at + 16)
        if length < 22 or length > size or body < 0 or 20 + body + 2 > length:
            return -1
        own = <int16_t>get16(at + 20 + body)
        if own < 0 or 22 + body + own != length or own + 1 + common > PROPERTIES_MAX:
            return -1
        if wants_more(at + 22 + body, own):
            return -1
        at += length
        size -= length
        count += 1
    return count


cdef bytes common_properties(bytes given, bytes mark):
    """What all messages of a batch get behind their own properties."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(given)
    if not size:
        return mark
    return given[: without_end(<const uint8_t*>PyBytes_AS_STRING(given), size)] + b"\x02" + mark


cdef bytes own_properties(const uint8_t* at, Py_ssize_t size, bytes common):
    """The properties of one message of a batch as stored."""
    cdef bytes result
    cdef uint8_t* to
    if not size:
        return common
    size = without_end(at, size)
    result = PyBytes_FromStringAndSize(NULL, size + 1 + PyBytes_GET_SIZE(common))
    to = <uint8_t*>PyBytes_AS_STRING(result)
    memcpy(to, at, size)
    to[size] = 2
    memcpy(to + size + 1, PyBytes_AS_STRING(common), PyBytes_GET_SIZE(common))
    return result


def add_sends(batch, list requests, terms, bytes mark, Py_ssize_t max_body_bytes, many, other):
    """See :func:`gantrymq.kernel.fast.plain_requests.add_sends`."""
    cdef list topics = batch.topics, queue_ids = batch.queue_ids, bodies = batch.bodies, properties = batch.properties
    cdef list flags = batch.flags, sys_flags = batch.sys_flags, born_timestamps = batch.born_timestamps
    cdef list born_hosts = batch.born_hosts, times = batch.reconsume_times, prepared_offsets = batch.prepared_offsets
    cdef list waits = batch.waits, origins = batch.origins, statuses = batch.statuses
    cdef dict known = {}
    cdef object request, origin, topic = None, connection = None, host = None, usual = None
    cdef SendRequest send
    cdef int queues = 0, bits = 0, host_bits = 0
    cdef bint wait, batched = False
    cdef bytes own
    cdef const uint8_t* at
    cdef Py_ssize_t count, length, body_size, number
    for request in requests:
        if type(request) is not SendRequest:
            other(batch, request)
            continue
        send = <SendRequest>request
        if send.topic is not topic:
            topic = send.topic
            if topic in known:
                usual = known[topic]
            else:
                usual = known[topic] = terms(topic)
            if usual is not None:
                queues, bits = usual
        count = 1
        at = <const uint8_t*>PyBytes_AS_STRING(send.body)
        body_size = PyBytes_GET_SIZE(send.body)
        if usual is None or send.queue_id < 0 or send.queue_id >= queues or body_size > max_body_bytes:
            own = None
        elif send.batch or send.code == SEND_BATCH:
            own = common_properties(send.properties, mark)
            wait = b"WAIT\x01false" not in send.properties
            count = count_messages(at, body_size, PyBytes_GET_SIZE(own))
            if count < 1 or wants_more(
                <const uint8_t*>PyBytes_AS_STRING(send.properties), PyBytes_GET_SIZE(send.properties)
            ):
                own = None
        else:
            own = stored(send.properties, mark, &wait)
        if own is None:
            other(batch, request)
            if usual is None:
                # It may have brought the topic into being.
                known.clear()
                topic = None
            continue
        if send.connection is not connection:
            connection = send.connection
            host = connection.host
            host_bits = BORN_HOST_V6 if len(host) > 8 else 0
        if send.batch or send.code == SEND_BATCH:
            batched = True
            origin = many(request, len(topics), count)
            for number in range(count):
                length, body_size = get32(at), get32(at + 16)
                bodies.append(PyBytes_FromStringAndSize(<const char*>at + 20, body_size))
                properties.append(own_properties(at + 22 + body_size, length - 22 - body_size, own))
                flags.append(<int32_t>get32(at + 12))
                at += length
        else:
            origin = request
            bodies.append(send.body)
            properties.append(own)
            flags.append(send.message_flag)
        for number in range(count):
            topics.append(topic)
            queue_ids.append(send.queue_id)
            sys_flags.append(send.sys_flag & ~BORN_HOST_V6 | host_bits | bits)
            born_timestamps.append(send.born_timestamp)
            born_hosts.append(host)
            times.append(send.reconsume_times)
            prepared_offsets.append(0)
            waits.append(wait)
            origins.append(origin)
            statuses.append(SUCCESS)
    if batched:
        batch.traits |= BATCH

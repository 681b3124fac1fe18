# Replies to stored messages, straight to bytes. A part of _requests.pyx.


cdef class Output:
    """Bytes that grow."""

    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef uint8_t* reserve(self, Py_ssize_t more) except NULL:
        """Where the next ``more`` bytes go."""
        cdef void* moved
        if self.size + more > self.room:
            self.room = 2 * (self.size + more)
            moved = PyMem_Realloc(self.start, self.room)
            if moved == NULL:
                raise MemoryError
            self.start = <uint8_t*>moved
        return self.start + self.size

    cdef int let_go(self, connection) except -1:
        """Give the connection what is there, if there is something."""
        cdef bytes data
        if self.size:
            data = PyBytes_FromStringAndSize(<const char*>self.start, self.size)
            self.size = 0
            connection.send_bytes(data)
        return 0


cdef inline uint8_t* put_bytes(uint8_t* at, bytes data) noexcept:
    memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef uint8_t* put_number(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        at[0] = c'-'
        at += 1
        rest = 0 - rest
    while True:
        digits[count] = c'0' + rest % 10
        count += 1
        rest = rest // 10
        if rest == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef inline uint8_t* put_hex(uint8_t* at, uint64_t value) noexcept nogil:
    cdef int place
    for place in range(16):
        at[place] = b"0123456789ABCDEF"[(value >> (60 - 4 * place)) & 15]
    return at + 16


cdef inline uint8_t* put_name(uint8_t* at, const char* name, int size) noexcept nogil:
    put16(at, size)
    memcpy(at + 2, name, size)
    return at + 2 + size


cdef inline uint8_t* put_field_number(uint8_t* at, const char* name, int size, int64_t value) noexcept nogil:
    cdef uint8_t* end
    at = put_name(at, name, size)
    end = put_number(at + 4, value)
    put32(at, end - at - 4)
    return end


@cython.final
cdef class Replies:
    """The pieces of a reply form, and the replies of one connection so far."""

    cdef bytes first, second, third, fourth, last, fixed, fields, id_prefix
    cdef Py_ssize_t most
    cdef Output output

    def __cinit__(self, form):
        (self.first, self.second, self.third, self.fourth, self.last), self.fixed, self.fields, self.id_prefix = form
        self.most = sum(map(len, form.json)) + len(self.fixed) + len(self.fields) + len(self.id_prefix) + 256
        self.output = Output()

    cdef uint8_t* put_ids(self, uint8_t* at, Row* rows, Py_ssize_t count) noexcept:
        """The message ids of rows that follow each other, with commas between them."""
        cdef Py_ssize_t row
        for row in range(count):
            if row:
                at[0] = c','
                at += 1
            at = put_hex(put_bytes(at, self.id_prefix), <uint64_t>rows[row].offset)
        return at

    cdef int add(self, SendRequest send, Row* rows, Py_ssize_t count, int32_t queue_id) except -1:
        """The reply to a request with these rows, which tells it this queue."""
        cdef Py_ssize_t ids_size = count * (PyBytes_GET_SIZE(self.id_prefix) + 17) - 1
        cdef uint8_t* start = self.output.reserve(self.most + ids_size)
        cdef uint8_t* at = start + 8
        cdef uint8_t* fields
        if send.kind:
            at = put_bytes(at, self.fixed)
            put32(start + 8 + 5, <uint32_t>send.opaque)
            put32(at, 0)
            fields = at + 8
            at = put_bytes(fields, self.fields)
            at = put_name(at, b"msgId", 5)
            put32(at, <uint32_t>ids_size)
            at = self.put_ids(at + 4, rows, count)
            at = put_field_number(at, b"queueId", 7, queue_id)
            at = put_field_number(at, b"queueOffset", 11, rows.queue_offset)
            put32(fields - 4, at - fields)
        else:
            at = put_bytes(self.put_ids(put_bytes(at, self.first), rows, count), self.second)
            at = put_bytes(put_number(at, queue_id), self.third)
            at = put_bytes(put_number(at, rows.queue_offset), self.fourth)
            at = put_bytes(put_number(at, send.opaque), self.last)
        put32(start, at - start - 4)
        put32(start + 4, <uint32_t>send.kind << 24 | <uint32_t>(at - start - 8))
        self.output.size += at - start
        return 0


def answer_sends(batch, form, other):
    """See :func:`gantrymq.kernel.fast.plain_requests.answer_sends`."""
    cdef AppendRows some
    cdef Replies replies
    cdef SendRequest send
    cdef Sender* sender
    cdef Row* row
    cdef int32_t number, following = 0
    cdef object connection = None
    if type(batch) is not AppendRows or (<AppendRows>batch).listed or not (<AppendRows>batch).placed:
        return plain.answer_sends(batch, form, other)
    some = <AppendRows>batch
    if some.made[QUEUE_IDS] is not None or some.some_made(ORIGINS, COLUMNS):
        return answer_lists(some, form, other)
    replies = Replies(form)
    for number in range(some.senders_count):
        sender = &some.senders[number]
        if sender.first < following:
            continue
        origin = some.origins_kept[number]
        if type(origin) is not SendRequest or some.remarks or (sender.kind == MOVABLE and some.answers):
            replies.output.let_go(connection)
            following = other(batch, sender.first)
            continue
        send = <SendRequest>origin
        if send.connection is not connection:
            replies.output.let_go(connection)
            connection = send.connection
        if not (send.answered or send.flag & ONEWAY):
            send.answered = True
            row = &some.rows[sender.first]
            replies.add(send, row, sender.count, send.queue_id if sender.kind == MOVABLE else row.queue_id)
    replies.output.let_go(connection)


def answer_rows(batch):
    """See :func:`gantrymq.kernel.fast.plain_requests.answer_rows`."""
    cdef AppendRows some
    cdef HotRequest request
    cdef object connection = None
    cdef bytes frame
    cdef Output output = Output()
    if type(batch) is not AppendRows or not (<AppendRows>batch).all_stored():
        return plain.answer_rows(batch)
    some = <AppendRows>batch
    for origin in some.origins_kept:
        if origin is None:
            continue
        if not isinstance(origin, HotRequest):
            output.let_go(connection)
            origin.answer(SUCCESS)
            continue
        request = <HotRequest>origin
        if request.answered or request.flag & ONEWAY:
            continue
        request.answered = True
        if request.connection is not connection:
            output.let_go(connection)
            connection = request.connection
        frame = short_answer(SUCCESS, request.kind, request.opaque)
        put_bytes(output.reserve(PyBytes_GET_SIZE(frame)), frame)
        output.size += PyBytes_GET_SIZE(frame)
    output.let_go(connection)


@cython.boundscheck(True)
@cython.wraparound(True)
cdef int answer_lists(AppendRows some, form, other) except -1:
    """As :func:`answer_sends`, where somebody may have changed a column that the replies tell of."""
    cdef list origins = some.column(ORIGINS), statuses = some.column(STATUSES), queue_ids = some.column(QUEUE_IDS)
    cdef list queue_offsets = some.column(QUEUE_OFFSETS), offsets = some.column(OFFSETS)
    cdef Py_ssize_t row = 0, count = some.count
    cdef int64_t queue_id = 0, queue_offset = 0, offset = 0
    cdef Replies replies = Replies(form)
    cdef SendRequest send
    cdef Row fields
    cdef object connection = None
    if not count == len(origins) == len(statuses) == len(queue_ids) == len(queue_offsets) == len(offsets):
        return plain.answer_sends(some, form, other)
    while row < count:
        if (
            type(origins[row]) is SendRequest and statuses[row] == SUCCESS and row not in some.remarks
            and as_int32(queue_ids[row], &queue_id) and as_int64(queue_offsets[row], &queue_offset)
            and as_int64(offsets[row], &offset)
        ):
            send = <SendRequest>origins[row]
            if send.connection is not connection:
                replies.output.let_go(connection)
                connection = send.connection
            if not (send.answered or send.flag & ONEWAY):
                send.answered = True
                fields.queue_offset, fields.offset = queue_offset, offset
                replies.add(send, &fields, 1, <int32_t>queue_id)
            row += 1
            continue
        replies.output.let_go(connection)
        row = other(some, row)
    replies.output.let_go(connection)
    return 0

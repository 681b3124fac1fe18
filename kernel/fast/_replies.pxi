# Encodes the responses to the requests from which rows come. A part of _requests.pyx.


cdef class Output:
    """A growing buffer of bytes to send."""

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef uint8_t* reserve(self, Py_ssize_t more) except NULL:
        """Make room for ``more`` bytes; returns where to write them."""
        cdef void* moved
        if self.size + more > self.room:
            moved = PyMem_Realloc(self.start, 2 * (self.size + more))
            if moved == NULL:
                raise MemoryError
            self.start = <uint8_t*>moved
            self.room = 2 * (self.size + more)
        return self.start + self.size

    cdef int let_go(self, connection) except -1:
        """Send the buffered bytes, if there are some."""
        cdef bytes data
        if self.size:
            data = PyBytes_FromStringAndSize(<const char*>self.start, self.size)
            self.size = 0
            connection.send_bytes(data)
        return 0


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
        frame = short_response(SUCCESS, request.kind, request.opaque)
        put_bytes(output.reserve(PyBytes_GET_SIZE(frame)), frame)
        output.size += PyBytes_GET_SIZE(frame)
    output.let_go(connection)

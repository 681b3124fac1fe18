# Receives from and sends to many sockets at once. A part of _requests.pyx.

from socket import socket as system_socket

cdef extern from "sys/socket.h" nogil:
    Py_ssize_t socket_read "recv"(int, void*, size_t, int)
    Py_ssize_t socket_write "send"(int, const void*, size_t, int)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef extern from "Python.h":
    char* PyByteArray_AS_STRING(object array)
    Py_ssize_t PyByteArray_GET_SIZE(object array)
    int PyByteArray_Resize(object array, Py_ssize_t size) except -1

cdef enum:
    RECEIVED_MAX = 262144
    PARTIAL_MAX = 131072  # a longer part of a frame is not copied for each receive
    SENT_MAX = 65536
    READABLE = 1  # EPOLLIN

# Used only while the global interpreter lock is held, except by a socket that decodes: ``is_decoding`` keeps others away.
cdef uint8_t[PARTIAL_MAX + RECEIVED_MAX] received
cdef bint is_decoding = False


cdef class CodecSocket:
    """See ``_requests.pxd``. The compiled twin of a plugin that replaces ``connection.sock`` extends this class."""

    cdef bytes decode(self, const uint8_t* at, Py_ssize_t size):
        raise NotImplementedError

    cdef bytes encode(self, bytes data):
        raise NotImplementedError

    cdef int keep_unsent(self, bytes encoded, Py_ssize_t sent, Py_ssize_t size) except -1:
        raise NotImplementedError


cdef struct Sending:
    int descriptor
    const char* data
    Py_ssize_t size
    Py_ssize_t sent


cdef bint read_hot_frames(connection, bytes data, Py_ssize_t size, Readers readers, list requests) except -1:
    """Append the requests of the whole frames that the first ``size`` bytes of ``data`` are. False, without a change,
    if the plain decoder has to decode one of them."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t position = 0, length, header_size, kept = 0
    cdef Py_ssize_t first = len(requests), number
    cdef uint32_t mark
    cdef HotRequest request
    cdef bint keeps_all, has_others = False
    cdef Block block = Block.__new__(Block)
    block.data = data
    while position < size:
        length = get32(at + position)
        mark = get32(at + position + 4)
        header_size = mark & 0xFFFFFF
        request = read_hot(
            block, at + position + 8, header_size, mark >> 24, readers, <size_t><PyObject*>connection
        )
        if request is None:
            del requests[first:]
            return False
        set_place(request, connection, block, at + position, header_size, length)
        requests.append(request)
        if request.keeps_frame:
            kept += length
        else:
            has_others = True
        position += 4 + length
    keeps_all = 4 * kept >= PyBytes_GET_SIZE(data)
    if has_others or not keeps_all:
        for number in range(first, len(requests)):
            request = <HotRequest>requests[number]
            if not (keeps_all and request.keeps_frame):
                request.move_out()
    return True


cdef int keep_rest(connection, const uint8_t* at, Py_ssize_t size, now) except -1:
    """Keep ``size`` bytes, the beginning of a frame, until the rest of it arrives."""
    cdef bytearray inbound = connection.inbound
    PyByteArray_Resize(inbound, size)
    memcpy(PyByteArray_AS_STRING(inbound), at, size)
    connection.partial_since = now if size else None
    return 0


def read_ready(
    list events, Py_ssize_t position, dict connections, list requests, now, read, int64_t limit, Readers readers,
    Py_ssize_t most, Py_ssize_t rows
):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_ready`."""
    global is_decoding
    cdef Py_ssize_t size, total = 0, partial, whole
    cdef const uint8_t* at
    cdef tuple event
    cdef bytes data
    cdef bytearray inbound
    cdef object connection
    cdef CodecSocket codec
    while position < len(events) and total < most and len(requests) < rows:
        event = events[position]
        connection = connections.get(event[0])
        if connection is None or event[1] != READABLE or connection.is_paused:
            break
        inbound = connection.inbound
        partial = PyByteArray_GET_SIZE(inbound)
        if partial:
            # With a whole frame, the connection waits for its next turn.
            at = <const uint8_t*>PyByteArray_AS_STRING(inbound)
            if partial > PARTIAL_MAX or whole_frames(at, partial, limit):
                break
        sock = connection.sock
        codec = None
        if type(sock) is not system_socket:
            if not isinstance(sock, CodecSocket) or not (<CodecSocket>sock).decodes:
                break
            codec = <CodecSocket>sock
        if is_decoding:
            break  # another thread
        # Behind the begun frame, if nothing has to be decoded: so each byte is copied once, into the requests' block.
        if codec is None and partial:
            memcpy(received, PyByteArray_AS_STRING(inbound), partial)
        size = socket_read(event[0], received + (partial if codec is None else 0), RECEIVED_MAX, MSG_DONTWAIT)
        if size <= 0:
            break  # the caller receives the same result again
        total += size
        if codec is None:
            at = received
            size += partial
            whole = whole_frames(at, size, limit)
            data = PyBytes_FromStringAndSize(<const char*>received, whole if whole > 0 else size)
        else:
            is_decoding = True
            try:
                data = codec.decode(received, size)
            finally:
                is_decoding = False
            if data is None:
                position += 1
                continue
            if PyBytes_GET_SIZE(data) == 0:
                break
            if partial:
                data = bytes(inbound) + data
            at = <const uint8_t*>PyBytes_AS_STRING(data)
            size = PyBytes_GET_SIZE(data)
            whole = whole_frames(at, size, limit)
        position += 1
        connection.active_at = now
        if whole <= 0 or not read_hot_frames(connection, data, whole, readers, requests):
            read(connection, PyBytes_FromStringAndSize(<const char*>at + partial, size - partial), requests, now)
            break  # it may have used up the turn
        if partial or whole < size:
            keep_rest(connection, at + whole, size - whole, now)
        if connection.silent_since is not None:
            connection.silent_since = None
    return position, total


def write_ready(connections):
    """See :func:`gantrymq.kernel.fast.plain_requests.write_ready`."""
    cdef list whole = [], left = [], encoded = []
    cdef list outbound
    cdef object connection, data, sock
    cdef bytes payload
    cdef Py_ssize_t number, count = 0, total = 0, size
    cdef Sending* sendings = <Sending*>PyMem_Malloc((len(connections) + 1) * sizeof(Sending))
    cdef Sending* one
    if sendings == NULL:
        raise MemoryError
    try:
        for connection in connections:
            if connection.closed:
                continue
            outbound = connection.outbound
            data = outbound[0] if len(outbound) == 1 else None
            if type(data) is not bytes or PyBytes_GET_SIZE(data) > SENT_MAX or connection.wants_write:
                left.append(connection)
                continue
            sock = connection.sock
            one = &sendings[count]
            payload = <bytes>data
            if type(sock) is system_socket:
                one.descriptor = sock.fileno()
            else:
                if not isinstance(sock, CodecSocket) or not (<CodecSocket>sock).encodes:
                    left.append(connection)
                    continue
                payload = (<CodecSocket>sock).encode(payload)
                if payload is None:
                    left.append(connection)
                    continue
                one.descriptor = (<CodecSocket>sock).descriptor
            one.data = PyBytes_AS_STRING(payload)
            one.size = PyBytes_GET_SIZE(payload)
            whole.append(connection)
            encoded.append(payload)
            count += 1
        with nogil:
            for number in range(count):
                one = &sendings[number]
                one.sent = socket_write(one.descriptor, one.data, one.size, MSG_DONTWAIT | MSG_NOSIGNAL)
        for number in range(count):
            connection = whole[number]
            one = &sendings[number]
            outbound = connection.outbound
            if one.sent == one.size:
                size = PyBytes_GET_SIZE(outbound[0])
                total += size
                connection.outbound_bytes -= size
                outbound.clear()
                connection.largest_response = 0
                continue
            left.append(connection)
            sock = connection.sock
            if isinstance(sock, CodecSocket):
                (<CodecSocket>sock).keep_unsent(encoded[number], max(one.sent, 0), PyBytes_GET_SIZE(outbound[0]))
            elif one.sent > 0:
                total += one.sent
                connection.outbound_bytes -= one.sent
                outbound[0] = outbound[0][one.sent:]
    finally:
        PyMem_Free(sendings)
    return left, total

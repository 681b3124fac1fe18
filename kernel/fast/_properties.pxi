# Finds and changes encoded properties. A part of _requests.pyx.


cdef bint find_value(const uint8_t* at, Py_ssize_t size, bytes name, Part* value) noexcept:
    """Find the first property ``name`` in encoded properties and set ``value``; False if there is none."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    while end - at > length:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > length and at[length] == 1 and memcmp(at, PyBytes_AS_STRING(name), length) == 0:
            value.at = at + length + 1
            value.size = <int32_t>(stop - value.at)
            return True
        if stop == end:
            break
        at = stop + 1
    return False


cdef Py_ssize_t change_properties(uint8_t* start, Py_ssize_t size, dict changes) except -1:
    """Change encoded properties as ``replace_properties`` does, in a buffer with enough room. Returns their size."""
    cdef const uint8_t* at = start
    cdef const uint8_t* end = start + size
    cdef const uint8_t* stop
    cdef const uint8_t* equals
    cdef uint8_t* to = start
    cdef bytes name, value
    cdef bint stays
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            equals = <const uint8_t*>memchr(at, 1, stop - at)
            size = (stop if equals == NULL else equals) - at
            stays = True
            for name in changes:
                if PyBytes_GET_SIZE(name) == size and memcmp(at, PyBytes_AS_STRING(name), size) == 0:
                    stays = False
            if stays:
                if to != start:
                    to[0] = 2
                    to += 1
                memmove(to, at, stop - at)
                to += stop - at
        at = stop + 1
    for name, value in changes.items():
        if value is not None:
            if to != start:
                to[0] = 2
                to += 1
            to = put_bytes(to, name)
            to[0] = 1
            to = put_bytes(to + 1, value)
    return to - start

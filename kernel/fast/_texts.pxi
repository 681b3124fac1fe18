# Reads and writes words and numbers of headers. Each compiled module that handles requests includes this file, because
# the compiler does not inline calls between modules.


cdef inline bint is_word(const uint8_t* at, Py_ssize_t size, const char* word, Py_ssize_t length) noexcept nogil:
    return size == length and memcmp(at, word, length) == 0


cdef bint read_number(const uint8_t* at, Py_ssize_t size, int64_t* value) noexcept nogil:
    """A decimal number of at most 18 digits without leading zeros."""
    cdef bint negative = False
    cdef int64_t result = 0
    cdef Py_ssize_t place
    if size and at[0] == c'-':
        negative = True
        at += 1
        size -= 1
    if size < 1 or size > 18 or (at[0] == c'0' and (size > 1 or negative)):
        return False
    for place in range(size):
        if at[place] < c'0' or at[place] > c'9':
            return False
        result = result * 10 + (at[place] - c'0')
    value[0] = -result if negative else result
    return True


cdef inline bint is_number(Text* text, int64_t* value, bint wide) noexcept nogil:
    return read_number(text.at, text.size, value) and (wide or -0x80000000LL <= value[0] <= 0x7FFFFFFFLL)


cdef inline int read_bool(Text* text) noexcept nogil:
    """1 for ``true``, 0 for ``false``, -1 for anything else."""
    if is_word(text.at, text.size, b"true", 4):
        return 1
    return 0 if is_word(text.at, text.size, b"false", 5) else -1


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

# Reads the escapes of JSON strings. Each compiled module that reads escaped texts of headers includes this file.


cdef int hex_digit(uint8_t letter) noexcept nogil:
    if c'0' <= letter <= c'9':
        return letter - c'0'
    letter |= 0x20
    return letter - c'a' + 10 if c'a' <= letter <= c'f' else -1


cdef inline Py_ssize_t read_escape(const uint8_t* at, const uint8_t* end, uint8_t* letter) noexcept nogil:
    """Read the escape at ``at``; returns its size, or 0 if it is not valid or not of an ASCII character."""
    cdef int high, low
    if end - at < 2:
        return 0
    letter[0] = at[1]
    if letter[0] == c'u':
        if end - at < 6 or at[2] != c'0' or at[3] != c'0':
            return 0
        high, low = hex_digit(at[4]), hex_digit(at[5])
        if high < 0 or high > 7 or low < 0:
            return 0
        letter[0] = high << 4 | low
        return 6
    if letter[0] == c'n':
        letter[0] = 10
    elif letter[0] == c't':
        letter[0] = 9
    elif letter[0] == c'r':
        letter[0] = 13
    elif letter[0] == c'b':
        letter[0] = 8
    elif letter[0] == c'f':
        letter[0] = 12
    elif letter[0] != c'"' and letter[0] != c'\\' and letter[0] != c'/':
        return 0
    return 2

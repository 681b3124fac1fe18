# Reads JSON and binary headers of requests into C fields, in the forms that clients write. A part of _requests.pyx.


cdef const uint8_t* read_text(const uint8_t* at, const uint8_t* end, Text* text) noexcept nogil:
    """Read a JSON string at ``at``; returns its end, NULL for an unusual form. Escapes are checked later."""
    cdef uint8_t letter
    if at >= end or at[0] != c'"':
        return NULL
    at += 1
    text.at = at
    text.escaped = text.wide = False
    while at < end:
        letter = at[0]
        if letter == c'"':
            text.size = at - text.at
            return at + 1
        if letter == c'\\':
            text.escaped = True
            at += 1
        elif letter >= 0x80:
            text.wide = True
        elif letter < 0x20:
            return NULL
        at += 1
    return NULL


cdef const uint8_t* read_json_number(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef const uint8_t* start = at
    while at < end and at[0] != c',' and at[0] != c'}':
        at += 1
    return at if read_number(start, at - start, value) else NULL


cdef const uint8_t* read_json_scalar(const uint8_t* at, const uint8_t* end, Text* text) noexcept nogil:
    """Read an integer, ``true`` or ``false`` as text, as fastjson converts it. NULL for anything else."""
    cdef int64_t number
    text.at = at
    text.escaped = text.wide = False
    while at < end and at[0] != c',' and at[0] != c'}':
        at += 1
    text.size = at - text.at
    if is_word(text.at, text.size, b"true", 4) or is_word(text.at, text.size, b"false", 5):
        return at
    return at if read_number(text.at, text.size, &number) else NULL


cdef const uint8_t* read_json_fields(const uint8_t* at, const uint8_t* end, Field* fields, int* count) noexcept nogil:
    cdef Field* field
    if at >= end or at[0] != c'{':
        return NULL
    at += 1
    while True:
        if count[0] == FIELDS_MAX:
            return NULL
        field = &fields[count[0]]
        at = read_text(at, end, &field.name)
        if at == NULL or at >= end or at[0] != c':' or field.name.escaped or field.name.wide:
            return NULL
        at += 1
        if at < end and at[0] != c'"':
            at = read_json_scalar(at, end, &field.value)
        else:
            at = read_text(at, end, &field.value)
        if at == NULL or at >= end:
            return NULL
        count[0] += 1
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL
        at += 1


cdef bint read_json(const uint8_t* at, Py_ssize_t size, Head* head, Field* fields) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef Text name, text
    cdef int seen = 0, bit
    cdef int64_t number
    head.flag = head.opaque = 0
    head.count = 0
    if size < 2 or at[0] != c'{':
        return False
    at += 1
    while True:
        at = read_text(at, end, &name)
        if at == NULL or at >= end or at[0] != c':' or name.escaped or name.wide:
            return False
        at += 1
        if is_word(name.at, name.size, b"code", 4):
            bit = 1
            at = read_json_number(at, end, &head.code)
        elif is_word(name.at, name.size, b"flag", 4):
            bit = 2
            at = read_json_number(at, end, &head.flag)
        elif is_word(name.at, name.size, b"opaque", 6):
            bit = 4
            at = read_json_number(at, end, &head.opaque)
        elif is_word(name.at, name.size, b"version", 7):
            bit = 8
            at = read_json_number(at, end, &number)
        elif is_word(name.at, name.size, b"extFields", 9):
            bit = 16
            at = read_json_fields(at, end, fields, &head.count)
        else:
            if is_word(name.at, name.size, b"language", 8):
                bit = 32
            elif is_word(name.at, name.size, b"serializeTypeCurrentRPC", 23):
                bit = 64
            elif is_word(name.at, name.size, b"remark", 6):
                bit = 128
            else:
                return False
            at = read_text(at, end, &text)
            if at == NULL or text.escaped or text.wide:
                return False
        if at == NULL or at >= end or seen & bit:
            return False
        seen |= bit
        if at[0] == c'}':
            return at + 1 == end and seen & 1
        if at[0] != c',':
            return False
        at += 1


cdef bint read_binary(const uint8_t* at, Py_ssize_t size, Head* head, Field* fields) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef Text* text
    cdef Py_ssize_t length, place
    cdef int part
    head.count = 0
    if size < 21 or get32(at + 13) != 0 or get32(at + 17) != <uint32_t>(size - 21):
        return False
    head.code = <int16_t>get16(at)
    head.opaque = <int32_t>get32(at + 5)
    head.flag = <int32_t>get32(at + 9)
    at += 21
    while at < end:
        if head.count == FIELDS_MAX:
            return False
        for part in range(2):
            text = &fields[head.count].value if part else &fields[head.count].name
            if end - at < (4 if part else 2):
                return False
            length = <int32_t>get32(at) if part else <int16_t>get16(at)
            at += 4 if part else 2
            if length < 1 or length > end - at:
                return False
            text.at = at
            text.size = length
            text.escaped = text.wide = False
            for place in range(length):
                if at[place] >= 0x80:
                    text.wide = True
                    break
            at += length
        if fields[head.count].name.wide:
            return False
        head.count += 1
    return True


cdef inline bint read_head(int kind, const uint8_t* at, Py_ssize_t size, Head* head, Field* fields) noexcept nogil:
    """Read a header of the ``kind`` that the frame declares; False if the plain decoder has to decode it."""
    return read_binary(at, size, head, fields) if kind else read_json(at, size, head, fields)


cdef list _names = [None] * 1024


cdef object name_of(Text* text):
    """A short ASCII text as ``str``; equal texts usually give the same object."""
    cdef uint32_t place = 2166136261
    cdef Py_ssize_t at, size
    cdef const char* known
    cdef object name
    for at in range(text.size):
        place = (place ^ text.at[at]) * 16777619
    place &= 1023
    name = _names[place]
    if name is not None:
        known = PyUnicode_AsUTF8AndSize(name, &size)
        if size == text.size and memcmp(known, text.at, size) == 0:
            return name
    name = PyUnicode_DecodeASCII(<const char*>text.at, text.size, NULL)
    if text.size <= NAME_MAX:
        _names[place] = name
    return name


cdef Py_ssize_t unescape(Text* text, uint8_t* start) noexcept nogil:
    """Write ``text`` with its escapes resolved to ``start``. Returns the size, or -1 if an escape is not valid or not
    of an ASCII character."""
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = at + text.size
    cdef uint8_t* to = start
    cdef Py_ssize_t size
    while at < end:
        if at[0] != c'\\':
            to[0] = at[0]
            size = 1
        else:
            size = read_escape(at, end, to)
            if size == 0:
                return -1
        to += 1
        at += size
    return to - start


cdef object text_in(Text* text):
    """The text as ``str``; None if the plain decoder has to decode it."""
    cdef Py_ssize_t size = text.size
    cdef const uint8_t* at = text.at
    cdef bytes plain
    if text.escaped:
        plain = PyBytes_FromStringAndSize(NULL, size)
        at = <const uint8_t*>PyBytes_AS_STRING(plain)
        size = unescape(text, <uint8_t*>at)
        if size < 0:
            return None
    try:
        return PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
    except UnicodeDecodeError:
        return None


cdef const uint8_t* utf8_in(Block block, Text* text, Py_ssize_t* size) except? NULL:
    """The text as UTF-8, in the received bytes or in the block's buffer; NULL if the plain decoder has to decode it."""
    cdef const uint8_t* at = text.at
    size[0] = text.size
    if text.escaped:
        at = block.room()
        size[0] = unescape(text, <uint8_t*>at)
        if size[0] < 0:
            return NULL
        block.used += size[0]
    if text.wide:
        try:
            PyUnicode_DecodeUTF8(<const char*>at, size[0], NULL)
        except UnicodeDecodeError:
            return NULL
    return at

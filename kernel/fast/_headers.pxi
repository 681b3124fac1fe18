# Reads JSON and binary headers of requests into C fields, in the forms that clients write. A part of _requests.pyx.

cdef enum:
    # What a value in a JSON header is: the number of its field, or one of these.
    FOR_CODE = -1
    FOR_FLAG = -2
    FOR_OPAQUE = -3
    FOR_NUMBER = -4
    FOR_WORD = -5
    MARKS_MAX = FIELDS_MAX + 7
    SHAPES = 256  # a power of two; connections and codes with the same place replace each other's headers
    SHAPE_BYTES = 1024


cdef struct Mark:
    # Where a value and the name of its field are in a header, in bytes from its start. A quoted value has its quotes
    # around it.
    int32_t start
    int32_t end
    int32_t name
    int32_t name_size
    int kind
    bint quoted
    bint escaped
    bint wide


cdef struct Marks:
    int count
    Mark all[MARKS_MAX]


cdef struct Shape:
    int32_t size
    Head head
    Marks marks
    uint8_t bytes[SHAPE_BYTES]


cdef inline bint is_plain_text(const uint8_t* at) noexcept nogil:
    """Whether none of the 8 bytes at ``at`` is a quote, a backslash, a control character or part of a wide letter."""
    cdef uint64_t word, ones = 0x0101010101010101ULL
    memcpy(&word, at, 8)
    # In bytes below 128 a subtraction sets the highest bit only if it borrows; what an earlier byte borrows is found
    # there already.
    return not (
        word | ((word ^ 0x22 * ones) - ones) | ((word ^ 0x5C * ones) - ones) | (word - 0x20 * ones)
    ) & 0x80 * ones


cdef const uint8_t* read_text(const uint8_t* at, const uint8_t* end, Text* text) noexcept nogil:
    """Read a JSON string at ``at``; returns its end, NULL for an unusual form. Escapes are checked later."""
    cdef uint8_t letter
    if at >= end or at[0] != c'"':
        return NULL
    at += 1
    text.at = at
    text.escaped = text.wide = False
    while at < end:
        if end - at >= 8 and is_plain_text(at):
            at += 8
            continue
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


cdef const uint8_t* read_value(
    const uint8_t* at, const uint8_t* end, int kind, bint quoted, Head* head, Field* fields
) noexcept nogil:
    """Read the value at ``at`` (behind the quote of a ``quoted`` one) into its place.

    Returns where the value ends, which is at its closing quote if it is ``quoted``; NULL for an unusual form.
    """
    cdef Text ignored
    cdef int64_t number
    cdef Text* text = &fields[kind].value if kind >= 0 else &ignored
    if quoted:
        at = read_text(at - 1, end, text)
        if at == NULL or (kind < 0 and (text.escaped or text.wide)):
            return NULL
        return at - 1
    if kind >= 0:
        return read_json_scalar(at, end, text)
    if kind == FOR_CODE:
        return read_json_number(at, end, &head.code)
    if kind == FOR_FLAG:
        return read_json_number(at, end, &head.flag)
    if kind == FOR_OPAQUE:
        return read_json_number(at, end, &head.opaque)
    return read_json_number(at, end, &number) if kind == FOR_NUMBER else NULL


cdef const uint8_t* read_marked(
    const uint8_t* start, const uint8_t* at, const uint8_t* end, int kind, Head* head, Field* fields, Marks* marks
) noexcept nogil:
    """Read the value at ``at`` and mark it; returns its end, NULL for an unusual form."""
    cdef bint quoted = at < end and at[0] == c'"'
    cdef Mark* mark = &marks.all[marks.count]
    at += quoted
    mark.kind = kind
    mark.quoted = quoted
    mark.start = <int32_t>(at - start)
    at = read_value(at, end, kind, quoted, head, fields)
    if at == NULL:
        return NULL
    mark.end = <int32_t>(at - start)
    marks.count += 1
    return at + quoted


cdef const uint8_t* read_json_fields(
    const uint8_t* start, const uint8_t* at, const uint8_t* end, Head* head, Field* fields, Marks* marks
) noexcept nogil:
    cdef Field* field
    if at >= end or at[0] != c'{':
        return NULL
    at += 1
    while True:
        if head.count == FIELDS_MAX:
            return NULL
        field = &fields[head.count]
        at = read_text(at, end, &field.name)
        if at == NULL or at >= end or at[0] != c':' or field.name.escaped or field.name.wide:
            return NULL
        at = read_marked(start, at + 1, end, head.count, head, fields, marks)
        if at == NULL or at >= end:
            return NULL
        head.count += 1
        if at[0] == c'}':
            return at + 1
        if at[0] != c',':
            return NULL
        at += 1


cdef bint read_json(const uint8_t* at, Py_ssize_t size, Head* head, Field* fields, Marks* marks) noexcept nogil:
    cdef const uint8_t* start = at
    cdef const uint8_t* end = at + size
    cdef Text name
    cdef int seen = 0, bit, kind
    head.flag = head.opaque = head.layout = 0
    head.count = marks.count = 0
    if size < 2 or at[0] != c'{':
        return False
    at += 1
    while True:
        at = read_text(at, end, &name)
        if at == NULL or at >= end or at[0] != c':' or name.escaped or name.wide:
            return False
        at += 1
        kind = FOR_NUMBER
        if is_word(name.at, name.size, b"code", 4):
            bit = 1
            kind = FOR_CODE
        elif is_word(name.at, name.size, b"flag", 4):
            bit = 2
            kind = FOR_FLAG
        elif is_word(name.at, name.size, b"opaque", 6):
            bit = 4
            kind = FOR_OPAQUE
        elif is_word(name.at, name.size, b"version", 7):
            bit = 8
        elif is_word(name.at, name.size, b"extFields", 9):
            bit = 16
        elif is_word(name.at, name.size, b"language", 8):
            bit = 32
            kind = FOR_WORD
        elif is_word(name.at, name.size, b"serializeTypeCurrentRPC", 23):
            bit = 64
            kind = FOR_WORD
        elif is_word(name.at, name.size, b"remark", 6):
            bit = 128
            kind = FOR_WORD
        else:
            return False
        if seen & bit:
            return False
        seen |= bit
        if bit == 16:
            at = read_json_fields(start, at, end, head, fields, marks)
        elif at < end and (at[0] == c'"') == (kind == FOR_WORD):
            at = read_marked(start, at, end, kind, head, fields, marks)
        else:
            return False
        if at == NULL or at >= end:
            return False
        if at[0] == c'}':
            return at + 1 == end and seen & 1
        if at[0] != c',':
            return False
        at += 1


# A client sends headers that differ in a few values. So the last header of each connection and code is kept with the
# places of its values. Where the next one has the same bytes, it is read already: only the values that differ are read.

cdef Shape _shapes[SHAPES]
cdef int64_t _layouts = 0


cdef inline Py_ssize_t same_bytes(const uint8_t* one, const uint8_t* other, Py_ssize_t size) noexcept nogil:
    """How many bytes both have in common at their start."""
    cdef Py_ssize_t at = 0
    while size - at >= 8 and memcmp(one + at, other + at, 8) == 0:
        at += 8
    while at < size and one[at] == other[at]:
        at += 1
    return at


cdef inline Shape* shape_of(size_t sender, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Where the shape of this sender's headers that begin so is kept; NULL for a header that is not kept."""
    cdef uint32_t code
    if not 16 <= size <= SHAPE_BYTES or sender == 0:
        return NULL
    memcpy(&code, at + 8, 4)  # behind {"code":
    return &_shapes[((<uint32_t>(sender >> 4) ^ code) * 2654435761u) >> 16 & (SHAPES - 1)]


cdef bint read_as(Shape* shape, const uint8_t* at, Py_ssize_t size, Head* head, Field* fields) noexcept nogil:
    """Read a header that differs from that of ``shape`` in values only; False for any other."""
    cdef const uint8_t* known = shape.bytes
    cdef const uint8_t* end
    cdef Py_ssize_t place = 0, shift = 0
    cdef int number = 0, index
    cdef Mark* mark
    cdef Text* text
    head[0] = shape.head
    while True:
        place += same_bytes(known + place, at + place + shift, min(shape.size - place, size - place - shift))
        # The byte behind a value ends it, so it must be the same too.
        while number < shape.marks.count and shape.marks.all[number].end < place:
            mark = &shape.marks.all[number]
            number += 1
            if mark.kind >= 0:
                text = &fields[mark.kind].value
                text.at = at + mark.start + shift
                text.size = mark.end - mark.start
                text.escaped = mark.escaped
                text.wide = mark.wide
                text = &fields[mark.kind].name
                text.at = at + mark.name + shift
                text.size = mark.name_size
                text.escaped = text.wide = False
        if number == shape.marks.count:
            return place == shape.size and size == place + shift
        mark = &shape.marks.all[number]
        if place < mark.start:
            return False
        number += 1
        end = read_value(at + mark.start + shift, at + size, mark.kind, mark.quoted, head, fields)
        if end == NULL:
            return False
        if mark.kind >= 0:
            text = &fields[mark.kind].name
            text.at = at + mark.name + shift
            text.size = mark.name_size
            text.escaped = text.wide = False
        place = mark.end
        shift = end - at - mark.end


cdef void keep_shape(
    Shape* shape, const uint8_t* at, Py_ssize_t size, Head* head, Field* fields, Marks* marks
) noexcept nogil:
    global _layouts
    cdef int number
    cdef Mark* mark
    cdef Field* field
    _layouts += 1
    head.layout = _layouts
    memcpy(shape.bytes, at, size)
    shape.size = <int32_t>size
    shape.head = head[0]
    shape.marks.count = marks.count
    for number in range(marks.count):
        mark = &shape.marks.all[number]
        mark[0] = marks.all[number]
        if mark.kind >= 0:
            field = &fields[mark.kind]
            mark.escaped = field.value.escaped
            mark.wide = field.value.wide
            mark.name = <int32_t>(field.name.at - at)
            mark.name_size = <int32_t>field.name.size


cdef bint read_binary(const uint8_t* at, Py_ssize_t size, Head* head, Field* fields) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef Text* text
    cdef Py_ssize_t length, place
    cdef int part
    head.layout = head.count = 0
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


cdef bint read_head(
    int kind, const uint8_t* at, Py_ssize_t size, Head* head, Field* fields, size_t sender
) noexcept nogil:
    """Read a header of the ``kind`` that the frame declares; False if the plain decoder has to decode it.

    ``sender``: the same number for headers that are likely to differ in values only; 0 if that is not known.
    """
    cdef Marks marks
    cdef Shape* shape
    if kind:
        return read_binary(at, size, head, fields)
    shape = shape_of(sender, at, size)
    if shape != NULL and shape.size and read_as(shape, at, size, head, fields):
        return True
    if not read_json(at, size, head, fields, &marks):
        return False
    if shape != NULL:
        keep_shape(shape, at, size, head, fields, &marks)
    return True


# A plugin may read the headers of a turn again, for example to verify signatures. So once one did, the fields of the last
# headers are kept, and copied to the plugin instead of being read a second time.

cdef enum:
    FIELDS_KEPT = 256  # of so many headers, a power of two; they take 48 bytes for each field


cdef struct KeptHeader:
    int64_t number
    const uint8_t* at
    int64_t layout
    int count
    Field fields[FIELDS_MAX]

# Used only while the global interpreter lock is held.
cdef KeptHeader _kept_headers[FIELDS_KEPT]
cdef int64_t _headers_kept = 0
cdef bint _are_read_again = False


cdef int64_t keep_fields(const uint8_t* at, Head* head, Field* fields) noexcept:
    """Keep the fields of the header at ``at``; returns its number."""
    global _headers_kept
    cdef KeptHeader* kept
    _headers_kept += 1
    kept = &_kept_headers[_headers_kept & (FIELDS_KEPT - 1)]
    kept.number = _headers_kept
    kept.at = at
    kept.layout = head.layout
    kept.count = head.count
    memcpy(kept.fields, fields, head.count * sizeof(Field))
    return _headers_kept


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

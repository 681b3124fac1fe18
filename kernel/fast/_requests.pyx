# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.kernel.fast.plain_requests`: requests, rows of sends, replies, pull bodies.

It reads frames, JSON and binary headers of the hot requests in the forms that clients write, without an object for each
field. Whatever has another form (blanks, odd escapes, doubled or unknown top-level keys, numbers out of range, errors)
is decoded by :mod:`gantrymq.remoting`, so that both twins refuse alike.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

include "_bytes.pxi"

from gantrymq.kernel.batch import Trait
from gantrymq.kernel.fast import plain_requests as plain
from gantrymq.kernel.processors import Request
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command, decode
from gantrymq.remoting.frame import HEADER_MAX_BYTES, Frame
from gantrymq.remoting.headers import PullMessageHeader

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

prepare_crc()

KIND = "compiled"

cdef enum:
    SEND_V2 = 310
    SEND_BATCH = 320
    PULL = 11
    LITE_PULL = 361
    RESPONSE = 1
    ONEWAY = 2
    FIELDS_MAX = 32
    BORN_HOST_V6 = 0x10
    PROPERTIES_MAX = 32767
    SCRATCH = 1 << 17
    NAME_MAX = 256
    FILLER_SIZE = 0x7FFFFFFF

cdef object SUCCESS = ResponseCode.SUCCESS
cdef object BATCH = Trait.BATCH
cdef Py_ssize_t HEADER_MAX = HEADER_MAX_BYTES
cdef uint8_t scratch[SCRATCH]


cdef struct Text:
    const uint8_t* at
    Py_ssize_t size
    bint escaped
    bint wide


cdef struct Field:
    Text name
    Text value


cdef struct Head:
    int64_t code
    int64_t flag
    int64_t opaque
    int count


# --------------------------------------------------------------------------------------------------------- headers


cdef inline bint is_word(const uint8_t* at, Py_ssize_t size, const char* word, Py_ssize_t length) noexcept nogil:
    return size == length and memcmp(at, word, length) == 0


cdef const uint8_t* read_text(const uint8_t* at, const uint8_t* end, Text* text) noexcept nogil:
    """A JSON string at ``at``; returns what is behind it, NULL for anything odd. Escapes are checked later."""
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


cdef const uint8_t* read_json_number(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef const uint8_t* start = at
    while at < end and at[0] != c',' and at[0] != c'}':
        at += 1
    return at if read_number(start, at - start, value) else NULL


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
        at = read_text(at + 1, end, &field.value)
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


# ----------------------------------------------------------------------------------------------------------- texts

cdef list _names = [None] * 1024


cdef object name_of(Text* text):
    """A short ASCII text as ``str``; those that were met before are the same object."""
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


cdef int hex_digit(uint8_t letter) noexcept nogil:
    if c'0' <= letter <= c'9':
        return letter - c'0'
    letter |= 0x20
    return letter - c'a' + 10 if c'a' <= letter <= c'f' else -1


cdef Py_ssize_t unescape(Text* text) noexcept nogil:
    """Write ``text`` without its escapes into ``scratch``; its size, -1 for an escape of more than ASCII or none."""
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = at + text.size
    cdef uint8_t* to = scratch
    cdef uint8_t letter
    cdef int high, low
    while at < end:
        letter = at[0]
        at += 1
        if letter != c'\\':
            to[0] = letter
            to += 1
            continue
        letter = at[0]
        at += 1
        if letter == c'u':
            if end - at < 4 or at[0] != c'0' or at[1] != c'0':
                return -1
            high, low = hex_digit(at[2]), hex_digit(at[3])
            if high < 0 or high > 7 or low < 0:
                return -1
            letter = high << 4 | low
            at += 4
        elif letter == c'n':
            letter = 10
        elif letter == c't':
            letter = 9
        elif letter == c'r':
            letter = 13
        elif letter == c'b':
            letter = 8
        elif letter == c'f':
            letter = 12
        elif letter != c'"' and letter != c'\\' and letter != c'/':
            return -1
        to[0] = letter
        to += 1
    return to - scratch


cdef bytes utf8_of(Text* text):
    """The decoded text as UTF-8, or None where only the plain decoder can tell what it is."""
    cdef Py_ssize_t size = text.size
    cdef bytes raw
    if size > HEADER_MAX:
        return None
    if text.escaped:
        size = unescape(text)
        if size < 0:
            return None
        raw = PyBytes_FromStringAndSize(<const char*>scratch, size)
    else:
        raw = PyBytes_FromStringAndSize(<const char*>text.at, size)
    if text.wide:
        try:
            PyUnicode_DecodeUTF8(PyBytes_AS_STRING(raw), size, NULL)
        except UnicodeDecodeError:
            return None
    return raw


cdef inline bint is_number(Text* text, int64_t* value, bint wide) noexcept nogil:
    return read_number(text.at, text.size, value) and (wide or -0x80000000LL <= value[0] <= 0x7FFFFFFFLL)


cdef inline int read_bool(Text* text) noexcept nogil:
    """1, 0, or -1 for what is neither ``true`` nor ``false``."""
    if is_word(text.at, text.size, b"true", 4):
        return 1
    return 0 if is_word(text.at, text.size, b"false", 5) else -1


# -------------------------------------------------------------------------------------------------------- requests


@cython.no_gc
cdef class HotRequest:
    """A request whose header was read without a ``Command``; that one is made when somebody asks for it.

    The collector of cycles does not look at it: a connection knows nothing of its requests.
    """

    cdef readonly object connection
    cdef readonly int code
    cdef public bint answered
    cdef int opaque
    cdef int flag
    cdef int kind
    cdef bytes header
    cdef bytes body
    cdef object _command

    @property
    def command(self):
        """The request as :mod:`gantrymq.remoting` decodes it."""
        if self._command is None:
            self._command = decode(Frame(self.kind, self.header, self.body))
        return self._command

    def forget(self):
        """See :meth:`gantrymq.kernel.processors.Request.forget`."""
        self.header = self.body = b""
        self._command = Command(self.code, None, b"", self.opaque, self.flag, kind=self.kind)

    def answer(self, code, remark=None, ext=None, body=b""):
        """See :meth:`gantrymq.kernel.processors.Request.answer`."""
        if not (self.answered or self.flag & ONEWAY):
            self.answered = True
            self.connection.send(Command(code, ext, body, self.opaque, RESPONSE, remark, kind=self.kind))


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


@cython.no_gc
@cython.final
cdef class PullRequest(HotRequest):
    """PULL_MESSAGE or LITE_PULL_MESSAGE."""

    cdef object group
    cdef object topic
    cdef object subscription
    cdef object expression_type
    cdef int64_t numbers[7]


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


cdef int pull_field(Text* name) noexcept nogil:
    """Which field of a pull this is: 0 to 6 numbers, 7 and 8 required texts, 9 and 10 optional ones, -1 unknown."""
    cdef const uint8_t* at = name.at
    cdef Py_ssize_t size = name.size
    if is_word(at, size, b"queueId", 7): return 0
    if is_word(at, size, b"queueOffset", 11): return 1
    if is_word(at, size, b"maxMsgNums", 10): return 2
    if is_word(at, size, b"sysFlag", 7): return 3
    if is_word(at, size, b"commitOffset", 12): return 4
    if is_word(at, size, b"suspendTimeoutMillis", 20): return 5
    if is_word(at, size, b"subVersion", 10): return 6
    if is_word(at, size, b"consumerGroup", 13): return 7
    if is_word(at, size, b"topic", 5): return 8
    if is_word(at, size, b"subscription", 12): return 9
    if is_word(at, size, b"expressionType", 14): return 10
    return -1


cdef PullRequest read_pull(Field* fields, int count):
    """As :func:`read_send`."""
    cdef Text* texts[11]
    cdef int number, place
    cdef PullRequest pull = PullRequest.__new__(PullRequest)
    for place in range(11):
        texts[place] = NULL
    for number in range(count):
        if fields[number].value.escaped or fields[number].value.wide:
            return None
        place = pull_field(&fields[number].name)
        if place >= 0:
            if texts[place] != NULL:
                return None
            texts[place] = &fields[number].value
    for place in range(9):
        if texts[place] == NULL:
            return None
    for place in range(7):
        if not is_number(texts[place], &pull.numbers[place], place in (1, 4, 5, 6)):
            return None
    pull.group = name_of(texts[7])
    pull.topic = name_of(texts[8])
    pull.subscription = name_of(texts[9]) if texts[9] != NULL else None
    pull.expression_type = name_of(texts[10]) if texts[10] != NULL else None
    return pull


cdef HotRequest read_hot(const uint8_t* header, Py_ssize_t size, int kind):
    """The request with this header, or None when the plain decoder must look at it."""
    cdef Field fields[FIELDS_MAX]
    cdef Head head
    cdef HotRequest request
    cdef bint known = read_binary(header, size, &head, fields) if kind else read_json(header, size, &head, fields)
    if not known or head.flag & RESPONSE or not -0x80000000LL <= head.opaque <= 0x7FFFFFFFLL:
        return None
    if not 0 <= head.flag <= 0x7FFFFFFF:
        return None
    if head.code == SEND_V2 or head.code == SEND_BATCH:
        request = read_send(fields, head.count)
    elif head.code == PULL or head.code == LITE_PULL:
        request = read_pull(fields, head.count)
    else:
        return None
    if request is not None:
        request.code = <int>head.code
        request.opaque = <int>head.opaque
        request.flag = <int>head.flag
        request.kind = kind
    return request


cdef Py_ssize_t whole_frames(const uint8_t* data, Py_ssize_t size, int64_t limit) noexcept nogil:
    """How many bytes the whole frames at the start take; -1 when one is not as it must be."""
    cdef Py_ssize_t position = 0
    cdef int64_t length
    cdef uint32_t mark
    while size - position >= 4:
        length = <int32_t>get32(data + position)
        if length < 4 or length + 4 > limit:
            return -1
        if size - position < 8:
            break
        mark = get32(data + position + 4)
        if (mark & 0xFFFFFF) > length - 4 or (mark & 0xFFFFFF) > HEADER_MAX or mark >> 24 > 1:
            return -1
        if position + 4 + length > size:
            break
        position += 4 + length
    return position


def read_requests(connection, buffer, limit):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_requests`."""
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t size = len(view), taken, position = 0, header_size, length
    cdef const uint8_t* data = &view[0] if size else NULL
    cdef const uint8_t* header
    cdef uint32_t mark
    cdef HotRequest request
    cdef list requests = []
    taken = whole_frames(data, size, limit)
    if taken < 0:
        return plain.read_requests(connection, buffer, limit)
    while position < taken:
        length = get32(data + position)
        mark = get32(data + position + 4)
        header_size = mark & 0xFFFFFF
        header = data + position + 8
        request = read_hot(header, header_size, mark >> 24)
        header_bytes = PyBytes_FromStringAndSize(<const char*>header, header_size)
        body = PyBytes_FromStringAndSize(<const char*>header + header_size, length - 4 - header_size)
        position += 4 + length
        if request is not None:
            request.connection = connection
            request.header = header_bytes
            request.body = body
            requests.append(request)
            continue
        command = decode(Frame(mark >> 24, header_bytes, body))
        if command.is_response:
            connection.take_answer(command)
        else:
            requests.append(Request(connection, command))
    return requests, taken


def read_pull_header(request):
    """See :func:`gantrymq.kernel.fast.plain_requests.read_pull_header`."""
    cdef PullRequest pull
    if type(request) is not PullRequest:
        return plain.read_pull_header(request)
    pull = request
    return PullMessageHeader(
        consumer_group=pull.group,
        topic=pull.topic,
        queue_id=pull.numbers[0],
        queue_offset=pull.numbers[1],
        max_msg_nums=pull.numbers[2],
        sys_flag=pull.numbers[3],
        commit_offset=pull.numbers[4],
        suspend_timeout_millis=pull.numbers[5],
        subscription=pull.subscription,
        sub_version=pull.numbers[6],
        expression_type=pull.expression_type,
    )


# ----------------------------------------------------------------------------------------------------------- sends


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


# --------------------------------------------------------------------------------------------------------- replies


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

    cdef bytes take(self):
        cdef bytes data = PyBytes_FromStringAndSize(<const char*>self.start, self.size)
        self.size = 0
        return data


cdef inline uint8_t* put_bytes(uint8_t* at, bytes data) noexcept:
    memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef inline uint8_t* put_number(uint8_t* at, int64_t value) noexcept nogil:
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

    cdef int add(self, SendRequest send, int64_t queue_id, int64_t queue_offset, int64_t offset) except -1:
        cdef uint8_t* start = self.output.reserve(self.most)
        cdef uint8_t* at = start + 8
        cdef uint8_t* fields
        if send.kind:
            at = put_bytes(at, self.fixed)
            put32(start + 8 + 5, <uint32_t>send.opaque)
            put32(at, 0)
            fields = at + 8
            at = put_bytes(fields, self.fields)
            at = put_name(at, b"msgId", 5)
            put32(at, PyBytes_GET_SIZE(self.id_prefix) + 16)
            at = put_hex(put_bytes(at + 4, self.id_prefix), <uint64_t>offset)
            at = put_field_number(at, b"queueId", 7, queue_id)
            at = put_field_number(at, b"queueOffset", 11, queue_offset)
            put32(fields - 4, at - fields)
        else:
            at = put_bytes(put_hex(put_bytes(put_bytes(at, self.first), self.id_prefix), <uint64_t>offset), self.second)
            at = put_bytes(put_number(at, queue_id), self.third)
            at = put_bytes(put_number(at, queue_offset), self.fourth)
            at = put_bytes(put_number(at, send.opaque), self.last)
        put32(start, at - start - 4)
        put32(start + 4, <uint32_t>send.kind << 24 | <uint32_t>(at - start - 8))
        self.output.size += at - start
        return 0


def answer_sends(batch, form, other):
    """See :func:`gantrymq.kernel.fast.plain_requests.answer_sends`."""
    cdef list origins = batch.origins, statuses = batch.statuses, queue_ids = batch.queue_ids
    cdef list queue_offsets = batch.queue_offsets, offsets = batch.offsets
    cdef dict remarks = batch.remarks
    cdef Py_ssize_t row = 0, count = len(origins)
    cdef Replies replies = Replies(form)
    cdef SendRequest send
    cdef object connection = None
    if not count == len(statuses) == len(queue_ids) == len(queue_offsets) == len(offsets):
        return plain.answer_sends(batch, form, other)
    while row < count:
        if type(origins[row]) is SendRequest and statuses[row] == 0 and (not remarks or row not in remarks):
            send = <SendRequest>origins[row]
            if send.connection is not connection:
                if replies.output.size:
                    connection.send_bytes(replies.output.take())
                connection = send.connection
            if not (send.answered or send.flag & ONEWAY):
                send.answered = True
                replies.add(send, queue_ids[row], queue_offsets[row], offsets[row])
            row += 1
            continue
        if replies.output.size:
            connection.send_bytes(replies.output.take())
        row = other(batch, row)
    if replies.output.size:
        connection.send_bytes(replies.output.take())


# ----------------------------------------------------------------------------------------------------------- pulls


cdef struct Run:
    const uint8_t* at
    Py_ssize_t size


cdef bint is_record(const uint8_t* at, int64_t size, int64_t offset) noexcept nogil:
    """See :func:`gantrymq.kernel.record.is_intact`; ``size`` bytes are there."""
    cdef int64_t body_at, end
    cdef uint32_t bits, magic
    if size < 88:
        return False
    magic = get32(at + 4)
    bits = get32(at + 36)
    body_at = 88 + (12 if bits & 0x10 else 0) + (12 if bits & 0x20 else 0)
    if size < body_at or <int32_t>get32(at) != size or <int64_t>get64(at + 28) != offset:
        return False
    end = body_at + <int64_t>get32(at + body_at - 4)
    return (
        end < size and (magic == 0xDAA320A7u or magic == 0xDAA320ABu)
        and crc32(at + body_at, end - body_at) & 0x7FFFFFFF == get32(at + 8)
    )


def gather(bytes entries, Py_ssize_t limit, int64_t max_bytes, int64_t oldest, matches, window, damaged):
    """See :func:`gantrymq.kernel.fast.plain_requests.gather`."""
    cdef const uint8_t* entry = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(entries) // 20, number, runs = 0, found = 0, scanned = 0, filled = 0
    cdef int64_t at, size, total = 0, base = 0, end = 0
    cdef bint removed = False
    cdef const uint8_t[::1] view
    cdef const uint8_t* data = NULL
    cdef const uint8_t* record
    cdef list windows = []
    cdef bytes body
    cdef Run* some
    if PyBytes_GET_SIZE(entries) % 20:
        return plain.gather(entries, limit, max_bytes, oldest, matches, window, damaged)
    some = <Run*>PyMem_Malloc((min(count, limit) + 1) * sizeof(Run))
    if some == NULL:
        raise MemoryError
    try:
        for number in range(count):
            at = <int64_t>get64(entry)
            size = <int32_t>get32(entry + 8)
            if found >= limit or (found and total + size > max_bytes):
                break
            scanned += 1
            if size == FILLER_SIZE:
                pass
            elif at < oldest:
                removed = True
            elif matches is None or matches(<int64_t>get64(entry + 12)):
                if size < 0 or at < base or at + size > end:
                    memory = window(at, size)
                    if memory is None or size < 0:
                        entry += 20
                        continue
                    windows.append(memory)
                    view = memory
                    base, end = at, at + len(memory)
                    data = &view[0] if len(memory) else <const uint8_t*>b""
                record = data + (at - base)
                if at + size > end or not is_record(record, size, at):
                    damaged(at, size)
                    # What was just quarantined is not to be read through the window of before.
                    base = end = 0
                    entry += 20
                    continue
                if runs and some[runs - 1].at + some[runs - 1].size == record:
                    some[runs - 1].size += size
                else:
                    some[runs].at = record
                    some[runs].size = size
                    runs += 1
                found += 1
                total += size
            entry += 20
        if not found:
            return [], scanned, removed
        body = PyBytes_FromStringAndSize(NULL, total)
        for number in range(runs):
            memcpy(PyBytes_AS_STRING(body) + filled, some[number].at, some[number].size)
            filled += some[number].size
        return [body], scanned, removed
    finally:
        PyMem_Free(some)

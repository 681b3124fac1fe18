# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of :mod:`gantrymq.plugins.consume.plain`: requests to pull, and the bodies of their replies.

It uses the kernel's C structures of requests, and reads the header of a pull as the kernel reads any header.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp, memcpy

include "../../kernel/fast/_bytes.pxi"

from gantrymq.kernel.fast._requests cimport ONEWAY, Block, Field, HotRequest, RequestReader, Text, name_of

include "../../kernel/fast/_texts.pxi"

from gantrymq.plugins.consume import plain
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.pull import PullMessageHeader

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

prepare_crc()

KIND = "compiled"

cdef enum:
    MAX_BYTES = 7  # the index of gantrymqMaxBytes in the numbers of a pull
    FILLER_SIZE = 0x7FFFFFFF


@cython.no_gc
@cython.final
cdef class PullRequest(HotRequest):
    """PULL_MESSAGE or LITE_PULL_MESSAGE."""

    cdef object group
    cdef readonly object topic
    cdef object subscription
    cdef object expression_type
    cdef bint has_max_bytes
    cdef int64_t numbers[8]

    cdef int move_out(self) except -1:
        """Copy nothing: nearly all pulls are answered at once, and a held pull has dropped its bytes already."""
        return 0

    def own_frame(self):
        """See :meth:`HotRequest.own_frame`."""
        if self.block is not None and PyBytes_GET_SIZE(self.block.data) > self.header_size + self.body_size + 8:
            HotRequest.move_out(self)


cdef int pull_field(Text* name) noexcept nogil:
    """The field of a pull with this name: 0 to 6 are numbers, 7 and 8 required texts, 9 and 10 optional texts, 11 is an
    optional number; -1 if unknown."""
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
    if is_word(at, size, b"gantrymqMaxBytes", 16): return 11
    return -1


cdef PullRequest read_pull(Field* fields, int count):
    """The request with these fields, or None if the plain decoder has to decode it."""
    cdef Text* texts[12]
    cdef int number, place
    cdef PullRequest pull = PullRequest.__new__(PullRequest)
    for place in range(12):
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
    pull.numbers[MAX_BYTES] = 0
    if texts[11] != NULL and not is_number(texts[11], &pull.numbers[MAX_BYTES], False):
        return None
    pull.has_max_bytes = texts[11] != NULL
    pull.group = name_of(texts[7])
    pull.topic = name_of(texts[8])
    pull.subscription = name_of(texts[9]) if texts[9] != NULL else None
    pull.expression_type = name_of(texts[10]) if texts[10] != NULL else None
    return pull


@cython.final
cdef class PullReader(RequestReader):
    """Reads requests to pull."""

    cdef HotRequest read(self, Block block, Field* fields, int count, int code):
        return read_pull(fields, count)


READERS = dict.fromkeys((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE), PullReader())


def read_pull_header(request):
    """See :func:`gantrymq.plugins.consume.plain.read_pull_header`."""
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
        gantrymq_max_bytes=pull.numbers[MAX_BYTES] if pull.has_max_bytes else None,
    )


cdef struct Limits:
    int64_t messages
    int64_t size
    int64_t disk_messages
    int64_t disk_size
    int64_t disk_end


cdef inline bint is_full(const Limits* limits, int64_t messages, int64_t total, int64_t at, int64_t size) noexcept nogil:
    """Whether a response with this number of messages and bytes has no room for the record of this entry."""
    if not messages:
        return False
    if at < limits.disk_end:
        return messages >= limits.disk_messages or total + size > limits.disk_size
    return messages >= limits.messages or total + size > limits.size


cdef inline bint holds(int64_t base, int64_t length, int64_t at, int64_t size) noexcept nogil:
    """Whether the ``size`` bytes at ``at`` are within the ``length`` bytes at ``base``, which is not negative.

    An entry may come from a damaged file, so ``at + size`` may overflow 64 bits.
    """
    return at >= base and 0 <= size <= length and at - base <= length - size


cdef struct Run:
    const uint8_t* at
    Py_ssize_t size


cdef bint is_record(const uint8_t* at, int64_t size, int64_t offset) noexcept nogil:
    """See :func:`gantrymq.kernel.store.log.record.is_intact`; ``size`` bytes are there."""
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


cdef struct Owner:
    # Topic and queue that the records of a queue's entries must name; they are not checked if ``topic`` is NULL.
    const char* topic
    Py_ssize_t topic_size
    int64_t queue_id
    int64_t first


cdef bint is_of(const uint8_t* at, int64_t size, const Owner* owner, int64_t number) noexcept nogil:
    """Whether the record at ``at``, for which :func:`is_record` holds, belongs to this entry of a queue."""
    cdef int64_t topic_at, width, stored_width
    cdef uint32_t bits
    if owner.topic == NULL:
        return True
    bits = get32(at + 36)
    topic_at = 88 + (12 if bits & 0x10 else 0) + (12 if bits & 0x20 else 0)
    topic_at += <int64_t>get32(at + topic_at - 4)
    width = 1 if get32(at + 4) == 0xDAA320A7u else 2
    if topic_at + width + owner.topic_size > size:
        return False
    stored_width = at[topic_at] if width == 1 else get16(at + topic_at)
    return (
        stored_width == owner.topic_size and memcmp(at + topic_at + width, owner.topic, owner.topic_size) == 0
        and <int32_t>get32(at + 12) == owner.queue_id and <int64_t>get64(at + 20) == owner.first + number
    )


def gather(bytes entries, limits, int64_t oldest, matches, window, wrong, part):
    """See :func:`gantrymq.plugins.consume.plain.gather`."""
    cdef const uint8_t* entry = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(entries) // 20, number, runs = 0, found = 0, scanned = 0, filled = 0
    cdef int64_t at, size, total = 0, base = 0, length = 0
    cdef bint removed = False
    cdef const uint8_t[::1] view
    cdef const uint8_t* data = NULL
    cdef const uint8_t* record
    cdef list windows = []
    cdef bytes body
    cdef Run* some
    cdef Limits bounds
    cdef Owner owner
    cdef bytes topic
    cdef bint is_current = False
    if PyBytes_GET_SIZE(entries) % 20:
        return plain.gather(entries, limits, oldest, matches, window, wrong, part)
    owner.topic = NULL
    if part is not None:
        topic, owner.queue_id, owner.first, is_current = part
        owner.topic, owner.topic_size = PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    bounds.messages, bounds.size, bounds.disk_messages, bounds.disk_size, bounds.disk_end = limits
    some = <Run*>PyMem_Malloc((min(count, max(bounds.messages, bounds.disk_messages)) + 1) * sizeof(Run))
    if some == NULL:
        raise MemoryError
    try:
        for number in range(count):
            at = <int64_t>get64(entry)
            size = <int32_t>get32(entry + 8)
            if is_full(&bounds, found, total, at, size):
                break
            scanned += 1
            if size == FILLER_SIZE:
                pass
            elif at < oldest:
                if at < 0 or is_current:
                    wrong(number)
                else:
                    removed = True
            elif matches is None or matches(<int64_t>get64(entry + 12)):
                if not holds(base, length, at, size):
                    memory = window(number, at, size)
                    if memory is None or size < 0:
                        entry += 20
                        continue
                    windows.append(memory)
                    view = memory
                    base, length = at, len(memory)
                    data = &view[0] if len(memory) else <const uint8_t*>b""
                record = data + (at - base)
                if not holds(base, length, at, size) or not is_record(record, size, at) or not is_of(
                    record, size, &owner, number
                ):
                    wrong(number)
                    # Do not read the range that was just quarantined through the previous window.
                    base = length = 0
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
            return [], scanned, removed, 0
        body = PyBytes_FromStringAndSize(NULL, total)
        for number in range(runs):
            memcpy(PyBytes_AS_STRING(body) + filled, some[number].at, some[number].size)
            filled += some[number].size
        return [body], scanned, removed, found
    finally:
        PyMem_Free(some)


include "_responses.pxi"
